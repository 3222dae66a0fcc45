"""Devices for the self-test: the emulated GPU, and ones that do something wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import tim_ext
from tim_ext.selftest.cases import Call
from tim_ext.selftest.device import Device

from .backends import Backend, Emulated


@dataclass
class Emulation:
    """Runs calls on a backend of the tests. Without a GPU, streams and graphs are plain calls."""

    backend: Backend = field(default_factory=Emulated)
    name: str = "emulated"
    where: torch.device = field(default_factory=lambda: torch.device("cpu"))
    processors: int = 4
    more: Sequence[Device] = ()

    def about(self) -> dict[str, str]:
        return {"CUDA device": self.name}

    def run(self, call: Call) -> Any:
        return self.backend.call(call.function, call.arguments, call.options)

    def run_on_a_new_stream(self, call: Call) -> Any:
        return self.run(call)

    def record(self, call: Call) -> Callable[[Call], Any]:
        return self.run

    def seconds(self, call: Call) -> float:
        self.run(call)
        return 0.5

    def allocated(self) -> int:
        return 1000

    def answers(self) -> bool:
        return True

    def others(self) -> Sequence[Device]:
        return self.more


class Wrong(Emulation):
    """All results are off, if `hit` says so."""

    def hit(self, call: Call) -> bool:
        return True

    def run(self, call: Call) -> Any:
        result = super().run(call)
        return moved(result, 1e-3) if self.hit(call) else result


def moved(result: Any, by: float) -> Any:
    """Every real number of a result."""
    if isinstance(result, (tim_ext.Result, tim_ext.History)):
        return type(result)(**{name: moved(item, by) for name, item in vars(result).items()})
    return tree_map_only(Tensor, lambda t: t + by if t.is_floating_point() else t, result)


class WrongSmoothing(Wrong):
    def hit(self, call: Call) -> bool:
        return call.options.get("smoothing", 0) != 0


class WrongFromBatches(Wrong):
    """Of several tasks at once."""

    def hit(self, call: Call) -> bool:
        return isinstance(call.arguments[0], list) and len(call.arguments[0]) > 1


class Unsteady(Wrong):
    """Other bits in every second call."""

    calls = 0

    def hit(self, call: Call) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


class Early(Emulation):
    """What runs on a stream of its own does not wait for its inputs."""

    def run_on_a_new_stream(self, call: Call) -> Any:
        return moved(self.run(call), 1e-6)


class Stale(Emulation):
    """A graph that keeps the values it was recorded with."""

    def record(self, call: Call) -> Callable[[Call], Any]:
        kept = self.run(call)
        return lambda other: kept


class Leaking(Emulation):
    bytes = 0

    def allocated(self) -> int:
        self.bytes += 512
        return self.bytes


class Refusing(Emulation):
    def run(self, call: Call) -> Any:
        raise RuntimeError("CUDA error:\nno kernel image is available")

    def seconds(self, call: Call) -> float:
        raise torch.OutOfMemoryError("there is less")


class Lost(Emulation):
    """From the third call on, as after an access out of bounds."""

    calls = 0

    def run(self, call: Call) -> Any:
        self.calls += 1
        if not self.answers():
            raise RuntimeError("CUDA error:\nan illegal memory access was encountered")
        return super().run(call)

    def answers(self) -> bool:
        return self.calls < 3
