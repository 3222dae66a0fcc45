"""The methods that label a pool, by their names in `tim-ext predict`, `tim-ext label` and `TIMClassifier`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .params import ADM, ALPHA_TIM, GD, ROBUST, TimParams
from .result import Result
from .solve import adm, gd, robust


class Preset(NamedTuple):
    title: str
    solve: Callable[..., Result]
    defaults: TimParams


PRESETS = {  # the first is the default
    "robust": Preset("robust TIM-ADM", robust, ROBUST),
    "adm": Preset("TIM-ADM", adm, ADM),
    "gd": Preset("TIM-GD", gd, GD),
    "alpha-tim": Preset("alpha-TIM", gd, ALPHA_TIM),
}


def with_defaults(method: str, given: Mapping[str, Any], *, support: int, num_classes: int) -> dict[str, Any]:
    """The arguments of the solver: those given, and the defaults of the method that are not the solver's."""
    if method != "alpha-tim":
        return dict(given)
    order = published_order(support, num_classes)
    return {"lam": ALPHA_TIM.lam, "alpha": ALPHA_TIM.alpha, "entropy_order": order, **given}


def published_order(support: int, num_classes: int) -> float:
    """Of the entropies of alpha-TIM, by the support samples per class: what its authors take."""
    if support < 2 * num_classes:
        return 2.0
    return 5.0 if support < 5 * num_classes else 7.0
