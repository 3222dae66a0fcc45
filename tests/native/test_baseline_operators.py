"""The operators behind the baselines; what their methods compute is in tests/baselines/test_operators.py."""

from __future__ import annotations

import pytest
import torch
from helpers.make_tasks import make_batch
from torch import Tensor

from tim_ext import transforms

ops = torch.ops.tim_ext

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
sizes = pytest.mark.parametrize("d", [1, 5, 16, 45, 130])
K = 4
EXACT = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 3e-5, torch.bfloat16: 3e-5}


def tasks(d: int = 45, queries: int = 31) -> tuple[Tensor, Tensor]:
    """Three tasks in float64, their labels in any order, with padding; 0 for padding."""
    z, labels, _ = make_batch(range(3), shots=(3, 1, 2, 2), queries=queries, d=d, noise=0.8, padding=3)
    return z.masked_fill((labels == -100)[..., None], 0), labels


def assert_near(result: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(result.double(), expected, atol=EXACT[dtype], rtol=EXACT[dtype])


STEPS = ["", "l2", "center+l2", "power+l2+task_center+l2", "l2+joint_center", "min_max", "l2+min_max+power"]


@sizes
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("steps", STEPS)
def test_gather_tasks(d, dtype, steps):
    z, labels = tasks(d)
    pool = torch.cat([z.flatten(0, 1).flip(0), torch.full((2, d), torch.nan)]).to(dtype)
    rows = torch.arange(labels.numel()).flip(0).view(labels.shape)
    mean = torch.linspace(-0.2, 0.3, d)
    exact = pool[rows].double()
    expected = transforms.Transform(tuple(filter(None, steps.split("+"))), mean.double())(exact, labels)
    expected = transforms.blank(expected, labels == -100)
    rows = torch.where(labels == -100, 10**9, rows)  # rows there are not
    own = mean.to(torch.float64 if dtype == torch.float64 else torch.float32)
    result, finite = ops.gather_tasks(pool, rows, labels, steps, own)
    assert result.dtype == own.dtype
    assert finite.tolist() == [1, 1, 1]
    if steps != "l2+min_max+power":  # the root of a rounding is large
        assert_near(result, expected, dtype)
    else:
        rounding = 1e-7 if dtype == torch.float64 else 1e-3
        torch.testing.assert_close(result.double(), expected, atol=rounding, rtol=0)


@dtypes
def test_lengths_whose_squares_leave_the_range(dtype):
    scale = 1e30 if dtype == torch.float32 else 1e200
    lengths = torch.tensor([scale, 1 / scale, 1, 0, scale, 1], dtype=dtype)
    z = torch.randn(1, 6, 9, dtype=dtype) * lengths[:, None]
    labels = torch.tensor([[0, 1, -1, -1, -1, -1]])
    result, _ = ops.gather_tasks(z[0], torch.arange(6)[None], labels, "l2")
    torch.testing.assert_close(result, transforms.l2_normalize(z))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", [0, 16, 44])
def test_gather_tasks_sees_what_is_not_finite(value, column):
    z, labels = tasks()
    rows = torch.arange(labels.numel()).view(labels.shape)
    for label, expected in [(-1, [1, 0, 1]), (-100, [1, 1, 1])]:  # of padding, nothing is looked at
        wrong = z.clone()
        wrong[1, int((labels[1] == label).nonzero()[0]), column] = value
        for dtype in (torch.float64, torch.float32, torch.float16):
            _, finite = ops.gather_tasks(wrong.flatten(0, 1).to(dtype), rows, labels, "l2")
            assert finite.tolist() == expected


METHODS = {
    "bd_cspn": (10.0, 10.0),
    "laplacian_shot": (True, 10.0, 2, 0.7, 20, 1e-6),
    "pt_map": (10.0, 0.2, 20, 1e-6),
}


@pytest.mark.parametrize("name", METHODS)
def test_tasks_are_the_same_alone_and_at_any_number_of_threads(name):
    z, labels = tasks(130)
    rows = torch.arange(labels.numel()).view(labels.shape)

    def solve(part: slice) -> tuple[Tensor, ...]:
        task = z.flatten(0, 1).float(), rows[part], labels[part], "power+l2+task_center+l2", None
        return getattr(ops, name)(*task, K, *METHODS[name])

    together, before = solve(slice(0, 3)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for t in range(3):
            assert all(map(torch.equal, solve(slice(t, t + 1)), (x[t : t + 1] for x in together)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", METHODS)
def test_labels_beyond_the_classes_are_nobodys(name):
    """Refused before the operators see them; here, no memory is touched that is not theirs."""
    z, labels = tasks()
    rows = torch.arange(labels.numel()).view(labels.shape)
    labels = torch.where(labels == 0, 2**40, labels)
    probs, weights, *_ = getattr(ops, name)(z.flatten(0, 1), rows, labels, "l2", None, K, *METHODS[name])
    assert (probs.shape, weights.shape) == ((3, K, labels.shape[1]), (3, K, 45))


@pytest.mark.parametrize(("B", "N"), [(0, 4), (2, 0)])
def test_no_task_and_no_sample(B, N):
    rows = torch.zeros(B, N).long()
    task = torch.zeros(3, 5), rows, rows, "l2", None
    assert ops.gather_tasks(*task)[0].shape == (B, N, 5)
    for name, settings in METHODS.items():
        probs, weights, finite, *_ = getattr(ops, name)(*task, 3, *settings)
        assert (probs.shape, weights.shape, finite.tolist()) == ((B, 3, N), (B, 3, 5), [1] * B)


X, L = torch.randn(12, 5), torch.tensor([[0, 1, -1, -1, -1, -100]] * 2)
ROWS = torch.arange(12).view(2, 6)


@pytest.mark.parametrize("name", ["gather_tasks", *METHODS])
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((X.view(2, 6, 5), ROWS, L, "l2", None), "features must have shape"),
        ((X.long(), ROWS, L, "l2", None), "features must be float32"),
        ((X[:, :0], ROWS, L, "l2", None), "features must have at least one column"),
        ((X, ROWS[0], L, "l2", None), "rows must have shape"),
        ((X, ROWS.int(), L, "l2", None), "rows has another dtype"),
        ((X, ROWS, L[:1], "l2", None), "labels must have shape"),
        ((X, ROWS + 3, L, "l2", None), "rows must be >= 0 and below 12"),
        ((X, ROWS - 1, L, "l2", None), "rows must be >= 0 and below 12.*got -1"),
        ((X, ROWS, L, "l2+l3", None), "steps has an unknown step, got 'l3'"),
        ((X, ROWS, L, "+".join(["l2"] * 17), None), "steps must be at most 16"),
        ((X, ROWS, L, "center", None), "base_mean must be given"),
        ((X, ROWS, L, "center", torch.ones(4)), "base_mean must have shape"),
        ((X, ROWS, L, "center", torch.ones(5).double()), "base_mean has another dtype"),
    ],
)
def test_refuses_bad_arguments(name, arguments, word):
    settings = () if name == "gather_tasks" else (3, *METHODS[name])
    with pytest.raises(RuntimeError, match=f"{name}: {word}"):
        getattr(ops, name)(*arguments, *settings)


@pytest.mark.parametrize("name", METHODS)
def test_refuses_bad_settings(name):
    task = X, ROWS, L, "l2", None
    with pytest.raises(RuntimeError, match=f"{name}: classes must be >= 1, got 0"):
        getattr(ops, name)(*task, 0, *METHODS[name])
    with pytest.raises(RuntimeError, match="laplacian_shot: neighbors must be >= 1, got 0"):
        ops.laplacian_shot(*task, 3, True, 10.0, 0, 0.7, 20, 1e-6)
