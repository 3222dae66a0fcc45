"""The loss of TIM with terms left out, and its gradient by the kernel."""

from __future__ import annotations

import torch

from tim_ext.solver.params import GdParams

ORDERS = [0.5, 1.0, 2.0, 7.0, 1 - 1e-6, 1 + 1e-6]
ABLATIONS = {
    "CE": {"alpha": 0.0, "marginal_weight": 0.0},
    "CE + H(Y|X)": {"marginal_weight": 0.0},
    "CE - H(Y)": {"alpha": 0.0},
    "CE - H(Y) + H(Y|X)": {},
}
TERMS = ABLATIONS | {
    "-H(Y)": {"lam": 0.0, "alpha": 0.0},
    "H(Y|X)": {"lam": 0.0, "marginal_weight": 0.0},
    "other weights": {"lam": 2.0, "alpha": 0.7, "marginal_weight": 0.3},
}


# The gradient --------------------------------------------------------------------------------------


def gradient_by_kernel(features, weights, labels, params: GdParams, prior=None):
    return torch.ops.tim_ext.gd_gradient(
        features,
        weights,
        labels,
        lam=params.lam,
        alpha=params.alpha,
        temperature=params.temperature,
        marginal_weight=params.marginal_weight,
        entropy_order=params.entropy_order,
        class_prior=prior,
    )
