"""Hyper-parameters by grid search: the best of the grid, on classes of their own."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from helpers.evaluations import guess

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation import tuning
from tim_ext.evaluation.methods import METHODS, Method
from tim_ext.solver.result import Result


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
