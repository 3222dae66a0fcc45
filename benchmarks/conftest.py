"""Shared by the pytest-benchmark suites: threads, and a closing table of ratios within each group."""

from __future__ import annotations

import pytest
import torch

RESULTS: list[tuple[str, str, float, float]] = []  # group, name, median seconds, multiply-adds


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def timed(benchmark):
    """timed(group, name, call, multiply_adds=0): measures a call and notes it for the table."""

    def run(group, name, call, multiply_adds=0.0):
        benchmark.group = group
        benchmark.extra_info["multiply_adds"] = multiply_adds
        benchmark(call)
        if benchmark.stats is not None:
            RESULTS.append((group, name, benchmark.stats.stats.median, multiply_adds))

    return run


def pytest_terminal_summary(terminalreporter):
    if not RESULTS:
        return
    from . import measure

    peak = measure.peak()
    write = terminalreporter.write_line
    write(f"\nmultiply-add peak of this machine, two threads: {peak / 1e9:.1f} G/s")
    for group in dict.fromkeys(result[0] for result in RESULTS):
        write(group)
        rows = [result for result in RESULTS if result[0] == group]
        first = rows[0][2]
        for _, name, seconds, multiply_adds in rows:
            share = f"{multiply_adds / seconds / peak:6.0%} of peak" if multiply_adds else ""
            write(f"  {name:28s} {seconds * 1e3:10.3f} ms {seconds / first:8.1f} x {share}")
