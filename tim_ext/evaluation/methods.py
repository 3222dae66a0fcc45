"""The methods that `tim_ext.evaluate` and `tim-ext evaluate` know by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import baselines
from ..solver.params import AUTO
from ..solver.renames import former_names
from ..solver.result import Result
from ..solver.solve import adm, gd, robust

# Arguments that are the task, what to return of it, or how to share its work: no hyper-parameters.
TASK = (
    *("features", "labels", "index", "num_classes", "weights", "class_vectors", "class_vector_weight"),
    *("sample_weight", "sample_prior", "sample_prior_weight", "base_mean", "history", "outputs"),
)
WORK = ("group", "cache_bytes", "callback")
ORACLE = "oracle"  # as class_prior: the proportions that each task really has


@dataclass(frozen=True)
class Method:
    """A function `(features, labels, *, index, num_classes, <hyper-parameters>, outputs) -> Result`."""

    name: str
    function: Callable[..., Result]
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # what tuning tries; defaults first
    with_base_mean: Mapping[str, Any] = field(default_factory=dict)  # defaults where there is a base mean

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The hyper-parameters, in the order of the signature."""
        signature = inspect.signature(self.function)
        others = TASK + WORK
        return {name: parameter for name, parameter in signature.parameters.items() if name not in others}

    @cached_property
    def former_names(self) -> dict[str, str]:
        """Of hyper-parameters that were renamed: the new names by the old ones."""
        return former_names(self.function)

    @cached_property
    def takes_base_mean(self) -> bool:
        return "base_mean" in inspect.signature(self.function).parameters

    def complete(
        self, given: Mapping[str, Any], label: str | None = None, *, base_mean: bool = False
    ) -> dict[str, Any]:
        """All hyper-parameters: those given, and the defaults of the others."""
        for name in given:
            if name not in self.parameters:
                expected = (
                    f"hyper-parameters out of {', '.join(self.parameters)}" if self.parameters else "none"
                )
                if name in self.former_names:
                    expected = f"{self.former_names[name]}, the new name of {name}"
                raise ValueError(f"{label or self.name}: expected {expected}, got {name!r}")
        defaults = {name: parameter.default for name, parameter in self.parameters.items()}
        return defaults | (dict(self.with_base_mean) if base_mean else {}) | dict(given)

    def parse(self, name: str, text: str, label: str | None = None) -> Any:
        """The value of a hyper-parameter from the command line, by its annotation."""
        self.complete({name: text}, label)
        kind = str(self.parameters[name].annotation).removesuffix(" | None")
        read, expected = READERS.get(kind, (_numbers, "numbers separated by commas"))
        try:
            return read(text)
        except (KeyError, ValueError):
            raise ValueError(f"{label or self.name}.{name}: expected {expected}, got {text!r}") from None


def _numbers(text: str) -> tuple[float, ...] | str:
    return ORACLE if text == ORACLE else tuple(float(part) for part in text.split(","))


READERS: dict[str, tuple[Callable[[str], Any], str]] = {  # by annotation
    "bool": (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    "int": (int, "an integer"),
    "float": (float, "a number"),
    "str": (str, "text"),
    "float | str": (lambda text: text if text == AUTO else float(text), f'a number or "{AUTO}"'),
}

TEMPERATURES = (15.0, 3.75, 7.5, 30.0)

METHODS = {
    method.name: method
    for method in (
        Method("prototype", baselines.prototype),
        Method("simpleshot", baselines.prototype, with_base_mean={"transform": "cl2"}),
        Method("protonet", baselines.protonet),
        Method("baseline", baselines.finetune_linear, {"lr": (1e-3, 1e-2), "iterations": (100, 300)}),
        Method("baseline++", baselines.finetune_cosine, {"lr": (1e-3, 1e-2), "iterations": (100, 300)}),
        Method("ent-min", baselines.entropy_min, {"temperature": TEMPERATURES, "alpha": (1.0, 0.1)}),
        Method("bd-cspn", baselines.bd_cspn, {"scale": (10.0, 5.0, 20.0)}),
        Method("laplacianshot", baselines.laplacian_shot, {"lam": (0.7, 0.3, 1.0, 1.5)}),
        Method("pt-map", baselines.pt_map),
        Method("tim-adm", adm, {"temperature": TEMPERATURES, "alpha": (0.1, 0.3)}),
        Method("robust", robust, {"temperature": TEMPERATURES, "lam": (0.3, 0.1)}),
        Method("tim-gd", gd, {"temperature": TEMPERATURES, "alpha": (0.1, 0.3)}),
        Method(
            "alpha-tim", baselines.alpha_tim, {"temperature": TEMPERATURES, "entropy_order": (None, 1.5, 3.0)}
        ),
        Method("alpha-am", baselines.alpha_am),
        Method("paddle", baselines.paddle, {"lam": (75.0, 25.0, 150.0)}),
        Method("protolp", baselines.protolp, {"lam": (10.0, 30.0, 60.0)}),
    )
}


def named_methods(names: Sequence[str]) -> dict[str, Method]:
    """By the name in the table: the method's own, or that of `name=method`."""
    known = ", ".join(METHODS)
    if isinstance(names, str) or not names:
        raise ValueError(f"methods: expected one or more out of {known}, got {names!r}")
    chosen: dict[str, Method] = {}
    for text in names:
        label, _, name = text.rpartition("=")
        label = label or name
        if name not in METHODS:
            raise ValueError(f"methods: expected names out of {known}, got {name!r}")
        if label in chosen:
            raise ValueError(f"methods: expected different names, got {label!r} twice")
        chosen[label] = METHODS[name]
    return chosen
