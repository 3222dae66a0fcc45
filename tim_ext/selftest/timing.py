"""How long every kernel takes, in batches that fill the device several times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .cases import SOLVERS, Call, operator
from .device import Device

STEPS = ("distance_softmax", "q_update", "w_update", "gd_gradient")
QUERIES = 15  # per class


@dataclass(frozen=True)
class Load:
    """Tasks of one shape, `ways` * `shots` labelled samples first."""

    solver: str  # or operator
    shape: str
    ways: int
    samples: int
    dim: int
    waves: int  # tasks per multiprocessor
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.solver}, {given}" if given else self.solver

    @property
    def shots(self) -> int:
        return max(1, (self.samples - QUERIES * self.ways) // self.ways)

    def call(self, device: Device) -> Call:
        tasks, where = self.waves * device.processors, device.where
        generator = torch.Generator(where).manual_seed(0)
        features = torch.randn(tasks, self.samples, self.dim, device=where, generator=generator)
        labels = torch.full((tasks, self.samples), -1, device=where)
        support = self.ways * self.shots
        labels[:, :support] = torch.arange(support, device=where) % self.ways
        if self.solver in SOLVERS:
            options = {"num_classes": self.ways, **self.options}
            return Call(SOLVERS[self.solver], (features, labels), options)
        weights = features[:, :: self.samples // self.ways][:, : self.ways].contiguous()
        probs = torch.full((tasks, self.samples, self.ways), 1 / self.ways, device=where)
        terms = {"lam": 0.1, "alpha": 0.1, "temperature": 15.0, "marginal_weight": 1.0}
        arguments, options = {
            "distance_softmax": ((features, weights, 15.0), {}),
            "q_update": ((probs.log(), labels, 0.1, 1.0, 1.0), {}),
            "w_update": ((features, weights, probs, probs, labels, 0.1, 0.1, 1.0), {}),
            "gd_gradient": ((features, weights, labels), terms),
        }[self.solver]
        return Call(operator(self.solver), arguments, options)


def loads() -> list[Load]:
    shapes = (
        ("5-way 1-shot", 5, 80, 640),
        ("5-way 5-shot", 5, 100, 640),
        ("20-way 1-shot", 20, 320, 640),
        ("20-way 5-shot", 20, 400, 640),
        ("Meta-Dataset size", 25, 750, 512),
    )
    found = [Load("adm", *shape, waves=20 if shape[2] <= 128 else 5) for shape in shapes]
    found += [Load("gd", *shape, waves=5) for shape in shapes]
    five = shapes[1]
    found += [
        Load("adm", *five, waves=5, options=options)
        for options in (
            {"form": "primal"},
            {"smoothing": 0.6},
            {"relaxation": "auto"},
            {"marginal_weight": "auto"},
        )
    ]
    found.append(Load("robust", *five, waves=5))
    return found + [Load(name, *five, waves=20) for name in STEPS]


@dataclass(frozen=True)
class Time:
    name: str
    shape: str
    tasks: int
    microseconds: float  # per task


def measure(device: Device, loads: Sequence[Load]) -> Iterator[Time]:
    for load in loads:
        tasks = load.waves * device.processors
        yield Time(load.name, load.shape, tasks, device.seconds(load.call(device)) / tasks * 1e6)
