"""Transforms of features against loops over their rows, and what is refused."""
# ruff: noqa: E501

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task
from hypothesis import given
from hypothesis import strategies as st

from tim_ext import transforms
from tim_ext.transforms import make_transform

NAN = torch.nan


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 99), st.sampled_from([(1, 1), (5, 3), (2, 5, 3), (2, 1, 4, 7)]))
def test_l2_normalize_gives_each_row_unit_length(seed, shape):
    z = rows(seed, *shape)
    out = transforms.l2_normalize(z)
    for row, unit in zip(z.view(-1, shape[-1]), out.view(-1, shape[-1]), strict=True):
        torch.testing.assert_close(unit, row / row.dot(row).sqrt())


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [(torch.float32, [1e-37, 1e-20, 1.0, 1e20, 1e37]), (torch.float64, [1e-307, 1e-200, 1.0, 1e200, 1e307])],
)
def test_l2_normalize_of_any_length_and_of_zero(dtype, scales):
    z = torch.tensor([[3.0, -4.0]], dtype=dtype)
    expected = torch.tensor([[0.6, -0.8], [0, 0], [0.6, -0.8]], dtype=dtype)
    for scale in scales:
        torch.testing.assert_close(transforms.l2_normalize(torch.cat([z * scale, 0 * z, z])), expected)


def test_l2_normalize_keeps_nan_to_its_row():
    out = transforms.l2_normalize(torch.tensor([[NAN, 1.0], [3.0, 4.0]]))
    assert out[0].isnan().any()
    torch.testing.assert_close(out[1], torch.tensor([0.6, 0.8]))


def test_center():
    z, mean = rows(0, 2, 4, 3), rows(1, 3)
    torch.testing.assert_close(transforms.center(z, mean), torch.stack([x - mean for x in z]))
    torch.testing.assert_close(transforms.center(z, mean.numpy()), z - mean)


@given(st.integers(0, 99), st.integers(0, 2), st.sampled_from([0, 5]))
def test_transforms_of_a_task_against_a_loop(seed, padding, queries):
    tasks = [make_task(seed + t, shots=(2, 1), queries=queries, d=3, padding=padding) for t in range(2)]
    z = torch.stack([task.features for task in tasks])
    labels = torch.stack([task.labels for task in tasks])
    z[labels == -100] = NAN
    out = transforms.task_center(z, labels)
    for task, got in zip(tasks, out, strict=True):
        for chosen in (task.labels >= 0, task.labels == -1):
            samples = task.features[chosen]
            torch.testing.assert_close(got[chosen], samples - samples.mean(dim=0))
        assert (got[task.labels == -100] == 0).all()
    torch.testing.assert_close(transforms.task_center(z[0], labels[0]), out[0])
    for change, expected in (
        (transforms.joint_center, loop_joint_center),
        (transforms.min_max, loop_min_max),
    ):
        out = change(z, labels)
        for task, got in zip(tasks, out, strict=True):
            used = task.labels != -100
            torch.testing.assert_close(got[used], expected(task.features[used], task.labels[used]))
            assert (got[~used] == 0).all()
        torch.testing.assert_close(change(z[0], labels[0]), out[0])


def loop_joint_center(z, labels):
    return torch.stack([x - z.mean(dim=0) for x in z])


def loop_min_max(z, labels):
    seen = z[labels == -1] if (labels == -1).any() else z
    columns = [(column - s.min()) / (s.max() - s.min()) for column, s in zip(z.T, seen.T, strict=True)]
    return torch.stack(columns, dim=1)


def test_min_max_of_what_does_not_vary():
    """Among the queries, or at all."""
    z = torch.tensor([[5.0, 5.0, 8.0], [3.0, 1.0, 8.0], [3.0, 2.0, 8.0]])
    expected = torch.tensor([[1.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(transforms.min_max(z, [0, -1, -1]), expected)


def test_power_keeps_signs_and_zeros():
    z = torch.tensor([[4.0, -9.0, 0.0]])
    torch.testing.assert_close(transforms.power(z), torch.tensor([[2.0, -3.0, 0.0]]))
    torch.testing.assert_close(transforms.power(z, beta=2), torch.tensor([[16.0, -81.0, 0.0]]))
    assert torch.equal(transforms.power(z, beta=1), z)


EVERY = {
    "l2_normalize": transforms.l2_normalize,
    "center": lambda z: transforms.center(z, np.zeros(3)),
    "task_center": lambda z: transforms.task_center(z, [0, 1, -1, -1]),
    "joint_center": lambda z: transforms.joint_center(z, [0, 1, -1, -1]),
    "min_max": lambda z: transforms.min_max(z, [0, 1, -1, -1]),
    "power": transforms.power,
}
every = pytest.mark.parametrize("change", EVERY.values(), ids=EVERY)


@every
def test_does_not_change_its_input(change):
    z = rows(0, 4, 3)
    before = z.clone()
    change(z)
    assert torch.equal(z, before)


@every
def test_dtypes(change):
    z = rows(0, 4, 3)
    assert change(z).dtype == torch.float64
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        out = change(z.to(dtype))
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, change(z.to(dtype).float()))
    torch.testing.assert_close(change(z.numpy()), change(z))


@every
def test_refuses_what_are_no_features(change):
    with pytest.raises(TypeError, match=re.escape("features: expected float32, float64, float16, bfloat16")):
        change(torch.ones(4, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=re.escape("features: expected shape [.., N, d], got [3]")):
        change(torch.ones(3))


Z = torch.ones(4, 3)
REFUSALS = [
    (transforms.center, (Z, torch.ones(2)), ValueError, "mean: expected shape [3], one number for each feature, got [2]"),
    (transforms.center, (Z, torch.ones(4, 3)), ValueError, "mean: expected shape [3], one number for each feature, got [4, 3]"),
    (transforms.center, (Z, torch.tensor([0.0, NAN, 1])), ValueError, "mean: expected finite values, got NaN or Inf"),
    (transforms.center, (Z, None), TypeError, "mean: expected a tensor or array, got NoneType"),
    (transforms.task_center, (Z, [0, 1]), ValueError, "labels: expected shape [4] to match features, got [2]"),
    (transforms.task_center, (Z, torch.ones(4)), TypeError, "labels: expected integers (int64 to int8, or uint8), got float32"),
    (transforms.power, (Z, 0), ValueError, "beta: expected a finite number > 0, got 0"),
    (transforms.power, (Z, "half"), TypeError, "beta: expected a finite number, got str 'half'"),
    (make_transform, ("l3", None, Z), ValueError, "transform: expected 'none', 'cl2', or steps joined by '+' out of 'center', 'l2', 'power', 'task_center', 'joint_center', 'min_max', got 'l3'"),
    (make_transform, ("l2+", None, Z), ValueError, "got 'l2+'"),
    (make_transform, ("", None, Z), ValueError, "got ''"),
    (make_transform, (None, None, Z), TypeError, "got NoneType None"),
    (make_transform, ("cl2", None, Z), ValueError, "base_mean: expected the mean [d] of the base features, as transform='cl2' subtracts it, got None"),
    (make_transform, ("power+center", None, Z), ValueError, "as transform='power+center' subtracts it, got None"),
    (make_transform, ("cl2", torch.ones(5), Z), ValueError, "base_mean: expected shape [3], one number for each feature, got [5]"),
    (make_transform, ("l2", torch.ones(5), Z), ValueError, "base_mean: expected shape [3], one number for each feature, got [5]"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "error", "message"), REFUSALS)
def test_refuses(function, arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        function(*arguments)


def test_steps_run_in_their_order():
    z, labels, mean = rows(0, 6, 3), torch.tensor([0, 1, -1, -1, 0, -1]), rows(1, 3)
    for name, expected in {
        "none": z,
        "l2": transforms.l2_normalize(z),
        "cl2": transforms.l2_normalize(z - mean),
        "center+l2": transforms.l2_normalize(z - mean),
        "l2+center": transforms.l2_normalize(z) - mean,
        "power+l2+task_center+l2": transforms.l2_normalize(
            transforms.task_center(transforms.l2_normalize(transforms.power(z)), labels)
        ),
    }.items():
        torch.testing.assert_close(make_transform(name, mean, z)(z, labels), expected)
