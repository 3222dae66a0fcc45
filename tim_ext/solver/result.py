"""What a solver returns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor


class ShortRepr:
    """Shapes instead of numbers: a result of ten thousand tasks prints on one line."""

    def __repr__(self) -> str:
        parts = [f"{field.name}={_short(getattr(self, field.name))}" for field in fields(self)]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(parts)})"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(list(value.shape)) if value.dim() else str(value.item())
    return f"list of {len(value)}" if isinstance(value, list) else repr(value)


@dataclass(frozen=True, eq=False, repr=False)
class History(ShortRepr):
    """The terms of the loss at W(0), W(1), ..., each [.., iterations + 1]; NaN where `tol` stopped earlier.

    A task without query has no entropies (0) and no iteration: its first entry is its only one.
    """

    cross_entropy: Tensor  # CE on the support set, mean over its samples
    marginal_entropy: Tensor  # M on the query set: H(phat), or log K - KL(phat || prior) with a class prior
    conditional_entropy: Tensor  # H(Y|X) on the query set
    # lam * CE - m * M + alpha * H(Y|X) + lam_0 * D, m that of the last iterations
    loss: Tensor
    # D, with sample priors: -mean over Q of sum_k p_ik log prior_ik, the largest prior_ik of a sample being 1
    prior_cross_entropy: Tensor | None = None

    @property
    def mutual_information(self) -> Tensor:
        """I(X; Y) = H(phat) - H(Y|X), if there is no class prior and the entropies are Shannon's."""
        return self.marginal_entropy - self.conditional_entropy


@dataclass(frozen=True, eq=False, repr=False)
class Result(ShortRepr):
    """The solution of one task or of a batch of tasks.

    `..` stands for nothing (one task) or for T (a batch). For a list of tasks, `probs`, `predictions`,
    `weights`, `proportions`, `outlier` and `confidence` are lists with one tensor per task, without `..`. An
    output that was not asked for is None.
    """

    probs: Tensor | list[Tensor] | None  # [.., N, K]  p of every sample, support included; padding: 0
    predictions: Tensor | list[Tensor] | None  # [.., N]  argmax of p; padding: -100
    weights: Tensor | list[Tensor] | None  # [.., K, d]
    iterations: Tensor  # [..]  int64, iterations run; 0 for a task without query
    history: History | None = None
    proportions: Tensor | list[Tensor] | None = None  # [.., K]  mean of p over the queries, 0 without any
    marginal_weight: Tensor | None = None  # [..]  m of the last iterations: given, or decided by the task
    outlier: Tensor | list[Tensor] | None = None  # [.., N]  of a query, 0 .. 1: of none of the classes
    # [.., N]  probability that the prediction is right: of a labelled sample 1 or 0, of padding 0
    confidence: Tensor | list[Tensor] | None = None
