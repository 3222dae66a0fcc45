"""What the self-test solves, as data: every kernel, in shapes that choose it.

Tasks are hard ones (noise as large as the distance of the classes), so that an error does not vanish behind
probabilities of 0 and 1, and solved for few iterations, so that rounding is not amplified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..solver import native
from ..solver.solve import adm, gd, robust

REALS = (torch.float64, torch.float32)
ALL = (*REALS, torch.float16, torch.bfloat16)
SOLVERS: dict[str, Callable[..., Any]] = {"adm": adm, "robust": robust, "gd": gd}
# As the parity tests have them: relative to numbers larger than 1, else absolute.
ROUNDING = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 2e-5, torch.bfloat16: 2e-5}


@dataclass(frozen=True)
class Layout:
    """How the features lie in memory."""

    name: str
    dim: int
    form: str  # "list" of tasks, rows of a "pool", or a "batch" [T, N, d]
    before: int = 0  # elements before the first feature


LAYOUTS = (
    Layout("odd d", 21, "list"),
    Layout("rows of a pool", 24, "pool"),
    Layout("unaligned", 24, "batch", before=1),
)


LONG = (Layout("long rows", 150, "list"), Layout("long rows, unaligned", 152, "batch", before=1))


@dataclass(frozen=True)
class Shape:
    """Of one task."""

    shots: tuple[int, ...]
    queries: int
    padding: int = 0


@dataclass(frozen=True)
class Call:
    """A function with its arguments, tensors of the CPU."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Solve:
    """A batch of tasks and what is asked of the solver."""

    name: str
    solver: str
    shapes: tuple[Shape, ...]
    options: dict[str, Any]
    given: tuple[str, ...] = ()  # out of GIVEN: inputs with a value per class, sample or weight
    dtypes: tuple[torch.dtype, ...] = ALL
    layouts: tuple[Layout, ...] = LAYOUTS
    large: bool = False  # work for several blocks

    def call(self, layout: Layout, dtype: torch.dtype) -> Call:
        tasks = [make_task(seed, shape, layout.dim) for seed, shape in enumerate(self._shapes(layout))]
        batch = layout.form == "batch"
        options = dict(self.options)
        for name in self.given:
            real = torch.float64 if dtype == torch.float64 else torch.float32
            values = [GIVEN[name](seed, *task) for seed, task in enumerate(tasks)]
            if name != "class_prior":
                values = [value.to(real) for value in values]
            options[name] = shifted(torch.stack(values), layout.before) if batch else values
        labels = [labels for _, labels in tasks]
        features = [features.to(dtype) for features, _ in tasks]
        if layout.form == "pool":
            total = sum(map(len, features))
            rows = torch.arange(total).flip(0)
            options["index"] = list(torch.split(rows, list(map(len, features))))
            return Call(SOLVERS[self.solver], (torch.cat(features).flip(0), labels), options)
        if batch:
            stacked = shifted(torch.stack(features), layout.before), torch.stack(labels)
            return Call(SOLVERS[self.solver], stacked, options)
        return Call(SOLVERS[self.solver], (features, labels), options)

    def _shapes(self, layout: Layout) -> Sequence[Shape]:
        """A batch has tasks of one shape."""
        return (self.shapes[0],) * len(self.shapes) if layout.form == "batch" else self.shapes


def make_task(seed: int, shape: Shape, dim: int) -> tuple[Tensor, Tensor]:
    """Features [N, d] in float64 and labels [N], in random order."""
    generator = torch.Generator().manual_seed(seed)
    classes = len(shape.shots)
    support = torch.repeat_interleave(torch.arange(classes), torch.tensor(shape.shots))
    truth = torch.cat([support, torch.arange(shape.queries + shape.padding) % classes])
    labels = torch.cat([support, torch.full((shape.queries,), -1), torch.full((shape.padding,), -100)])
    means = normalize(torch.randn(classes, dim, generator=generator, dtype=torch.float64))
    noise = torch.randn(len(truth), dim, generator=generator, dtype=torch.float64) / dim**0.5
    order = torch.randperm(len(truth), generator=generator)
    return (means[truth] + noise)[order], labels[order]


def shifted(tensor: Tensor, before: int) -> Tensor:
    """The same values, behind `before` elements of the same memory."""
    memory = tensor.new_zeros(before + tensor.numel())
    return memory[before:].view(tensor.shape).copy_(tensor)


def _random(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64)


def _classes(labels: Tensor) -> int:
    return int(labels.max()) + 1


def _class_prior(seed: int, features: Tensor, labels: Tensor) -> Tensor:
    shares = _random(seed, _classes(labels)) + 0.3
    return shares / shares.sum()


def _first_weights(seed: int, features: Tensor, labels: Tensor) -> Tensor:
    return normalize(_random(seed, _classes(labels), features.shape[1]) - 0.5)


def _sample_weight(seed: int, features: Tensor, labels: Tensor) -> Tensor:
    """Some are 0; what stands at others than queries must not be read."""
    weight = _random(seed, len(labels)) * 3
    return torch.where(weight < 0.5, 0, weight).masked_fill(labels != -1, torch.nan)


def _sample_prior(seed: int, features: Tensor, labels: Tensor) -> Tensor:
    """Some are 0, and some whole rows."""
    prior = _random(seed, len(labels), _classes(labels)) ** 3
    prior[prior < 0.01] = 0
    prior[::7] = 0
    return prior


GIVEN: dict[str, Callable[[int, Tensor, Tensor], Tensor]] = {
    "class_prior": _class_prior,
    "weights": _first_weights,
    "sample_weight": _sample_weight,
    "sample_prior": _sample_prior,
}
SAMPLES = ("sample_weight", "sample_prior")

SMALL = (Shape((3, 1, 2), 40), Shape((2, 2, 1, 3), 50, padding=5))
MIDDLE = (Shape((3, 1, 2, 1), 253),)  # its G, 260 x 260, fits no block's shared memory
LARGER = (Shape((3, 1, 2, 1), 513),)
WIDE = (Shape((2,) * 25, 90),)  # several tiles of 8 classes
MANY_SAMPLES = (Shape((1,) * 30, 5000),)
MANY_CLASSES = (Shape((2,) * 30, 1300),)
# Large steps with a large eps: where the gradient is 0 but for rounding, Adam must not take a full step.
ADAM = {"lr": 1e-2, "eps": 1e-2}


def _solves(solver: str, options: dict[str, Any], forms: Sequence[str]) -> list[Solve]:
    """What every form of a solver is asked for."""
    found = []
    for form in forms:
        name = f"{solver} {form}".rstrip()
        own = options | {"iterations": 4, "history": True} | ({"form": form} if form else {})
        found += [
            Solve(f"{name}, class prior", solver, SMALL, own, ("class_prior",)),
            Solve(f"{name}, sample weights", solver, SMALL, own, ("sample_weight",)),
            Solve(f"{name}, sample weights and priors", solver, SMALL, own, SAMPLES),
            Solve(f"{name}, 25 classes", solver, WIDE, own),
            Solve(f"{name}, tol", solver, SMALL, own | {"iterations": 12, "tol": 0.05}, dtypes=REALS[:1]),
        ]
    return found


def solves() -> list[Solve]:
    few: dict[str, Any] = {"iterations": 4, "history": True}
    dual, primal, gradient = few | {"form": "dual"}, few | {"form": "primal"}, few | ADAM
    once = {"iterations": 1}
    found = []
    for tile, samples in ((5, 60), (7, 105), (8, 126)):  # of threads' parts of G, in float32
        two = (Shape((2, 1, 2, 3, 2), samples - 10), Shape((2, 1, 2), samples - 7, padding=2))
        found.append(Solve(f"adm dual, G in registers, tiles of {tile}", "adm", two, dual))
    found += _solves("adm", {}, ("dual", "primal")) + _solves("gd", ADAM, ("",))
    found += [
        Solve("adm dual, G in global memory", "adm", MIDDLE, dual),
        Solve("adm dual, G in global memory, sample weights and priors", "adm", MIDDLE, dual, SAMPLES),
        Solve("adm dual, smoothing, G in shared memory", "adm", SMALL, dual | {"smoothing": 0.6}),
        Solve("adm primal, smoothing", "adm", SMALL, primal | {"smoothing": 0.6}),
        Solve("adm dual, chosen steps", "adm", SMALL, dual | {"relaxation": "auto"}),
        Solve("adm primal, chosen steps", "adm", SMALL, primal | {"relaxation": "auto"}),
        Solve("adm dual, half steps", "adm", SMALL, dual | {"relaxation": 0.5}),
        Solve("adm dual, auto marginal weight", "adm", SMALL, {**dual, "marginal_weight": "auto"}),
        Solve("adm primal, auto marginal weight", "adm", SMALL, {**primal, "marginal_weight": "auto"}),
        Solve("adm, first weights", "adm", SMALL, few, ("weights",)),
        Solve("adm primal, smoothing, first weights", "adm", SMALL, few | {"smoothing": 0.6}, ("weights",)),
        Solve("adm primal", "adm", SMALL, primal),
        Solve("robust", "robust", SMALL, {"iterations": 30, "history": True}),
        Solve("gd", "gd", SMALL, gradient),
        Solve("gd, entropy order 2", "gd", SMALL, gradient | {"entropy_order": 2.0}),
        Solve("gd, first weights", "gd", SMALL, gradient, ("weights",)),
    ]
    found += [
        Solve("adm dual, long rows", "adm", SMALL, dual, layouts=LONG),
        Solve("adm primal, long rows", "adm", SMALL, primal, layouts=LONG),
        Solve("gd, long rows", "gd", SMALL, gradient, layouts=LONG),
    ]
    teams: dict[str, tuple[str, tuple[Shape, ...], dict[str, Any]]] = {
        "adm primal": ("adm", MANY_SAMPLES, {"form": "primal"}),
        "adm dual": ("adm", MANY_CLASSES, {"form": "dual"}),
        "gd": ("gd", MANY_SAMPLES, ADAM),
    }
    smoothed = {"smoothing": 0.6}
    teams |= {
        "adm dual, smoothing": ("adm", MIDDLE, smoothed | {"form": "dual"}),
        "adm primal, smoothing": ("adm", LARGER, smoothed | {"form": "primal"}),
    }
    for name, (solver, shapes, options) in teams.items():
        found.append(Solve(f"{name}, a team of blocks", solver, shapes, options | once, large=True))
    return found


@dataclass(frozen=True)
class Step:
    """One of the operators for loops of one's own, on T tasks of N samples and K classes."""

    operator: str
    tasks: int
    samples: int
    classes: int
    dtypes: tuple[torch.dtype, ...] = REALS
    layouts: tuple[Layout, ...] = (LAYOUTS[0], Layout("even d", 24, "batch"), LAYOUTS[2], LONG[0])
    large: bool = False

    @property
    def name(self) -> str:
        return f"{self.operator}, {self.samples} x {self.classes}"

    def call(self, layout: Layout, dtype: torch.dtype) -> Call:
        shape = Shape((1,) * self.classes, self.samples - self.classes - 3, padding=3)
        tasks = [make_task(seed, shape, layout.dim) for seed in range(self.tasks)]
        features = torch.stack([features for features, _ in tasks])
        labels = torch.stack([labels for _, labels in tasks])
        weights = normalize(_random(0, self.tasks, self.classes, layout.dim) - 0.5, dim=2)
        probs, log_probs = native.call("distance_softmax", features, weights, 15.0)
        assignments = native.call("q_update", log_probs, labels, 0.2, 0.9, 1.1)
        gradient = {
            "lam": 0.3,
            "alpha": 0.2,
            "temperature": 9.0,
            "marginal_weight": 1.2,
            "entropy_order": 2.0,
        }
        prior = torch.stack([_class_prior(t, *task) for t, task in enumerate(tasks)])
        arguments, options = {
            "distance_softmax": ((features, weights, 15.0), {}),
            "q_update": ((log_probs, labels, 0.2, 0.9, 1.1), {}),
            "w_update": ((features, weights, probs, assignments, labels, 0.3, 0.2, 0.9), {}),
            "gd_gradient": ((features, weights, labels), {**gradient, "class_prior": prior}),
        }[self.operator]

        def laid(value: Any) -> Any:
            real = isinstance(value, Tensor) and value.is_floating_point()
            return shifted(value.to(dtype), layout.before) if real else value

        return Call(operator(self.operator), tuple(map(laid, arguments)), options)


def operator(name: str) -> Callable[..., Any]:
    return lambda *arguments, **options: native.call(name, *arguments, **options)


def steps() -> list[Step]:
    shapes = ((3, 70, 5), (2, 33, 20), (1, 200, 1))
    names = ("distance_softmax", "q_update", "w_update", "gd_gradient")
    return [Step(name, *shape) for name in names for shape in shapes]


Case = Solve | Step


def cases(*, quick: bool = False) -> list[Case]:
    """All, or without those that work for several blocks."""
    found: list[Case] = [*solves(), *steps()]
    return [case for case in found if not (quick and case.large)]
