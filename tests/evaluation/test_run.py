"""The loop: all methods on the same tasks, bounded memory, nothing lost to Ctrl-C, a bar that counts."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.evaluations import QUICK, SAMPLERS, Stand, guess
from torch import Tensor

import tim_ext
from tim_ext.evaluation import run as evaluation
from tim_ext.evaluation.methods import METHODS
from tim_ext.solver.result import Result

D = 16  # of the pool


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


# Methods and hyper-parameters ---------------------------------------------------------------------


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
