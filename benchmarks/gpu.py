"""Time per task on a GPU: predicted from instruction counts, and measured where there is one.

    python -m benchmarks.gpu                      the predictions; with a GPU, also measurements
    python -m benchmarks.gpu --write              ... into docs/gpu.md
    python -m benchmarks.gpu --report FILE        ... with the times in report.json of tim-ext gpu-selftest
    python -m benchmarks.gpu --sass FILE KERNEL   instructions in the loops of a kernel (a cubin, .o or .so)

docs/gpu.md explains every step of the model.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from tim_ext.selftest import device as selftest
from tim_ext.selftest import timing
from tim_ext.selftest.timing import SHAPES, Shape

PAGE = Path(__file__).parent.parent / "docs" / "gpu.md"
BEGIN, END = "<!-- table made by benchmarks.gpu: begin -->", "<!-- end -->"
PAPER = {"adm": 0.12, "gd": 2.2}  # seconds per task, 5-way 5-shot, GTX 1080 Ti


@dataclass(frozen=True)
class Gpu:
    """From the vendor's data sheets; L2 bytes per clock as measured by others where the vendor is silent."""

    name: str
    processors: int
    clock: float  # Hz
    l2_bytes: float
    l2_per_clock: float  # bytes, of the whole device
    memory: float  # bytes per second


GPUS = (
    Gpu("A100 SXM 40 GB", 108, 1.41e9, 40e6, 5120, 1555e9),
    Gpu("H100 SXM", 132, 1.98e9, 50e6, 5120, 3350e9),
    Gpu("RTX 4090", 128, 2.52e9, 72e6, 2048, 1008e9),
)


WARPS, SCHEDULERS, LANES = 8, 4, 32


def elementwise(n: int, k: int) -> float:
    """Warp instructions of an iteration outside the products; counts per class and sample from the SASS.

    Phases of rows (softmax, q, C): a warp for 32 samples, 37 + 24 + 16 instructions per class and
    60 + 50 + 30 besides. Phases of classes (shift, sums, mass): a warp for a class, 24 + 21 + 6 per 32
    samples and 25 + 115 + 55 besides.
    """
    rounds = math.ceil(n / LANES)
    return rounds * (77 * k + 140) + k * (51 * rounds + 195)


def adm_registers_clocks(n: int, k: int, d: int, iterations: int) -> float:
    """Clocks of a multiprocessor per task when its four schedulers issue all the time."""
    tile = 5 if n <= 80 else 7 if n <= 112 else 8
    tiles = math.ceil((k - 1) / 4)
    # 4 tile^2 multiply-adds, tile loads, 30 sums across lanes (shuffle, two selects, add), 22 besides
    product = tiles * WARPS * (4 * tile**2 + tile + 30 * 4 + 22)
    # per feature: tile (tile + 1) / 2 multiply-adds, 4 loads, 2 besides, 12 to bring it to shared memory
    gram = d * WARPS * (tile * (tile + 1) / 2 + 4 + 2 + 12)
    weights = math.ceil(d / 128) * math.ceil(k / 4) * (n * 25 + WARPS * 120)
    return (gram + (iterations + 1) * (product + elementwise(n, k)) + weights) / SCHEDULERS


def streaming_clocks(gpu: Gpu, bytes_read: float, resident: float, instructions: float) -> float:
    """A pass over a matrix by one block per multiprocessor: the slower of memory and instruction issue.

    `instructions` of a warp per 512 bytes, from the SASS: accumulate_columns 49, dot_rows 48 (27 for up to
    four classes).
    """
    per_processor = gpu.l2_per_clock / gpu.processors
    fits = resident * gpu.processors <= gpu.l2_bytes
    if not fits:  # the part that does not fit in L2 comes from memory
        share = gpu.l2_bytes / (resident * gpu.processors)
        dram = gpu.memory / gpu.clock / gpu.processors
        per_processor = 1 / (share / per_processor + (1 - share) / dram)
    return max(bytes_read / per_processor, bytes_read / 512 * instructions / SCHEDULERS)


def adm_dual_clocks(gpu: Gpu, n: int, k: int, d: int, iterations: int) -> float:
    tiles = math.ceil((k - 1) / 8)
    gram = n * n * 4
    product = streaming_clocks(gpu, tiles * gram, gram, 49)
    build = n * n / 2 * d * 1.6 / (LANES * SCHEDULERS)
    return build + (iterations + 1) * (product + elementwise(n, k) / SCHEDULERS)


def gd_clocks(gpu: Gpu, n: int, k: int, d: int, iterations: int) -> float:
    features = n * d * 4
    state = features + 4 * k * d * 4 + 4 * n * 8 * 4  # with W, V, Adam's moments, p and the like
    rows = streaming_clocks(gpu, math.ceil((k - 1) / 8) * features, state, 48 if k > 5 else 27)
    columns = streaming_clocks(gpu, math.ceil(k / 8) * features, state, 49)
    return iterations * (rows + columns + elementwise(n, k) / SCHEDULERS)


def predict(gpu: Gpu, shape: Shape, solver: str) -> float:
    """Seconds per task when 10,000 tasks are batched."""
    n, k, d = shape.samples, shape.ways, shape.dim
    prepare = n * d * 4 / gpu.memory  # reads all features once, at the rate of memory
    if solver == "gd":
        clocks = gd_clocks(gpu, n, k, d, 1000)
    elif n <= 128:
        clocks = adm_registers_clocks(n, k, d, 150)
        # G and W read the features from memory, once each
        return prepare + max(clocks / gpu.clock / gpu.processors, 2 * n * d * 4 / gpu.memory)
    else:
        clocks = adm_dual_clocks(gpu, n, k, d, 150)
    return prepare + clocks / gpu.clock / gpu.processors


Times = dict[tuple[str, str], float]  # solver and shape: seconds per task


def measured_here() -> tuple[str, Times]:
    """The name of the GPU and its times, as `tim-ext gpu-selftest` takes them."""
    gpu = selftest.Gpu(0)
    loads = [load for load in timing.loads() if load.name in PAPER]
    return gpu.name, {(t.name, t.shape): t.seconds for t in (timing.measure(gpu, load) for load in loads)}


def measured_elsewhere(report: Path) -> tuple[str, Times]:
    """The same from the report of a self-test."""
    data = json.loads(report.read_text())
    return data["versions"]["CUDA device"], {(t["name"], t["shape"]): t["seconds"] for t in data["times"]}


def readable(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(measured: tuple[str, Times] | None) -> str:
    names = [f"{gpu.name} (predicted)" for gpu in GPUS]
    if measured is not None:
        names.append(f"{measured[0]} (measured)")
    lines = ["| solver | task | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for solver in ("adm", "gd"):
        for shape in SHAPES:
            cells = [readable(predict(gpu, shape, solver)) for gpu in GPUS]
            if measured is not None:
                seconds = measured[1].get((solver, shape.name))
                cells.append("" if seconds is None else readable(seconds))
            lines.append(f"| TIM-{solver.upper()} | {shape.name} | " + " | ".join(cells) + " |")
    a100, five = GPUS[0], SHAPES[1]
    for solver, seconds in PAPER.items():
        ratio = seconds / predict(a100, five, solver)
        lines.append(
            f"\nTIM-{solver.upper()}, 5-way 5-shot: the paper measured {seconds} s per task, GTX 1080 Ti; "
            f"predicted for the A100: {readable(predict(a100, five, solver))}, {ratio:,.0f} times less."
        )
    return "\n".join(lines)


def write(text: str) -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def loops(file: str, kernel: str) -> None:
    """The instructions of every loop of a kernel; a loop is what lies before a branch that goes back."""
    output = subprocess.run(["cuobjdump", "-sass", file], check=True, capture_output=True, text=True).stdout
    instruction = re.compile(r"\s+/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+ )?\s*([A-Z0-9_.]+)\s*(.*?);")
    for function in output.split("Function : ")[1:]:
        name, _, text = function.partition("\n")
        if kernel not in name:
            continue
        code = [(int(at, 16), op, rest) for at, op, rest in instruction.findall(text)]
        print(f"{name}: {len(code)} instructions")
        for at, op, rest in code:
            target = re.search(r"0x([0-9a-f]+)", rest)
            if op.startswith("BRA") and target and int(target[1], 16) < at:
                body = [o.split(".")[0] for a, o, _ in code if int(target[1], 16) <= a <= at]
                mix = ", ".join(f"{count} {o}" for o, count in collections.Counter(body).most_common(8))
                print(f"  {target[1]:>6} .. {at:>6x}: {len(body)} instructions: {mix}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/gpu.md")
    parser.add_argument(
        "--sass", nargs=2, metavar=("FILE", "KERNEL"), help="instructions of a kernel's loops"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="report.json of tim-ext gpu-selftest")
    options = parser.parse_args()
    if options.sass:
        return loops(*options.sass)
    if options.report:
        measured = measured_elsewhere(options.report)
    else:
        measured = measured_here() if torch.cuda.is_available() else None
    text = table(measured)
    print(text)
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
