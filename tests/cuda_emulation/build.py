"""Compiles kernels for the emulation into Python modules, and keeps them for the next run.

Three builds of the same sources:

    plain    fast: random schedules, NaN in all fresh memory, red zones that are looked at afterwards
    checked  every access of a kernel is checked: bounds, alignment, order (races), reads before writes. What
             the compiler adds for the thread and undefined behaviour sanitizers calls memory.cpp, not their
             runtimes.
    address  AddressSanitizer, for a process that has its runtime loaded (see `address_environment`)
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CSRC = ROOT / "csrc"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-fno-strict-aliasing"]  # as nvcc: vectors are loaded through pointers to their elements
FLAGS += ["-Wall", "-Wextra", "-Wno-unknown-pragmas", "-DTIM_EXT_EMULATE_CUDA"]
UNDEFINED = "alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero"
# build -> flags of the emulator and the kernels, further flags of the kernels, flags of the link
BUILDS = {
    "plain": (["-O2", "-g0"], [], []),
    "checked": (
        ["-O2", "-g1", "-DTIM_EXT_CHECK_ACCESS"],
        [
            "-O1",
            f"-fsanitize=thread,{UNDEFINED}",
            "--param=tsan-distinguish-volatile=1",
            "--param=tsan-instrument-func-entry-exit=0",
        ],
        [],
    ),
    "address": (["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address"], [], ["-fsanitize=address"]),
}
EMULATOR = [HERE / "scheduler.cpp", HERE / "memory.cpp"]


def cache_folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"tim_ext_cuda_emulation_{os.getuid()}"
    folder = Path(os.environ.get("TIM_EXT_TEST_CACHE", default))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def build(name: str, binding: Path, kernels: Sequence[Path], variant: str) -> Path:
    """The module `name`: a binding, the emulator and kernels."""
    common, for_kernels, for_link = BUILDS[variant]
    headers = [*HERE.glob("*.h"), *(CSRC / "common").glob("*.h"), *(CSRC / "cuda/core").glob("*h")]
    flags = [["-O0"], *([common] * len(EMULATOR)), *([[*common, *for_kernels]] * len(kernels))]
    sources = [binding, *EMULATOR, *kernels]
    commands = [[*FLAGS, *own, "-x", "c++", str(file)] for own, file in zip(flags, sources, strict=True)]
    key = hashlib.sha256(repr((commands, for_link, sys.version, compiler_version())).encode())
    for file in sorted({binding, *EMULATOR, *kernels, *headers}):
        key.update(file.read_bytes())
    target = cache_folder() / key.hexdigest()[:20] / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    with open(cache_folder() / f"{target.parent.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of pytest's workers compiles, the others wait for it
        if not target.exists():
            compile_all(name, commands, for_link, target)
    return target


def compile_all(name: str, commands: list[list[str]], for_link: list[str], target: Path) -> None:
    import pybind11

    places = [f"-I{CSRC}", f"-I{HERE}", "-isystem", pybind11.get_include(), "-isystem"]
    places += [sysconfig.get_path("include"), f"-DTIM_EXT_MODULE={name}"]
    with tempfile.TemporaryDirectory(dir=cache_folder()) as work:

        def compile_one(number: int) -> str:
            made = f"{work}/{number}.o"
            run([COMPILER, *places, *commands[number], "-c", "-o", made])
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, range(len(commands))))
        run([COMPILER, "-shared", *for_link, *objects, "-ldl", "-o", f"{work}/module"])
        target.parent.mkdir(exist_ok=True)
        os.replace(f"{work}/module", target)  # at once: an interrupted build leaves no module


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-10000:]}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


@cache
def compiler_version() -> str:
    return subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def address_environment() -> dict[str, str]:
    """What a process needs that loads the module of an `address` build into an ordinary Python."""
    library = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True)
    options = "detect_leaks=0:detect_stack_use_after_return=0"
    return {"LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": options}


def own_kernels_path(variant: str) -> Path:
    name = f"own_kernels_{variant}"
    return build(name, HERE / "own_binding.cpp", [HERE / "own_kernels.cu"], variant)


@cache
def own_kernels(variant: str) -> ModuleType:
    """The kernels of the emulator's own tests."""
    return load(f"own_kernels_{variant}", own_kernels_path(variant))


def tim_ext_kernels_path(variant: str) -> Path:
    kernels = sorted((CSRC / "cuda/core").glob("*.cu"))
    return build(f"tim_ext_emulated_{variant}", HERE / "binding.cpp", kernels, variant)


@cache
def tim_ext_kernels(variant: str) -> ModuleType:
    """The CUDA kernels of the package."""
    return load(f"tim_ext_emulated_{variant}", tim_ext_kernels_path(variant))


if __name__ == "__main__":  # what a whole run of the tests needs
    for variant in ("plain", "checked"):
        tim_ext_kernels_path(variant)
