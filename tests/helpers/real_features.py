"""Features of real data, where there are any: TIM_EXT_DATA is their folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import tim_ext


def real_features(name: str) -> Any:
    folder = os.environ.get("TIM_EXT_DATA")
    if not folder:
        pytest.skip("TIM_EXT_DATA is not set: no real features")
    return tim_ext.load_features(Path(folder) / name)
