"""The hyper-parameters of the solvers: their names, defaults and domains, all in this one place."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

FORMS = ("auto", "dual", "primal")  # of TIM-ADM: how the weights are kept
OUTPUTS = ("probs", "predictions", "weights")  # unless told
KNOWN_OUTPUTS = (*OUTPUTS, "outlier", "confidence")  # of a solver
LARGEST_COUNT = 2**31 - 1
CLASS_VECTOR_WEIGHT = 4  # labelled samples that a class vector counts as
# marginal_weight="auto": the largest weight until a task decides again, and when (csrc/common/equations.h)
UNDECIDED_MARGINAL, DECIDED_AFTER = 0.1, 25


Check = Callable[[str, Any], Any]  # of a value, by the name to call it in a refusal


def check_number(name: str, value: Any, *, positive: bool = False) -> float:
    if type(value) is float and 0 < value < math.inf:  # nearly always
        return value
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


def check_form(name: str, form: Any) -> str:
    if form not in FORMS:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, FORMS))}, got {form!r}")
    return str(form)


AUTO = "auto"
SAMPLE_PRIOR_WEIGHT = AUTO  # lam_0, of the cross entropy of q_i with prior_i


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def check_or_auto(name: str, value: Any, *, check: Check) -> float | str:
    """What the check allows, or "auto"."""
    if isinstance(value, str):
        if value != AUTO:
            raise ValueError(f'{name}: expected a number or "{AUTO}", got {value!r}')
        return AUTO
    return float(check(name, value))


def check_reach(name: str, value: Any) -> float:
    reach = check_number(name, value)
    if reach >= 1:
        raise ValueError(f"{name}: expected a number >= 0 and < 1, got {reach}")
    return reach


def check_betas(name: str, betas: Any) -> tuple[float, float]:
    expected = f"{name}: expected two numbers, each >= 0 and < 1"
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{expected}, got {type(betas).__name__} {betas!r}")
    first, second = (check_number(name, beta) for beta in betas)
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


# The hyper-parameters -----------------------------------------------------------------------------


def checked(default: Any, check: Check) -> Any:
    """A field whose values go through check(name, value), which returns what is kept, or refuses."""
    return field(default=default, metadata={"check": check})


def number(default: float, *, positive: bool = False) -> Any:
    return checked(default, partial(check_number, positive=positive))


def or_auto(default: float, check: Check) -> Any:
    return checked(default, partial(check_or_auto, check=check))


def count(default: int) -> Any:
    return checked(default, partial(check_count, at_least=0))


@dataclass(frozen=True, kw_only=True)
class TimParams:
    """The hyper-parameters of the loss, under the paper's names; constructing them checks them."""

    lam: float = number(0.1)  # weight of the cross entropy on the support set
    alpha: float = number(0.1)  # weight of the conditional entropy H(Y|X)
    temperature: float = number(15.0, positive=True)  # tau of the distance softmax
    marginal_weight: float | str = number(1.0)  # m, weight of the marginal entropy H(Y); 0 in an ablation
    tol: float = number(0.0)  # stop when no probability moves by more than this; 0: run all iterations
    iterations: int = count(0)

    CHECKS: ClassVar[dict[str, Check]]  # of every field

    def __post_init__(self) -> None:
        for name, check in self.CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))  # frozen for everybody else

    def given(self, arguments: Mapping[str, Any]) -> Self:
        """The hyper-parameters among the arguments of a solver, all by their names.

        `self` are the defaults: what is one of them needs no check.
        """
        mine = vars(self)
        changed = {
            name: self.CHECKS[name](name, value)
            for name, default in mine.items()
            if (value := arguments[name]) is not default
        }
        if not changed:
            return self
        params = object.__new__(type(self))
        vars(params).update(mine, **changed)  # frozen for everybody else
        return params

    def arguments(self) -> dict[str, Any]:
        """By the names that the solver's operator has for them (csrc/ops.cpp)."""
        return vars(self)


@dataclass(frozen=True, kw_only=True)
class AdmParams(TimParams):
    iterations: int = count(150)
    beta: float = number(1.0, positive=True)  # weight of the penalty that ties q to p
    marginal_weight: float | str = or_auto(1.0, check_number)  # "auto": each task's own
    smoothing: float | str = or_auto(0.0, check_reach)  # reach over the neighbour graph; 0: none
    # f of W + f (F(W) - W), F an iteration of the paper; "auto": see StepControl
    relaxation: float | str = or_auto(1.0, partial(check_number, positive=True))
    form: str = checked(AUTO, check_form)

    def arguments(self) -> dict[str, Any]:
        automatic = {
            name: None
            for name in ("marginal_weight", "smoothing", "relaxation")
            if getattr(self, name) == AUTO
        }
        return {**vars(self), **automatic} if automatic else vars(self)


@dataclass(frozen=True, kw_only=True)
class GdParams(TimParams):
    iterations: int = count(1000)
    marginal_weight: float = number(1.0)
    entropy_order: float = number(1.0, positive=True)  # a of both entropies (Tsallis): 1 is Shannon
    lr: float = number(1e-4)
    betas: tuple[float, float] = checked((0.9, 0.999), check_betas)  # Adam's, as eps
    eps: float = number(1e-8, positive=True)

    def arguments(self) -> dict[str, Any]:
        adam_beta1, adam_beta2 = self.betas
        arguments = {**vars(self), "adam_beta1": adam_beta1, "adam_beta2": adam_beta2}
        del arguments["betas"]
        return arguments


def check_form_with_weights(params: TimParams, weights: Any) -> None:
    if weights is not None and getattr(params, "form", AUTO) == "dual":
        raise ValueError(
            "form: expected 'auto' or 'primal' with weights=, as the dual form keeps W as sums of samples, "
            "which given weights need not be, got 'dual'"
        )


for params in (TimParams, AdmParams, GdParams):
    params.CHECKS = {declared.name: declared.metadata["check"] for declared in fields(params)}

# the defaults of the paper, and a preset for pools whose proportions nobody knows
ADM = AdmParams()
GD = GdParams()
ROBUST = AdmParams(marginal_weight=AUTO, smoothing=AUTO, relaxation=0.5, lam=0.3, iterations=100)
ALPHA_TIM = GdParams(lam=1.0, alpha=1.0)  # its entropy order: presets.published_order
FINETUNE = GdParams(iterations=25, lr=5e-5)
