"""Modules that only some commands need."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, extra: str | None = None) -> ModuleType:
    """Imports `module`, or says how to get it: by an extra of tim_ext, or by itself."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        what = f"'tim_ext[{extra}]'" if extra else missing
        raise ModuleNotFoundError(f"{missing} is not installed: pip install {what}") from error
