"""`tim_ext.evaluate`: the same tasks for all methods, the right numbers, what it refuses, its page."""

from __future__ import annotations

import doctest
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers.evaluations import QUICK, SAMPLERS, by_hand
from helpers.paths import DOCS

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation import compare
from tim_ext.evaluation.methods import METHODS


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


def test_every_method_on_every_kind_of_task(pool):
    """And better than chance, which is at most 1/5."""
    samplers = {name: make(pool[1]) for name, make in SAMPLERS.items()}
    result = tim_ext.evaluate(*pool, methods=list(METHODS), sampler=samplers, hyper=QUICK, tasks=6)
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


def test_samplers(pool):
    sampler = tasks.dirichlet(pool[1], ways=4, shots=2, queries=20, concentration=0.5)
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == [
        "4-way 2-shot, Dirichlet 0.5"
    ]
    sampler = tasks.few_classes(pool[1], queries=20)
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == [
        "5-way 1-shot, 2 of 5 classes present"
    ]
    for sampler, name in (
        (tasks.zipf(pool[1], queries=20, exponent=1.5), "5-way 1-shot, Zipf 1.5"),
        (tasks.dominant(pool[1], queries=20, share=0.7), "5-way 1-shot, one class with 70 %"),
        (tasks.whole_pool(pool[1], shots=3), "all classes and rows, 3-shot"),
    ):
        assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == [name]
    sampler = tasks.meta_dataset(pool[1])
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == ["Meta-Dataset"]
    sampler = {"mine": tasks.balanced(pool[1])}
    assert list(tim_ext.evaluate(*pool, sampler=sampler, tasks=2).accuracies) == ["mine"]


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
