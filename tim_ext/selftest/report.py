"""The parts of the self-test in their order, and what they found: as data and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .cases import Case, cases
from .checks import (
    Finding,
    LostDeviceError,
    check_determinism,
    check_devices,
    check_graphs,
    check_kernels,
    check_memory,
    check_streams,
    guarded,
)
from .device import Device
from .sanitizer import check_with_sanitizer
from .timing import Load, Time, loads, measure

CHECKS: dict[str, Callable[[Device, Sequence[Case]], Iterator[Finding]]] = {
    "kernels": check_kernels,
    "determinism": check_determinism,
    "graphs": check_graphs,
    "streams": check_streams,
    "devices": check_devices,
    "memory": check_memory,
    "sanitizer": lambda device, _: check_with_sanitizer(device.where.index or 0),
}
TIMES = "times"
PARTS = (*CHECKS, TIMES)


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    times: list[Time] = field(default_factory=list)
    lost: str = ""  # why the rest was not run

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.state == "failed"]

    @property
    def passed(self) -> bool:
        return not self.failed and not self.lost

    def as_data(self) -> dict[str, Any]:
        rows = [asdict(finding) for finding in self.findings]
        for row in rows:
            if row["error"] is not None and not math.isfinite(row["error"]):
                row["error"] = str(row["error"])  # JSON has no infinity
        return {
            "passed": self.passed,
            "lost": self.lost,
            "findings": rows,
            "times": [asdict(time) for time in self.times],
        }


def run(
    device: Device,
    parts: Sequence[str] = PARTS,
    *,
    quick: bool = False,
    of: Sequence[Case] | None = None,
    measured: Sequence[Load] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """`of` and `measured`: other cases and loads than all there are. `say` gets a line before each part."""
    report = Report()
    chosen = cases(quick=quick) if of is None else of
    found = {name: CHECKS[name](device, chosen) for name in CHECKS}
    found[TIMES] = _timed(device, loads() if measured is None else measured, report.times)
    try:
        for part in (name for name in found if name in parts):
            say(f"{part} ...")
            for finding in found[part]:
                report.findings.append(finding)
    except LostDeviceError as error:
        report.lost = str(error)
    return report


def _timed(device: Device, loads: Sequence[Load], times: list[Time]) -> Iterator[Finding]:
    def take(device: Device, about: Finding, load: Load) -> Finding:
        times.append(measure(device, load))
        return about

    for load in loads:
        yield guarded(take, device, Finding(TIMES, load.name, load.shape.name), load)


def _summary(part: str, findings: Sequence[Finding]) -> str:
    counts = {state: sum(f.state == state for f in findings) for state in ("passed", "failed", "skipped")}
    errors = [f.error for f in findings if f.error is not None]
    ratios = [f.error / f.allowed for f in findings if f.error is not None and f.allowed]
    text = f"{part:<12} " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return text + (
        f"; largest error {max(errors):.1e}, {max(ratios):.2g} of what is allowed" if ratios else ""
    )


def as_text(report: Report) -> str:
    """What did not pass, the largest errors first, and the times."""
    lines = []
    for part in dict.fromkeys(finding.part for finding in report.findings):
        lines.append(_summary(part, [finding for finding in report.findings if finding.part == part]))
    for finding in sorted(report.failed, key=lambda f: -(f.error or 0)):
        lines.append(f"failed: {_line(finding)}")
    lines += [f"skipped: {_line(finding)}" for finding in report.findings if finding.state == "skipped"]
    if report.times:
        lines += ["", f"{'us per task':>12}  {'tasks':>6}  of"]
        lines += [f"{t.seconds * 1e6:12.2f}  {t.tasks:6}  {t.name}, {t.shape}" for t in report.times]
        lines.append("")
    if report.lost:
        lines.append(f"the device does not answer any more, the rest was not run; after {report.lost}")
    return "\n".join([*lines, "passed" if report.passed else "FAILED"])


def _line(finding: Finding) -> str:
    what = ", ".join(filter(None, [finding.part, finding.name, finding.variant]))
    error = "" if finding.error is None else f", error {finding.error:.1e}, allowed {finding.allowed:.0e}"
    return f"{what}{error}: {finding.message}"
