"""Registers, stack and shared memory of every kernel of the CUDA library, on every architecture.

The table is tests/cuda_budget.csv: a change of a kernel's needs is a change in the diff. Spilled registers
would need a stack, and no kernel may have one. To write the table anew:

    TIM_EXT_UPDATE_BUDGET=1 pytest tests/native/test_cuda_budget.py
"""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tim_ext.solver import native

TABLE = Path(__file__).with_name("cuda_budget.csv")
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
RESOURCES = re.compile(r"Function (\w+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


class Needs(NamedTuple):
    kernel: str
    architecture: str
    registers: int
    stack: int
    shared: int  # static; what a launch adds is a matter of its shapes
    local: int


def find_cuobjdump() -> str | None:
    """In the toolkit, or where triton brings it along with a CUDA build of torch."""
    triton = importlib.util.find_spec("triton")
    folders = [str(Path(triton.origin).parent / "backends/nvidia/bin")] if triton and triton.origin else []
    folders += [f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"]
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(folders))


def short_name(symbol: str) -> str:
    """adm_registers_kernel<7> from its mangled name."""
    found = re.match(r"_ZN7tim_ext4cuda\d+([a-z_]+_kernel)(?:I(?:Li(\d+)|([fd]))E)?", symbol)
    assert found, symbol
    name, size, dtype = found.groups()
    argument = size or {"f": "float", "d": "double", None: None}[dtype]
    return f"{name}<{argument}>" if argument else name


def library_needs(library: Path, cuobjdump: str) -> list[Needs]:
    output = subprocess.run(
        [cuobjdump, "--dump-resource-usage", str(library)], check=True, capture_output=True, text=True
    ).stdout
    needs = set()
    for block in re.split(r"(?=arch = sm_)", output):
        if found := re.match(r"arch = (sm_\d+)", block):
            for symbol, *numbers in RESOURCES.findall(block):
                needs.add(Needs(short_name(symbol), found[1], *map(int, numbers)))
    return sorted(needs)


@pytest.fixture(scope="module")
def needs() -> list[Needs]:
    library, cuobjdump = native.find_library("_cuda"), find_cuobjdump()
    if library is None:
        pytest.skip("no CUDA library: torch is a CPU build, or no nvcc of its CUDA version was found")
    if cuobjdump is None:
        pytest.skip("no cuobjdump: it comes with the CUDA toolkit, and with triton")
    return library_needs(library, cuobjdump)


def test_every_kernel_is_there_for_every_architecture(needs: list[Needs]) -> None:
    kernels = {need.kernel for need in needs}
    built = {need.architecture for need in needs}
    assert {"adm_registers_kernel<7>", "adm_dual_kernel<float>", "gd_kernel<double>"} <= kernels
    if "TORCH_CUDA_ARCH_LIST" not in os.environ:
        assert built == set(ARCHITECTURES)
    assert {(need.kernel, need.architecture) for need in needs} == {(k, a) for k in kernels for a in built}


def test_no_kernel_spills(needs: list[Needs]) -> None:
    assert [need for need in needs if need.stack or need.local] == []


def test_needs_are_those_of_the_table(needs: list[Needs]) -> None:
    if os.environ.get("TIM_EXT_UPDATE_BUDGET"):
        with TABLE.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([Needs._fields, *needs])
    with TABLE.open(newline="") as file:
        rows = [Needs(row[0], row[1], *map(int, row[2:])) for row in list(csv.reader(file))[1:]]
    built = {need.architecture for need in needs}
    assert needs == [row for row in rows if row.architecture in built]
