"""Inputs at the edge of the range: each of these once gave NaN, a wrong class or an obscure error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import tim_ext

FAR = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [1, 0.1], [1, -0.1], [1, 0.05]])
FAR_LABELS = torch.tensor([0, 1, 2, -1, -1, -1])  # all queries of one class: phat of the others underflows


def one_sided_task(seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """5 ways, 5 shots, all 40 queries of class 0."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.cat([torch.arange(5).repeat(5), torch.zeros(40, dtype=torch.long)])
    centres = torch.randn(5, 16, generator=generator, dtype=torch.float64)
    features = centres[classes] + 0.3 * torch.randn(65, 16, generator=generator, dtype=torch.float64)
    return features.to(dtype), torch.where(torch.arange(65) < 25, classes, -1)


@pytest.mark.parametrize("temperature", [52.0, 55.0, 60.0, 64.0, 100.0, 500.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gd_with_an_empty_class(temperature, dtype):
    result = tim_ext.gd(FAR.to(dtype), FAR_LABELS, temperature=temperature)
    assert result.probs.isfinite().all()
    assert result.predictions.tolist() == [0, 1, 2, 0, 0, 0]


@pytest.mark.parametrize("order", [1 + 1e-8, 1 - 1e-9, float(np.arange(0.5, 1.5, 0.1)[5])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_order_next_to_one(order, dtype):
    features, labels = one_sided_task(0, dtype)
    near = tim_ext.gd(features, labels, entropy_order=order, iterations=50)
    torch.testing.assert_close(
        near.probs, tim_ext.gd(features, labels, iterations=50).probs, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("temperature", [15.0, 60.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_class_without_mass_keeps_its_weights(form, temperature, seed):
    features, labels = one_sided_task(seed, torch.float64)
    options = {"lam": 0.0, "temperature": temperature, "iterations": 5}
    result = tim_ext.adm(features, labels, form=form, **options)
    expected = tim_ext.reference.adm(features, labels, **options)
    assert result.probs.isfinite().all()
    assert result.weights.isfinite().all()
    torch.testing.assert_close(result.predictions, expected.predictions)
    assert tim_ext.adm(features.float(), labels, form=form, **options).probs.isfinite().all()


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("seed", range(10))
def test_weights_that_run_away_are_refused_or_finite(form, seed):
    """lam = m = 0: nothing holds a class without queries, W grows by orders of magnitude per iteration."""
    features, labels = one_sided_task(seed, torch.float64)
    try:
        result = tim_ext.adm(features, labels, lam=0.0, marginal_weight=0.0, form=form, iterations=20)
    except ValueError:
        return
    assert result.probs.isfinite().all()


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("lam", [1e-6, 1e-4])
def test_last_class_with_little_mass(form, lam):
    """float32 is not worse than plain torch in float32, though W_K could be had from the others."""
    errors = []
    for seed in range(10):
        features, labels = one_sided_task(seed, torch.float64)
        truth = tim_ext.reference.adm(features, labels, lam=lam, iterations=5).probs
        mine = tim_ext.adm(features.float(), labels, lam=lam, iterations=5, form=form).probs
        plain = tim_ext.reference.adm(features.float(), labels, lam=lam, iterations=5).probs
        errors.append([float((p - truth).abs().max()) for p in (mine, plain)])
    mine, plain = torch.tensor(errors).amax(0)
    assert mine <= max(10 * plain, 1e-4)


def test_class_prior_beyond_the_range_of_the_marginal():
    generator = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.arange(200), torch.full((100,), -1)])
    features = torch.randn(300, 32, generator=generator)
    prior = torch.full((200,), 0.1 / 199)
    prior[1] = 0.9
    for temperature in (42.8, 43.0, 43.3):
        result = tim_ext.adm(
            features, labels, class_prior=prior, beta=0.01, alpha=0.0, temperature=temperature, iterations=3
        )
        assert result.probs.isfinite().all()


def test_tiny_eps_with_padded_columns():
    result = tim_ext.gd(FAR.repeat(1, 3), FAR_LABELS, eps=1e-46, iterations=10)  # d = 6
    assert result.probs.isfinite().all()


def test_parameters_beyond_the_range_are_refused():
    features, labels = one_sided_task(0, torch.float32)
    with pytest.raises(ValueError, match=r"too extreme: expected finite probabilities, got NaN or Inf"):
        tim_ext.adm(1e25 * features, labels, normalize=False)
    with pytest.raises(ValueError, match=r"lam: expected a finite number >= 0, got inf"):
        tim_ext.adm(features, labels, lam=10**400)
    with pytest.raises(ValueError, match=r"iterations: expected an integer <= 2147483647"):
        tim_ext.adm(features, labels, iterations=2**63)
    with pytest.raises(TypeError, match=r"normalize: expected True or False, got str 'no'"):
        tim_ext.adm(features, labels, normalize="no")


def test_outputs_may_be_an_iterator():
    features, labels = one_sided_task(0, torch.float32)
    assert tim_ext.adm(features, labels, outputs=(name for name in ["probs"])).probs is not None


def test_fake_tensors_leave_no_trace():
    from torch._subclasses.fake_tensor import FakeTensorMode

    features, labels = one_sided_task(0, torch.float32)
    expected = tim_ext.adm(features, labels, num_classes=5).predictions
    with FakeTensorMode() as mode, pytest.raises(Exception):  # noqa: B017, PT011
        tim_ext.adm(mode.from_tensor(features), mode.from_tensor(labels), num_classes=5)
    assert torch.equal(tim_ext.adm(features, labels, num_classes=5).predictions, expected)


def test_step_operators_at_the_edge():
    operators = torch.ops.tim_ext
    z, w = torch.randn(1, 4, 3), torch.randn(1, 2, 3)
    none = z[:, :0, :2]
    same = operators.w_update(z[:, :0], w, none, none, torch.zeros(1, 0).long(), 0.1, 0.1, 1.0)
    assert torch.equal(same, w)  # no sample, no mass: the classes keep their weights
    prior = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    terms = {"lam": 0.1, "alpha": 0.1, "temperature": 15.0, "marginal_weight": 1.0, "class_prior": prior}
    with pytest.raises(RuntimeError, match="class_prior must be > 0"):
        operators.gd_gradient(z, w, torch.tensor([[0, 1, -1, -1]]), **terms)


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e200, 1e307])
@pytest.mark.parametrize("solve", [tim_ext.adm, tim_ext.reference.adm])
def test_lengths_at_the_ends_of_float64(size, solve):
    features, labels = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 1]], torch.tensor([0, 1, 2, -1, -1])
    result = solve(size * features, labels)
    torch.testing.assert_close(result.probs, solve(features, labels).probs)
    assert result.predictions.tolist() == [0, 1, 2, 0, 1]
