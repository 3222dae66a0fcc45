"""The check of a flat batch and the order of its samples, under libFuzzer with ASan and UBSan."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "tests/fuzz"))
from seeds import SEEDS, write_seeds

SECONDS = 60
CLANG = os.environ.get("TIM_EXT_CLANG", "clang++")
FLAGS = ["-std=c++17", "-g1", "-O1", "-fno-math-errno", "-fno-trapping-math", "-fno-sanitize-recover=all"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(CLANG) is None, reason=f"needs {CLANG}, for libFuzzer"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("fuzz") / "flat_batch"
    source, sanitizers = ROOT / "tests/fuzz/flat_batch.cpp", "-fsanitize=fuzzer,address,undefined"
    command = [CLANG, *FLAGS, sanitizers, f"-I{ROOT / 'csrc'}", str(source), "-pthread", "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made


def test_no_bytes_break_the_flat_batch(target, tmp_path):
    write_seeds(tmp_path)
    options = [f"-max_total_time={SECONDS}", "-max_len=1024", "-rss_limit_mb=4096", "-seed=1"]
    run = subprocess.run([target, *options, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-4000:]
    done = [line for line in run.stderr.splitlines() if line.startswith("Done ")]
    assert int(done[0].split()[1]) > len(SEEDS), run.stderr[-4000:]
