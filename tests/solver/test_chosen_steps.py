"""relaxation="auto": each task chooses the steps of W itself."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers.backends import Backend, Emulated, backends, needs_emulation
from helpers.make_tasks import Task, make_task
from helpers.parity import SCHEDULES, check, dtypes, lists, same_bits, solve, solve_truth, task_of

import tim_ext
from tim_ext.solver.steps import FIRST_STEPS, StepControl

forms = pytest.mark.parametrize("form", ["dual", "primal"])
CHOSEN = {"relaxation": "auto", "iterations": 14, "history": True}
ROBUST = {**CHOSEN, "iterations": 30, "marginal_weight": "auto", "smoothing": "auto", "lam": 0.3}


@cache
def named_task(name: str) -> Task:
    shape = {
        "refused steps": (3, (1,) * 8, 30, 20),
        "two classes, padding": (1, (2, 1), 60, 9),
        "many classes": (2, (1,) * 11, 44, 24),
        "one class": (3, (3,), 5, 6),
    }[name]
    return make_task(*shape, noise=2.0 if "refused" in name else 1.2, padding=3 if "padding" in name else 0)


@cache
def truth_of(name: str, more: tuple[Any, ...]) -> tuple[tim_ext.Result, list[tuple[float, bool]]]:
    """The reference, and its moves."""
    moves, move = [], StepControl.move

    def noted(self: StepControl, own: float, mixed: float) -> tuple[float, bool]:
        moves.append(move(self, own, mixed))
        return moves[-1]

    with patch.object(StepControl, "move", noted):
        task = named_task(name)
        return solve_truth("dual", task.features, task.labels, **dict(more)), moves


def check_task(backend: Backend, form: str, name: str, dtype: torch.dtype, **options: Any) -> None:
    truth, _ = truth_of(name, tuple(options.items()))
    task = named_task(name)
    check(backend, form, (task.features.to(dtype), task.labels), truth, dtype, **options)


def test_every_kind_of_step_occurs():
    """First steps, secant steps, steps of which half is taken back, and a last one that is taken back."""
    _, moves = truth_of("refused steps", tuple(CHOSEN.items()))
    assert len(moves) == 14
    assert [factor for factor, _ in moves[:3]] == [1.5] * 3
    assert any(not refused and factor not in (0, 1.5, 5) for factor, refused in moves[FIRST_STEPS:])
    assert any(refused for _, refused in moves[:-1])
    assert moves[-1][1]


@backends
@forms
@dtypes
@pytest.mark.parametrize("name", ["refused steps", "two classes, padding", "many classes", "one class"])
def test_steps_are_those_of_the_reference(backend, form, dtype, name):
    check_task(backend, form, name, dtype, **CHOSEN)


@backends
@forms
@pytest.mark.parametrize("more", [{"iterations": 1}, {"iterations": 12, "tol": 1e-2}], ids=str)
def test_few_iterations(backend, form, more):
    check_task(backend, form, "refused steps", torch.float64, **{**CHOSEN, **more})


@backends
@forms
@dtypes
def test_with_smoothing_and_a_marginal_weight_that_is_decided(backend, form, dtype):
    """F changes with the marginal weight after 25 iterations."""
    check_task(backend, form, "two classes, padding", dtype, **ROBUST)


@backends
@forms
def test_a_large_pool_starts_with_half_steps(backend, form):
    task, options = make_task(0, (2, 2), 1000, 5, noise=1.0), {**CHOSEN, "iterations": 3}
    truth = solve_truth(form, task.features, task.labels, **options)
    result = solve(backend, form, task.features, task.labels, **options)
    torch.testing.assert_close(result.probs, truth.probs, rtol=0, atol=1e-10)


@backends
def test_from_first_weights(backend):
    task = named_task("refused steps")
    first = torch.randn(8, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 4
    truth = solve_truth("primal", task.features, task.labels, weights=first, **CHOSEN)
    check(backend, "primal", (task.features, task.labels), truth, torch.float64, weights=first, **CHOSEN)


@backends
@forms
@dtypes
def test_a_task_does_not_depend_on_its_batch(backend, form, dtype):
    tasks = [make_task(i, (2,) * (2 + i), 30 + 20 * i, 24, noise=1.2) for i in range(3)]
    features, labels = lists(tasks, dtype)
    batch = solve(backend, form, features, labels, **CHOSEN)
    for run in backend.schedules(SCHEDULES):
        backwards = solve(run, form, features[::-1], labels[::-1], **CHOSEN)
        assert all(same_bits(task_of(backwards, 2 - t), task_of(batch, t)) for t in range(3))
    for t in range(3):
        assert same_bits(solve(backend, form, features[t], labels[t], **CHOSEN), task_of(batch, t))


@needs_emulation
@pytest.mark.parametrize(("form", "d"), [("dual", 24), ("primal", 130)])
def test_a_team_of_blocks_takes_the_same_steps(form, d):
    """A smoothed task of a few iterations is worth one."""
    task = make_task(0, (2, 3, 1, 2), 190, d, noise=1.0)
    options = {**CHOSEN, "iterations": 3, "smoothing": 0.6}
    one, three = (
        solve(
            Emulated(processors=processors, shared_per_block=49152),
            form,
            task.features.float(),
            task.labels,
            **options,
        )
        for processors in (1, 3)
    )
    assert same_bits(one, three)
