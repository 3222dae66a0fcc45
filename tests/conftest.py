"""Settings and fixtures of all tests."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers import paths  # noqa: F401 (functions of test files are found by other processes)
from helpers.backends import why_no_emulation
from helpers.processes import run_python
from hypothesis import HealthCheck, settings

from tim_ext.solver import native

settings.register_profile(
    "tim_ext",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("tim_ext")

# What the server from which processes are forked imports once. It starts with the first of them: the list is
# made before any test. tim_ext is not in it: the server would import the source tree, not what is installed.
PRELOADED = ["torch._dynamo", "torch.distributed", "safetensors.torch", "tqdm"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto`. More than cores: tests that start processes wait for them."""
    return (os.cpu_count() or 1) * 3 // 2


def pytest_sessionstart(session: pytest.Session) -> None:
    """What a test may rely on however pytest was started, alone or as one of many workers.

    One thread unless a test asks for more, here and in the processes it starts: the workers take all cores,
    and on a busy machine plain torch waits for its threads. Signals act as in a terminal: what a shell runs
    in the background has SIGINT ignored from the start, Python leaves it so, and new processes inherit it.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    whole = session.config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if whole and not hasattr(session.config, "workerinput") and why_no_emulation() is None:
        # once, while other tests run: workers that need it would wait for the one that compiles
        subprocess.Popen([sys.executable, str(Path(__file__).with_name("cuda_emulation") / "build.py")])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
    reason = native.cuda_failure or (None if torch.cuda.is_available() else "no CUDA device")
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(name="run_python")
def run_python_fixture() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_python
