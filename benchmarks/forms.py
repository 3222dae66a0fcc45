"""What `form="auto"` loses by its choice: `python -m benchmarks.forms`, the table of docs/performance.md.

    python -m benchmarks.forms [--capabilities avx512 avx2] [--seconds 0.3] [--places 96]

On the grid of benchmarks/test_sweeps.py, one task on one thread, both forms in turn and the choice that
`auto` makes; a process of its own for each instruction set. Processor time, the least of all turns, so that
other work on the machine matters little. A loss of 5 %: the other form would have taken 1 / 1.05 of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import product
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

import tim_ext

from .tasks import Shape, Tasks

DIMS, SAMPLES, WAYS, ITERATIONS = (64, 256, 640, 2048), (100, 200, 400, 800, 1600, 3200), (5, 20), (15, 150)
LEAST_TURNS = 3
SHOWN = 0.05  # a loss from which on a place is named


class Place(NamedTuple):
    samples: int
    dim: int
    ways: int
    iterations: int
    dual: float  # seconds
    primal: float
    picks_dual: bool

    @property
    def loss(self) -> float:
        return (self.dual if self.picks_dual else self.primal) / min(self.dual, self.primal) - 1

    def __str__(self) -> str:
        form = "dual" if self.picks_dual else "primal"
        where = f"N = {self.samples}, d = {self.dim}, K = {self.ways}, {self.iterations} iterations"
        return f"{self.loss:.0%} at {where} ({form})"


def solve(tasks: Tasks, iterations: int, form: str) -> Tensor:
    probs = tim_ext.adm(*tasks.one(), iterations=iterations, form=form).probs
    assert isinstance(probs, Tensor)
    return probs


def measure(samples: int, dim: int, ways: int, iterations: int, seconds: float) -> Place:
    tasks = Shape(1, ways=ways, shots=1, queries=samples // ways - 1, dim=dim).make(torch.device("cpu"))
    least = dict.fromkeys(("dual", "primal"), float("inf"))
    probs: dict[str, Tensor] = {}
    end, turns = time.process_time() + 2 * seconds, 0
    while turns < LEAST_TURNS or time.process_time() < end:
        for form in least:
            begin = time.process_time()
            probs[form] = solve(tasks, iterations, form)
            least[form] = min(least[form], time.process_time() - begin)
        turns += 1
    chosen = solve(tasks, iterations, "auto")
    picks_dual = torch.equal(chosen, probs["dual"])  # the forms differ in their last bits
    assert picks_dual or torch.equal(chosen, probs["primal"]), "neither of the two forms"
    return Place(samples, dim, ways, iterations, least["dual"], least["primal"], picks_dual)


def measure_all(seconds: float, places: int) -> list[Place]:
    """A spread of the grid, if not all of it."""
    torch.set_num_threads(1)
    grid = list(product(DIMS, SAMPLES, WAYS, ITERATIONS))
    chosen = [grid[i * len(grid) // places] for i in range(min(places, len(grid)))]
    return [measure(n, d, k, i, seconds) for d, n, k, i in chosen]


def on(capability: str, options: argparse.Namespace) -> list[Place]:
    command = [sys.executable, "-m", "benchmarks.forms", "--here", capability]
    command += ["--seconds", str(options.seconds), "--places", str(options.places)]
    environment = {**os.environ, "TIM_EXT_CPU_CAPABILITY": capability}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return [Place(*row) for row in json.loads(run.stdout)]


def report(capability: str, places: list[Place]) -> str:
    losses = [place.loss for place in places]
    named = sorted((place for place in places if place.loss >= SHOWN), key=lambda place: -place.loss)
    better = sum(loss == 0 for loss in losses)
    cells = (
        capability,
        f"{better} of {len(places)}",
        f"{1 + mean(losses):.4f}",
        f"{1 + max(losses):.2f}",
        "; ".join(map(str, named)) or "none",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--capabilities", nargs="+", default=["avx512", "avx2"], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each form at each place")
    parser.add_argument("--places", type=int, default=96, help="of the grid")
    parser.add_argument("--here", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        found = torch.ops.tim_ext.cpu_capability()
        if found != options.here:
            parser.error(
                f"--capabilities: {options.here} is not what this machine has, its kernels are {found}"
            )
        print(json.dumps(measure_all(options.seconds, options.places)))
        return
    print(
        "| kernels | the better form | mean | worst | places that lose 5 % and more |\n|---|---|---|---|---|"
    )
    for capability in options.capabilities:
        print(report(capability, on(capability, options)), flush=True)


if __name__ == "__main__":
    main()
