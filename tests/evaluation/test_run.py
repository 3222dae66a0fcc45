"""`tim_ext.evaluate`: the same tasks for all methods, the right numbers, bounded memory, nothing lost."""

from __future__ import annotations

import csv
import doctest
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.paths import DOCS
from torch import Tensor

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation import compare, tuning
from tim_ext.evaluation import run as evaluation
from tim_ext.evaluation.methods import METHODS, Method
from tim_ext.evaluation.statistics import accuracies
from tim_ext.solver.result import Result
from tim_ext.tasks import Tasks

CLASSES, D = 12, 16


@pytest.fixture(scope="module")
def pool() -> tuple[Tensor, Tensor]:
    """480 samples of 12 classes that overlap: features [480, 16] >= 0, labels [480]."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40 * CLASSES) % CLASSES
    means = torch.rand(CLASSES, D, generator=generator)
    noise = torch.randn(len(labels), D, generator=generator)
    return (means[labels] + 0.3 * noise).clamp(min=0), labels


Stand = Callable[..., Result]


@pytest.fixture
def add_method(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Stand], None]:
    """Makes a function a method under a name."""
    return lambda name, function: monkeypatch.setitem(METHODS, name, Method(name, function))


def guess(labels: Any) -> Result:
    """Class 0 for every sample."""
    one = isinstance(labels, Tensor)
    predictions = torch.zeros_like(labels) if one else [torch.zeros_like(item) for item in labels]
    return Result(None, predictions, None, torch.zeros(len(labels)))


# The numbers --------------------------------------------------------------------------------------


def by_hand(predictions: list[Tensor], drawn: Tasks) -> list[float]:
    """Accuracies in percent, by counting."""
    percent = []
    for predicted, labels, truth in zip(predictions, drawn.labels, drawn.truth, strict=True):
        answers = zip(predicted.tolist(), labels.tolist(), truth.tolist(), strict=True)
        right = [p == t for p, y, t in answers if y == -1]
        percent.append(100 * sum(right) / len(right))
    return percent


@pytest.mark.parametrize("kind", ["balanced", "dirichlet", "meta_dataset"])
def test_accuracies(pool, kind):
    drawn = (
        getattr(tasks, kind)(pool[1])[0:70]
        if kind != "dirichlet"
        else tasks.dirichlet(pool[1], queries=30)[0:70]
    )
    predictions = [
        torch.randint(0, len(classes), labels.shape)
        for labels, classes in zip(drawn.labels, drawn.classes, strict=True)
    ]
    batch = predictions if isinstance(drawn.labels, list) else torch.stack(predictions)
    found = accuracies(batch, drawn)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, by_hand(predictions, drawn), rtol=1e-12)


def test_rows_are_those_of_one_task_at_a_time(pool):
    features, labels = pool
    result = tim_ext.evaluate(
        features, labels, methods=["prototype", "tim-adm", "tim-gd"], shots=(1, 3), tasks=30, seed=5
    )
    assert [row.setting for row in result.rows] == ["5-way 1-shot"] * 3 + ["5-way 3-shot"] * 3
    for shots in (1, 3):
        drawn = tasks.balanced(labels, shots=shots, seed=5)[0:30]
        solvers = {
            "prototype": lambda z, y: tim_ext.adm(z, y, iterations=0),
            "tim-adm": tim_ext.adm,
            "tim-gd": tim_ext.gd,
        }
        first = None
        for row in result.rows[:3] if shots == 1 else result.rows[3:]:
            predictions = [
                solvers[row.method](features[i], y).predictions
                for i, y in zip(drawn.index, drawn.labels, strict=True)
            ]
            expected = np.array(by_hand(predictions, drawn))
            np.testing.assert_allclose(result.accuracies[row.setting][row.method], expected)
            assert row.accuracy == pytest.approx(expected.mean())
            assert row.accuracy_ci95 == pytest.approx(1.96 * expected.std(ddof=1) / math.sqrt(30), rel=1e-4)
            if first is None:
                first = expected
                assert (row.difference, row.difference_ci95) == (None, None)
            else:
                paired = expected - first
                assert row.difference == pytest.approx(paired.mean())
                assert row.difference_ci95 == pytest.approx(
                    1.96 * paired.std(ddof=1) / math.sqrt(30), rel=1e-4
                )
            assert row.tasks == row.tasks_asked == 30
            assert row.seconds_per_task == result.seconds[row.setting][row.method] / 30 > 0


def test_one_task_has_no_interval(pool):
    result = tim_ext.evaluate(*pool, shots=1, tasks=1)
    assert [row.accuracy_ci95 for row in result.rows] == [None, None]
    assert result.rows[1].difference_ci95 is None
    assert "+-" not in result.table()


QUICK = {  # the slow ones, shortened
    "baseline": {"iterations": 10},
    "baseline++": {"iterations": 10},
    "pt-map": {"iterations": 5, "tol": 1e-2},
    **{name: {"iterations": 50, "lr": 1e-3} for name in ("ent-min", "tim-gd", "alpha-tim")},
}
SAMPLERS = {
    "balanced": lambda labels: tasks.balanced(labels),
    "unbalanced": lambda labels: tasks.dirichlet(labels, queries=25),
    "few": lambda labels: tasks.few_classes(labels, queries=25),
    "random": lambda labels: tasks.meta_dataset(labels),
}


def test_every_method_on_every_kind_of_task(pool):
    """And better than chance, which is at most 1/5."""
    samplers = {name: make(pool[1]) for name, make in SAMPLERS.items()}
    result = tim_ext.evaluate(*pool, methods=list(METHODS), sampler=samplers, hyper=QUICK, tasks=10)
    assert [(row.setting, row.method) for row in result.rows] == [(s, m) for s in samplers for m in METHODS]
    for row in result.rows:
        assert row.accuracy > 30, row


@pytest.mark.parametrize(
    "convert", [lambda z: z.half(), lambda z: z.bfloat16(), lambda z: z.double(), lambda z: z.numpy()]
)
def test_types_of_features(pool, convert):
    features, labels = pool
    expected = tim_ext.evaluate(features, labels, shots=5, tasks=20)
    got = tim_ext.evaluate(convert(features), labels.numpy(), shots=5, tasks=20)
    for row, other in zip(expected.rows, got.rows, strict=True):
        assert row.accuracy == pytest.approx(other.accuracy, abs=1)


# The tasks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("memory", [1, 300_000, 2**30])
def test_all_methods_see_the_same_tasks_in_pieces_that_fit(pool, kind, memory, add_method):
    features, labels = pool
    seen: dict[str, list[list[Tensor]]] = {"first": [], "second": []}

    def watch(name: str) -> Stand:
        def method(features: Any, labels: Any, *, index: Any, outputs: Any) -> Result:
            seen[name].append(list(index))
            return guess(labels)

        return method

    for name in seen:
        add_method(name, watch(name))
    sampler = SAMPLERS[kind](labels)
    tim_ext.evaluate(features, labels, methods=list(seen), sampler=sampler, tasks=300, memory=memory)
    drawn = list(sampler[0:300].index)
    for chunks in seen.values():
        warm_up, *chunks = chunks
        assert torch.equal(warm_up[0], drawn[0])
        assert len(warm_up) == 1
        rows = [task for chunk in chunks for task in chunk]
        assert len(rows) == 300
        assert all(map(torch.equal, rows, drawn))
        for chunk in chunks:
            samples = sum(map(len, chunk))
            assert len(chunk) == 1 or samples * D * 4 * evaluation.COPIES <= memory


def test_memory_does_not_change_the_result(pool):
    arguments: dict[str, Any] = {"methods": list(METHODS), "hyper": QUICK, "shots": 1, "tasks": 20}
    few = tim_ext.evaluate(*pool, memory=100_000, **arguments)
    many = tim_ext.evaluate(*pool, **arguments)
    for row, other in zip(few.rows, many.rows, strict=True):
        assert row.accuracy == pytest.approx(other.accuracy, abs=0.1)  # a tie may break the other way


def test_a_run_repeated(pool):
    def run() -> Tensor:
        result = tim_ext.evaluate(*pool, methods=list(METHODS), hyper=QUICK, shots=1, tasks=20, seed=3)
        return torch.stack(list(result.accuracies["5-way 1-shot"].values()))

    assert torch.equal(run(), run())


def test_samplers(pool):
    sampler = tasks.dirichlet(pool[1], ways=4, shots=2, queries=20, concentration=0.5)
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == [
        "4-way 2-shot, Dirichlet 0.5"
    ]
    sampler = tasks.few_classes(pool[1], queries=20)
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == [
        "5-way 1-shot, 2 of 5 classes present"
    ]
    sampler = tasks.meta_dataset(pool[1])
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == ["Meta-Dataset"]
    sampler = {"mine": tasks.balanced(pool[1])}
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == ["mine"]


# Methods and hyper-parameters ---------------------------------------------------------------------


def test_names_of_ones_own_and_hyper_parameters(pool):
    result = tim_ext.evaluate(
        *pool,
        methods=["tim-adm", "start=tim-adm", "prototype"],
        hyper={"start": {"iterations": 0}},
        shots=1,
        tasks=30,
    )
    found = result.accuracies["5-way 1-shot"]
    assert list(found) == ["tim-adm", "start", "prototype"]
    assert torch.equal(found["start"], found["prototype"])
    assert not torch.equal(found["tim-adm"], found["prototype"])


def test_the_oracle_knows_the_proportions(pool):
    features, labels = pool
    sampler = tasks.dirichlet(labels, queries=30, concentration=0.5)
    result = tim_ext.evaluate(
        features,
        labels,
        sampler=sampler,
        methods=["tim-adm"],
        hyper={"tim-adm": {"class_prior": "oracle"}},
        tasks=20,
    )
    drawn = sampler[0:20]
    counts = torch.stack(
        [
            torch.bincount(truth[y == -1], minlength=5)
            for truth, y in zip(drawn.truth, drawn.labels, strict=True)
        ]
    )
    prior = (counts + 1) / (30 + 5)
    expected = tim_ext.adm(features, drawn.labels, index=drawn.index, class_prior=prior).predictions
    np.testing.assert_allclose(next(iter(result.accuracies.values()))["tim-adm"], by_hand(expected, drawn))


def test_simpleshot_centres_by_the_base_mean(pool):
    features, labels = pool
    base_mean = features[:100].mean(dim=0)
    arguments: dict[str, Any] = {"methods": ["simpleshot", "prototype"], "shots": 1, "tasks": 50}
    without = tim_ext.evaluate(features, labels, **arguments).accuracies["5-way 1-shot"]
    assert torch.equal(without["simpleshot"], without["prototype"])
    found = tim_ext.evaluate(features, labels, base_mean=base_mean, **arguments).accuracies["5-way 1-shot"]
    centred = tim_ext.evaluate(features - base_mean, labels, **arguments).accuracies["5-way 1-shot"]
    assert torch.equal(found["prototype"], without["prototype"])
    assert torch.equal(found["simpleshot"], centred["prototype"])
    assert not torch.equal(found["simpleshot"], found["prototype"])


def test_the_pool_is_transformed_once_for_all_methods(pool, monkeypatch):
    calls = []
    real = tim_ext.transforms.l2_normalize

    def watch(features: Tensor) -> Tensor:
        calls.append(tuple(features.shape))
        return real(features)

    monkeypatch.setattr(tim_ext.transforms, "l2_normalize", watch)
    tim_ext.evaluate(*pool, methods=["prototype", "simpleshot", "bd-cspn"], tasks=600)
    assert calls.count((480, D)) == 1


def test_what_a_transform_leaves_to_the_tasks(pool):
    features, labels = pool
    drawn = tasks.balanced(labels)[0:50]
    for transform in ("none", "power+l2", "task_center", "power+l2+task_center+l2"):
        hyper = {"prototype": {"transform": transform}}
        result = tim_ext.evaluate(features, labels, methods=["prototype"], hyper=hyper, shots=1, tasks=50)
        expected = tim_ext.baselines.prototype(features, drawn.labels, index=drawn.index, transform=transform)
        np.testing.assert_allclose(
            result.rows[0].accuracy, np.mean(by_hand(expected.predictions, drawn)), atol=0.1
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["tim-amd"]}, r"methods: expected names out of prototype, .*, got 'tim-amd'"),
        ({"methods": ["mine=tim-amd"]}, r"methods: expected names out of prototype, .*, got 'tim-amd'"),
        ({"methods": []}, r"methods: expected one or more out of prototype, .*, got \[\]"),
        ({"methods": "tim-adm"}, r"methods: expected one or more out of .*, got 'tim-adm'"),
        ({"methods": ["tim-adm", "tim-adm"]}, r"methods: expected different names, got 'tim-adm' twice"),
        (
            {"hyper": {"tim-gd": {}}},
            r"hyper: expected names of methods out of prototype, tim-adm, got 'tim-gd'",
        ),
        (
            {"hyper": {"tim-adm": {"tau": 1}}},
            r"tim-adm: expected hyper-parameters out of normalize, .*, got 'tau'",
        ),
        (
            {"hyper": {"tim-adm": {"history": True}}},
            r"tim-adm: expected hyper-parameters out of .*, got 'history'",
        ),
        (
            {"hyper": {"tim-adm": {"temperature": 0}}},
            r"tim-adm: temperature: expected a finite number > 0, got 0.0",
        ),
        (
            {"hyper": {"tim-adm": {"class_prior": "even"}}},
            r"tim-adm: class_prior: expected a tensor or array, got str",
        ),
        ({"hyper": {"prototype": {"transform": "cl2"}}}, r"prototype: base_mean: expected the mean \[d\]"),
        ({"tasks": 0}, r"tasks: expected an integer >= 1, got 0"),
        ({"memory": 0}, r"memory: expected a number of bytes >= 1, got 0"),
        ({"memory": 1.5}, r"memory: expected a number of bytes, got float 1.5"),
        ({"shots": ()}, r"shots: expected one number or more, got none"),
        ({"shots": (1, 1)}, r"shots: expected different numbers, got 5-way 1-shot twice"),
        ({"ways": 13}, r"ways: expected at most 12, the classes of labels, got 13"),
        ({"queries": 40}, r"labels: class 0 has 40 samples, 1 shot \+ 40 queries need 41"),
        ({"base_mean": torch.zeros(3)}, r"base_mean: expected shape \[16\] to match features, got \[3\]"),
        ({"base_mean": torch.full((16,), math.nan)}, r"base_mean: expected finite values, got NaN or Inf"),
    ],
)
def test_refused(pool, arguments, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        tim_ext.evaluate(*pool, **arguments)


def test_refused_features(pool):
    features, labels = pool
    with pytest.raises(
        ValueError, match=r"^features: expected shape \[M, d\], neither of them 0, got \[480\]"
    ):
        tim_ext.evaluate(features[:, 0], labels)
    with pytest.raises(
        ValueError, match=r"^labels: expected \[480\] to match features|^labels: expected shape"
    ):
        tim_ext.evaluate(features, labels[1:])
    broken = features.clone()
    broken[77, 3] = math.inf
    with pytest.raises(ValueError, match=r"^features: expected finite values, got NaN or Inf in row 77"):
        tim_ext.evaluate(broken, labels)
    tim_ext.evaluate(broken, labels.where(torch.arange(480) != 77, -1), tasks=2)  # a row that is not used


def test_a_bad_hyper_parameter_is_found_before_the_work(pool, add_method):
    calls = []

    def method(features: Any, labels: Any, *, index: Any, outputs: Any) -> Result:
        calls.append(len(labels))
        return guess(labels)

    add_method("stand-in", method)
    with pytest.raises(ValueError, match="tim-adm: temperature"):
        tim_ext.evaluate(*pool, methods=["stand-in", "tim-adm"], hyper={"tim-adm": {"temperature": -1}})
    assert calls == [1]


# Ctrl-C -------------------------------------------------------------------------------------------


@pytest.fixture
def add_interrupting(add_method) -> Callable[[int], None]:
    """A method "stops" that sends SIGINT to this process in its call `number`."""

    def add(number: int) -> None:
        calls = []

        def method(features: Any, labels: Any, *, index: Any, outputs: Any) -> Result:
            calls.append(labels)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGINT)
            return guess(labels)

        add_method("stops", method)

    return add


@pytest.mark.parametrize("order", [["stops", "tim-adm"], ["tim-adm", "stops"]])
def test_ctrl_c_keeps_the_tasks_that_all_methods_finished(pool, order, add_interrupting, tmp_path):
    add_interrupting(2 + 3)  # two calls to warm up, one for each setting, then the third chunk
    result = tim_ext.evaluate(*pool, methods=order, tasks=1000)
    full = tim_ext.evaluate(*pool, methods=["tim-adm"], shots=1, tasks=2 * evaluation.CHUNK)
    assert result.interrupted
    assert not full.interrupted
    assert list(result.accuracies) == ["5-way 1-shot"]  # the other had not begun
    assert torch.equal(
        result.accuracies["5-way 1-shot"]["tim-adm"], full.accuracies["5-way 1-shot"]["tim-adm"]
    )
    assert [row.tasks for row in result.rows] == [2 * evaluation.CHUNK] * 2
    assert f"{2 * evaluation.CHUNK} of 1000 tasks" in result.table()

    result.save(tmp_path / "a.csv", tmp_path / "a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["interrupted"] is True
    assert saved["tasks"] == 1000
    with (tmp_path / "a.csv").open() as file:
        assert [(row["tasks"], row["tasks_asked"]) for row in csv.DictReader(file)] == [("512", "1000")] * 2


def test_ctrl_c_before_anything_is_done(pool, add_interrupting):
    add_interrupting(3)
    with pytest.raises(KeyboardInterrupt):
        tim_ext.evaluate(*pool, methods=["stops"], tasks=1000)


# Files --------------------------------------------------------------------------------------------


def test_saved(pool, tmp_path):
    hyper = {"tim-adm": {"class_prior": torch.full((5,), 0.2)}}
    result = tim_ext.evaluate(*pool, hyper=hyper, tasks=20, seed=7)
    result.save(tmp_path / "a.csv", tmp_path / "a.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.json"]
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [row.accuracy for row in result.rows]
    assert rows[0]["difference"] == ""
    assert float(rows[1]["difference"]) == result.rows[1].difference

    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved == result.describe()
    assert saved["versions"]["tim_ext"] == tim_ext.__version__
    assert saved["versions"]["torch"] == torch.__version__
    assert saved["threads"] == torch.get_num_threads()
    assert saved["interrupted"] is False
    assert saved["data"]["samples"] == 480


def test_the_json_is_enough_to_repeat_it(pool, tmp_path):
    features, labels = pool
    sampler = tasks.dirichlet(labels, ways=4, queries=21, concentration=0.7, seed=9)
    result = tim_ext.evaluate(
        features,
        labels,
        sampler=sampler,
        methods=["a=tim-adm", "bd-cspn"],
        hyper={"a": {"alpha": 0.3}},
        tasks=25,
    )
    result.save(tmp_path / "a.csv", tmp_path / "a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    (setting,) = saved["settings"]
    kind = setting["sampler"].pop("kind")
    again = tim_ext.evaluate(
        features,
        labels,
        sampler={setting["name"]: getattr(tasks, kind)(labels, **setting["sampler"])},
        methods=[f"{label}={entry['method']}" for label, entry in setting["methods"].items()],
        hyper={label: entry["hyper_parameters"] for label, entry in setting["methods"].items()},
        tasks=saved["tasks"],
    )
    for one, other in zip(result.rows, again.rows, strict=True):
        assert (one.method, one.accuracy, one.difference) == (other.method, other.accuracy, other.difference)
    assert again.describe()["data"] == saved["data"]


def test_the_hash_is_of_the_data(pool):
    features, labels = pool

    def hashed(features: Tensor, labels: Tensor) -> str:
        return tim_ext.evaluate(features, labels, shots=1, tasks=1).describe()["data"]["sha256"]

    assert hashed(features, labels) == hashed(features.clone(), labels.clone())
    assert (
        len({hashed(features, labels), hashed(features, labels.flip(0)), hashed(features + 1e-6, labels)})
        == 3
    )


def test_a_failed_save_leaves_the_old_file(pool, tmp_path, monkeypatch):
    result = tim_ext.evaluate(*pool, tasks=2)
    (tmp_path / "a.csv").write_text("old")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        result.save(tmp_path / "a.csv", tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "old"


def test_table(pool):
    result = tim_ext.evaluate(*pool, methods=["prototype", "long name=tim-adm"], tasks=20)
    first, second = result.table().split("\n\n")
    heading, names, *lines = first.splitlines()
    assert heading == "5-way 1-shot, 20 tasks"
    assert second.startswith("5-way 5-shot, 20 tasks\n")
    assert names.split("  ")[0] == "method"
    assert "difference to prototype" in names
    assert len({len(line) for line in (names, *lines)}) == 1
    row = result.rows[1]
    assert f"{row.accuracy:.2f} +- {row.accuracy_ci95:.2f}" in lines[1]
    assert f"{row.difference:+.2f} +- {row.difference_ci95:.2f}" in lines[1]


def test_progress_needs_a_terminal(pool, capsys):
    pytest.importorskip("tqdm")
    tim_ext.evaluate(*pool, tasks=2, progress=True)
    assert capsys.readouterr() == ("", "")


def test_progress_counts_every_run(pool, monkeypatch):
    bars = []

    class Bar(evaluation._NoBar):
        def __init__(self, total: int, **options: Any) -> None:
            self.total, self.seen, self.names = total, 0, []
            bars.append(self)

        def update(self, steps: int) -> None:
            self.seen += steps

        def set_description(self, text: str) -> None:
            self.names.append(text)

    monkeypatch.setattr(evaluation, "require", lambda module, extra: SimpleNamespace(tqdm=Bar))
    tim_ext.evaluate(*pool, tasks=300, progress=True)
    (bar,) = bars
    assert bar.total == bar.seen == 2 * 2 * 300
    assert set(bar.names) == {
        f"5-way {n}-shot, {method}" for n in (1, 5) for method in ("prototype", "tim-adm")
    }


def test_progress_says_what_is_missing(pool, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r"^tqdm is not installed: pip install 'tim_ext\[evaluate\]'"):
        tim_ext.evaluate(*pool, tasks=2, progress=True)


# Tuning -------------------------------------------------------------------------------------------


def test_grids_begin_with_the_defaults():
    for method in METHODS.values():
        defaults = method.complete({})
        assert {name: values[0] for name, values in method.grid.items()} == {
            name: defaults[name] for name in method.grid
        }
        for values in method.grid.values():
            assert len(set(values)) == len(values) > 1


def test_tune_takes_the_best_of_the_grid(pool):
    features, labels = pool
    sampler = tasks.balanced(labels)
    grids = {"tim-adm": {"temperature": (1.0, 15.0), "iterations": (0, 20)}}
    tuned = tuning.tune(features, labels, sampler, methods=["tim-adm", "prototype"], grids=grids, tasks=30)
    expected = {}
    for temperature in (1.0, 15.0):
        for iterations in (0, 20):
            hyper = {"temperature": temperature, "iterations": iterations}
            result = tim_ext.evaluate(*pool, methods=["tim-adm"], hyper={"tim-adm": hyper}, shots=1, tasks=30)
            expected[temperature, iterations] = result.rows[0].accuracy
    trials = {tuple(trial["values"].values()): trial["accuracy"] for trial in tuned.trials["tim-adm"]}
    assert trials == pytest.approx(expected)
    best = max(expected, key=lambda point: expected[point])
    assert tuned.hyper == {
        "tim-adm": dict(zip(("temperature", "iterations"), best, strict=True)),
        "prototype": {},
    }
    assert "prototype" not in tuned.trials
    tim_ext.evaluate(*pool, methods=["tim-adm", "prototype"], hyper=tuned.hyper, tasks=2)


def test_tune_leaves_alone_what_is_decided(pool):
    sampler = tasks.balanced(pool[1])
    hyper = {"tim-adm": {"temperature": 3.0, "iterations": 10}}
    tuned = tuning.tune(*pool, sampler, methods=["tim-adm"], hyper=hyper, tasks=5)
    assert tuned.hyper["tim-adm"].items() >= hyper["tim-adm"].items()
    assert all("temperature" not in trial["values"] for trial in tuned.trials["tim-adm"])
    hyper = {"bd-cspn": {"scale": 3.0}}
    assert tuning.tune(*pool, sampler, methods=["bd-cspn"], hyper=hyper, tasks=5) == tuning.Tuning(hyper, {})


def test_tune_takes_a_single_value_without_trying(pool):
    sampler = tasks.balanced(pool[1])
    tuned = tuning.tune(*pool, sampler, methods=["tim-adm"], grids={"tim-adm": {"alpha": [0.2]}}, tasks=5)
    assert tuned == tuning.Tuning({"tim-adm": {"alpha": 0.2}}, {})


def test_tune_refuses(pool):
    sampler = tasks.balanced(pool[1])
    with pytest.raises(ValueError, match=r"^tim-adm: expected hyper-parameters out of .*, got 'tau'"):
        tuning.tune(*pool, sampler, methods=["tim-adm"], grids={"tim-adm": {"tau": (1, 2)}})
    with pytest.raises(ValueError, match=r"^grids: expected values of tim-adm.alpha to try, got \(\)"):
        tuning.tune(*pool, sampler, methods=["tim-adm"], grids={"tim-adm": {"alpha": ()}})
    with pytest.raises(ValueError, match=r"^grids: expected names of methods out of tim-adm, got 'tim-gd'"):
        tuning.tune(*pool, sampler, methods=["tim-adm"], grids={"tim-gd": {"alpha": (0.1, 0.2)}})


def test_ctrl_c_ends_tuning(pool, monkeypatch):
    calls = []

    def method(features: Any, labels: Any, *, index: Any, level: int = 0, outputs: Any) -> Result:
        calls.append(level)
        if len(calls) == 2 + 3:  # two to warm up, the first chunk, and a half
            os.kill(os.getpid(), signal.SIGINT)
        return guess(labels)

    monkeypatch.setitem(METHODS, "stops", Method("stops", method, {"level": (0, 1)}))
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(*pool, tasks.balanced(pool[1]), methods=["stops"], tasks=1000)
    assert calls == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_split_classes(share):
    labels = torch.tensor([3, 3, 5, 7, 9, 9, 11, -1, 13, 20, 21] * 3)
    validation, test = tuning.split_classes(labels, share, seed=1)
    first, second = (set(part[part >= 0].tolist()) for part in (validation, test))
    assert not first & second
    assert first | second == {3, 5, 7, 9, 11, 13, 20, 21}
    assert len(first) == 8 * share
    assert torch.equal(torch.maximum(validation, test), labels)
    again, _ = tuning.split_classes(labels, share, seed=1)
    assert torch.equal(again, validation)
    assert any(
        not torch.equal(tuning.split_classes(labels, share, seed=s)[0], validation) for s in range(2, 6)
    )


# The documents ------------------------------------------------------------------------------------

PAGE = DOCS / "evaluation.md"


def test_the_python_of_the_page_runs(capsys):
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    assert "5-way 1-shot, 200 tasks" in capsys.readouterr().out
    assert names["evaluation"].rows[0].tasks == 200


def test_the_example_of_the_docstring():
    failed, ran = doctest.testmod(compare)
    assert failed == 0
    assert ran > 0


def test_the_page_has_every_method_and_its_grid():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for name, method in METHODS.items():
        (line,) = (line for line in lines if f"`{name}`" in line.split("|")[1])
        grid = line.split("|")[3]
        assert re.findall(r"`(\w+)`", grid) == list(method.grid), name
        for parameter, values in method.grid.items():
            listed = re.search(rf"`{parameter}` ([^;]+)", grid)[1]
            assert len(listed.split(",")) == len(values), name
            shown = {float(text) for text in re.findall(r"[\d.]+", listed)}
            assert shown == {value for value in values if value is not None}, name
