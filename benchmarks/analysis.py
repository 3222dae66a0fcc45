"""From a pytest-benchmark JSON to what the report says: rows, growth, crossings, regressions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

NOISE = 0.10  # a smaller change is never called one
SIGMAS = 4.0


@dataclass(frozen=True)
class Row:
    """One candidate of one comparison; `seconds` of a call, `ratio` the reference's time over its own."""

    group: str  # adm, gd, steps, evaluation, sweep, forms, paper, machine
    comparison: str
    candidate: str
    device: str
    reference: str
    seconds: float
    ratio: float
    ratio_error: float
    tasks: int
    threads: int
    multiply_adds: float
    bytes: float
    share: float | None  # of the multiply-add peak
    headline: bool
    note: str
    x: dict[str, float]
    rounds: int

    @property
    def per_task(self) -> float:
        return self.seconds / self.tasks

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.group, self.comparison, self.candidate, self.device

    @property
    def ours(self) -> bool:
        """Whether to watch it: in the groups forms and paper all is tim_ext, and nothing to compare with."""
        return self.candidate.startswith("tim_ext") or self.group == "sweep"


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    machine: dict[str, Any]
    commit: dict[str, Any]
    when: str

    def of(self, group: str, device: str | None = "cpu") -> list[Row]:
        return [row for row in self.rows if row.group == group and device in (None, row.device)]

    def comparisons(self, group: str) -> dict[str, list[Row]]:
        """By comparison, in the order they were measured; CUDA rows after the others."""
        found: dict[str, list[Row]] = {}
        for row in self.of(group, None):
            found.setdefault(row.comparison, []).append(row)
        return found

    def seconds(self, group: str, comparison: str, candidate: str) -> float | None:
        for row in self.rows:
            if row.key == (group, comparison, candidate, "cpu"):
                return row.seconds
        return None


def load(path: Path) -> Report:
    try:
        data = json.loads(path.read_text())
        rows = [_row(benchmark) for benchmark in data["benchmarks"]]
        return Report(rows, data["machine_info"], data["commit_info"], data["datetime"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        detail = f"{type(error).__name__}: {error}"
        raise SystemExit(f"{path}: expected the JSON of an earlier report, got {detail}") from error


def _row(benchmark: dict[str, Any]) -> Row:
    info, stats = benchmark["extra_info"], benchmark["stats"]
    return Row(
        group=benchmark["group"].split(":")[0],
        comparison=info["comparison"],
        candidate=info["candidate"],
        device=info["device"],
        reference=info["reference"],
        seconds=stats["median"],
        ratio=info["ratio"],
        ratio_error=info["ratio_error"],
        tasks=info["tasks"],
        threads=info["threads"],
        multiply_adds=info["multiply_adds"],
        bytes=info["bytes"],
        share=info["share"],
        headline=info["headline"],
        note=info["note"],
        x=info["x"],
        rounds=stats["rounds"],
    )


# Growth -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """seconds = base + slope * x, by least squares of relative errors; `worst` is the largest of them."""

    base: float
    slope: float
    worst: float


def fit_line(x: Sequence[float], seconds: Sequence[float]) -> Line:
    # minimise sum ((a + b x_i) / t_i - 1)^2: two equations in a and b
    u, v = [1 / t for t in seconds], [xi / t for xi, t in zip(x, seconds, strict=True)]
    uu, uv, vv = (_dot(u, u), _dot(u, v), _dot(v, v))
    determinant = uu * vv - uv * uv
    if determinant <= 0:
        raise ValueError("a line needs two different places")
    base = (sum(u) * vv - sum(v) * uv) / determinant
    slope = (sum(v) * uu - sum(u) * uv) / determinant
    worst = max(abs((base + slope * xi) / t - 1) for xi, t in zip(x, seconds, strict=True))
    return Line(base, slope, worst)


def exponent(x: Sequence[float], seconds: Sequence[float]) -> float:
    """e of seconds ~ x^e, by least squares of the logarithms."""
    lx, ly = [math.log(value) for value in x], [math.log(value) for value in seconds]
    mx, my = sum(lx) / len(lx), sum(ly) / len(ly)
    above = _dot([a - mx for a in lx], [b - my for b in ly])
    return above / _dot([a - mx for a in lx], [a - mx for a in lx])


def _dot(a: Iterable[float], b: Iterable[float]) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))


# The two forms of the solver ----------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A place of the grid: seconds of both forms, and which one `auto` takes."""

    samples: int
    dim: int
    ways: int
    iterations: int
    dual: float
    primal: float
    picks_dual: bool

    @property
    def loss(self) -> float:
        """How much longer `auto` takes than the better form: 0 where it picks that one."""
        picked = self.dual if self.picks_dual else self.primal
        return picked / min(self.dual, self.primal) - 1


def forms(report: Report) -> list[Form]:
    found = []
    for rows in report.comparisons("forms").values():
        by = {row.candidate: row for row in rows}
        x, primal = by["auto"].x, by["primal"].seconds
        dual = (
            primal * by["primal"].ratio
        )  # the median of the ratios within turns: the reference is the dual form
        found.append(
            Form(
                int(x["N"]),
                int(x["d"]),
                int(x["K"]),
                int(x["iterations"]),
                dual,
                primal,
                bool(x["picks_dual"]),
            )
        )
    return found


def crossing(places: Sequence[Form]) -> float | None:
    """N at which both forms take equally long, between the places of one line of the grid; None: nowhere."""
    line = sorted(places, key=lambda place: place.samples)
    for before, after in pairwise(line):
        low, high = math.log(before.dual / before.primal), math.log(after.dual / after.primal)
        if low <= 0 < high:
            share = -low / (high - low)
            return before.samples * (after.samples / before.samples) ** share
    return None


# Regressions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Of a row of tim_ext between two reports: its speed relative to the reference of the same run counts."""

    row: Row
    before: float
    after: float
    noise: float

    @property
    def factor(self) -> float:
        return self.after / self.before

    @property
    def slower(self) -> bool:
        return self.factor < 1 / (1 + self.noise)

    @property
    def faster(self) -> bool:
        return self.factor > 1 + self.noise


def changes(old: Report, new: Report) -> list[Change]:
    """Ratios to the reference of the same turn; within a sweep, where all is tim_ext, shares of the peak."""
    before = {row.key: row for row in old.rows}
    found = []
    for row in new.rows:
        other = before.get(row.key)
        if other is None or not row.ours:
            continue
        if row.group == "sweep":
            if row.share and other.share:
                found.append(Change(row, other.share, row.share, 2 * NOISE))
        elif row.candidate != row.reference and other.reference == row.reference:
            error = math.hypot(row.ratio_error / row.ratio, other.ratio_error / other.ratio)
            found.append(Change(row, other.ratio, row.ratio, max(NOISE, SIGMAS * error)))
    return found
