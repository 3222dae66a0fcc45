"""Measures tim_ext beside everything a user would pick instead, and turns the numbers into a report.

    python -m benchmarks.report                     the quick profile: under 3 minutes
    python -m benchmarks.report --profile full      with the sweeps, into docs/performance.md and docs/images
    python -m benchmarks.report --compare OLD.json  what became slower or faster since an earlier report

Into --out go report.json (pytest-benchmark's format), report.md, the plots and the log of pytest. The exit
code is 1 if a candidate disagrees, or if --compare finds something slower than noise explains.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tim_ext.evaluation.paper_tables import RUN_TIMES
from tim_ext.files.atomic import write_atomically

from . import figures
from .analysis import Change, Form, Report, Row, changes, crossing, exponent, fit_line, forms, load
from .figures import readable

ROOT = Path(__file__).parent.parent
PAGE, IMAGES = ROOT / "docs" / "performance.md", ROOT / "docs" / "images"
BEGIN, END = "<!-- made by benchmarks.report: begin -->", "<!-- end -->"
HEADLINE = "200 tasks, 5-way 5-shot, d = 640"  # the plot of the README
ENOUGH = 0.10  # `auto` may lose this much to the better form


# The run ------------------------------------------------------------------------------------------


class Progress:
    """A bar on stderr: one step for every test, the name of the running one beside it."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.failures: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from tqdm import tqdm

        self.bar = tqdm(total=len(session.items), unit="", file=sys.stderr, dynamic_ncols=True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(nodeid.partition("[")[2].rpartition(":")[0][:60])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failures.append(str(crash.message if crash else report.longrepr).splitlines()[0])
        if report.when == "teardown" and self.bar is not None:
            self.bar.update()

    def pytest_sessionfinish(self) -> None:
        if self.bar is not None:
            self.bar.close()


def run(profile: str, out: Path) -> Path:
    """Runs the suites; returns the JSON."""
    path = out / "report.json"
    temporary = out / "report.json.part"
    arguments = [
        str(Path(__file__).parent),
        f"--rootdir={ROOT}",
        f"--ignore={Path(__file__).with_name('test_report.py')}",  # measures nothing
        f"--profile={profile}",
        "--benchmark-enable",
        f"--benchmark-json={temporary}",
        "--benchmark-columns=median,iqr,rounds",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    progress, log = Progress(), io.StringIO()
    with contextlib.redirect_stdout(log):
        code = pytest.main(arguments, plugins=[progress])
    (out / "pytest.log").write_text(log.getvalue())
    if code != 0:
        reasons = "\n".join(dict.fromkeys(progress.failures)) or f"see {out / 'pytest.log'}"
        raise SystemExit(f"the benchmarks did not run through (pytest exit code {int(code)}):\n{reasons}")
    os.replace(temporary, path)
    return path


# Markdown -----------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def on(row: Row) -> str:
    return row.candidate + ("" if row.device == "cpu" else f" ({row.device})")


def own_row(rows: list[Row], device: str) -> Row | None:
    return next((r for r in rows if r.candidate.startswith("tim_ext") and r.device == device), None)


def times_slower(row: Row, rows: list[Row]) -> str:
    """Than tim_ext on the same device, from ratios within turns."""
    own = own_row(rows, row.device)
    return "" if own is None or own is row else f"{own.ratio / row.ratio:.3g} ×"


def duel(rows: list[Row]) -> str:
    """tim_ext and its rivals."""
    lines = []
    for row in rows:
        name = f"**{on(row)}**" if row.candidate.startswith("tim_ext") else on(row)
        lines.append([name, readable(row.per_task), times_slower(row, rows), percent(row.share)])
    return table(["", "per task", "slower than tim_ext", "share of the peak"], lines)


def machine(report: Report) -> str:
    info, cpu = report.machine, report.machine.get("cpu", {})
    text = (
        f"{cpu.get('brand_raw', 'unknown processor')}, {info['cores']} threads, {info['instructions']} "
        f"kernels, torch {info['torch']}, tim_ext {info['tim_ext']}, {report.when[:10]}"
    )
    if info.get("gpu"):
        text += f", {info['gpu']} (times from an idle device to an idle device)"
    lines = []
    for threads in sorted(peaks(report)):
        lines.append(
            [
                str(threads),
                f"{peaks(report)[threads] / 1e9:.1f} G/s",
                f"{peaks(report, 'float64')[threads] / 1e9:.1f} G/s",
                f"{streams(report, 'copy')[threads] / 1e9:.1f} GB/s",
                f"{streams(report)[threads] / 1e9:.1f} GB/s",
            ]
        )
    head = ["threads", "multiply-adds, float32", "float64", "memory: copy", "memory: triad"]
    return f"{text}.\n\n{table(head, lines)}"


def peaks(report: Report, dtype: str = "float32") -> dict[int, float]:
    rows = [row for row in report.of("machine") if row.candidate.startswith(f"multiply-adds, {dtype}")]
    return {row.threads: row.multiply_adds / row.seconds for row in rows}


def streams(report: Report, kind: str = "triad") -> dict[int, float]:
    rows = [row for row in report.of("machine") if row.candidate.startswith(kind)]
    return {row.threads: row.bytes / row.seconds for row in rows}


def solvers(report: Report, group: str) -> str:
    return "\n\n".join(f"{name}:\n\n{duel(rows)}" for name, rows in report.comparisons(group).items())


def steps(report: Report) -> str:
    lines = []
    for rows in report.comparisons("steps").values():
        for row in rows:
            if row.candidate != "torch":
                other = next(r for r in rows if r.candidate == "torch" and r.device == row.device)
                rate = f"{row.bytes / row.seconds / 1e9:.3g} GB/s"
                ratio = f"{row.ratio:.3g} ×"
                lines.append(
                    [
                        on(row),
                        readable(row.per_task),
                        readable(other.per_task),
                        ratio,
                        percent(row.share),
                        rate,
                    ]
                )
    head = ["operator", "per task", "torch", "torch is slower", "share of the peak", "memory"]
    return table(head, lines)


def evaluation(report: Report) -> str:
    lines = []
    for name, rows in report.comparisons("evaluation").items():
        for row in rows:
            note = "" if own_row([row], "cpu") else row.note
            lines.append([name, on(row), readable(row.per_task), times_slower(row, rows), note])
    return table(["method", "", "per task", "slower than tim_ext", ""], lines)


def sweep(report: Report) -> str:
    parts = []
    for name, rows in report.comparisons("sweep").items():
        for device in dict.fromkeys(row.device for row in rows):
            chosen = [row for row in rows if row.device == device]
            head = [name, *(row.candidate for row in chosen)]
            lines = [["per task", *(readable(row.per_task) for row in chosen)]]
            if any(row.share for row in chosen):
                lines.append(["share of the peak", *(percent(row.share) for row in chosen)])
            parts.append(table(head, lines) + "\n\n" + growth(name, chosen))
    return "\n\n".join(parts)


def growth(name: str, rows: list[Row]) -> str:
    shape = "5-way, 5-shot, 15 queries per class, d = 640 where not varied"
    if name == "types":
        return f"50 tasks; {shape}. Half types are computed in float32."
    x, seconds = [next(iter(row.x.values())) for row in rows], [row.seconds for row in rows]
    if len(x) < 2:
        return f"{shape}."
    if name == "threads":
        return f"200 tasks: {seconds[0] / seconds[-1]:.2f} times as fast on {x[-1]:.0f} threads as on one."
    if name == "tasks":
        line = fit_line(x, seconds)
        return (
            f"Linear: {readable(max(line.base, 0))} + {readable(line.slope)} per task, within "
            f"{line.worst:.0%} at every place; the exponent from {x[1]:,.0f} tasks on is "
            f"{exponent(x[1:], seconds[1:]):.2f}."
        )
    overall, end = exponent(x, seconds), exponent(x[-2:], seconds[-2:])
    return f"Time grows as {name}^{overall:.2f} over all, and as {name}^{end:.2f} at the end."


def two_forms(places: list[Form]) -> str:
    if len(places) < 10:
        return ""
    kinds = sorted({(place.ways, place.iterations) for place in places})
    dims = sorted({place.dim for place in places})
    lines = []
    for dim in dims:
        cells = []
        for kind in kinds:
            line = [place for place in places if (place.dim, place.ways, place.iterations) == (dim, *kind)]
            at = crossing(line)
            beyond = "below" if line[0].dual > line[0].primal else "above"
            edge = min if beyond == "below" else max
            cells.append(f"{at:.0f}" if at else f"{beyond} {edge(place.samples for place in line)}")
        lines.append([str(dim), *cells])
    text = table(["d", *(f"K = {ways}, {iterations} iterations" for ways, iterations in kinds)], lines)
    bad = sorted((place for place in places if place.loss > ENOUGH), key=lambda place: -place.loss)
    worst = max(places, key=lambda place: place.loss)
    verdict = (
        f"`auto` picks the better form, or one within {ENOUGH:.0%} of it, at all {len(places)} places "
        f"measured; the largest loss is {worst.loss:.0%}."
        if not bad
        else f"`auto` loses more than {ENOUGH:.0%} at {len(bad)} of {len(places)} places: "
        + "; ".join(
            f"{place.loss:.0%} at N = {place.samples}, d = {place.dim}, K = {place.ways}, "
            f"{place.iterations} iterations ({'dual' if place.picks_dual else 'primal'})"
            for place in bad[:8]
        )
        + "."
    )
    return f"N from which the primal form is faster (one task, one thread):\n\n{text}\n\n{verdict}"


def paper(report: Report) -> str:
    found = report.comparisons("paper")
    columns = [name for name in found if name.endswith("at a time")]
    lines = []
    for line in RUN_TIMES.lines:
        if line is None:
            continue
        method, published = line.heads[0], float(line.published[0])
        cells = [readable(published)]
        for device in dict.fromkeys(row.device for row in report.of("paper", None)):
            for name in columns:
                times = {row.candidate: row.per_task for row in found[name] if row.device == device}
                cells.append(
                    readable(times[method]) if method in times else entropy_min(report, name, device)
                )
        lines.append([method, line.heads[1], *cells])
    devices = dict.fromkeys(row.device for row in report.of("paper", None))
    head = ["method", "trains", "published: GTX 1080 Ti"]
    head += [f"here: {device}, {name}" for device in devices for name in columns]
    return table(head, lines) + entropy_min_note(report)


def _entropy_min(report: Report, device: str = "cpu") -> tuple[float, int] | None:
    rows = [r for r in report.of("paper", device) if r.comparison.startswith("entropy minimisation")]
    if len(rows) != 2:
        return None
    none, one = sorted(rows, key=lambda row: row.x["steps"])
    return one.seconds - none.seconds, int(one.x["images"])


def entropy_min(report: Report, column: str, device: str) -> str:
    from .test_paper import ALL_IMAGES, STEPS

    measured = _entropy_min(report, device)
    if measured is None or column != "one task at a time":
        return ""
    seconds, images = measured
    return f"about {readable(seconds / images * ALL_IMAGES * STEPS)} (extrapolated)"


def entropy_min_note(report: Report) -> str:
    from .test_paper import ALL_IMAGES, STEPS

    measured = _entropy_min(report)
    if measured is None:
        return "\n\nEnt-min with the whole network is measured in the full profile only."
    seconds, images = measured
    return (
        f"\n\nEnt-min was not run as a whole: one step of WRN-28-10 on {images} images of 84 x 84 takes "
        f"{readable(seconds)} here, and the figure is that times {ALL_IMAGES}/{images} images and {STEPS} "
        "steps. The published times are of another machine and say nothing about this one."
    )


def compared(found: list[Change], old: Path) -> str:
    if not found:
        return f"Nothing in {old.name} can be compared with this run."
    lines = []
    for change in sorted(found, key=lambda change: change.factor):
        if change.row.headline or change.slower or change.faster:
            verdict = "SLOWER" if change.slower else "faster" if change.faster else ""
            what = f"{change.row.group}: {change.row.comparison}: {on(change.row)}"
            cells = [f"{change.before:.3g}", f"{change.after:.3g}", f"{change.factor - 1:+.0%}"]
            lines.append([what, *cells, f"{change.noise:.0%}", verdict])
    headlines = [abs(change.factor - 1) for change in found if change.row.headline]
    text = table(["ratio to the reference of its run", "before", "now", "change", "noise", ""], lines)
    return f"{text}\n\nLargest change of a headline ratio: {max(headlines, default=0):.0%}."


# The report ---------------------------------------------------------------------------------------


def sections(report: Report) -> Iterator[tuple[str, str]]:
    parts: list[tuple[str, Callable[[], str]]] = [
        ("The machine", lambda: machine(report)),
        ("TIM-ADM, 150 iterations", lambda: solvers(report, "adm")),
        ("TIM-GD", lambda: solvers(report, "gd")),
        ("Step operators, 200 tasks", lambda: steps(report)),
        ("Evaluation from a pool of features, one thread", lambda: evaluation(report)),
        ("How the time of TIM-ADM grows", lambda: sweep(report)),
        ("Dual and primal form", lambda: two_forms(forms(report))),
        ("The paper's run-times: seconds per 5-way 5-shot task, 640-d", lambda: paper(report)),
    ]
    for title, make in parts:
        text = make()
        if text:
            yield title, text


def plots(report: Report, folder: Path) -> dict[str, Path]:
    """By the section that they belong to."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, rows in report.comparisons("adm").items():
        if name.startswith(HEADLINE):
            chosen = [row for row in rows if row.device == "cpu" and row.candidate != "nearest prototype"]
            title = f"TIM-ADM, {name}"
            found["TIM-ADM"] = figures.bars(chosen, title, folder / "adm.png")
    others = {
        "The machine": figures.roofline(report, peaks(report), streams(report), folder / "roofline.png"),
        "How the time": figures.sweeps(report, folder / "sweeps.png"),
        "Dual and primal": figures.crossings(report, folder / "forms.png"),
    }
    return found | {section: path for section, path in others.items() if path}


def markdown(report: Report, images: dict[str, str], profile: str) -> str:
    parts = [
        f"Measured by `python -m benchmarks.report --profile {profile}`; every ratio is between candidates "
        "that took turns in this one run, the median over the turns."
    ]
    for title, text in sections(report):
        parts.append(f"### {title}\n\n{text}")
        parts += [f"![{title}]({path})" for section, path in images.items() if title.startswith(section)]
    return "\n\n".join(parts)


def write_page(text: str) -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    write_atomically(PAGE, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", choices=["quick", "full"], default="quick")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="report.json of an earlier run")
    parser.add_argument("--out", type=Path, default=ROOT / ".benchmarks", metavar="DIR", help="(.benchmarks)")
    parser.add_argument(
        "--docs",
        action=argparse.BooleanOptionalAction,
        help="write docs/performance.md and docs/images (default: only in the full profile)",
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="JSON", help="measure nothing: use this run"
    )
    options = parser.parse_args(arguments)
    old = load(options.compare) if options.compare else None  # before half an hour of measuring
    options.out.mkdir(parents=True, exist_ok=True)
    report = load(options.source or run(options.profile, options.out))

    images = plots(report, options.out)
    text = markdown(report, {title: path.name for title, path in images.items()}, options.profile)
    found = changes(old, report) if old else []
    if old:
        text += f"\n\n### Compared with {options.compare.name}\n\n{compared(found, options.compare)}"
    write_atomically(options.out / "report.md", text + "\n")
    if options.profile == "full" if options.docs is None else options.docs:
        images = plots(report, IMAGES)
        page = markdown(report, {t: f"images/{path.name}" for t, path in images.items()}, options.profile)
        write_page(page)
    print(text)
    slower = [change for change in found if change.slower]
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
