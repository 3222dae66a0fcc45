"""Modules that only some commands need."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Imports `module`, or says which extra of tim_ext brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ModuleNotFoundError(f"{missing} is not installed: pip install 'tim_ext[{extra}]'") from error
