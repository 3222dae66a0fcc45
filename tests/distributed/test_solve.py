"""One task on several processes: what one process gives, refusals on all of them, and a lost one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.make_tasks import make_task, separable_problems
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tim_ext
from tim_ext import distributed
from tim_ext.distributed import ranks, shard
from tim_ext.distributed.shard import TorchKernels, lanes
from tim_ext.solver import native

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
ops = torch.ops.tim_ext

# Processes ----------------------------------------------------------------------------------------


def start_ranks(function: Callable[..., None], size: int, *inputs: Any) -> tuple[Any, list[Any]]:
    """function(rank, results, *inputs) in `size` processes of one gloo group."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tim_ext", "torch.distributed", "torch._dynamo"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    results = context.Queue()
    processes = [
        context.Process(target=run_rank, args=(rank, size, port, function, results, *inputs))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    return results, processes


def run_rank(
    rank: int, size: int, port: str, function: Callable[..., None], results: Any, *inputs: Any
) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=120))
    function(rank, results, *inputs)
    results.close()
    results.join_thread()
    dist.destroy_process_group()


def collect(results: Any, processes: list[Any], count: int) -> list[Any]:
    got = [results.get(timeout=300) for _ in range(count)]
    for process in processes:
        process.join()
    return got


# The same as one process --------------------------------------------------------------------------


def sorted_task(**shape: Any) -> tuple[Tensor, Tensor]:
    """All support samples at the end: one rank has them, the others only queries."""
    task = make_task(**shape)
    order = torch.argsort(task.labels, stable=True)
    return task.features[order], task.labels[order]


def mixed_task(dtype: torch.dtype = F64, **shape: Any) -> tuple[Tensor, Tensor]:
    task = make_task(**shape)
    return task.features.to(dtype), task.labels


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


SMALL = {"seed": 0, "shots": (5, 4, 3, 2, 1), "queries": 700, "d": 48, "noise": 0.9, "padding": 7}
SHORT = {"iterations": 25}
PRIOR = [0.1, 0.2, 0.3, 0.2, 0.2]
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


@pytest.mark.parametrize("size", [2, 4])
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


# Refusals -----------------------------------------------------------------------------------------

TASK = make_task(0, (3, 3, 3), 60, 10, noise=0.2)


def fail_at(when: int, done: int) -> None:
    if done == when:
        raise OSError("disk full")


# what rank 1 does differently from rank 0, and what both must say
REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "d": (
        {"columns": 9},
        "ValueError",
        "d: expected the same on all ranks, got 10 on rank 0 and 9 on rank 1",
    ),
    "dtype": (
        {"dtype": F32},
        "ValueError",
        "dtype: expected the same on all ranks, got 'float64' on rank 0 and",
    ),
    "alpha": (
        {"alpha": 0.2},
        "ValueError",
        "alpha: expected the same on all ranks, got 0.1 on rank 0 and 0.2",
    ),
    "iterations": ({"iterations": 3}, "ValueError", "iterations: expected the same on all ranks, got 150"),
    "normalize": ({"normalize": False}, "ValueError", "normalize: expected the same on all ranks"),
    "prior": ({"class_prior": [0.2, 0.3, 0.5]}, "ValueError", "class_prior: expected the same on all ranks"),
    "method": ({"method": "gd"}, "ValueError", "method: expected the same on all ranks, got 'adm' on rank 0"),
    "beta": ({"beta": -1}, "ValueError", "rank 1: beta: expected a finite number > 0, got -1.0"),
    "integers": ({"dtype": torch.int64}, "TypeError", "rank 1: features: expected float32, float64"),
    "shape": ({"rows": 5}, "ValueError", "rank 1: labels: expected shape [5] to match features, got"),
    "NaN": ({"nan": 4}, "ValueError", "rank 1: features: expected finite values, got NaN or Inf at sample 4"),
    "label": ({"label": -7}, "ValueError", "rank 1: labels: expected a class"),
    "class": (
        {"label": 5},
        "ValueError",
        "labels: expected support of each class 0 to 5, got none of class 3",
    ),
    "huge label": (
        {"label": 10**9},
        "ValueError",
        "labels: expected support of each class 0 to 1000000000, got only",
    ),
    "callback": ({"callback": partial(fail_at, 2)}, "RuntimeError", "rank 1: OSError: disk full"),
    "last callback": ({"callback": partial(fail_at, 150)}, "RuntimeError", "rank 1: OSError: disk full"),
}


def refused_cases(rank: int, results: Any) -> None:
    for name, (changed, _, _) in REFUSALS.items():
        try:
            different(rank, **changed)
            results.put((name, rank, "", ""))
        except Exception as error:
            results.put((name, rank, type(error).__name__, str(error)))
    result = distributed.adm(*halves(rank))  # the group is as good as new
    results.put(("after", rank, "", result.predictions.tolist()))


def halves(rank: int) -> tuple[Tensor, Tensor]:
    mine = slice(0, 30) if rank == 0 else slice(30, None)
    return TASK.features[mine], TASK.labels[mine]


def different(rank: int, **changed: Any) -> None:
    features, labels = halves(rank)
    if rank == 0:
        distributed.adm(features, labels)
        return
    features = features[: changed.pop("rows", None), : changed.pop("columns", None)]
    features = features.to(changed.pop("dtype", F64)).clone()
    labels = labels.clone()
    if "nan" in changed:
        features[changed.pop("nan"), 3] = torch.nan
    if "label" in changed:
        labels[11] = changed.pop("label")
    getattr(distributed, changed.pop("method", "adm"))(features, labels, **changed)


def test_all_ranks_refuse_with_one_message():
    results, processes = start_ranks(refused_cases, 2)
    got: dict[str, dict[int, tuple[str, Any]]] = {}
    for name, rank, kind, text in collect(results, processes, 2 * (len(REFUSALS) + 1)):
        got.setdefault(name, {})[rank] = kind, text
    for name, (_, kind, text) in REFUSALS.items():
        assert got[name][0] == got[name][1], name
        assert got[name][0][0] == kind, (name, got[name])
        assert got[name][0][1].startswith(text), (name, got[name])
        assert "\n" not in got[name][0][1]
    whole = tim_ext.adm(TASK.features, TASK.labels)
    assert got["after"][0][1] + got["after"][1][1] == whole.predictions.tolist()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"features": TASK.features[0]}, ValueError, r"features: expected shape \[n, d\]"),
        ({"features": TASK.features.int()}, TypeError, "features: expected float32"),
        ({"labels": TASK.labels[1:]}, ValueError, "labels: expected shape"),
        ({"labels": torch.full_like(TASK.labels, -1)}, ValueError, "labels: expected support samples"),
        ({"num_classes": 2}, ValueError, "labels: expected a class 0 to 1, -1 for a query"),
        (
            {"num_classes": 4},
            ValueError,
            "labels: expected support of each class 0 to 3, got none of class 3",
        ),
        ({"class_prior": [0.5, 0.5]}, ValueError, "class_prior: expected shape"),
        ({"cache_bytes": -1}, ValueError, "cache_bytes: expected an integer >= 0, got -1"),
        ({"callback": 3}, TypeError, "callback: expected a function, got int"),
        ({"outputs": ["confidences"]}, ValueError, "outputs: expected a tuple of names out of 'probs'"),
        ({"group": "all"}, ValueError, "group: expected a process group"),
        (
            {"normalize": False, "features": TASK.features * 1e200},
            ValueError,
            "the hyper-parameters .* are too extreme",
        ),
    ],
)
def test_one_process_refuses(options, kind, text):
    arguments = {"features": TASK.features, "labels": TASK.labels} | options
    with pytest.raises(kind, match=text) as caught:
        distributed.adm(**arguments)
    assert "\n" not in str(caught.value)


# A lost rank --------------------------------------------------------------------------------------


def lose_a_rank(rank: int, results: Any, victim: int) -> None:
    ranks.BEAT, ranks.SILENCE = 0.1, 1.5  # sooner than users need it
    features, labels = torch.chunk(TASK.features, 4)[rank], torch.chunk(TASK.labels, 4)[rank]
    if dist.get_world_size() == 2:
        features, labels = halves(rank)

    def die(done: int) -> None:
        if done == 3 and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        distributed.adm(features, labels, callback=die)
    except distributed.LostRankError as error:
        results.put((rank, str(error)))
        results.close()
        results.join_thread()
    os._exit(3)  # as after an error that nobody caught; the group is of no use any more


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (4, 2), (4, 0)])
def test_the_others_name_the_lost_rank(size, victim):
    results, processes = start_ranks(lose_a_rank, size, victim)
    said = dict(collect(results, processes, size - 1))
    assert said.keys() == set(range(size)) - {victim}
    for text in said.values():
        assert text.startswith(f"rank {victim} "), said
        assert "lost in iteration 4" in text
        assert "\n" not in text
    if victim:  # rank 0 holds the store that the ranks agree through
        assert len(set(said.values())) == 1
        assert f"rank {victim} of {size} is lost" in said[0]
    assert [process.exitcode for process in processes] == [-9 if r == victim else 3 for r in range(size)]


# Labels of rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16])
def test_classify_gives_the_probabilities_of_the_solution(dtype, tmp_path):
    features, labels = mixed_task(dtype, **SMALL | {"padding": 0})
    result = tim_ext.adm(features, labels, form="primal")
    got = distributed.classify(features, result.weights, outputs=("probs", "predictions", "confidences"))
    torch.testing.assert_close(got.probs, result.probs, rtol=0, atol=1e-12 if dtype == F64 else 1e-6)
    assert torch.equal(got.predictions, result.predictions)
    assert torch.equal(got.confidences, got.probs.max(dim=1).values)
    some = distributed.classify(features[100:200], result.weights)
    assert some.probs is None
    assert torch.equal(some.predictions, got.predictions[100:200])
    assert len(distributed.classify(features[:0], result.weights).predictions) == 0


def test_classify_refuses():
    with pytest.raises(
        ValueError, match=r"weights: expected shape \[K, 10\] to match features, got \[3, 9\]"
    ):
        distributed.classify(TASK.features, torch.zeros(3, 9))
    with pytest.raises(ValueError, match="features: expected finite values, got NaN or Inf at sample 2"):
        distributed.classify(
            TASK.features.clone().index_fill_(0, torch.tensor(2), torch.inf), torch.zeros(3, 10)
        )
    with pytest.raises(ValueError, match="outputs: expected a tuple of names out of 'probs'"):
        distributed.classify(TASK.features, torch.zeros(3, 10), outputs=("weights",))


# Memory maps --------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process's memory that no file backs."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_a_memory_map_is_read_and_not_copied(tmp_path):
    """A pool of 64 MB in float16: what a solve adds to memory stays below it."""
    n, d, classes = 32 * 1024, 1024, 4
    pool = np.lib.format.open_memmap(tmp_path / "pool.npy", mode="w+", dtype=np.float16, shape=(n, d))
    rng = np.random.default_rng(0)
    means = rng.standard_normal((classes, d))
    truth = np.arange(n) % classes
    for first in range(0, n, 4096):
        rows = truth[first : first + 4096]
        pool[first : first + 4096] = means[rows] + rng.standard_normal((len(rows), d))
    pool.flush()
    del pool
    pool = np.load(tmp_path / "pool.npy", mmap_mode="r")
    labels = np.full(n, -1, dtype=np.int16)
    labels[:classes] = truth[:classes]
    highest, before = 0, resident()

    def look(done: int) -> None:
        nonlocal highest
        highest = max(highest, resident() - before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "SEGMENT_ROWS", 2048)
        result = distributed.adm(pool, labels, iterations=3, callback=look)
    assert (result.predictions.numpy() == truth).mean() > 0.99
    assert highest < 48 << 20


# The operators ------------------------------------------------------------------------------------


def operator_task(dtype: torch.dtype) -> dict[str, Any]:
    task = make_task(2, (2, 1, 3), 600, 19, noise=0.8, padding=5)
    features = task.features.to(dtype)
    scale, status = ops.shard_scale(features, task.labels, True)
    assert status.tolist() == [0, 0, 0]
    weights = torch.randn(3, 19, generator=torch.Generator().manual_seed(0), dtype=F64).to(scale.dtype) / 3
    return {"features": features, "labels": task.labels, "scale": scale, "weights": weights}


SOFTMAX = {"temperature": 9.0, "support_weight": 0.3, "query_weight": 0.7, "power": 1.2, "terms": True}
ADM_SUMS = {"support_weight": 0.3, "query_weight": 0.7, "power": 1.2}
GD_SUMS = {"support_weight": 0.3, "query_weight": 0.7, "alpha": 0.4}


@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16])
@pytest.mark.parametrize("order", [1.0, 1.7])
@pytest.mark.parametrize("exact", [True, False])
def test_operators_equal_their_equations_in_torch(dtype, order, exact):
    task = operator_task(dtype)
    tolerance = {"rtol": 1e-11, "atol": 1e-10} if dtype == F64 else {"rtol": 2e-4, "atol": 2e-4}
    samples = task["features"], task["labels"], task["scale"]
    memory = [torch.rand(lanes(611) * 3, dtype=task["scale"].dtype) for _ in range(2)]
    sums = {}
    for kernels, log_probs in ((ops, memory[0]), (TorchKernels, memory[1])):
        before = torch.zeros_like(log_probs)
        softmax = kernels.shard_softmax(
            *samples, task["weights"], log_probs, before, entropy_order=order, **SOFTMAX
        )
        again = kernels.shard_softmax(
            *samples, task["weights"] * 1.1, log_probs, before, entropy_order=order, **SOFTMAX
        )
        factor = torch.tensor([0.3, 1.0, 2.0]).to(log_probs)
        sums[kernels] = [
            softmax[0],
            softmax[1][1:],
            again[0],
            again[1][1:],
            *kernels.shard_adm_sums(*samples, log_probs, factor, exact=exact, **ADM_SUMS),
            *kernels.shard_gd_sums(*samples, log_probs, factor, entropy_order=order, **GD_SUMS),
            *kernels.shard_classify(*samples, task["weights"], temperature=9.0, probs=True),
        ]
    for mine, theirs in zip(sums[ops], sums[TorchKernels], strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)
    scale, status = TorchKernels.shard_scale(task["features"], task["labels"], True)
    torch.testing.assert_close(task["scale"], scale, rtol=1e-5, atol=0)
    assert status.tolist() == [0, 0, 0]


def test_the_solvers_on_the_torch_kernels():
    """What GPUs run, here on the CPU."""
    features, labels = mixed_task(**SMALL)
    for method in ("adm", "gd"):
        options = {"history": True, "tol": 1e-4, "class_prior": PRIOR, "iterations": 20}
        expected = getattr(distributed, method)(features, labels, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native.torch_ops, "tim_ext", TorchKernels)
            got = getattr(distributed, method)(features, labels, **options)
        torch.testing.assert_close(got.probs, expected.probs, rtol=0, atol=1e-10)
        assert torch.equal(got.predictions, expected.predictions)
        assert torch.equal(got.iterations, expected.iterations)
        torch.testing.assert_close(
            got.history.loss, expected.history.loss, rtol=0, atol=1e-10, equal_nan=True
        )


def test_operators_refuse():
    task = operator_task(F64)
    samples = task["features"], task["labels"], task["scale"]
    memory = torch.zeros(lanes(611) * 3, dtype=F64)
    call = partial(ops.shard_softmax, before=None, entropy_order=1.0, **SOFTMAX)
    for arguments, text in [
        ((*samples, task["weights"][:, 1:], memory), r"weights must have shape \[\*, 19\]"),
        (
            (*samples, task["weights"][:2], memory[: lanes(611) * 2]),
            "labels must be below 2, -1 or -100, got 2",
        ),
        ((*samples, task["weights"], memory[1:]), r"log_probs must have shape \[2304\], got \[2303\]"),
        ((*samples[:2], samples[2][1:], task["weights"], memory), r"scale must have shape \[611\]"),
        ((samples[0], samples[1].int(), samples[2], task["weights"], memory), "labels has another dtype"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            call(*arguments)
