"""How often predictions are right, against how sure a method is of them: bins, and the calibration error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..solver.inputs import QUERY
from ..solver.result import Result
from ..tasks import Tasks

BINS = 15


class Reliability(NamedTuple):
    """By bin, those without a sample left out; float64."""

    sure: Tensor  # [B] mean of what a method says
    right: Tensor  # [B] share that is right
    size: Tensor  # [B] share of all samples

    @property
    def error(self) -> float:
        """The expected calibration error, sum_b size_b |sure_b - right_b|, in percent."""
        return float(100 * (self.size * (self.sure - self.right).abs()).sum())


def reliability(sure: Tensor, right: Tensor, *, equal_mass: bool = False, bins: int = BINS) -> Reliability:
    """Of sure [n] in 0 .. 1 and right [n], in bins of equal width, or of equally many samples."""
    s, r = sure.double(), right.double()
    if equal_mass:
        rank = torch.empty(len(s), dtype=torch.int64)
        rank[s.argsort(stable=True)] = torch.arange(len(s))
        place = rank * bins // max(len(s), 1)
    else:
        place = (s * bins).long().clamp(0, bins - 1)
    size, sum_s, sum_r = (torch.bincount(place, w, minlength=bins) for w in (torch.ones_like(s), s, r))
    used = size > 0
    return Reliability((sum_s / size)[used], (sum_r / size)[used], (size / len(s))[used])


def measure(features: Tensor, tasks: Tasks, solve: Callable[..., Result]) -> dict[str, Reliability]:
    """Of all queries of all tasks: the largest probability, and `Result.confidence`."""
    outputs = ("probs", "predictions", "confidence")
    largest, sure, right = [], [], []
    for index, labels, truth in zip(tasks.index, tasks.labels, tasks.truth, strict=True):
        found = solve(features, labels, index=index, outputs=outputs)
        query = labels == QUERY
        assert isinstance(found.probs, Tensor)
        assert isinstance(found.predictions, Tensor)
        assert isinstance(found.confidence, Tensor)
        largest.append(found.probs.amax(dim=1)[query])
        sure.append(found.confidence[query])
        right.append((found.predictions == truth)[query])
    correct = torch.cat(right)
    return {
        "largest probability": reliability(torch.cat(largest), correct),
        "calibrated confidence": reliability(torch.cat(sure), correct),
    }
