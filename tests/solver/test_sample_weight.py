"""What a sample weight means: a query of weight 2 is there twice, one of weight 0 not at all."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers.make_tasks import make_task
from helpers.sample_inputs import random_weight
from torch import Tensor

import tim_ext
from tim_ext import reference

HOT = {"iterations": 30, "lr": 1e-2}
SOLVERS = {
    "dual": partial(tim_ext.adm, form="dual"),
    "primal": partial(tim_ext.adm, form="primal"),
    "decided m": partial(tim_ext.adm, marginal_weight="auto", relaxation=0.5, iterations=30),
    "chosen steps": partial(tim_ext.adm, relaxation="auto", iterations=30),
    "gd": partial(tim_ext.gd, **HOT),
    "gd, order 2": partial(tim_ext.gd, entropy_order=2.0, **HOT),
    "reference": partial(reference.adm, iterations=30),
    "reference gd": partial(reference.gd, **HOT),
}
every = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)

TASK = make_task(11, shots=(3, 1, 4, 2), queries=30, d=60, noise=1.0, padding=3)
QUERY = TASK.labels == -1
WEIGHT = random_weight(TASK)
TERMS = ("cross_entropy", "marginal_entropy", "conditional_entropy", "loss")


def assert_near(one: tim_ext.Result, other: tim_ext.Result, rows: Tensor | slice = slice(None)) -> None:
    """one has those rows of other."""
    torch.testing.assert_close(one.probs, other.probs[rows], rtol=0, atol=1e-9)
    for name in ("weights", "proportions", "marginal_weight", "iterations"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=1e-9)
    for name in TERMS:
        one_term, other_term = getattr(one.history, name), getattr(other.history, name)
        torch.testing.assert_close(one_term, other_term, rtol=0, atol=1e-9, equal_nan=True)


@every
def test_only_ratios_matter(solve):
    """Equal weights are none, whatever they are."""
    task = TASK.features, TASK.labels
    plain = solve(*task, history=True)
    for equal in (0.5, 1.0, 3.0, 1e-30, 1e30):
        assert_near(solve(*task, sample_weight=torch.full((len(TASK.labels),), equal), history=True), plain)
    weighted = solve(*task, sample_weight=WEIGHT, history=True)
    assert (weighted.probs - plain.probs).abs().max() > 1e-4
    assert_near(solve(*task, sample_weight=1e-30 * WEIGHT, history=True), weighted)


@every
def test_a_query_of_weight_0_is_not_there(solve):
    """It is labelled all the same: by the W of the others."""
    kept = ~QUERY | (WEIGHT > 0)
    assert 20 < int(kept.sum()) < len(kept)
    found = solve(TASK.features, TASK.labels, sample_weight=WEIGHT, history=True)
    without = solve(TASK.features[kept], TASK.labels[kept], sample_weight=WEIGHT[kept], history=True)
    assert_near(without, found, kept)
    log_p = reference.log_distance_softmax(reference.unit_length(TASK.features), found.weights, 15.0)
    torch.testing.assert_close(found.probs[QUERY], log_p.exp()[QUERY], rtol=0, atol=1e-9)


@every
def test_a_query_of_weight_2_is_there_twice(solve):
    times = torch.where(QUERY, 1 + torch.arange(len(QUERY)) % 3, 1)
    rows = torch.arange(len(QUERY)).repeat_interleave(times)
    found = solve(TASK.features, TASK.labels, sample_weight=times, history=True)
    repeated = solve(TASK.features[rows], TASK.labels[rows], history=True)
    assert_near(repeated, found, rows)


@every
def test_weights_that_are_all_0_leave_no_query(solve):
    """Beside a task that has some."""
    features, labels = torch.stack([TASK.features] * 2), torch.stack([TASK.labels] * 2)
    weight = torch.stack([torch.zeros(len(QUERY)), torch.ones(len(QUERY))])
    found = solve(features, labels, sample_weight=weight, history=True)
    nothing = solve(features[0][~QUERY], labels[0][~QUERY], history=True)
    assert found.iterations.tolist() == [0, solve(features[1], labels[1]).iterations]
    torch.testing.assert_close(found.weights[0], nothing.weights, rtol=0, atol=1e-12)
    assert (found.proportions[0] == 0).all()
    assert found.predictions[0][QUERY].min() >= 0
    for name in TERMS:
        torch.testing.assert_close(
            getattr(found.history, name)[0, 0], getattr(nothing.history, name)[0], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("solve", [tim_ext.adm, tim_ext.gd, tim_ext.robust])
def test_proportions_are_the_weighted_mean(solve):
    found = solve(TASK.features, TASK.labels, sample_weight=WEIGHT)
    share = WEIGHT[QUERY] / WEIGHT[QUERY].sum()
    torch.testing.assert_close(found.proportions, share @ found.probs[QUERY], rtol=0, atol=1e-12)


def test_smoothing_knows_nothing_of_it():
    """A row of weight 0 is a neighbour as any other: without it, the others are smoothed otherwise."""
    kept = ~QUERY | (WEIGHT > 0)
    options = {"smoothing": 0.7, "iterations": 5, "temperature": 3.0}
    found = tim_ext.adm(TASK.features, TASK.labels, sample_weight=WEIGHT, **options)
    without = tim_ext.adm(TASK.features[kept], TASK.labels[kept], sample_weight=WEIGHT[kept], **options)
    assert (found.probs[kept] - without.probs).abs().max() > 1e-3
    z = reference.smooth(reference.unit_length(TASK.features[TASK.labels != -100]), 4, 0.7)
    used = TASK.labels != -100
    options = {"normalize": False, "iterations": 5, "temperature": 3.0}
    smoothed = tim_ext.adm(z, TASK.labels[used], sample_weight=WEIGHT[used], **options)
    torch.testing.assert_close(smoothed.probs, found.probs[used], rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_weights(form, dtype):
    """One query has nearly all the weight, and the others have next to none."""
    features = TASK.features.to(dtype)
    for light in (1e-30, 1e-6):
        weight = torch.where(torch.arange(len(QUERY)) == int(QUERY.nonzero()[4]), 1.0, light)
        for beta in (1.0, 0.01):
            options = {"sample_weight": weight, "beta": beta, "iterations": 3}
            found = tim_ext.adm(features, TASK.labels, form=form, **options)
            truth = reference.adm(TASK.features, TASK.labels, **options)
            atol = 1e-9 if dtype == torch.float64 else 1e-4
            torch.testing.assert_close(found.probs.double(), truth.probs, rtol=0, atol=atol)


def test_foreign_queries_that_count_little_harm_little():
    """Half of the queries are of no class: with a small weight, the others are labelled as without them."""
    task = make_task(3, shots=(1,) * 5, queries=60, d=40, noise=1.0)
    generator = torch.Generator().manual_seed(0)
    foreign = torch.randn(60, 40, generator=generator, dtype=torch.float64) / 40**0.5 + 0.9 * task.features[0]
    features = torch.cat([task.features, foreign])
    labels = torch.cat([task.labels, torch.full((60,), -1)])

    def accuracy(weight: float) -> float:
        weights = torch.cat([torch.ones(len(task.labels)), torch.full((60,), weight)])
        found = tim_ext.adm(features, labels, sample_weight=weights).predictions
        return task.accuracy(found[: len(task.labels)])

    assert accuracy(1.0) < 0.9 < accuracy(0.1) == 1.0
