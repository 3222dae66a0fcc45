"""`robust` and `adm` with smoothing on several processes give what one process gives, and refuse together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.make_tasks import make_task
from helpers.ranks import F16, F32, F64, PRIOR, SMALL, TASK, collect, halves, mixed_task, start_ranks
from torch import Tensor

import tim_ext
from tim_ext import distributed, reference
from tim_ext.distributed import approximate_neighbours, smoothing

Task = tuple[Tensor, Tensor]
FIRST = torch.eye(SMALL["d"], dtype=F64)[: len(SMALL["shots"])]
NAMES = ("probs", "predictions", "weights", "iterations", "proportions", "marginal_weight")


def positive_task(dtype: torch.dtype = F64) -> Task:
    features, labels = mixed_task(dtype, **SMALL)
    return features.abs(), labels


def negative_at_the_end() -> Task:
    """Only the last rank has a negative value that counts; an ignored row of the first one has one too."""
    features, labels = positive_task()
    features[0], labels[0] = -3, -100
    features[-1, 5], labels[-1] = -0.5, -1
    return features, labels


def copies() -> Task:
    """Rows four times, equally near to everything; whole numbers, so that no rounding tells them apart."""
    some = torch.randint(-3, 4, (16, 8), generator=torch.Generator().manual_seed(0)).double()
    labels = torch.full((64,), -1)
    labels[[40, 5, 30, 21]] = torch.tensor([0, 1, 2, 0])
    return torch.cat([some] * 4), labels


def copies_of_any_numbers() -> Task:
    features, labels = mixed_task(F32, **SMALL)
    features[300:500] = features[100:300]
    labels[300:500] = -1
    return features, labels


def common_part() -> Task:
    """Cosines of 0.9999."""
    task = make_task(4, [3] * 5, 200, d=100, noise=1.0)
    return (task.features + 10).float(), task.labels


def lonely() -> Task:
    features = torch.eye(6, dtype=F64) * 3
    features[4:] = 0
    return features, torch.tensor([0, 1, 2, -1, -1, 0])


CASES: dict[str, tuple[str, Callable[[], Task], dict[str, Any]]] = {
    "robust": ("robust", partial(mixed_task, **SMALL), {"history": True}),
    "own steps": ("robust", partial(mixed_task, **SMALL), {"relaxation": "auto", "iterations": 60}),
    "first weights": ("robust", partial(mixed_task, **SMALL), {"weights": FIRST, "iterations": 30}),
    "roots": ("robust", positive_task, {"class_prior": PRIOR, "iterations": 30}),
    "roots float16": ("robust", partial(positive_task, F16), {"iterations": 8}),
    "roots, not smoothed": ("robust", positive_task, {"smoothing": 0.0, "cache_bytes": 0, "iterations": 8}),
    "no roots": ("robust", negative_at_the_end, {"iterations": 8}),
    "adm": ("adm", partial(mixed_task, **SMALL), {"smoothing": 0.95, "normalize": False, "iterations": 8}),
    "copies": ("adm", copies, {"smoothing": 0.8, "iterations": 10, "normalize": False}),
    "copies of any numbers": ("adm", copies_of_any_numbers, {"smoothing": 0.8, "iterations": 8}),
    "common part": ("adm", common_part, {"smoothing": "auto", "temperature": 100.0, "iterations": 8}),
    "few columns": ("robust", partial(mixed_task, seed=1, shots=(3, 3), queries=50, d=2), {"iterations": 8}),
    "no neighbours": ("adm", lonely, {"smoothing": 0.9, "iterations": 5, "normalize": False}),
    "one sample": ("robust", lambda: (torch.ones(1, 4, dtype=F64), torch.tensor([0])), {}),
}
ENDS = {1: (0, 1), 2: (0, 0.3, 1), 3: (0, 0.45, 0.45, 1)}  # the second of three has nothing


def solve(name: str, rank: int, size: int) -> dict[str, Any]:
    method, make, options = CASES[name]
    features, labels = make()
    first, last = (round(end * len(labels)) for end in ENDS[size][rank : rank + 2])
    result = getattr(distributed, method)(features[first:last], labels[first:last], **options)
    return {name: getattr(result, name).numpy() for name in NAMES}


def solve_cases(rank: int, results: Any) -> None:
    smoothing.TILE, smoothing.BLOCK, smoothing.COLUMN_NUMBERS = 64, 96, 6000  # many of each
    for name in CASES:
        results.put((name, rank, solve(name, rank, dist.get_world_size())))


def assert_equals_one_process(name: str, parts: list[dict[str, Any]]) -> None:
    method, make, options = CASES[name]
    options = {key: value for key, value in options.items() if key != "cache_bytes"}
    features, labels = make()
    whole = getattr(tim_ext, method)(features, labels, form="primal", **options)
    tolerance = 1e-10 if features.dtype == F64 else 2e-5
    for key in NAMES:
        split = key in ("probs", "predictions")
        got = np.concatenate([part[key] for part in parts]) if split else parts[0][key]
        np.testing.assert_allclose(got, getattr(whole, key), rtol=0, atol=tolerance, err_msg=f"{name} {key}")
        assert split or all(np.array_equal(part[key], got) for part in parts), name


@pytest.mark.parametrize("name", CASES)
def test_without_a_process_group(name):
    assert_equals_one_process(name, [solve(name, 0, 1)])


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_processes_give_what_one_gives(size):
    results, processes = start_ranks(solve_cases, size)
    found: dict[str, dict[int, Any]] = {name: {} for name in CASES}
    for name, rank, arrays in collect(results, processes, size * len(CASES)):
        found[name][rank] = arrays
    for name, parts in found.items():
        assert_equals_one_process(name, [parts[rank] for rank in range(size)])


OWN_STEPS = {"relaxation": "auto", "iterations": 60}


def large_task() -> Task:
    """First steps are shorter and the reach longer than the samples of one of two ranks would have them."""
    return mixed_task(seed=2, shots=(3, 2, 4, 1), queries=1100, d=12, noise=1.0)


def solve_own_steps(rank: int, results: Any) -> None:
    size = dist.get_world_size()
    features, labels = (one.tensor_split(size)[rank] for one in large_task())
    for name in ("adm", "robust"):
        found = getattr(distributed, name)(features, labels, **OWN_STEPS)
        results.put((name, rank, {key: getattr(found, key).numpy() for key in NAMES}))


@pytest.mark.parametrize("size", [1, 2])
def test_own_steps_are_those_of_the_reference(size):
    results, processes = start_ranks(solve_own_steps, size)
    found = {(name, rank): arrays for name, rank, arrays in collect(results, processes, 2 * size)}
    for name in ("adm", "robust"):
        expected = getattr(reference, name)(*large_task(), **OWN_STEPS)
        for key in NAMES:
            parts = [found[name, rank][key] for rank in range(size)]
            got = np.concatenate(parts) if key in ("probs", "predictions") else parts[-1]
            np.testing.assert_allclose(
                got, getattr(expected, key), rtol=0, atol=1e-9, err_msg=f"{name} {key}"
            )


def test_equally_near_ones_go_by_their_row():
    """Where topk may choose: ties at the k-th place, within a block and with what came before."""
    value, row = torch.tensor([[0.5, 0.2], [0.5, 0.0]]), torch.tensor([[1, 0], [0, 0]])
    tile = torch.tensor([[0.2, 0.2, 0.5, 0.1, 0.5], [0.3, 0.1, 0.3, 0.3, 0.3]])
    value, row = smoothing.merged(value, row, tile, first=7)
    assert row.tolist() == [[1, 9], [0, 7]]
    zeros = torch.zeros(1, 3)
    value, row = smoothing.merged(zeros, zeros.long(), torch.ones(1, 400), first=20)
    assert row.tolist() == [[20, 21, 22]]


# Refusals ------------------------------------------------------------------------------------------


def fail(done: int) -> None:
    raise OSError("disk full")


def refused_cases(rank: int, results: Any) -> None:
    features, labels = halves(rank)
    calls: dict[str, Callable[[], Any]] = {
        "callback": lambda: distributed.robust(features, labels, callback=fail if rank else None),
        "smoothing": lambda: distributed.adm(features, labels, smoothing=0.5 + rank / 10),
        "method": lambda: (distributed.robust if rank else distributed.adm)(features, labels),
        "many": lambda: distributed.robust(features, labels),
    }
    for name, call in calls.items():
        smoothing.MOST_COMPARED = 60 if name == "many" else 250_000
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        results.put((name, rank, str(caught.value)))


def test_all_ranks_refuse_with_one_message():
    results, processes = start_ranks(refused_cases, 2)
    got = {(name, rank): text for name, rank, text in collect(results, processes, 8)}
    expected = {
        "callback": "rank 1: OSError: disk full",
        "smoothing": "smoothing: expected the same on all ranks, got 0.5 on rank 0 and 0.6 on rank 1",
        "method": "method: expected the same on all ranks, got 'adm' on rank 0 and 'robust' on rank 1",
        "many": "smoothing: expected at most 60 samples, each of which is compared with every other, over "
        "several processes, got 69; smoothing=0 has no limit (tim-ext label: --method adm)",
    }
    assert got == {(name, rank): text for name, text in expected.items() for rank in (0, 1)}


# Beyond what is compared ----------------------------------------------------------------------------


def test_too_many_without_faiss(monkeypatch):
    monkeypatch.setattr(smoothing, "MOST_COMPARED", 60)
    monkeypatch.setitem(sys.modules, "faiss", None)
    text = (
        "smoothing: expected at most 60 samples, .*, got 69, and faiss is not installed: "
        r"pip install 'tim_ext\[faiss\]'; smoothing=0 has no limit"
    )
    with pytest.raises(ValueError, match=text):
        distributed.robust(TASK.features, TASK.labels)


def test_approximate_neighbours(monkeypatch):
    """With every cell probed nothing is approximate; with few, nearly all neighbours are found."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(smoothing, "MOST_COMPARED", 60)
    monkeypatch.setattr(approximate_neighbours, "ROWS", 200)
    features, labels = mixed_task(F64, **SMALL)
    expected = reference.robust(features, labels)
    monkeypatch.setattr(approximate_neighbours, "PROBED", 1000)
    torch.testing.assert_close(distributed.robust(features, labels).probs, expected.probs, rtol=0, atol=1e-9)
    monkeypatch.setattr(approximate_neighbours, "PROBED", 16)
    found = distributed.robust(features, labels)
    assert (found.predictions == expected.predictions).double().mean() > 0.95
