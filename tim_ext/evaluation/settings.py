"""Settings of an evaluation: tasks of one kind, and the methods that run on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..tasks import Sampler
from .methods import Method, named_methods


@dataclass(frozen=True)
class Run:
    """A method with all its hyper-parameters: one line of the table."""

    method: Method
    hyper: Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """Tasks of one kind, and what runs on them."""

    name: str
    sampler: Sampler
    runs: Mapping[str, Run]  # by the name in the table
    tuning: Any = None  # how the hyper-parameters were chosen, for the report


def make_runs(
    methods: Sequence[str], hyper: Mapping[str, Mapping[str, Any]], *, base_mean: bool
) -> dict[str, Run]:
    """By the name in the table. `base_mean`: whether there is one."""
    chosen = named_methods(methods)
    for label in hyper:
        if label not in chosen:
            raise ValueError(f"hyper: expected names of methods out of {', '.join(chosen)}, got {label!r}")
    return {
        label: Run(method, method.complete(hyper.get(label, {}), label, base_mean=base_mean))
        for label, method in chosen.items()
    }


def name_settings(chosen: Iterable[Sampler]) -> dict[str, Sampler]:
    named: dict[str, Sampler] = {}
    for sampler in chosen:
        name = setting_name(sampler.describe())
        if name in named:
            raise ValueError(f"shots: expected different numbers, got {name} twice")
        named[name] = sampler
    if not named:
        raise ValueError("shots: expected one number or more, got none")
    return named


def setting_name(sampler: Mapping[str, Any]) -> str:
    """A short name from `Sampler.describe()`."""
    if sampler["kind"] == "meta_dataset":
        return "Meta-Dataset"
    if sampler["kind"] == "whole_pool":
        return f"all classes and rows, {sampler['shots']}-shot"
    name = f"{sampler['ways']}-way {sampler['shots']}-shot"
    if sampler["kind"] == "dirichlet":
        return f"{name}, Dirichlet {sampler['concentration']:g}"
    if sampler["kind"] == "few_classes":
        return f"{name}, {sampler['present']} of {sampler['ways']} classes present"
    if sampler["kind"] == "zipf":
        return f"{name}, Zipf {sampler['exponent']:g}"
    if sampler["kind"] == "dominant":
        return f"{name}, one class with {100 * sampler['share']:g} %"
    return name


def describe_setting(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "sampler": setting.sampler.describe(),
        "methods": {
            label: {"method": item.method.name, "hyper_parameters": _plain(item.hyper)}
            for label, item in setting.runs.items()
        },
        "tuning": setting.tuning,
    }


def _plain(value: Any) -> Any:
    """Ready for JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()
    return value
