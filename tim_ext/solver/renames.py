"""Arguments that have another name than they had: the old name is refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`@renamed(old="new")`: the keyword `old` raises a TypeError that names `new`.

    The signature stays that of the function, in which `old` does not occur.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names:
                if old in kwargs:
                    value, new = kwargs[old], names[old]
                    raise TypeError(f"{old}: expected its new name, {new}={value!r}, got {old}={value!r}")
            return function(*args, **kwargs)

        call.renamed = names  # type: ignore[attr-defined]
        return call

    return decorate


def former_names(function: Callable[..., object]) -> dict[str, str]:
    """Of a function under `renamed`: the new name of each old one; of any other function, none."""
    return dict(getattr(function, "renamed", {}))
