"""The operators shard_* against the same functions in plain torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from helpers.make_tasks import make_task
from helpers.ranks import BF16, F16, F32, F64, PRIOR, SMALL, mixed_task, ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tim_ext import distributed
from tim_ext.distributed.shard import lanes
from tim_ext.distributed.torch_kernels import TorchKernels
from tim_ext.solver import native
from tim_ext.solver.inputs import PADDING, QUERY


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
@pytest.mark.parametrize("centred", [True, False])
def test_operators_equal_their_equations_in_torch(dtype, order, exact, centred):
    task = operator_task(dtype)
    mean = {"mean": task["weights"].mean(dim=0) if centred else None}
    tolerance = {"rtol": 1e-11, "atol": 1e-10} if dtype == F64 else {"rtol": 2e-4, "atol": 2e-4}
    samples = task["features"], task["labels"], task["scale"]
    memory = [torch.rand(lanes(611) * 3, dtype=task["scale"].dtype) for _ in range(2)]
    sums = {}
    for kernels, log_probs in ((ops, memory[0]), (TorchKernels, memory[1])):
        before = torch.zeros_like(log_probs)
        softmax = kernels.shard_softmax(
            *samples, task["weights"], log_probs, before, entropy_order=order, **SOFTMAX, **mean
        )
        again = kernels.shard_softmax(
            *samples, task["weights"] * 1.1, log_probs, before, entropy_order=order, **SOFTMAX, **mean
        )
        factor = torch.tensor([0.3, 1.0, 2.0]).to(log_probs)
        sums[kernels] = [
            softmax[0],
            softmax[1][1:],
            again[0],
            again[1][1:],
            *kernels.shard_adm_sums(*samples, log_probs, factor, exact=exact, **ADM_SUMS, **mean),
            *kernels.shard_gd_sums(*samples, log_probs, factor, entropy_order=order, **GD_SUMS, **mean),
            *kernels.shard_classify(*samples, task["weights"], temperature=9.0, probs=True, **mean),
        ]
    for mine, theirs in zip(sums[ops], sums[TorchKernels], strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)
    scale, status = TorchKernels.shard_scale(task["features"], task["labels"], True)
    torch.testing.assert_close(task["scale"], scale, rtol=1e-5, atol=0)
    assert status.tolist() == [0, 0, 0]


@settings(max_examples=25)
@given(st.integers(1, 10_000), st.integers(1, 8), st.sampled_from([1, 7, 97, 300]), st.integers(0, 2**30))
def test_many_samples_in_any_order_equal_float64_with_any_threads(n, classes, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, dim, generator=generator).half()
    labels = torch.randint(0, 12 * classes, (n,), generator=generator)
    labels[labels > classes] = QUERY
    labels[labels == classes] = PADDING
    features[labels == PADDING] = torch.nan  # never read
    weights, mean = torch.randn(classes + 1, dim, generator=generator).mul(0.1).tensor_split([classes])
    mean = mean[0]

    def halves(kernels: Any, real: torch.dtype, samples: Tensor) -> list[Tensor]:
        scale, _ = kernels.shard_scale(samples, labels, True)
        log_probs = torch.zeros(lanes(n) * classes, dtype=real)
        own = {"mean": mean.to(real)}
        one = scale.to(real), weights.to(real), log_probs
        columns, _ = kernels.shard_softmax(
            samples, labels, *one, None, entropy_order=1.0, **{**SOFTMAX, "power": 0.0}, **own
        )
        factor = torch.ones(classes, dtype=real)
        return [
            columns[0::2],
            *kernels.shard_adm_sums(
                samples, labels, one[0], log_probs, factor, exact=False, **ADM_SUMS, **own
            ),
        ]

    truth = halves(TorchKernels, F64, torch.where(labels[:, None] == PADDING, 0, features).double())
    found = []
    threads = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            found.append(halves(ops, F32, features))
        finally:
            torch.set_num_threads(threads)
    for one, three, expected in zip(*found, truth, strict=True):
        assert torch.equal(one, three)
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6 * n)


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
    with pytest.raises(RuntimeError, match=r"mean must have shape \[19\], got \[18\]"):
        call(*samples, task["weights"], memory, mean=task["weights"][0, 1:])
