"""What the tests of evaluations share: a pool, and methods of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.evaluations import Stand
from torch import Tensor

from tim_ext.evaluation.methods import METHODS, Method


@pytest.fixture(scope="module")
def pool() -> tuple[Tensor, Tensor]:
    """480 samples of 12 classes that overlap: features [480, 16] >= 0, labels [480]."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(480) % 12
    means = torch.rand(12, 16, generator=generator)
    noise = torch.randn(480, 16, generator=generator)
    return (means[labels] + 0.3 * noise).clamp(min=0), labels


@pytest.fixture
def add_method(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Stand], None]:
    """Makes a function a method under a name."""
    return lambda name, function: monkeypatch.setitem(METHODS, name, Method(name, function))
