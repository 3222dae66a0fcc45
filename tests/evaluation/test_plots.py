"""Pictures: that they show the numbers they were given, and that files are written whole or not at all."""

from __future__ import annotations

import math
import sys
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch import Tensor

import tim_ext
from tim_ext import tasks as samplers
from tim_ext.evaluation import theory
from tim_ext.evaluation.compare import evaluate
from tim_ext.evaluation.methods import METHODS, Method
from tim_ext.evaluation.reliability import reliability
from tim_ext.evaluation.settings import name_settings
from tim_ext.evaluation.statistics import query_proportions
from tim_ext.evaluation.table import Row

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from tim_ext.evaluation import plots

PNG = b"\x89PNG\r\n\x1a\n"
FEW = {"tim-adm": {"iterations": 6}, "tim-gd": {"iterations": 4, "lr": 1e-3}}


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "DPI", 30)  # quick to draw


@pytest.fixture(scope="module")
def pool() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(480) % 12
    means = torch.randn(12, 32, generator=generator)
    return means[labels] + 1.5 * torch.randn(480, 32, generator=generator), labels


def texts(figure: Figure) -> str:
    axes = figure.axes
    parts = [axis.get_title(loc=loc) for axis in axes for loc in ("left", "center")]
    parts += [text.get_text() for axis in axes for text in axis.texts]
    return " ".join(parts)


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends  # one for the figure, and none in its axes
    assert all(axis.get_legend() is None for axis in figure.axes)
    return [text.get_text() for text in legend.get_texts()]


def row(setting: str, method: str, accuracy: float, ci95: float | None) -> Row:
    return Row(
        setting=setting,
        method=method,
        accuracy=accuracy,
        accuracy_ci95=ci95,
        difference=None,
        difference_ci95=None,
        seconds_per_task=0.1,
        tasks=7,
        tasks_asked=7,
    )


def test_bars_are_the_accuracies() -> None:
    rows = [row("a", "one", 60.0, 1.5), row("a", "two", 75.5, 0.5), row("b", "one", 33.3, None)]
    figure = plots.draw_accuracies(rows)
    upper, lower = figure.axes
    assert [bar.get_width() for bar in upper.patches] == [60.0, 75.5]
    assert [label.get_text() for label in upper.get_yticklabels()] == ["one", "two"]
    assert upper.yaxis_inverted()  # the first method on top
    assert [text.get_text() for text in upper.texts] == ["60.00 ± 1.50", "75.50 ± 0.50"]
    assert [text.get_text() for text in lower.texts] == ["33.30"]
    ends = [tuple(line.get_xdata()) for line in upper.lines if len(line.get_xdata()) == 1]
    assert {end for (end,) in ends} >= {58.5, 61.5, 75.0, 76.0}  # the caps of the intervals
    assert "a, 7 tasks" in texts(figure)


def test_convergence_shows_means_and_intervals() -> None:
    generator = torch.Generator().manual_seed(1)
    accuracy = torch.rand(9, 3, generator=generator, dtype=torch.float64)
    information = torch.rand(9, 3, generator=generator, dtype=torch.float64)
    seconds = torch.tensor([0.001, 0.002, 0.004]).double()
    curve = theory.Convergence(torch.tensor([0, 1, 10]), seconds, accuracy, information)
    figure = plots.draw_convergence({"first": curve, "second": curve}, "a title")
    assert legend_of(figure) == ["first", "second"]
    for axis, x, values in zip(
        figure.axes,
        ([0, 1, 10], [1, 2, 4], [0, 1, 10], [1, 2, 4]),
        (100 * accuracy, 100 * accuracy, information, information),
        strict=True,
    ):
        line, band = axis.lines[0], axis.collections[0]
        torch.testing.assert_close(torch.tensor(line.get_xdata()).double(), torch.tensor(x).double())
        torch.testing.assert_close(torch.tensor(line.get_ydata()), values.mean(dim=0))
        error = 1.96 * values.std(dim=0) / 3
        heights = torch.tensor(band.get_paths()[0].vertices[:, 1])
        assert heights.max().item() == pytest.approx((values.mean(dim=0) + error).max().item(), rel=1e-4)
        assert heights.min().item() == pytest.approx((values.mean(dim=0) - error).min().item(), rel=1e-4)
    assert [axis.get_ylabel() for axis in figure.axes[::2]] == ["accuracy (%)", "mutual information (nats)"]
    assert figure.axes[2].get_xlabel() == "iteration"
    assert figure.axes[3].get_xlabel() == "time per task (ms)"
    assert figure.get_suptitle() == "a title"


def test_reliability_shows_what_was_said_and_what_was_right() -> None:
    draw = torch.Generator().manual_seed(2)
    sure = torch.rand(500, generator=draw)
    kinds = {
        "p": reliability(sure, sure > 0.3),
        "c": reliability(sure, torch.rand(500, generator=draw) < sure),
    }
    figure = plots.draw_reliability({"first": kinds, "second": kinds}, "a title")
    assert legend_of(figure) == ["p", "c"]
    for axis in figure.axes:
        lines = axis.lines[1:]  # after the diagonal
        for line, found in zip(lines, kinds.values(), strict=True):
            torch.testing.assert_close(torch.tensor(line.get_xdata()), 100 * found.sure)
            torch.testing.assert_close(torch.tensor(line.get_ydata()), 100 * found.right)
    errors = " and ".join(f"{found.error:.1f} %" for found in kinds.values())
    assert f"first: calibration error {errors}" in texts(figure)


@pytest.mark.parametrize("classes", [3, 25])
def test_confusion(classes: int) -> None:
    matrix = torch.full((classes, classes), 0.5 / (classes - 1), dtype=torch.float64)
    matrix.fill_diagonal_(0.5)
    figure = plots.draw_confusion(matrix, torch.tensor([True, False, True, True]))
    assert "on average diagonal" in texts(figure)
    assert "75 %" in texts(figure)
    assert texts(figure).count("0.50") == (classes if classes == 3 else 0)  # no numbers in a large one
    assert "not diagonal" in texts(plots.draw_confusion(matrix.flip(0), torch.tensor([False, False])))


def test_eigenvalues_name_the_share_of_tasks_where_the_assumption_holds() -> None:
    steps = torch.tensor([0, 1, 2])
    negative = -torch.ones(4, 3).double()
    mixed = negative.clone()
    mixed[0, 1] = 0.5
    figure = plots.draw_eigenvalues(theory.Curvature(steps, negative, mixed, negative, negative))
    left, right = figure.axes
    assert "support): never above 0 in 100 %" in left.get_title(loc="left")
    assert "query): never above 0 in 75 %" in right.get_title(loc="left")
    assert len(legend_of(figure)) == 2


def test_risk_with_infinite_bounds() -> None:
    probs = torch.eye(3)[torch.arange(6) % 3].repeat(4, 1, 1)
    truth = (torch.arange(6) % 3).repeat(4, 1)
    truth[0] = (truth[0] + 1) % 3  # an error of 1, and a bound that is infinite
    one = theory.risk_bound(probs, truth)
    bounds = theory.RiskBound(**{name: torch.stack([value] * 2, 1) for name, value in vars(one).items()})
    figure = plots.draw_risk(torch.tensor([0, 5]), bounds)
    assert len(legend_of(figure)) == 3
    assert "not diagonal dominant (25 %)" in figure.axes[1].get_title(loc="left")
    for line in figure.axes[0].lines[:3]:
        assert all(math.isfinite(y) for y in line.get_ydata())
    figure.canvas.draw()


def test_save_all(pool: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    sampler = samplers.balanced(pool[1], ways=4, shots=1, queries=5)
    evaluation = evaluate(*pool, methods=["tim-adm", "tim-gd"], sampler=sampler, tasks=10, hyper=FEW)
    files = plots.save_all(evaluation, tmp_path / "new", features=pool[0], sampler=sampler, tasks=4)
    kinds = ("convergence", "reliability", "confusion", "eigenvalues", "risk")
    expected = ["accuracy.png", *(f"{kind}-4-way-1-shot.png" for kind in kinds)]
    assert [file.name for file in files] == expected
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(expected)  # and no leftovers
    assert all(file.read_bytes().startswith(PNG) for file in files)


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures, made but not drawn, which takes time."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return path

    monkeypatch.setattr(plots, "_write", keep)
    return figures


def test_save_all_of_several_settings(
    pool: tuple[Tensor, Tensor], tmp_path: Path, unwritten: list[Figure]
) -> None:
    chosen = name_settings(samplers.balanced(pool[1], ways=4, shots=shots, queries=5) for shots in (1, 3))
    evaluation = evaluate(*pool, methods=["prototype"], sampler=chosen, tasks=3)
    files = plots.save_all(evaluation, tmp_path, features=pool[0], sampler=chosen, tasks=2)
    kinds = ("confusion", "eigenvalues", "risk")  # no TIM method, so nothing converges
    names = [f"{kind}-4-way-{shots}-shot.png" for shots in (1, 3) for kind in kinds]
    assert [file.name for file in files] == ["accuracy.png", *names]
    assert len(unwritten[0].axes) == 2
    titles = [figure.get_suptitle() for figure in unwritten[1:]]
    assert titles == 3 * ["4-way 1-shot, 2 tasks"] + 3 * ["4-way 3-shot, 2 tasks"]


@pytest.mark.usefixtures("unwritten")
def test_save_all_takes_the_hyper_parameters_of_the_evaluation(
    pool: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an oracle's prior, for which every task has its own."""
    sampler = samplers.dirichlet(pool[1], ways=4, shots=2, queries=15)
    hyper = {"mine": {"iterations": 3, "temperature": 7.0, "class_prior": "oracle"}}
    evaluation = evaluate(*pool, methods=["mine=tim-adm"], sampler=sampler, tasks=5, hyper=hyper)
    seen: dict[str, Any] = {}
    curvature = theory.curvature

    def spy(*arguments: Any, **hyper_parameters: Any) -> theory.Curvature:
        seen.update(hyper_parameters)
        return curvature(*arguments, **hyper_parameters)

    monkeypatch.setattr(theory, "curvature", spy)
    judged: list[dict[str, Any]] = []
    adm = tim_ext.adm

    @wraps(adm)
    def recorded(*task: Any, **options: Any) -> Any:
        if "confidence" in options.get("outputs", ()):
            judged.append(options)
        return adm(*task, **options)

    monkeypatch.setitem(METHODS, "tim-adm", Method("tim-adm", recorded))
    files = plots.save_all(evaluation, tmp_path, features=pool[0], sampler=sampler, tasks=5)
    assert len(files) == 6
    assert [options["iterations"] for options in judged] == [3] * 5
    priors = query_proportions(sampler[0:5])
    assert all(map(torch.equal, (options["class_prior"] for options in judged), priors))
    assert seen["iterations"] == 3
    assert seen["temperature"] == 7.0
    assert seen["class_prior"].shape == (5, 4)


@pytest.mark.usefixtures("unwritten")
def test_save_all_of_tasks_of_different_sizes(pool: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    sampler = samplers.meta_dataset(pool[1], max_ways=6, max_support=60)
    evaluation = evaluate(*pool, methods=["tim-adm"], sampler=sampler, tasks=2)
    files = plots.save_all(evaluation, tmp_path, features=pool[0], sampler=sampler, tasks=2)
    # no common number of classes, so no confusion matrix
    kinds = [file.name.partition("-")[0] for file in files]
    assert kinds == ["accuracy.png", "convergence", "reliability", "eigenvalues", "risk"]


def test_fewer_tasks_where_they_are_large(pool: tuple[Tensor, Tensor]) -> None:
    small = samplers.balanced(pool[1], ways=2, shots=1, queries=2)
    large = samplers.balanced(pool[1], ways=12, shots=10, queries=30)
    assert len(plots._choose(small, None)) == plots.MOST
    assert len(plots._choose(large, None)) == plots.FEWEST
    assert len(plots._choose(large, 3)) == 3
    with pytest.raises(ValueError, match="tasks: expected an integer >= 2, got 1"):
        plots._choose(small, 1)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "picture.png"
    target.write_bytes(b"before")

    def fail(self: Figure, file: BinaryIO, **options: object) -> None:
        file.write(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plots._write(Figure(), target)
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'tim_ext\[evaluate\]'"):
        plots.draw_accuracies([row("a", "one", 60.0, 1.5)])
