"""Baselines that a solver of tim_ext computes with other hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..solver.batch import Batch, make_batch
from ..solver.result import Result
from ..transforms import make_transform, parse_steps
from .pieces import Piece, Solution, Task, solve_tasks, transform_pool

# a hyper-parameter that each task has of its own: its name, and what it is for each task of a batch
PerTask = tuple[str, Callable[[Batch], Sequence[float]]]


def run_solver(
    solver: Callable[..., Result],
    task: Task,
    transform: Any,
    base_mean: Any,
    outputs: Sequence[str],
    hyper_parameters: dict[str, float],
    per_task: PerTask | None = None,
) -> Result:
    """`tim_ext.adm` or `gd` on transformed features: in one call, unless each task needs something else."""
    features, labels, index, num_classes = task
    steps = parse_steps(transform)
    normalize = steps[-1:] == ("l2",)  # the solver's own
    steps = steps[:-1] if normalize else steps
    hyper_parameters = {**hyper_parameters, "normalize": normalize}

    one_call = not steps and base_mean is None and per_task is None
    if not one_call:
        batch = make_batch(*task)
        change = make_transform(transform, base_mean, batch.features)._replace(steps=steps)
        pool, left = transform_pool(batch, change)
        features = pool if steps else features
        if per_task is not None:
            name, values_of = per_task
            values = set(values_of(batch))
            if len(values) == 1:
                hyper_parameters[name] = values.pop()
                per_task = None
        one_call = not left.steps and per_task is None
    if one_call:
        return solver(
            features, labels, index=index, num_classes=num_classes, outputs=outputs, **hyper_parameters
        )

    def solve(piece: Piece) -> Solution:
        own = {} if per_task is None else {per_task[0]: piece.kind}
        result = solver(piece.z, piece.labels, num_classes=piece.num_classes, **hyper_parameters, **own)
        assert isinstance(result.probs, Tensor)
        assert isinstance(result.weights, Tensor)
        return Solution(result.probs.mT, result.weights, result.iterations)

    kinds: dict[str, Any] = {} if per_task is None else {"kinds_of": per_task[1]}
    return solve_tasks(solve, task, "+".join(steps) or "none", base_mean, outputs, **kinds)
