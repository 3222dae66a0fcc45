"""The solvers inside torch.compile: the same results, whatever hyper-parameters are given."""

from __future__ import annotations

import pytest
import torch
from helpers.make_tasks import make_task

import tim_ext

TASK = make_task(0, (2, 2, 2), 9, 6, noise=0.5)


HYPER = {
    "defaults": {},
    "given": {"temperature": 10.0, "iterations": 3},
    "weights": {"weights": TASK.features[:3]},
    "samples": {"sample_weight": TASK.features[:, 0].abs(), "sample_prior": TASK.features[:, :3].abs()},
}


@pytest.mark.parametrize(
    ("solve", "hyper"), [*((tim_ext.adm, name) for name in HYPER), (tim_ext.gd, "samples")]
)
def test_a_compiled_solve_gives_the_same(solve, hyper):
    torch.compiler.reset()
    hyper = HYPER[hyper]
    compiled = torch.compile(lambda features: solve(features, TASK.labels, **hyper).probs, backend="eager")
    assert torch.equal(compiled(TASK.features), solve(TASK.features, TASK.labels, **hyper).probs)
