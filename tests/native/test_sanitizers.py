"""The torch-free core under sanitizers, on random tasks (driver.cpp).

AddressSanitizer and UndefinedBehaviorSanitizer in one build; ThreadSanitizer in another, with threads of its
own: torch's pool is built without it, so that it would not see how torch's threads wait for each other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.paths import ROOT

FLAGS = ["-std=c++17", "-g1", "-O1", "-fno-math-errno", "-fno-trapping-math", "-fno-sanitize-recover=all"]
SANITIZERS = {
    "memory": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"],
    "threads": ["-fsanitize=thread", "-fno-omit-frame-pointer"],
}
# How wide the vectors are decides what is read past an end, but not which thread reads what.
TESTED = {"memory": ("avx2",), "threads": ("baseline",)}
KERNELS = {"avx512", "avx2", "baseline"}  # the sources of csrc/cpu/kernels, minutes of compile time each

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


def build(folder: Path, sanitizer: str) -> Path:
    flags = SANITIZERS[sanitizer]
    core = sorted((ROOT / "csrc/cpu/core").glob("*.cpp"))
    kernels = sorted((ROOT / "csrc/cpu/kernels").glob("*.cpp"))
    assert {source.stem for source in kernels} == KERNELS
    tested = [source for source in kernels if source.stem in TESTED[sanitizer]]
    absent = [
        [str(ROOT / "tests/sanitizers/absent.cpp"), f"-DTIM_ISA={isa}"]
        for isa in KERNELS - set(TESTED[sanitizer])
    ]
    sources = [[str(source)] for source in (*tested, ROOT / "tests/sanitizers/driver.cpp", *core)] + absent

    def compile_one(number: int) -> str:
        target = str(folder / f"{number}.o")
        command = ["g++", *FLAGS, *flags, f"-I{ROOT / 'csrc'}", "-c", *sources[number], "-o", target]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, range(len(sources))))
    subprocess.run(["g++", *flags, *objects, "-pthread", "-o", str(folder / "driver")], check=True)
    return folder / "driver"


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_core_is_clean(sanitizer, tmp_path):
    driver = build(tmp_path, sanitizer)
    for capability in TESTED[sanitizer]:
        environment = {**os.environ, "TIM_EXT_CPU_CAPABILITY": capability}
        run = subprocess.run(
            [driver, "0", "200"], capture_output=True, text=True, env=environment, timeout=900
        )
        assert run.returncode == 0, run.stderr[-4000:]
        assert "200 batches" in run.stdout, capability
