"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import tim_ext
from tim_ext import _native

# python_train is not installed. Last in the path, so that an installed tim_ext comes first.
sys.path.append(str(Path(__file__).parents[1]))

settings.register_profile(
    "tim_ext",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("tim_ext")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds")
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_sessionstart() -> None:
    """One thread unless a test asks for more: on a busy machine plain torch waits for its threads."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
    reason = _native.cuda_failure or (None if torch.cuda.is_available() else "no CUDA device")
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run_python(
    *arguments: str, where: Path = Path(tim_ext.__file__).parents[1], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Python in a new process, with the package that lies in `where`."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(where)} | environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(name="run_python")
def run_python_fixture() -> Callable[..., subprocess.CompletedProcess[str]]:
    return run_python
