"""Gradient descent on other losses than TIM's: `tim_ext.gd` with other weights or entropies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..solver.batch import Batch
from ..solver.params import ALPHA_TIM, GD, OUTPUTS
from ..solver.presets import published_order
from ..solver.result import Result
from ..solver.solve import gd
from .native import run_solver
from .pieces import support_sizes


def entropy_min(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    lam: float = 1.0,
    alpha: float = 1.0,
    temperature: float = GD.temperature,
    iterations: int = GD.iterations,
    lr: float = GD.lr,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """Entropy minimisation on the classifier weights: Adam on lam * CE(S) + alpha * H(Y|X on Q).

    The loss of Dhillon et al. (2020) for a frozen encoder: TIM without the marginal entropy, the row
    "CE + H(Y|X)" of the ablation of the paper. `tim_ext.finetune` with `marginal_weight=0` trains the encoder
    too.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`.
        lam: weight of the cross entropy on the support samples.
        alpha: weight of the conditional entropy of the queries.
        temperature, iterations, lr: as in `tim_ext.gd`.

    Returns:
        Result of `tim_ext.gd`.
    """
    hyper_parameters = {
        "lam": lam,
        "alpha": alpha,
        "marginal_weight": 0.0,
        "temperature": temperature,
        "iterations": iterations,
        "lr": lr,
    }
    return run_solver(
        gd, (features, labels, index, num_classes), transform, base_mean, outputs, hyper_parameters
    )


def alpha_tim(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    entropy_order: float | None = None,
    lam: float = ALPHA_TIM.lam,
    alpha: float = ALPHA_TIM.alpha,
    marginal_weight: float = ALPHA_TIM.marginal_weight,
    temperature: float = ALPHA_TIM.temperature,
    iterations: int = ALPHA_TIM.iterations,
    lr: float = ALPHA_TIM.lr,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """alpha-TIM (Veilleux et al. 2021), for queries that may be unbalanced: `tim_ext.gd` with its defaults.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`.
        entropy_order: order of both entropies. By default that of the authors for the shots of the task (its
            support samples per class, on average): 2 below 2 shots, 7 from 5 shots on, 5 in between.
        lam: weight of the cross entropy on the support samples.
        alpha: weight of the conditional entropy of the queries.
        marginal_weight: weight of the marginal entropy of the queries.
        temperature, iterations, lr: as in `tim_ext.gd`.

    Returns:
        Result of `tim_ext.gd`.
    """
    hyper_parameters = {
        "lam": lam,
        "alpha": alpha,
        "marginal_weight": marginal_weight,
        "temperature": temperature,
        "iterations": iterations,
        "lr": lr,
    }
    per_task = None
    if entropy_order is None:
        per_task = "entropy_order", _published_orders
    else:
        hyper_parameters["entropy_order"] = entropy_order
    return run_solver(
        gd, (features, labels, index, num_classes), transform, base_mean, outputs, hyper_parameters, per_task
    )


def _published_orders(batch: Batch) -> list[float]:
    """The entropy order of each task."""
    return [published_order(*sizes) for sizes in zip(support_sizes(batch), batch.counts, strict=True)]
