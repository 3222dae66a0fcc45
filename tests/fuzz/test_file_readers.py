"""Damaged files of every format end in a value or in one line, by helpers/reader_fuzz.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

for needed in ("hypothesis", "pyarrow", "safetensors"):
    pytest.importorskip(needed)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")


def fuzz(run_python, folder: Path, seconds: int, seed: int) -> dict[str, int]:
    arguments = ["-m", "helpers.reader_fuzz", str(folder), str(seconds), str(seed)]
    paths = f"{ROOT}:{ROOT / 'tests'}"
    ended = run_python(*arguments, PYTHONPATH=paths, ARROW_DEFAULT_MEMORY_POOL="system", OMP_NUM_THREADS="1")
    left = [str(path) for path in folder.glob("case*")]
    assert ended.returncode == 0, f"exit code {ended.returncode}, {left}\n{ended.stderr[-6000:]}"
    counts = json.loads(ended.stdout.splitlines()[-1])
    print(counts)
    return dict(counts)


@pytest.mark.slow
def test_for_some_seconds(run_python, tmp_path) -> None:
    assert fuzz(run_python, tmp_path, 2, seed=0)["cases"] > 25


@pytest.mark.slow
def test_for_a_minute(run_python, tmp_path) -> None:
    """Files of every format, some of which are read all the same."""
    counts = fuzz(run_python, tmp_path, 60, seed=1000)
    assert counts["cases"] > 2000
    for suffix in (".npz", ".npy", ".safetensors", ".pt", ".parquet", ".csv", ".json"):
        assert counts[f"{suffix} refused"] > 0
        assert counts[f"{suffix} value"] > 0
