"""Pictures of an evaluation and of the theory behind it, drawn with matplotlib from plain data.

Each `draw_...` returns a figure; `save_all` computes and writes all that apply to an evaluation.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import require
from ..files.atomic import open_draft
from ..solver.params import check_count
from ..solver.result import Result
from ..tasks import Sampler, Tasks
from . import reliability, theory
from .methods import METHODS
from .reliability import Reliability
from .settings import name_settings
from .statistics import ci95, query_proportions
from .table import Evaluation, Row
from .theory import Convergence, Curvature, RiskBound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST, FEWEST = 200, 20  # tasks behind the pictures of the theory
WORK = (
    200 * 80 * 5
)  # of all these tasks, where samples times classes is the work of one: 5-way 1-shot has 80 * 5
ITERATIVE = ("tim-adm", "tim-gd", "alpha-tim")  # methods with curves of convergence
JUDGED = ("robust", "tim-adm")  # methods with a picture of their reliability
LARGEST_ANNOTATED = 10  # classes of a confusion matrix with its numbers written in

# Okabe and Ito's palette, which colour-blind people tell apart
BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
COLORS = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY)
GREY = "#666666"
DPI = 150


def save_all(
    evaluation: Evaluation,
    directory: str | os.PathLike[str],
    *,
    features: Tensor,
    sampler: Sampler | Mapping[str, Sampler],
    tasks: int | None = None,
) -> list[Path]:
    """Writes every picture that applies to an evaluation; returns the files, all PNG.

    Args:
        evaluation: what `tim_ext.evaluate` returned.
        directory: where to; made if need be. Files of the same name are replaced.
        features: the pool [M, d] that was evaluated. The pictures of the theory are computed on the CPU.
        sampler: the tasks that were evaluated, or those of each setting by its name.
        tasks: how many of them the pictures of the theory take; by default 200, and fewer of large ones.

    `accuracy.png` shows all settings. Each setting has its `convergence-...` with the TIM methods evaluated,
    its `reliability-...` with TIM-ADM and robust, where they were, its `confusion-...` at the initialisation
    where all tasks have the same number of classes, and its `eigenvalues-...` and `risk-...` over the
    iterations of TIM-ADM, with the hyper-parameters that it was evaluated with, or with the default ones if
    it was not.
    """
    directory, features = Path(directory), features.cpu()
    samplers = sampler if isinstance(sampler, Mapping) else name_settings([sampler])
    directory.mkdir(parents=True, exist_ok=True)
    written = [_write(draw_accuracies(evaluation.rows), directory / "accuracy.png")]
    for setting in evaluation.description["settings"]:
        name = setting["name"]
        if name in evaluation.accuracies:  # or else Ctrl-C came first
            for kind, figure in _theory(features, _choose(samplers[name], tasks), setting["methods"], name):
                written.append(_write(figure, directory / f"{kind}-{_slug(name)}.png"))
    return written


def _choose(sampler: Sampler, tasks: int | None) -> Tasks:
    if tasks is not None:
        return sampler[0 : check_count("tasks", tasks, at_least=2)]
    some = sampler[0:FEWEST]
    work = (
        sum(len(index) * len(classes) for index, classes in zip(some.index, some.classes, strict=True))
        / FEWEST
    )
    return sampler[0 : min(max(int(WORK / work), FEWEST), MOST)]


def _theory(
    features: Tensor, tasks: Tasks, methods: Mapping[str, Any], setting: str
) -> Iterator[tuple[str, Figure]]:
    title = f"{setting}, {len(tasks)} tasks"
    curves, adm = {}, None
    for label, description in methods.items():
        if description["method"] in ITERATIVE:
            solver, iterations = _solver(description["method"], description["hyper_parameters"], tasks)
            curves[label] = theory.convergence(features, tasks, solver, iterations=iterations)
            if description["method"] == "tim-adm" and adm is None:
                adm = solver, iterations
    if curves:
        yield "convergence", draw_convergence(curves, title)
    judged = {
        label: reliability.measure(features, tasks, _judged(description, tasks))
        for label, description in methods.items()
        if description["method"] in JUDGED
    }
    if judged:
        yield "reliability", draw_reliability(judged, title)

    solver, iterations = adm or _solver("tim-adm", {}, tasks)
    if isinstance(tasks.classes, Tensor):
        yield (
            "confusion",
            draw_confusion(*theory.initial_confusion(features, tasks, **solver.keywords), title),
        )
    curvature = theory.curvature(features, tasks, iterations=iterations, **solver.keywords)
    yield "eigenvalues", draw_eigenvalues(curvature, title)
    yield "risk", draw_risk(*theory.risk(features, tasks, solver, iterations=iterations), title)


def _judged(description: Mapping[str, Any], tasks: Tasks) -> Callable[..., Result]:
    """The method of one task of these after the other."""
    solver, iterations = _solver(description["method"], description["hyper_parameters"], tasks)
    told = isinstance(description["hyper_parameters"].get("class_prior"), str)  # each task its own
    priors = iter(solver.keywords["class_prior"]) if told else None

    def solve(*task: Any, **options: Any) -> Result:
        more = {} if priors is None else {"class_prior": next(priors)}
        result: Result = solver(*task, iterations=iterations, **more, **options)
        return result

    return solve


def _solver(name: str, given: Mapping[str, Any], tasks: Tasks) -> tuple[partial[Any], int]:
    """A method with its hyper-parameters, and apart from them its number of iterations."""
    hyper_parameters = METHODS[name].complete(given)
    if isinstance(hyper_parameters.get("class_prior"), str):  # "oracle"
        hyper_parameters["class_prior"] = query_proportions(tasks)
    iterations = hyper_parameters.pop("iterations")
    return partial(METHODS[name].function, **hyper_parameters), iterations


# The figures --------------------------------------------------------------------------------------


def draw_accuracies(rows: Sequence[Row]) -> Figure:
    """A bar for every method, with its 95 % confidence interval; one panel for every setting."""
    settings = {row.setting: [r for r in rows if r.setting == row.setting] for row in rows}
    bars = max(map(len, settings.values()))
    figure = _figure(width=7, height=0.7 + len(settings) * (0.7 + 0.32 * bars))
    axes = figure.subplots(len(settings), 1, squeeze=False)[:, 0]
    for axis, (setting, group) in zip(axes, settings.items(), strict=True):
        best = max(row.accuracy for row in group)
        for place, row in enumerate(group):
            color = BLUE if row.accuracy == best else SKY
            axis.barh(place, row.accuracy, height=0.7, color=color)
            interval = row.accuracy_ci95 or 0.0
            axis.errorbar(row.accuracy, place, xerr=interval, color="black", capsize=3, linewidth=1)
            text = f"{row.accuracy:.2f}" + ("" if row.accuracy_ci95 is None else f" ± {interval:.2f}")
            axis.annotate(
                text,
                (row.accuracy + interval, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axis.set_yticks(range(len(group)), [row.method for row in group])
        axis.invert_yaxis()
        axis.set_xlim(0, 122)  # room for the numbers
        axis.set_xticks(range(0, 101, 20))
        axis.set_title(f"{setting}, {group[0].tasks} tasks", fontsize=10, loc="left")
        _plain_axes(axis)
        axis.grid(visible=False, axis="y")
    axes[-1].set_xlabel("accuracy (%), with its 95 % confidence interval")
    return figure


def draw_convergence(curves: Mapping[str, Convergence], title: str = "") -> Figure:
    """Accuracy and mutual information against iterations and against time: means over tasks, 95 % bands."""
    figure = _figure(width=9, height=6.4, title=title)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for color, (label, curve) in zip(_colors(curves), curves.items(), strict=True):
        for row, values in enumerate((100 * curve.accuracy, curve.mutual_information)):
            for column, x in enumerate((curve.iterations, 1000 * curve.seconds)):
                _band(axes[row][column], x, values, color, label)
    largest = max(int(curve.iterations.max()) for curve in curves.values())
    axes[0][0].set_ylabel("accuracy (%)")
    axes[1][0].set_ylabel("mutual information (nats)")
    _iteration_axis(axes[1][0], largest)
    axes[1][1].set_xlabel("time per task (ms)")
    axes[1][1].set_xscale("log")
    axes[1][1].xaxis.set_major_formatter("{x:g}")
    for axis in axes.flat:
        _plain_axes(axis)
    _legend(figure, axes[0][0])
    return figure


def draw_reliability(judged: Mapping[str, Mapping[str, Reliability]], title: str = "") -> Figure:
    """A panel for each method: how often its predictions are right, against how sure it says it is."""
    figure = _figure(width=1 + 4.2 * len(judged), height=4.8, title=title)
    axes = figure.subplots(1, len(judged), squeeze=False, sharey=True)[0]
    for axis, (method, kinds) in zip(axes, judged.items(), strict=True):
        axis.plot([0, 100], [0, 100], ":", color=GREY, linewidth=1)
        errors = []
        for color, (kind, found) in zip(_colors(kinds), kinds.items(), strict=True):
            x, y = 100 * found.sure, 100 * found.right
            axis.plot(x.numpy(), y.numpy(), "-", color=color, linewidth=1.2, label=kind)
            axis.scatter(x.numpy(), y.numpy(), s=6 + 400 * found.size.numpy(), color=color, alpha=0.6)
            errors.append(f"{found.error:.1f} %")
        axis.set_title(f"{method}: calibration error {' and '.join(errors)}", fontsize=10, loc="left")
        axis.set_xlabel("said (%)")
        axis.set_xlim(0, 103)
        axis.set_ylim(0, 103)
        _plain_axes(axis)
    axes[0].set_ylabel("right (%)")
    _legend(figure, axes[0])
    return figure


def draw_confusion(confusion: Tensor, dominant: Tensor, title: str = "") -> Figure:
    """The mean confusion matrix [K, K], and in how many tasks [T] it is diagonal dominant."""
    classes = len(confusion)
    figure = _figure(width=5.6, height=5, title=title)
    axis = figure.subplots()
    image = axis.imshow(confusion.numpy(), vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(image, ax=axis, label="P(prediction = k | class = y)")
    if classes <= LARGEST_ANNOTATED:
        for y in range(classes):
            for k in range(classes):
                share = float(confusion[y, k])
                color = "white" if share > 0.5 else "black"
                axis.text(k, y, f"{share:.2f}", ha="center", va="center", color=color, fontsize=9)
    ticks = range(0, classes, 1 if classes <= LARGEST_ANNOTATED else 5)
    axis.set_xticks(ticks)
    axis.set_yticks(ticks)
    axis.set_xlabel("prediction k")
    axis.set_ylabel("class y")
    on_average = "" if bool(theory.diagonal_dominant(confusion)) else "not "
    axis.set_title(
        f"Confusion matrix at initialisation: on average {on_average}diagonal\n"
        f"dominant; task by task, in {_percent(dominant)} of them",
        fontsize=10,
    )
    return figure


def draw_eigenvalues(curvature: Curvature, title: str = "") -> Figure:
    """The largest eigenvalues over the iterations of TIM-ADM, and where they allow the descent argument."""
    figure = _figure(width=9, height=4.2, title=title)
    axes = figure.subplots(1, 2)
    panels = (
        ("support", "S", curvature.support, curvature.printed_support),
        ("query", "Q", curvature.query, curvature.printed_query),
    )
    for axis, (name, letter, values, printed) in zip(axes, panels, strict=True):
        _band(axis, curvature.iterations, values, VERMILION, "second derivative of the loss")
        _band(axis, curvature.iterations, printed, BLUE, "matrix as printed in the paper", style="--")
        axis.axhline(0, color=GREY, linewidth=1, linestyle=":")
        holds = _percent((values <= 0).all(dim=1))
        axis.set_title(
            f"$H_k^{letter}$ ({name}): never above 0 in {holds} of the tasks", fontsize=10, loc="left"
        )
        _iteration_axis(axis, int(curvature.iterations.max()))
        _plain_axes(axis)
    axes[0].set_ylabel("largest eigenvalue over all classes")
    _legend(figure, axes[0])
    return figure


def draw_risk(iterations: Tensor, risk: RiskBound, title: str = "") -> Figure:
    """The bounds on the risk against the error: medians over the iterations, and every task at the last."""
    figure = _figure(width=9, height=4.6, title=title)
    left, right = figure.subplots(1, 2)
    _quartiles(left, iterations, risk.error, "black", "measured error", style=":")
    error, promised = risk.error[:, -1], risk.decisions_dominant[:, -1]
    for label, values, color in (
        ("bound of the proposition", risk.bound, VERMILION),
        ("bound of its lemma, ½ [H(Y) - I(Y;Ŷ) + δ]", risk.lemma_bound, BLUE),
    ):
        _quartiles(left, iterations, values, color, label)
        for chosen, marker, size in ((promised, "o", 12), (~promised, "x", 24)):
            right.scatter(error[chosen], values[chosen, -1], s=size, marker=marker, color=color, alpha=0.7)
    for axis in (left, right):
        axis.axhline(1, color=GREY, linewidth=1, linestyle="--")
        axis.set_ylim(bottom=0)
        _plain_axes(axis)
    left.set_title("medians and quartiles; a bound above 1 says nothing", fontsize=10, loc="left")
    left.set_ylabel("error, or its bound")
    _iteration_axis(left, int(iterations.max()))
    right.axline((0, 0), slope=1, color="black", linestyle=":")
    largest = max(float(error.max()), 0.1)
    right.set_xlim(-0.02 * largest, 1.05 * largest)
    right.set_title(
        f"tasks at the last iteration; × not diagonal dominant ({_percent(~promised)})",
        fontsize=10,
        loc="left",
    )
    right.set_xlabel("measured error")
    _legend(figure, left)
    return figure


# Their parts --------------------------------------------------------------------------------------


def _figure(*, width: float, height: float, title: str = "") -> Figure:
    """Of its own, not of pyplot: no global state, and no window."""
    figure: Figure = require("matplotlib.figure", "evaluate").Figure(
        figsize=(width, height), layout="constrained"
    )
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _band(axis: Axes, x: Tensor, values: Tensor, color: str, label: str, style: str = "-") -> None:
    """The mean of values [T, C] at x [C], and its 95 % confidence interval."""
    mean = values.mean(dim=0)
    error = ci95(values)
    _curve(axis, x, mean - error, mean, mean + error, color, label, style)


def _quartiles(axis: Axes, x: Tensor, values: Tensor, color: str, label: str, style: str = "-") -> None:
    """The median of values [T, C] at x [C], and the quartiles: some of the values may be infinite."""
    points = torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype)
    low, median, high = values.quantile(points, dim=0, interpolation="nearest")
    _curve(axis, x, low, median, high, color, label, style)


def _curve(
    axis: Axes, x: Tensor, low: Tensor, middle: Tensor, high: Tensor, color: str, label: str, style: str
) -> None:
    axis.plot(x.numpy(), middle.numpy(), style, color=color, label=label, linewidth=1.6)
    axis.fill_between(x.numpy(), low.numpy(), high.numpy(), color=color, alpha=0.25, linewidth=0)


def _iteration_axis(axis: Axes, largest: int) -> None:
    """Logarithmic, with a place for 0."""
    axis.set_xlabel("iteration")
    axis.set_xscale("symlog", linthresh=1, linscale=0.5)
    ticks = [0, *(10**power for power in range(int(math.log10(max(largest, 1))) + 1))]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlim(0, max(largest, 1) * 1.05)


def _plain_axes(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_axisbelow(True)
    axis.grid(color="#DDDDDD", linewidth=0.6)


def _legend(figure: Figure, axis: Axes) -> None:
    """One for the whole figure, below it."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)


def _colors(curves: Mapping[str, Any]) -> list[str]:
    return [COLORS[place % len(COLORS)] for place in range(len(curves))]


def _percent(holds: Tensor) -> str:
    return f"{100 * holds.double().mean().item():.0f} %"


def _slug(name: str) -> str:
    """A setting's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _write(figure: Figure, path: Path) -> Path:
    with open_draft(path) as file:
        figure.savefig(file, format="png", dpi=DPI)
    return path
