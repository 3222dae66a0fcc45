"""The torch-free core under sanitizers, on random tasks (driver.cpp).

AddressSanitizer and UndefinedBehaviorSanitizer in one build; ThreadSanitizer in another, with threads of its
own: torch's pool is built without it, so that it would not see how torch's threads wait for each other.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from helpers.core_build import build_core
from helpers.paths import ROOT

FLAGS = ["-std=c++17", "-g1", "-O1", "-fno-math-errno", "-fno-trapping-math", "-fno-sanitize-recover=all"]
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"],
    "threads": ["-fsanitize=thread", "-fno-omit-frame-pointer"],
}
# How wide the vectors are decides what is read past an end, but not which thread reads what.
TESTED = {"memory": ("avx2",), "threads": ("baseline",)}
DRIVER = ROOT / "tests/sanitizers/driver.cpp"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_core_is_clean(sanitizer, tmp_path):
    flags = [*FLAGS, *SANITIZERS[sanitizer]]
    (driver,) = build_core(tmp_path, "g++", flags, TESTED[sanitizer], DRIVER)
    for capability in TESTED[sanitizer]:
        environment = {**os.environ, "TIM_EXT_CPU_CAPABILITY": capability}
        run = subprocess.run(
            [driver, "0", "200"], capture_output=True, text=True, env=environment, timeout=900
        )
        assert run.returncode == 0, run.stderr[-4000:]
        assert "200 batches" in run.stdout, capability
