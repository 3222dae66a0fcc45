"""The backward of distance_softmax and gd_gradient, by features z and weights w.

Both pass through the logits l_ik = -tau/2 ||w_k - z_i||^2. With s_ik = dF/dl_ik, whose rows sum to 0 because
a softmax ignores a constant per row:

    dF/dz_i = tau sum_k s_ik (w_k - z_i) = tau sum_k s_ik w_k
    dF/dw_k = tau sum_i s_ik (z_i - w_k)

Everything is written with operators that have a derivative themselves, so a second derivative exists as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .inputs import QUERY

torch_ops: Any = torch.ops  # untyped in torch
register_autograd: Any = torch.library.register_autograd

DIFFERENTIABLE = ("distance_softmax", "gd_gradient")


def through_logits(s: Tensor, z: Tensor, w: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """dF/dz [T, N, d] and dF/dw [T, K, d] from s [T, N, K]; z may be of a half type."""
    return temperature * (s @ w).to(z), temperature * (s.mT @ z.to(s) - s.sum(dim=1)[..., None] * w)


# distance_softmax ---------------------------------------------------------------------------------


def keep_softmax(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    z, w, ctx.temperature = inputs
    ctx.save_for_backward(z, w, output[0])
    ctx.set_materialize_grads(False)


def softmax_backward(
    ctx: Any, of_probs: Tensor | None, of_log_probs: Tensor | None
) -> tuple[Tensor | None, Tensor | None, None]:
    """s_ik = p_ik (b_ik - sum_j p_ij b_ij) + c_ik - p_ik sum_j c_ij from dF/dp = b and dF/d(log p) = c."""
    z, w, p = ctx.saved_tensors
    s = torch.zeros_like(p)
    if of_probs is not None:
        s = s + p * (of_probs - (p * of_probs).sum(dim=-1, keepdim=True))
    if of_log_probs is not None:
        s = s + of_log_probs - p * of_log_probs.sum(dim=-1, keepdim=True)
    return (*through_logits(s, z, w, ctx.temperature), None)


# gd_gradient --------------------------------------------------------------------------------------


def keep_loss(
    ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, float], output: tuple[Tensor, ...]
) -> None:
    z, w, labels, prior = inputs
    if prior is not None and prior.requires_grad:
        raise RuntimeError(
            "gd_gradient: class_prior must not require a gradient, as gd_gradient has none for it; "
            "pass class_prior.detach()"
        )
    ctx.save_for_backward(z, w, labels, prior)
    ctx.options = keyword_only_inputs
    ctx.set_materialize_grads(False)


def loss_backward(
    ctx: Any, of_loss: Tensor | None, of_terms: Tensor | None, of_gradient: Tensor | None
) -> tuple[Tensor | None, Tensor | None, None, None]:
    """Of L = lam CE - m M + alpha H [T], of its terms CE, M, H [T, 3] and of dL/dw [T, K, d]."""
    z, w, labels, prior = ctx.saved_tensors
    tau, order = ctx.options["temperature"], ctx.options["entropy_order"]
    lam, alpha, m = (ctx.options[name] for name in ("lam", "alpha", "marginal_weight"))
    weights = z.new_tensor([lam, -m, alpha])
    outer = z.new_zeros(len(z), 3) if of_terms is None else of_terms
    if of_loss is not None:
        outer = outer + of_loss[:, None] * weights
    by_z, by_w = through_logits(loss_by_logits(z, w, labels, prior, tau, order, outer), z, w, tau)
    if of_gradient is not None:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            z, w = (x if x.requires_grad else x.detach().requires_grad_() for x in (z, w))
            s = loss_by_logits(z, w, labels, prior, tau, order, weights.expand(len(z), 3))
            _, gradient = through_logits(s, z, w, tau)
            more = torch.autograd.grad(gradient, (z, w), of_gradient, create_graph=again)
        by_z, by_w = by_z + more[0], by_w + more[1]
    return by_z, by_w, None, None


def loss_by_logits(
    z: Tensor, w: Tensor, labels: Tensor, prior: Tensor | None, tau: float, order: float, outer: Tensor
) -> Tensor:
    """s_ik of F = outer . (CE, M, H), as in csrc/cpu/kernels/gd-inl.h:

    s_ik = outer_0 / |S| (p_ik - y_ik)                                            i in S
    s_ik = 1 / |Q| (v_ik - p_ik sum_j v_ij)                                       i in Q
    v_ik = -a p_ik (outer_1 log_a(phat_k / (K prior_k)) + outer_2 log_a(p_ik))
    """
    p, log_p = torch_ops.tim_ext.distance_softmax(z, w, tau)
    cross, marginal, conditional = outer[:, None, None, :].unbind(-1)  # [T, 1, 1]
    classes = torch.arange(w.shape[1], device=w.device)
    y = (labels[..., None] == classes).to(p)  # [T, N, K]
    query = (labels == QUERY).to(p)[..., None]  # [T, N, 1]
    supports = (labels >= 0).to(p).sum(dim=1)[:, None, None].clamp(min=1)  # [T, 1, 1]
    queries = query.sum(dim=1, keepdim=True).clamp(min=1)
    phat = (query * p).sum(dim=1, keepdim=True) / queries  # [T, 1, K]
    log_phat = phat.clamp(min=torch.finfo(p.dtype).tiny).log()
    if prior is not None:
        log_phat = log_phat - (w.shape[1] * prior[:, None]).log().to(p)
    on_support = y.sum(dim=-1, keepdim=True) * p - y
    v = -order * (marginal * p * log_of_order(log_phat, order) + conditional * x_log(log_p, order))
    on_query = query * (v - p * v.sum(dim=-1, keepdim=True))
    s: Tensor = cross / supports * on_support + on_query / queries
    return s


def log_of_order(log_x: Tensor, order: float) -> Tensor:
    """log_a(x) = (x^(a-1) - 1) / (a - 1), which is log x at a = 1."""
    return log_x if order == 1 else torch.expm1((order - 1) * log_x) / (order - 1)


def x_log(log_x: Tensor, order: float) -> Tensor:
    """x log_a(x), of which neither factor overflows where x is 0 to machine precision."""
    if order == 1:
        return log_x.exp() * log_x
    distance = abs(order - 1)
    return (min(order, 1.0) * log_x).exp() * torch.expm1(distance * log_x) / distance


def register_gradients() -> None:
    """Once the library with the operators is loaded."""
    register_autograd("tim_ext::distance_softmax", softmax_backward, setup_context=keep_softmax)
    register_autograd("tim_ext::gd_gradient", loss_backward, setup_context=keep_loss)
