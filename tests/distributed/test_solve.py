"""One task on several processes gives what one process gives, and a memory map is not copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.make_tasks import make_task, separable_problems
from helpers.ranks import BF16, F16, F32, F64, PRIOR, SMALL, collect, mixed_task, sorted_task, start_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tim_ext
from tim_ext import distributed
from tim_ext.distributed import shard

# The same as one process ---------------------------------------------------------------------------


def extreme_task() -> tuple[Tensor, Tensor]:
    """Rows whose squares leave the range of float32, a zero row, and NaN in an ignored one."""
    task = make_task(5, (2, 3, 2), 300, 40, noise=0.2, padding=3)
    features = task.features.float()
    query = (task.labels == -1).nonzero()[:, 0]
    features[query[3]] *= 1e25
    features[query[250]] *= 1e-25
    features[query[7]] = 0
    features[task.labels == -100] = torch.nan
    return features, task.labels


def many_classes() -> tuple[Tensor, Tensor]:
    return mixed_task(F32, seed=3, shots=[1] * 1100, queries=2200, d=16, noise=0.05)


SHORT = {"iterations": 25}
FIRST = torch.eye(SMALL["d"], dtype=F64)[: len(SMALL["shots"])]
EVEN, UNEVEN, HOLE = (0, 1, 2, 3, 4), (0, 0.2, 0.3, 3.8, 4), (0, 0, 2.5, 2.5, 4)  # shard ends, in quarters
CASES: dict[str, tuple[str, Callable[[], tuple[Tensor, Tensor]], tuple[float, ...], dict[str, Any]]] = {
    "adm": ("adm", partial(mixed_task, **SMALL), EVEN, {"history": True}),
    "adm, uneven shards": (
        "adm",
        partial(mixed_task, **SMALL),
        UNEVEN,
        {"tol": 0.01, "class_prior": PRIOR, "history": True},
    ),
    "adm, an empty shard": ("adm", partial(mixed_task, **SMALL), HOLE, {"num_classes": 5}),
    "adm, support on one rank": ("adm", partial(sorted_task, **SMALL), EVEN, {"lam": 0.5}),
    "adm, nothing cached": (
        "adm",
        partial(mixed_task, **SMALL),
        EVEN,
        {"cache_bytes": 0, "tol": 0.01, "history": True},
    ),
    "adm, as they are": ("adm", partial(mixed_task, **SMALL), EVEN, {"normalize": False, "iterations": 20}),
    "adm, p underflows": (
        "adm",
        partial(mixed_task, **SMALL),
        EVEN,
        {"temperature": 9000.0, "iterations": 9},
    ),
    "adm, first weights": ("adm", partial(mixed_task, **SMALL), UNEVEN, {"weights": FIRST, "history": True}),
    "adm, own steps": ("adm", partial(mixed_task, **SMALL), UNEVEN, {"relaxation": "auto", "history": True}),
    "adm, no query": ("adm", partial(mixed_task, **SMALL | {"queries": 0}), EVEN, {"history": True}),
    "adm, lam = 0": ("adm", partial(mixed_task, **SMALL), EVEN, {"lam": 0.0}),
    "adm, one class": ("adm", partial(mixed_task, seed=1, shots=(3,), queries=50, d=7), EVEN, {}),
    "adm float32": ("adm", partial(mixed_task, F32, **SMALL | {"noise": 0.2}), EVEN, {"history": True}),
    "adm float16": ("adm", partial(mixed_task, F16, **SMALL | {"noise": 0.2}), UNEVEN, {}),
    "adm bfloat16": ("adm", partial(mixed_task, BF16, **SMALL | {"noise": 0.2}), HOLE, {}),
    "adm, 1100 classes": ("adm", many_classes, EVEN, {"iterations": 4, "normalize": False}),
    "adm, extreme rows": ("adm", extreme_task, EVEN, {"iterations": 10}),  # a zero row is not separable
    "adm float32, p underflows": (
        "adm",
        partial(mixed_task, F32, **SMALL | {"noise": 0.2}),
        EVEN,
        {"temperature": 900.0, "iterations": 9},
    ),
    "gd": ("gd", partial(mixed_task, **SMALL), EVEN, {"iterations": 30, "lr": 1e-3, "history": True}),
    "gd, Tsallis": (
        "gd",
        partial(mixed_task, **SMALL),
        UNEVEN,
        {"iterations": 20, "lr": 1e-3, "entropy_order": 1.4, "class_prior": PRIOR, "history": True},
    ),
    "gd, nothing cached": (
        "gd",
        partial(sorted_task, **SMALL),
        HOLE,
        {"iterations": 20, "tol": 1e-5, "cache_bytes": 0},
    ),
    "gd float32": ("gd", partial(mixed_task, F32, **SMALL | {"noise": 0.2}), EVEN, {"iterations": 30}),
}


def shard_of(ends: tuple[float, ...], rank: int, size: int, count: int) -> slice:
    """Two ranks take the first and the second two quarters of four."""
    step = 4 // size
    return slice(*(round(ends[step * (rank + at)] * count / 4) for at in (0, 1)))


def solve_cases(rank: int, results: Any) -> None:
    size = dist.get_world_size()
    for name, (method, make, ends, options) in CASES.items():
        features, labels = make()
        mine = shard_of(ends, rank, size, len(features))
        result = getattr(distributed, method)(features[mine], labels[mine], **SHORT | options)
        arrays = {
            key: getattr(result, key).numpy() for key in ("probs", "predictions", "weights", "iterations")
        }
        if result.history is not None:
            arrays["loss"] = result.history.loss.numpy()
        results.put((name, rank, arrays))


def one_process(name: str) -> dict[str, Tensor]:
    method, make, _, options = CASES[name]
    options = {key: value for key, value in (SHORT | options).items() if key != "cache_bytes"}
    features, labels = make()
    form = {"form": "primal"} if method == "adm" else {}
    result = getattr(tim_ext, method)(features, labels, **options, **form)
    whole = {key: getattr(result, key) for key in ("probs", "predictions", "weights", "iterations")}
    return whole | ({} if result.history is None else {"loss": result.history.loss})


def assert_equals_one_process(name: str, parts: list[dict[str, Tensor]]) -> None:
    expected = one_process(name)
    double = expected["probs"].dtype == F64
    for part in parts[1:]:
        assert torch.equal(part["weights"], parts[0]["weights"]), name  # to the bit, on all ranks
    got = {key: torch.cat([part[key] for part in parts]) for key in ("probs", "predictions")} | {
        key: parts[0][key] for key in expected if key not in ("probs", "predictions")
    }
    torch.testing.assert_close(
        got["probs"], expected["probs"], rtol=0, atol=1e-10 if double else 1e-5, msg=name
    )
    assert torch.equal(got["predictions"], expected["predictions"]), name
    assert torch.equal(got["iterations"], expected["iterations"]), name
    if "loss" in expected:
        tolerance = 1e-10 if double else 1e-5
        torch.testing.assert_close(
            got["loss"], expected["loss"], rtol=tolerance, atol=tolerance, equal_nan=True, msg=name
        )


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_give_what_one_gives(size):
    results, processes = start_ranks(solve_cases, size)
    found: dict[str, dict[int, dict[str, Tensor]]] = {}
    for name, rank, arrays in collect(results, processes, size * len(CASES)):
        found.setdefault(name, {})[rank] = {
            key: torch.from_numpy(np.asarray(value)) for key, value in arrays.items()
        }
    assert found.keys() == CASES.keys()
    for name, parts in found.items():
        assert_equals_one_process(name, [parts[rank] for rank in range(size)])
    # the cases are what they say: iterations stop early, probabilities differ from the prototypes'
    assert 2 < one_process("adm, uneven shards")["iterations"] < 25
    assert 2 < one_process("adm, nothing cached")["iterations"] < 25


@pytest.mark.parametrize("name", CASES)
def test_without_a_process_group(name):
    method, make, _, options = CASES[name]
    features, labels = make()
    result = getattr(distributed, method)(features, labels, **SHORT | options)
    part = {key: getattr(result, key) for key in ("probs", "predictions", "weights", "iterations")}
    if result.history is not None:
        part["loss"] = result.history.loss
    assert_equals_one_process(name, [part])


@given(problem=separable_problems(), method=st.sampled_from(["adm", "gd"]), cached=st.booleans())
@settings(max_examples=15)
def test_any_separable_task_in_small_segments(problem, method, cached):
    """Segments of 256 rows, so that every task has several."""
    features, labels = problem.arguments
    options = problem.options | {"iterations": min(problem.iterations, 30)}
    expected = getattr(tim_ext, method)(features, labels, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "SEGMENT_ROWS", 256)
        for t, (z, y) in enumerate(zip(features, labels, strict=True)):
            memory = 1 << 30 if cached else 300 * int(y.max() + 1) * 8
            got = getattr(distributed, method)(z, y, cache_bytes=memory, **options)
            torch.testing.assert_close(got.probs, expected.probs[t], rtol=0, atol=1e-10)
            assert torch.equal(got.predictions, expected.predictions[t])


# Memory maps ---------------------------------------------------------------------------------------


# In a process of its own, in which malloc gives back what is freed: what it keeps would count as used.
SOLVE_A_MAP = """
import sys
import numpy as np
from tim_ext import distributed
from tim_ext.distributed import shard

def resident():
    with open("/proc/self/status") as status:  # memory that no file backs
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024

folder, classes = sys.argv[1], 4
shard.SEGMENT_ROWS = 2048
pool, truth = np.load(f"{folder}/pool.npy", mmap_mode="r"), np.load(f"{folder}/truth.npy")
labels = np.full(len(pool), -1, dtype=np.int16)
labels[:classes] = truth[:classes]
highest, before = 0, resident()

def look(done):
    global highest
    highest = max(highest, resident() - before)

result = distributed.adm(pool, labels, iterations=3, callback=look)
print(highest, (result.predictions.numpy() == truth).mean())
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_a_memory_map_is_read_and_not_copied(tmp_path, run_python):
    """A pool of 64 MB in float16: what a solve adds to memory stays far below it."""
    n, d, classes = 32 * 1024, 1024, 4
    pool = np.lib.format.open_memmap(tmp_path / "pool.npy", mode="w+", dtype=np.float16, shape=(n, d))
    rng = np.random.default_rng(0)
    means = rng.standard_normal((classes, d))
    truth = np.arange(n) % classes
    for first in range(0, n, 4096):
        rows = truth[first : first + 4096]
        pool[first : first + 4096] = means[rows] + rng.standard_normal((len(rows), d))
    pool.flush()
    np.save(tmp_path / "truth.npy", truth)
    process = run_python("-c", SOLVE_A_MAP, str(tmp_path), MALLOC_MMAP_THRESHOLD_="65536")
    assert process.returncode == 0, process.stderr
    highest, accuracy = process.stdout.split()
    assert float(accuracy) > 0.99
    assert int(highest) < 16 << 20
