"""Programs over the torch-free core, by any compiler, with the kernels of some instruction sets."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helpers.paths import ROOT

KERNELS = {"avx512", "avx2", "baseline"}  # the sources of csrc/cpu/kernels, minutes of compile time each


def build_core(
    folder: Path, compiler: str, flags: Sequence[str], kernels: Collection[str], *programs: Path
) -> list[Path]:
    """Each program linked with the core; the other instruction sets are replaced by one that aborts."""
    core = sorted((ROOT / "csrc/cpu/core").glob("*.cpp"))
    all_kernels = sorted((ROOT / "csrc/cpu/kernels").glob("*.cpp"))
    assert {source.stem for source in all_kernels} == KERNELS
    tested = [source for source in all_kernels if source.stem in kernels]
    absent = [
        [str(ROOT / "tests/sanitizers/absent.cpp"), f"-DTIM_ISA={isa}"] for isa in KERNELS - set(kernels)
    ]
    sources = [[str(source)] for source in (*tested, *programs, *core)] + absent

    def compile_one(number: int) -> str:
        target = str(folder / f"{number}.o")
        command = [compiler, *flags, f"-I{ROOT / 'csrc'}", "-c", *sources[number], "-o", target]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, range(len(sources))))
    first = len(tested)
    shared = objects[:first] + objects[first + len(programs) :]
    for program, object_file in zip(programs, objects[first:], strict=False):
        target = str(folder / program.stem)
        subprocess.run([compiler, *flags, object_file, *shared, "-pthread", "-o", target], check=True)
    return [folder / program.stem for program in programs]
