"""The backward of distance_softmax and gd_gradient, against numerical derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.make_tasks import make_batch
from torch.autograd import gradcheck, gradgradcheck

from tim_ext import reference

ops = torch.ops.tim_ext
FEATURES, LABELS, _ = make_batch(range(2), shots=(2, 1, 3), queries=4, d=3, noise=0.6, padding=1)
WEIGHTS = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 3
PRIOR = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], dtype=torch.float64)
OPTIONS: dict[str, Any] = {"lam": 0.3, "alpha": 0.2, "temperature": 4.0, "marginal_weight": 0.7}


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return FEATURES.clone().requires_grad_(), WEIGHTS.clone().requires_grad_()


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_distance_softmax(check):
    assert check(lambda z, w: ops.distance_softmax(z, w, 4.0), leaves())
    for output in (0, 1):
        assert check(lambda z, w, output=output: ops.distance_softmax(z, w, 4.0)[output], leaves())


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("order", [1.0, 0.5, 2.0, 3.0])
@pytest.mark.parametrize("prior", [None, PRIOR])
def test_gd_gradient(check, order, prior):
    def all_of_it(z, w):
        return ops.gd_gradient(z, w, LABELS, prior, entropy_order=order, **OPTIONS)

    assert check(all_of_it, leaves())


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_without_query(check):
    labels = torch.where(LABELS == -1, -100, LABELS)
    assert check(lambda z, w: ops.gd_gradient(z, w, labels, **OPTIONS), leaves())


def test_the_gradient_by_weights_is_the_one_returned():
    z, w = leaves()
    loss, _, gradient = ops.gd_gradient(z, w, LABELS, **OPTIONS)
    (by_weights,) = torch.autograd.grad(loss.sum(), w)
    torch.testing.assert_close(by_weights, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("temperature", "order"), [(15.0, 1.0), (1e4, 1.0), (1e4, 0.5), (1e4, 2.0)])
def test_nothing_overflows(dtype, temperature, order):
    """Where probabilities underflow, against autograd through the reference."""
    options = OPTIONS | {"temperature": temperature, "entropy_order": order}
    z, w = (x.detach().to(dtype).requires_grad_() for x in leaves())
    ops.gd_gradient(z, w, LABELS, **options)[0].sum().backward()
    exact_z, exact_w = leaves()
    for t, labels in enumerate(LABELS):
        log_p = reference.log_distance_softmax(exact_z[t], exact_w[t], temperature)
        y = reference.one_hot_rows(labels, 3).to(log_p)
        cross, marginal, conditional = reference.loss_terms(log_p, y, labels >= 0, labels == -1, order=order)
        (0.3 * cross - 0.7 * marginal + 0.2 * conditional).backward()
    for ours, exact in ((z, exact_z), (w, exact_w)):
        assert ours.grad.isfinite().all()
        atol = float(exact.grad.abs().max()) * (1e-10 if dtype == torch.float64 else 2e-3)
        torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=0, atol=atol)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_compile(backend):
    def step(z, w):
        p = ops.distance_softmax(z, w, 4.0)[0]
        return ops.gd_gradient(z, w, LABELS, **OPTIONS)[0].sum() + (p**2).sum()

    z, w = leaves()
    step(z, w).backward()
    compiled_z, compiled_w = leaves()
    torch.compile(step, backend=backend, fullgraph=True)(compiled_z, compiled_w).backward()
    torch.testing.assert_close(compiled_z.grad, z.grad)
    torch.testing.assert_close(compiled_w.grad, w.grad)


def test_opcheck():
    z, w = leaves()
    torch.library.opcheck(ops.distance_softmax.default, (z, w, 4.0))
    for prior in (None, PRIOR):
        torch.library.opcheck(ops.gd_gradient.default, (z, w, LABELS, prior), OPTIONS)
