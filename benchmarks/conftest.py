"""Comparisons (comparison.py) as pytest-benchmark tests: one test for each candidate.

pytest-benchmark times one test after the other; here the candidates of a comparison must take turns. So the
first test of a comparison measures all of its candidates, and each test hands the times of its own candidate
to pytest-benchmark, which is made to believe that they pass now: its timer is `tape`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .comparison import Comparison, Measured, agree, devices, measure

FULL = 2.0  # the full profile measures as many times as long


class Tape:
    """A timer that replays durations: it is read at the begin and at the end of each round."""

    def __init__(self) -> None:
        self.now, self.readings = 0.0, iter(())

    def play(self, durations: list[float]) -> None:
        def readings() -> Iterator[float]:
            for duration in durations:
                yield self.now
                self.now += duration
                yield self.now

        self.readings = readings()

    def __call__(self) -> float:
        return next(self.readings)


tape = Tape()
measured: dict[tuple[str, str], Measured] = {}
agreed: set[tuple[str, str]] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tim_ext benchmarks")
    group.addoption("--profile", choices=["quick", "full"], default="quick", help="which comparisons (quick)")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """A measurement has the machine to itself; agreement alone is checked on all cores."""
    return None if config.getoption("benchmark_disable") else 0


def suite(group: str, comparisons: list[Comparison]) -> pytest.MarkDecorator:
    """The tests of these comparisons, as a decorator of `def test_x(run, comparison, candidate, device)`."""
    names = [comparison.name for comparison in comparisons]
    assert len(set(names)) == len(names), f"{group}: two comparisons have one name"
    rows = [
        pytest.param(
            comparison,
            name,
            device,
            id=f"{comparison.name}: {name}" + ("" if device == "cpu" else f" ({device})"),
            marks=pytest.mark.benchmark(group=f"{group}: {comparison.name}", timer=tape),
        )
        for comparison in comparisons
        for device in devices()
        if device in comparison.devices
        for name in comparison.on(device)
    ]
    return pytest.mark.parametrize(("comparison", "candidate", "device"), rows)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--profile") == "full":
        return
    chosen, others = [], []
    for item in items:
        comparison = item.callspec.params.get("comparison") if hasattr(item, "callspec") else None
        (chosen if comparison is None or comparison.quick else others).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)


@pytest.fixture
def run(benchmark: Any, request: pytest.FixtureRequest) -> Any:
    """run(comparison, candidate, device): agreement, and unless benchmarks are disabled, times."""

    def run(comparison: Comparison, name: str, device: str) -> None:
        if comparison.candidates[name].missing:
            pytest.skip(comparison.candidates[name].missing)
        key = comparison.name, device
        if benchmark.disabled:
            if key not in agreed:
                agree(comparison, device, threads=1)  # a busy machine makes torch's threads wait
                agreed.add(key)
            benchmark.pedantic(lambda: None)
            return
        if key not in measured:
            longer = FULL if request.config.getoption("--profile") == "full" else 1.0
            measured[key] = measure(comparison, comparison.seconds * longer, device)
        times, candidate = measured[key].times[name], comparison.candidates[name]
        ratios = measured[key].ratios(name)
        benchmark.extra_info.update(
            comparison=comparison.name,
            candidate=name,
            device=device,
            reference=comparison.reference,
            ratio=statistics.median(ratios),
            ratio_error=standard_error(ratios),
            tasks=candidate.tasks or comparison.tasks,
            threads=candidate.threads or comparison.threads,
            multiply_adds=candidate.multiply_adds,
            bytes=candidate.bytes,
            share=measured[key].share(name, candidate.multiply_adds),
            headline=comparison.headline,
            note=candidate.note or comparison.note,
            x=dict(candidate.x),
        )
        tape.play(times)
        benchmark.pedantic(lambda: None, rounds=len(times))

    return run


def standard_error(values: list[float]) -> float:
    """Of their median: 1.25 times that of the mean, by the quartiles, as there are outliers."""
    if len(values) < 2:
        return float("inf")
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return 1.25 * (high - low) / 1.35 / len(values) ** 0.5


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    import tim_ext

    machine_info.update(
        tim_ext=tim_ext.__version__,
        torch=torch.__version__,
        instructions=torch.ops.tim_ext.cpu_capability(),
        cores=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    )
