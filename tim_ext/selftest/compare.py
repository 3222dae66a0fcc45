"""How far a result is from the truth, and whether two have the same bits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..solver.result import History, Result

Parts = dict[str, list[Tensor]]


def parts_of(value: Any) -> Parts:
    """Every tensor of a result, by name: a list with one of each task, or of one tensor."""
    if not isinstance(value, (Result, History)):
        return {
            f"result {i}": [tensor] for i, tensor in enumerate(value if isinstance(value, tuple) else [value])
        }
    parts: Parts = {}
    for name, item in vars(value).items():
        if isinstance(item, History):
            parts |= parts_of(item)
        elif item is not None:
            parts[name] = item if isinstance(item, list) else [item]
    return parts


def largest_error(found: Any, truth: Any) -> tuple[float, str]:
    """The largest difference, relative to numbers above 1, and where it is; inf if shapes or counts differ.

    A prediction is off by how much less likely its class is than the most likely one.
    """
    parts, exact = parts_of(found), parts_of(truth)
    if parts.keys() != exact.keys():
        return math.inf, f"results {', '.join(parts)} instead of {', '.join(exact)}"
    errors = [(0.0, "")]
    for name, values in exact.items():
        if [value.shape for value in values] != [value.shape for value in parts[name]]:
            return math.inf, f"the shape of {name}"
        for i, value in enumerate(values):
            probs = exact["probs"][i] if name == "predictions" else None
            errors.append((_error(parts[name][i], value, probs), name))
    return max(errors)


def _error(found: Tensor, truth: Tensor, probs: Tensor | None) -> float:
    if found.numel() == 0:
        return 0.0
    if probs is not None:
        return _prediction_error(found, truth, probs)
    if not truth.is_floating_point():
        return 0.0 if torch.equal(found, truth) else math.inf
    wrong = (found.double() - truth).abs() / truth.abs().clamp(min=1)
    wrong[found.isnan() & truth.isnan()] = 0
    wrong[found == truth] = 0  # infinities
    return float(wrong.nan_to_num(nan=math.inf).max())


def _prediction_error(found: Tensor, truth: Tensor, probs: Tensor) -> float:
    known = (found >= 0) & (found < probs.shape[-1])
    if not torch.equal(known, truth >= 0):
        return math.inf
    chosen = probs.gather(-1, found.clamp(0, probs.shape[-1] - 1)[..., None])[..., 0]
    return float((probs.amax(dim=-1) - chosen)[known].max()) if known.any() else 0.0


def same_bits(found: Any, other: Any) -> bool:
    """NaN equals NaN."""
    parts, others = parts_of(found), parts_of(other)
    return parts.keys() == others.keys() and all(
        a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for name in parts
        for a, b in zip(parts[name], others[name], strict=True)
    )
