"""gd_gradient is the derivative of the loss: what autograd gives, at every order, shape and edge."""

from __future__ import annotations

import pytest
import torch
from helpers.gd_terms import ORDERS, TERMS, gradient_by_kernel
from helpers.make_tasks import make_batch

from tim_ext import reference
from tim_ext.solver.params import GdParams


def gradient_by_autograd(features, weights, labels, params: GdParams, prior=None):
    """Loss [T], terms [T, 3] and dL/dW [T, K, d] from the reference's equations."""
    rows = []
    for t, w in enumerate(weights):
        w = w.clone().requires_grad_()
        log_p = reference.log_distance_softmax(features[t], w, params.temperature)
        y = reference.one_hot_rows(labels[t], len(w)).to(w)
        own_prior = None if prior is None else prior[t].to(w)
        masks = labels[t] >= 0, labels[t] == -1
        terms = reference.loss_terms(log_p, y, *masks, own_prior, params.entropy_order)
        loss = reference.loss(terms, params)
        rows.append((loss.detach(), terms.detach(), *torch.autograd.grad(loss, w)))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def make_point(seed: int, **shape):
    """Features, weights away from the prototypes, labels and a class prior of two tasks."""
    features, labels, _ = make_batch(range(seed, seed + 2), noise=0.8, **shape)
    generator = torch.Generator().manual_seed(seed)
    classes, d = len(shape["shots"]), shape["d"]
    weights = torch.randn(2, classes, d, generator=generator, dtype=torch.float64) / d**0.5
    prior = 0.1 + torch.rand(2, classes, generator=generator, dtype=torch.float64)
    return features, weights, labels, prior / prior.sum(dim=1, keepdim=True)


POINT = make_point(0, shots=(2, 1, 3), queries=14, d=11, padding=2)


def assert_gradient(arguments, params, prior=None, rtol=1e-10, atol=0.0):
    found, expected = (f(*arguments, params, prior) for f in (gradient_by_kernel, gradient_by_autograd))
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert (one - other).abs().max() <= rtol * other.abs().max() + atol


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("with_prior", [False, True])
def test_gradient_equals_autograd(terms, order, with_prior):
    *arguments, prior = POINT
    assert_gradient(arguments, GdParams(entropy_order=order, **TERMS[terms]), prior if with_prior else None)


@pytest.mark.parametrize(
    "shape",
    [
        {"shots": (3,), "queries": 5, "d": 4},
        {"shots": (1, 2), "queries": 1, "d": 1},
        {"shots": (5,) * 5, "queries": 75, "d": 64},
        {"shots": (2,) * 20, "queries": 700, "d": 33},
        {"shots": (1, 2), "queries": 9000, "d": 40},
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [1.0, 2.0])
def test_gradient_of_every_shape(shape, order):
    *arguments, prior = make_point(1, **shape)
    assert_gradient(arguments, GdParams(entropy_order=order), prior)


@pytest.mark.parametrize("order", [1.0, 2.0])
def test_gradient_without_query(order):
    """Only the cross entropy is left, whatever lies in memory that was used before."""
    *arguments, prior = make_point(1, shots=(4, 4, 3), queries=0, d=9)
    rubbish = [torch.full((2**n,), torch.nan, dtype=torch.float64) for n in range(6, 15) for _ in range(50)]
    del rubbish
    assert_gradient(arguments, GdParams(entropy_order=order), prior)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shots", [(2,), (2, 2), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_that_are_not_finite_are_refused(value, shots, dtype):
    """Wherever they stand, support sample or query; but padding may hold anything."""
    features, weights, labels, _ = make_point(3, shots=shots, queries=40, d=19, padding=3)
    features, weights = features.to(dtype), weights.to(dtype)
    expected = gradient_by_kernel(features, weights, labels, GdParams())
    padding = features.clone()
    padding[labels == -100] = value
    for one, other in zip(gradient_by_kernel(padding, weights, labels, GdParams()), expected, strict=True):
        assert torch.equal(one, other)
    for kind in (labels[1] >= 0, labels[1] == -1):
        for column in (0, 7, 18):
            bad = features.clone()
            bad[1, kind.nonzero()[-1, 0], column] = value
            with pytest.raises(RuntimeError, match=r"task 1 is refused: .* and features finite"):
                gradient_by_kernel(bad, weights, labels, GdParams())


@pytest.mark.parametrize("dim", [5, 64, 131])
def test_gradient_has_the_same_bits_alone(dim):
    features, labels, _ = make_batch(range(7), shots=(3,) * 6, queries=60, d=dim, noise=0.8)
    weights = torch.randn(7, 6, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        z, w = features.to(dtype), weights.to(dtype)
        together = gradient_by_kernel(z, w, labels, GdParams())
        for t in range(7):
            alone = gradient_by_kernel(*(x[t : t + 1].clone() for x in (z, w, labels)), GdParams())
            for one, other in zip(alone, together, strict=True):
                assert torch.equal(one[0], other[t])


@pytest.mark.parametrize("order", [1.0, 2.0])
def test_gradient_in_float32(order):
    features, weights, labels, prior = POINT
    params = GdParams(entropy_order=order)
    found = gradient_by_kernel(features.float(), weights.float(), labels, params, prior)
    for one, other in zip(found, gradient_by_autograd(*POINT[:3], params, prior), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("order", ORDERS)
def test_gradient_is_the_derivative_of_the_loss(order):
    """By finite differences of the operator's own loss."""
    features, weights, labels, prior = POINT
    params = GdParams(entropy_order=order)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            loss, _, gradient = gradient_by_kernel(features, w, labels, params, prior)
            ctx.save_for_backward(gradient)
            return loss

        @staticmethod
        def backward(ctx, grad_output):
            (gradient,) = ctx.saved_tensors
            return grad_output[:, None, None] * gradient

    assert torch.autograd.gradcheck(Loss.apply, weights.clone().requires_grad_())


def test_gradient_is_continuous_at_order_1():
    """At distance h the difference is of order h, and the order 1 itself is the Shannon path."""
    *arguments, prior = POINT
    at_one = gradient_by_kernel(*arguments, GdParams(), prior)
    for step in (1e-3, 1e-6, 1e-9, 1e-12, -1e-3, -1e-6, -1e-9, -1e-12):
        near = gradient_by_kernel(*arguments, GdParams(entropy_order=1 + step), prior)
        for one, other in zip(near, at_one, strict=True):
            difference = (one - other).abs().max()
            assert difference <= 20 * abs(step) * other.abs().max() + 1e-14
            assert difference > 0 or abs(step) < 1e-9


@pytest.mark.parametrize("temperature", [500.0, 1e4, 1e8])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("terms", ["-H(Y)", "H(Y|X)", "CE - H(Y) + H(Y|X)"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradient_where_p_is_0_or_1(temperature, order, terms, dtype):
    """The limits: an entropy has no slope there, and a class that no query belongs to gives no infinity."""
    features, _, labels, _ = make_point(2, shots=(2, 2, 2, 2), queries=30, d=11)
    weights = torch.eye(4, 11, dtype=torch.float64).repeat(2, 1, 1)
    weights[:, 3] *= -4  # far from every sample
    params = GdParams(temperature=temperature, entropy_order=order, **TERMS[terms])
    arguments = features.to(dtype), weights.to(dtype), labels
    p, _ = torch.ops.tim_ext.distance_softmax(*arguments[:2], temperature)
    zero = 4 * torch.finfo(dtype).tiny  # the kernels' exp stops at the smallest normal numbers
    assert (p[..., 3] <= zero).all()
    if temperature == 1e8:
        assert ((p <= zero) | (p == 1)).all()
    found = gradient_by_kernel(*arguments, params)
    expected = gradient_by_autograd(features, weights, labels, params)
    precision = 100 * torch.finfo(dtype).eps * temperature  # of the logits
    for one, other, scale in zip(found, expected, (1, 1, temperature), strict=True):
        assert one.isfinite().all()
        if temperature < 1e8:  # beyond, rounding decides between two near classes
            size = max(float(other.abs().max()), scale)
            torch.testing.assert_close(one.double(), other, rtol=0, atol=precision * size)
    if temperature == 1e8 and params.lam == 0:
        assert found[2].abs().max() <= 1e-12 * temperature
        terms = torch.stack([found[1], expected[1].to(dtype)])[..., 1:]
        torch.testing.assert_close(terms[0], terms[1])
