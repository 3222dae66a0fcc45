"""The hyper-parameters of the solvers: their names, defaults and domains, all in this one place."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SOLVERS = ("auto", "dual", "primal")
OUTPUTS = ("probs", "predictions", "weights")


@dataclass(frozen=True)
class AdmParams:
    """The hyper-parameters of TIM-ADM under the paper's names; constructing one checks them."""

    lam: float = 0.1  # weight of the cross entropy on the support set
    alpha: float = 0.1  # weight of the conditional entropy H(Y|X)
    beta: float = 1.0  # weight of the penalty that ties q to p
    temperature: float = 15.0  # tau of the distance softmax
    marginal_weight: float = 1.0  # m, weight of the marginal entropy H(Y): 1 in the paper, 0 in an ablation
    iterations: int = 150
    tol: float = 0.0  # stop when no probability moves by more than this; 0: run all iterations
    solver: str = "auto"

    def __post_init__(self) -> None:
        for name in ("lam", "alpha", "marginal_weight", "tol", "beta", "temperature"):
            value = getattr(self, name)
            if type(value) is not float or not 0 < value < math.inf:  # else there is nothing to say
                value = check_number(name, value, positive=name in ("beta", "temperature"))
                object.__setattr__(self, name, value)  # the class is frozen for everybody else
        object.__setattr__(self, "iterations", check_count("iterations", self.iterations, at_least=0))
        if self.solver not in SOLVERS:
            raise ValueError(f"solver: expected one of {', '.join(map(repr, SOLVERS))}, got {self.solver!r}")


def check_number(name: str, value: Any, *, positive: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (float, int, numbers.Real)):
        raise TypeError(f"{name}: expected a finite number, got {type(value).__name__} {value!r}")
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        domain = "> 0" if positive else ">= 0"
        raise ValueError(f"{name}: expected a finite number {domain}, got {value}")
    return float(value)


def check_count(name: str, value: Any, *, at_least: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__} {value!r}")
    if count < at_least:
        raise ValueError(f"{name}: expected an integer >= {at_least}, got {count}")
    return count


def check_outputs(outputs: Iterable[str]) -> None:
    if outputs is OUTPUTS:
        return
    expected = f"outputs: expected a tuple of names out of {', '.join(map(repr, OUTPUTS))}"
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        raise TypeError(f"{expected}, got {type(outputs).__name__} {outputs!r}")
    for name in outputs:
        if name not in OUTPUTS:
            raise ValueError(f"{expected}, got {name!r}")


ADM = AdmParams()  # the defaults of the paper
