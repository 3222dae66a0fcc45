"""What the user can put right, and how it is said."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType


class UserError(ValueError):
    """Something that the user can put right: the message is all they need, a traceback would only hide it."""


def one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__


def listed(names: Sequence[str], most: int = 10) -> str:
    """Names in quotes; of many, the first ones and how many more there are."""
    more = len(names) - most
    return ", ".join(map(repr, names[:most])) + (f" and {more} more" if more > 0 else "")


def require(module: str, extra: str | None = None) -> ModuleType:
    """Imports a module that only some commands need, or says how to get it: by an extra, or by itself."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        what = f"'tim_ext[{extra}]'" if extra else missing
        raise ModuleNotFoundError(f"{missing} is not installed: pip install {what}") from error
