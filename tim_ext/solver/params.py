"""The hyper-parameters of the solvers: their names, defaults and domains, all in this one place."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

SOLVERS = ("auto", "dual", "primal")
OUTPUTS = ("probs", "predictions", "weights")
LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True)
class TimParams:
    """The hyper-parameters of the loss, under the paper's names; constructing them checks them."""

    lam: float = 0.1  # weight of the cross entropy on the support set
    alpha: float = 0.1  # weight of the conditional entropy H(Y|X)
    temperature: float = 15.0  # tau of the distance softmax
    marginal_weight: float = 1.0  # m, weight of the marginal entropy H(Y): 1 in the paper, 0 in an ablation
    tol: float = 0.0  # stop when no probability moves by more than this; 0: run all iterations
    iterations: int = 0

    POSITIVE: ClassVar[tuple[str, ...]] = ("temperature",)
    NUMBERS: ClassVar[tuple[str, ...]] = ("lam", "alpha", "marginal_weight", "tol", *POSITIVE)

    def __post_init__(self) -> None:
        for name in self.NUMBERS:
            value = getattr(self, name)
            if type(value) is not float or not 0 < value < math.inf:  # else there is nothing to say
                self._set(name, check_number(name, value, positive=name in self.POSITIVE))
        self._set("iterations", check_count("iterations", self.iterations, at_least=0))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the class is frozen for everybody else


@dataclass(frozen=True)
class AdmParams(TimParams):
    iterations: int = 150
    beta: float = 1.0  # weight of the penalty that ties q to p
    solver: str = "auto"

    POSITIVE = (*TimParams.POSITIVE, "beta")
    NUMBERS = (*TimParams.NUMBERS, "beta")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver not in SOLVERS:
            raise ValueError(f"solver: expected one of {', '.join(map(repr, SOLVERS))}, got {self.solver!r}")


@dataclass(frozen=True)
class GdParams(TimParams):
    iterations: int = 1000
    entropy_order: float = 1.0  # a of both entropies (Tsallis): 1 is Shannon
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)  # Adam's, as eps
    eps: float = 1e-8

    POSITIVE = (*TimParams.POSITIVE, "entropy_order", "eps")
    NUMBERS = (*TimParams.NUMBERS, "entropy_order", "eps", "lr")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("betas", check_betas(self.betas))


def check_number(name: str, value: Any, *, positive: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (float, int, numbers.Real)):
        raise TypeError(f"{name}: expected a finite number, got {type(value).__name__} {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        domain = "> 0" if positive else ">= 0"
        raise ValueError(f"{name}: expected a finite number {domain}, got {number}")
    return number


def check_count(name: str, value: Any, *, at_least: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__} {value!r}")
    if count < at_least:
        raise ValueError(f"{name}: expected an integer >= {at_least}, got {count}")
    if count > LARGEST_COUNT:
        raise ValueError(f"{name}: expected an integer <= {LARGEST_COUNT}, got {count}")
    return count


def check_flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool", "bool_"):  # numpy's
        return bool(value)
    raise TypeError(f"{name}: expected True or False, got {type(value).__name__} {value!r}")


def check_betas(betas: Any) -> tuple[float, float]:
    expected = "betas: expected two numbers, each >= 0 and < 1"
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{expected}, got {type(betas).__name__} {betas!r}")
    first, second = (check_number("betas", beta) for beta in betas)
    if max(first, second) >= 1:
        raise ValueError(f"{expected}, got {betas!r}")
    return first, second


def check_outputs(outputs: Iterable[str], known: Iterable[str] = OUTPUTS) -> tuple[str, ...]:
    if outputs is OUTPUTS:
        return OUTPUTS
    expected = f"outputs: expected a tuple of names out of {', '.join(map(repr, known))}"
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        raise TypeError(f"{expected}, got {type(outputs).__name__} {outputs!r}")
    names = tuple(outputs)  # once: it may be an iterator
    for name in names:
        if name not in known:
            raise ValueError(f"{expected}, got {name!r}")
    return names


# the defaults of the paper
ADM = AdmParams()
GD = GdParams()
FINETUNE = GdParams(iterations=25, lr=5e-5)
