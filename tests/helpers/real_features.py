"""Features of real data, where there are any: TIM_EXT_DATA is their folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import tim_ext


def real_file(name: str) -> Path:
    folder = os.environ.get("TIM_EXT_DATA")
    if not folder:
        pytest.skip("TIM_EXT_DATA is not set: no real features")
    return Path(folder) / name


def real_features(name: str) -> Any:
    return tim_ext.load_features(real_file(name))
