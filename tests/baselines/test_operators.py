"""The operators of the baselines in their place: beside the same in torch, which a GPU gets."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch
from helpers.baseline_tasks import NAN, every, ragged, task_lists
from helpers.make_tasks import make_task

from tim_ext import baselines
from tim_ext.baselines import pieces

CHOOSERS = ("operators", "pieces")  # modules that ask `native`


def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOOSERS:
        monkeypatch.setattr(sys.modules[f"tim_ext.baselines.{name}"], "native", lambda features: False)


@every
@pytest.mark.parametrize("seed", range(4))
def test_torch_does_the_same(method, seed, monkeypatch):
    tasks = ragged(seed, least_classes=2, least_queries=2)
    result = method(*task_lists(tasks))
    in_torch(monkeypatch)
    expected = method(*task_lists(tasks))
    for task, *values in zip(
        tasks, result.probs, expected.probs, result.weights, expected.weights, strict=True
    ):
        used = task.labels != -100
        torch.testing.assert_close(values[0][used], values[1][used], atol=1e-8, rtol=1e-6)
        torch.testing.assert_close(values[2], values[3], atol=1e-8, rtol=1e-6)
    assert torch.equal(torch.stack(list(result.iterations)), torch.stack(list(expected.iterations)))


NATIVE = {
    "bd_cspn": baselines.bd_cspn,
    "laplacian_shot": partial(baselines.laplacian_shot, neighbors=5, tol=0.0),
    "laplacian_shot, prototypes": partial(baselines.laplacian_shot, rectify=False, tol=0.0),
    "pt_map": baselines.pt_map,
}
natives = pytest.mark.parametrize("method", NATIVE.values(), ids=NATIVE)


SIZES = [(5, 31), (16, 12), (45, 31), (130, 75), (20, 1100)]  # few and many samples for the columns


@natives
@pytest.mark.parametrize(("d", "queries"), SIZES)
@pytest.mark.parametrize("transform", ["none", "power+l2+task_center+l2", "min_max", "cl2"])
def test_sizes_and_types(method, d, queries, transform, monkeypatch):
    tasks = [
        make_task(seed, shots=(3, 1, 2, 2), queries=queries, d=d, noise=0.8, padding=3) for seed in range(2)
    ]
    z, labels = map(torch.stack, task_lists(tasks))
    z[labels == -100] = 0
    pool, rows = z.flatten(0, 1), torch.arange(labels.numel()).view(labels.shape)
    options = {"transform": transform, "base_mean": torch.linspace(-0.2, 0.3, d)}
    dtypes = torch.float64, torch.float32
    found = {dtype: method(pool.to(dtype), labels, index=rows, **options) for dtype in dtypes}
    in_torch(monkeypatch)
    expected = method(pool, labels, index=rows, **options)
    used = labels != -100
    for dtype, tolerance in zip(dtypes, (1e-7, 2e-3), strict=True):
        result = found[dtype]
        assert result.probs.dtype == dtype
        torch.testing.assert_close(result.probs.double()[used], expected.probs[used], atol=tolerance, rtol=0)
        torch.testing.assert_close(result.weights.double(), expected.weights, atol=tolerance, rtol=0)


@natives
def test_float32_is_no_further_from_float64_than_torch(method, monkeypatch):
    tasks = [make_task(seed, shots=(5,) * 5, queries=75, d=64, noise=1.0) for seed in range(20)]
    z, labels = map(torch.stack, task_lists(tasks))
    exact, native = method(z, labels).probs, method(z.float(), labels).probs
    in_torch(monkeypatch)
    plain = method(z.float(), labels).probs
    assert (native - exact).abs().max() <= 2 * (plain - exact).abs().max()


@pytest.mark.parametrize("native", [True, False])
def test_the_first_fault_of_a_batch_counts(native, monkeypatch):
    """Features are looked at where they are gathered, after the labels: a later fault of those waits."""
    if not native:
        in_torch(monkeypatch)
    tasks = [make_task(seed, shots=(2, 2), queries=4, d=3) for seed in range(4)]
    z, labels = map(torch.stack, task_lists(tasks))
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    for value in (NAN, torch.inf):
        wrong = z.clone()
        wrong[1, 5, 2] = value
        for method in (baselines.bd_cspn, baselines.prototype, partial(baselines.pt_map, iterations=2)):
            others = labels.clone()
            with pytest.raises(ValueError, match="got NaN or Inf at sample 5 in task 1"):
                method(wrong, others)
            others[2, 0] = 7
            with pytest.raises(ValueError, match="got NaN or Inf at sample 5 in task 1"):
                method(wrong, others, num_classes=2)
            others[0, 0] = 7
            with pytest.raises(ValueError, match="in task 0"):
                method(wrong, others, num_classes=2)
