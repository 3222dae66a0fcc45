"""The plots of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .analysis import Form, Report, Row, forms

OURS, OTHERS = "#c2410c", "#94a3b8"
COLOURS = ("#c2410c", "#0f766e", "#4338ca", "#a16207")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=150, metadata={"Software": None})
    _pyplot().close(figure)
    return path


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def readable(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:,.0f} min"


def bars(rows: Sequence[Row], title: str, path: Path) -> Path:
    """Time per task of each candidate, on a logarithmic axis; the first one is ours."""
    pyplot = _pyplot()
    values = [1e3 * row.per_task for row in rows]
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.32 * len(rows)))
    colours = [OURS if row.candidate.startswith("tim_ext") else OTHERS for row in rows]
    drawn = axes.barh([row.candidate for row in rows], values, color=colours)
    labels = [
        f" {readable(row.per_task)}"
        + ("" if row.candidate.startswith("tim_ext") else f"  ({rows[0].ratio / row.ratio:.3g} ×)")
        for row in rows
    ]
    axes.bar_label(drawn, labels)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 8)
    axes.invert_yaxis()
    axes.set_xlabel(f"milliseconds per task: {title}")
    _plain(axes)
    figure.tight_layout()
    return _save(figure, path)


def sweeps(report: Report, path: Path) -> Path | None:
    """Time per task against each quantity that was varied."""
    chosen = {
        name: [row for row in rows if row.device == "cpu"]
        for name, rows in report.comparisons("sweep").items()
        if name not in ("threads", "types")
    }
    if not chosen:
        return None
    pyplot = _pyplot()
    figure, grid = pyplot.subplots(2, 3, figsize=(9, 5))
    for axes, (name, rows) in zip(grid.flat, chosen.items(), strict=False):
        x = [next(iter(row.x.values())) for row in rows]
        y = [1e3 * (row.seconds if name == "tasks" else row.per_task) for row in rows]
        axes.loglog(x, y, "o-", color=OURS)
        axes.set_xticks(x, [f"{value:,.0f}" for value in x], fontsize=7)  # of a logarithmic axis they overlap
        axes.set_xticks([], minor=True)
        axes.set_xlabel(name)
        axes.set_ylabel("ms in all" if name == "tasks" else "ms per task")
        axes.grid(alpha=0.3)
        _plain(axes)
    for axes in list(grid.flat)[len(chosen) :]:
        axes.set_visible(False)
    figure.tight_layout()
    return _save(figure, path)


def crossings(report: Report, path: Path) -> Path | None:
    """Dual over primal against N / d: above 1 the primal form is faster. Ring: `auto` takes the dual form."""
    places: list[Form] = forms(report)
    dims = sorted({place.dim for place in places})
    if len(places) < 10:
        return None
    pyplot = _pyplot()
    kinds = sorted({(place.ways, place.iterations) for place in places})
    figure, grid = pyplot.subplots(1, len(kinds), figsize=(2.6 * len(kinds), 3), sharey=True)
    for axes, (ways, iterations) in zip(grid, kinds, strict=True):
        for dim, colour in zip(dims, COLOURS, strict=False):
            line = sorted(
                (p for p in places if (p.dim, p.ways, p.iterations) == (dim, ways, iterations)),
                key=lambda place: place.samples,
            )
            x, y = [p.samples / dim for p in line], [p.dual / p.primal for p in line]
            axes.loglog(x, y, color=colour, label=f"d = {dim}")
            for p, a, b in zip(line, x, y, strict=True):
                axes.plot(a, b, "o", color=colour, mfc="white" if p.picks_dual else colour)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_title(f"K = {ways}, {iterations} iterations", fontsize=9)
        axes.set_xlabel("N / d")
        _plain(axes)
    grid[0].set_ylabel("time of dual / time of primal")
    grid[-1].legend(fontsize=7)
    figure.tight_layout()
    return _save(figure, path)


def roofline(report: Report, peaks: dict[int, float], streams: dict[int, float], path: Path) -> Path | None:
    """Multiply-adds per second against multiply-adds per byte, under what the machine can do."""
    rows = [row for group in ("adm", "gd", "steps") for row in report.of(group) if row.multiply_adds]
    if not rows or not peaks or not streams:
        return None
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for (threads, peak), style in zip(sorted(peaks.items()), ("--", "-"), strict=False):
        stream = streams[threads]
        x = [0.05, peak / stream, 1e5]
        label = f"{threads} thread{'s' * (threads > 1)}: {peak / 1e9:.0f} G/s, {stream / 1e9:.0f} GB/s"
        axes.loglog(x, [min(peak, value * stream) / 1e9 for value in x], style, color="black", label=label)
    kinds = {"adm": ("o", "TIM-ADM"), "gd": ("s", "TIM-GD"), "steps": ("^", "step operators")}
    for group, (marker, name) in kinds.items():
        for threads, colour in ((2, OURS), (1, "#4338ca")):
            chosen = [row for row in rows if row.group == group and (row.threads > 1) == (threads > 1)]
            x = [row.multiply_adds / row.bytes for row in chosen]
            y = [row.multiply_adds / row.seconds / 1e9 for row in chosen]
            if chosen:
                label = f"{name}, {threads} thread{'s' * (threads > 1)}"
                axes.loglog(x, y, marker, color=colour, label=label)
            for place, row in enumerate(chosen):
                if group == "steps":  # the others are on the page in the same order, and close together
                    offset = (6, 3 - 9 * (place % 2))
                    axes.annotate(
                        row.comparison,
                        (x[place], y[place]),
                        fontsize=6,
                        xytext=offset,
                        textcoords="offset points",
                    )
    axes.set_xlabel("multiply-adds per byte of features and results")
    axes.set_ylabel("G multiply-adds per second")
    axes.set_ylim(bottom=1)
    axes.legend(fontsize=8, loc="lower right")
    _plain(axes)
    figure.tight_layout()
    return _save(figure, path)
