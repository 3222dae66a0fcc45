"""How long every kernel takes, in batches that fill the device several times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .cases import SOLVERS, Call, operator
from .device import Device

STEPS = ("distance_softmax", "q_update", "w_update", "gd_gradient")
QUERIES = 15  # per class


@dataclass(frozen=True)
class Shape:
    """Of a task: classes, samples, features."""

    name: str
    ways: int
    samples: int
    dim: int

    @property
    def shots(self) -> int:
        return max(1, (self.samples - QUERIES * self.ways) // self.ways)


SHAPES = (
    Shape("5-way 1-shot", 5, 80, 640),
    Shape("5-way 5-shot", 5, 100, 640),
    Shape("20-way 1-shot", 20, 320, 640),
    Shape("20-way 5-shot", 20, 400, 640),
    Shape("Meta-Dataset size (25-way, N = 750, d = 512)", 25, 750, 512),
)


@dataclass(frozen=True)
class Load:
    """Tasks of one shape, labelled samples first."""

    solver: str  # or operator
    shape: Shape
    waves: int  # tasks per multiprocessor
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ", ".join([self.solver, *(f"{name}={value}" for name, value in self.options.items())])

    def tasks(self, device: Device) -> int:
        return self.waves * device.processors

    def call(self, device: Device) -> Call:
        shape, tasks, where = self.shape, self.tasks(device), device.where
        generator = torch.Generator(where).manual_seed(0)
        features = torch.randn(tasks, shape.samples, shape.dim, device=where, generator=generator)
        labels = torch.full((tasks, shape.samples), -1, device=where)
        support = shape.ways * shape.shots
        labels[:, :support] = torch.arange(support, device=where) % shape.ways
        if self.solver in SOLVERS:
            options = {"num_classes": shape.ways, **self.options}
            if "sample_weight" in options:
                options["sample_weight"] = torch.full(labels.shape, options["sample_weight"], device=where)
            return Call(SOLVERS[self.solver], (features, labels), options)
        weights = features[:, : shape.ways].contiguous()
        probs = torch.full((tasks, shape.samples, shape.ways), 1 / shape.ways, device=where)
        terms = {"lam": 0.1, "alpha": 0.1, "temperature": 15.0, "marginal_weight": 1.0}
        arguments, options = {
            "distance_softmax": ((features, weights, 15.0), {}),
            "q_update": ((probs.log(), labels, 0.1, 1.0, 1.0), {}),
            "w_update": ((features, weights, probs, probs, labels, 0.1, 0.1, 1.0), {}),
            "gd_gradient": ((features, weights, labels), terms),
        }[self.solver]
        return Call(operator(self.solver), arguments, options)


def loads() -> list[Load]:
    found = [Load("adm", shape, waves=20 if shape.samples <= 128 else 5) for shape in SHAPES]
    found += [Load("gd", shape, waves=5) for shape in SHAPES]
    five = SHAPES[1]
    found += [
        Load("adm", five, waves=5, options={name: value})
        for name, value in (
            ("form", "primal"),
            ("smoothing", 0.6),
            ("relaxation", "auto"),
            ("marginal_weight", "auto"),
            ("sample_weight", 1.0),
        )
    ]
    found.append(Load("robust", five, waves=5))
    return found + [Load(name, five, waves=20) for name in STEPS]


@dataclass(frozen=True)
class Time:
    name: str
    shape: str
    tasks: int
    seconds: float  # per task


def measure(device: Device, load: Load) -> Time:
    tasks = load.tasks(device)
    return Time(load.name, load.shape.name, tasks, device.seconds(load.call(device)) / tasks)
