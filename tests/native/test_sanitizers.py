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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


def build(folder: Path, flags: list[str]) -> Path:
    core = [source for room in ("core", "kernels") for source in (ROOT / "csrc/cpu" / room).glob("*.cpp")]
    sources = [ROOT / "tests/sanitizers/driver.cpp", *core]

    def compile_one(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        command = [
            "g++",
            *FLAGS,
            *flags,
            f"-I{ROOT / 'csrc'}",
            "-c",
            str(source),
            "-o",
            target,
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    subprocess.run(["g++", *flags, *objects, "-pthread", "-o", str(folder / "driver")], check=True)
    return folder / "driver"


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    return {name: build(tmp_path_factory.mktemp(name), flags) for name, flags in SANITIZERS.items()}


@pytest.mark.parametrize("capability", ["avx2", "baseline"])
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_core_is_clean(drivers, sanitizer, capability):
    environment = {**os.environ, "TIM_EXT_CPU_CAPABILITY": capability}
    command = [drivers[sanitizer], "0", "300"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert run.returncode == 0, run.stderr[-4000:]
    assert "300 batches" in run.stdout
