"""What sample weights and sample priors cost: `python -m benchmarks.sample_inputs`.

The ways take turns, and the fastest run of each counts: what else the machine does slows others down.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

import tim_ext

from .tasks import Shape

ROUNDS = 30


def fastest(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, solve in ways.items():
            start = perf_counter()
            solve()
            times[name].append(perf_counter() - start)
    return {name: min(seconds) for name, seconds in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    for solver, shape, options in (
        (tim_ext.adm, Shape(200), {}),
        (tim_ext.robust, Shape(200), {}),
        (tim_ext.adm, Shape(1, ways=50, queries=100, dim=256), {"form": "primal"}),
        (tim_ext.gd, Shape(20), {"iterations": 100}),
    ):
        tasks = shape.make()
        generator = torch.Generator().manual_seed(1)
        weight = torch.rand(tasks.labels.shape, generator=generator)
        prior = torch.rand(*tasks.labels.shape, shape.ways, generator=generator)
        solve = partial(solver, tasks.features, tasks.labels, **options)
        seconds = fastest(
            {
                "neither": solve,
                "sample_weight": partial(solve, sample_weight=weight),
                "sample_prior": partial(solve, sample_prior=prior, sample_prior_weight=0.1),
                "both": partial(solve, sample_weight=weight, sample_prior=prior, sample_prior_weight=0.1),
            }
        )
        print(f"{solver.__name__}, {shape}" + "".join(f", {name}={value}" for name, value in options.items()))
        for name, value in seconds.items():
            print(f"  {name:13} {1e3 * value:8.2f} ms  {value / seconds['neither'] - 1:+.1%}")


if __name__ == "__main__":
    main()
