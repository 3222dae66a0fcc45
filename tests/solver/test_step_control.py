"""Steps that a task chooses (relaxation="auto"): what they promise, whatever the task."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task, separable_problems
from helpers.real_features import real_features
from hypothesis import given, settings

import tim_ext
from tim_ext import reference, tasks
from tim_ext.solver.steps import FIRST_STEPS, GUARDED_STEPS, LARGEST_STEP, LEAST_STEP, StepControl


class Recorded(StepControl):
    """Keeps <R, R> of every point that was kept, and the steps."""

    made: list[Recorded] = []  # noqa: RUF012

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.kept, self.steps = [], []
        self.made.append(self)

    def move(self, own, mixed):
        step = super().move(own, mixed)
        self.kept.append(self.residual)
        self.steps.append(step)
        return step


def recorded(features, labels, **options):
    """The reference with relaxation="auto", and the controls of its tasks."""
    Recorded.made = []
    with patch.object(reference, "StepControl", Recorded):
        return reference.adm(features, labels, relaxation="auto", **options), Recorded.made


def residual(features, labels, weights, **options):
    """<R, R> at these weights, R = F(W) - W: one step of the paper, natively."""
    after = tim_ext.adm(features, labels, weights=weights, **options | {"iterations": 1}).weights
    return reference.inner(after - weights, after - weights)


@given(problem=separable_problems())
@settings(max_examples=8)
def test_the_residual_does_not_rise_at_the_end(problem):
    """Not that of any point that is kept; and that of the W which is returned is the last of them."""
    features, labels = problem.arguments
    options, iterations = {**problem.options, "iterations": 17}, 17
    result, controls = recorded(features, labels, **options)
    for t, control in enumerate(controls):
        assert len(control.kept) in (0, iterations)  # no query: no iteration
        if not control.kept:
            continue
        end = np.array(control.kept[-GUARDED_STEPS - 1 :])
        assert (end[1:] <= end[:-1]).all()
        assert control.factor == 0  # the last iteration only looks
        last = residual(features[t], labels[t], result.weights[t], **options)
        assert last == pytest.approx(end[-1], rel=1e-6, abs=1e-20)


def test_a_point_that_is_refused_is_left_by_half_its_step():
    control = StepControl(GUARDED_STEPS, 100, False)
    assert control.move(1.0, 0.0) == (1.5, False)
    assert control.move(1.1, 0.2) == (-0.75, True)  # half of 1.5 from the point before
    assert control.move(0.9, 0.2) == (1.5, False)  # accepted; the first steps are of one length
    assert control.residual == 0.9


def test_secant_steps_stay_within_their_bounds():
    control = StepControl(100, 100, False)
    steps = [control.move(own, mixed)[0] for own, mixed in [(1.0, 0.0)] * FIRST_STEPS]
    assert steps == [1.5] * FIRST_STEPS
    assert control.move(0.25, 0.5)[0] == pytest.approx(
        1.5 * 0.5 / 0.25
    )  # R shrinks to a half: the step doubles
    assert control.move(0.25, 0.3)[0] == LARGEST_STEP  # R grows along the step
    assert control.move(25.0, -2.5)[0] == pytest.approx(LARGEST_STEP * 2.75 / 30.25)
    assert control.move(1e6, -4e3)[0] == LEAST_STEP  # R has turned round


def test_more_than_a_thousand_samples_begin_with_half_steps():
    assert StepControl(60, 1000, False).move(1.0, 0.0)[0] == 1.5
    assert StepControl(60, 1001, False).move(1.0, 0.0)[0] == 0.5


def test_a_marginal_weight_that_is_decided_makes_another_map():
    """Its residual is not compared with the one before: no secant, and no refusal."""
    control = StepControl(30, 100, True)
    for _ in range(25):
        control.move(1.0, 1.5)
    assert control.factor == LARGEST_STEP
    assert control.move(7.0, 0.9) == (1.0, False)
    assert control.residual == 7.0


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_classes_in_another_order_change_nothing(form):
    task = make_task(5, (2, 1, 3, 2), 40, 20, noise=1.0)
    order = torch.tensor([2, 0, 3, 1])
    labels = torch.where(task.labels >= 0, order[task.labels.clamp(min=0)], task.labels)
    options = {"relaxation": "auto", "iterations": 30, "form": form}
    probs = tim_ext.adm(task.features, task.labels, **options).probs
    permuted = tim_ext.adm(task.features, labels, **options).probs
    torch.testing.assert_close(permuted[:, order], probs, rtol=0, atol=1e-9)


def accuracies_on_the_way(features, labels, truth, **options):
    """Percent of the queries right at W(0), W(1), ..., by the reference."""
    right, query, compute = [], labels < 0, reference.log_distance_softmax

    def watched(*arguments):
        log_p = compute(*arguments)
        right.append(100 * float((log_p[query].argmax(dim=1) == truth[query]).double().mean()))
        return log_p

    with patch.object(reference, "log_distance_softmax", watched):
        reference.adm(features, labels, **options)
    return np.array(right)


@pytest.mark.slow
def test_a_pool_of_many_classes_does_not_burst():
    """Where whole steps lose many points at once, chosen ones do not, and end no lower than half steps."""
    pool = real_features("cifarfs_test_features.npz")
    rows = torch.cat([torch.where(torch.as_tensor(pool.labels) == k)[0][:100] for k in range(20)])
    features, labels = torch.as_tensor(pool.features)[rows], torch.as_tensor(pool.labels)[rows]
    falls, ends = [], []
    for seed in range(2):
        task = tasks.whole_pool(labels, shots=1, seed=seed)[0:1]
        arguments = features[task.index[0]].float(), task.labels[0], task.truth[0]
        path = accuracies_on_the_way(*arguments, relaxation="auto", iterations=50)
        half = accuracies_on_the_way(*arguments, relaxation=0.5)
        falls.append((path[:-1] - path[1:]).max())
        ends.append(path[-1] - half[-1])
    assert max(falls) <= 5
    assert np.mean(ends) >= -0.5
