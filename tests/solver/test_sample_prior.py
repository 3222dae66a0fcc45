"""What a sample prior means, and that the q-update with it is what its docstring derives."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from helpers.make_tasks import make_batch, make_task
from helpers.minimise import minimise
from helpers.sample_inputs import random_prior, random_weight
from torch import Tensor

import tim_ext
from tim_ext import reference
from tim_ext.solver.sample_inputs import LEAST_SHARE

SOLVERS = {
    "dual": partial(tim_ext.adm, form="dual", sample_prior_weight=0.1),
    "primal": partial(tim_ext.adm, form="primal", sample_prior_weight=0.1),
    "gd": partial(tim_ext.gd, iterations=30, lr=1e-2, sample_prior_weight=0.1),
    "reference": partial(reference.adm, iterations=30, sample_prior_weight=0.1),
    "reference gd": partial(reference.gd, iterations=30, lr=1e-2, sample_prior_weight=0.1),
}
every = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)

TASK = make_task(11, shots=(3, 1, 4, 2), queries=30, d=60, noise=1.0, padding=3)
QUERY = TASK.labels == -1
PRIOR = random_prior(TASK)


@every
@pytest.mark.parametrize(
    "nothing", [torch.zeros(4), torch.full((4,), 0.25), torch.full((4,), 1e-30)], ids=str
)
def test_equal_shares_are_nothing(solve, nothing):
    """Of all samples, and of some beside others of which much is known."""
    plain = solve(TASK.features, TASK.labels, history=True)
    found = solve(TASK.features, TASK.labels, sample_prior=nothing.expand(len(QUERY), 4), history=True)
    for name in ("probs", "weights", "proportions"):
        torch.testing.assert_close(getattr(found, name), getattr(plain, name), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.history.loss, plain.history.loss, rtol=0, atol=1e-9, equal_nan=True)
    assert (found.history.prior_cross_entropy.nan_to_num() == 0).all()

    unknown = torch.arange(len(QUERY)) % 2 == 0
    some = torch.where(unknown[:, None], nothing.double(), PRIOR)
    found = solve(TASK.features, TASK.labels, sample_prior=some)
    expected = solve(TASK.features, TASK.labels, sample_prior=torch.where(unknown[:, None], 1.0, PRIOR))
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-9)
    assert (found.probs - plain.probs).abs().max() > 1e-4


@every
def test_only_ratios_within_a_row_matter(solve):
    scale = torch.logspace(-20, 20, len(QUERY), dtype=torch.float64)[:, None]
    found = solve(TASK.features, TASK.labels, sample_prior=scale * PRIOR)
    expected = solve(TASK.features, TASK.labels, sample_prior=PRIOR)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-9)


@every
def test_no_share_is_less_than_the_least(solve):
    """A 0 is a small share: what is given as impossible is not."""
    floor = LEAST_SHARE * PRIOR.amax(dim=1, keepdim=True)
    found = solve(TASK.features, TASK.labels, sample_prior=PRIOR, history=True)
    expected = solve(TASK.features, TASK.labels, sample_prior=PRIOR.maximum(floor), history=True)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-9)
    assert found.history.loss[0].isfinite()


@every
def test_its_weight(solve):
    """The stronger it is, the nearer the proportions of labels come to it; a tiny one is nothing."""
    given = torch.nn.functional.one_hot(torch.arange(len(QUERY)) % 4, 4)
    plain = solve(TASK.features, TASK.labels)
    tiny = solve(TASK.features, TASK.labels, sample_prior=given, sample_prior_weight=1e-12)
    torch.testing.assert_close(tiny.probs, plain.probs, rtol=0, atol=1e-8)

    def agreement(weight: float) -> Tensor:
        probs = solve(TASK.features, TASK.labels, sample_prior=given, sample_prior_weight=weight).probs
        return (probs * given)[QUERY].sum(dim=1).mean()

    assert agreement(0.01) < agreement(0.1) < agreement(0.5)


def test_it_helps_where_it_is_right_more_often_than_not():
    """Better than the prior alone and than the features alone, with 30 % of the guesses wrong."""
    features, labels, tasks = make_batch(range(20), shots=(1,) * 5, queries=50, d=24, noise=1.7)
    truth, query = torch.stack([task.truth for task in tasks]), labels == -1
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(truth.shape, generator=generator) < 0.3
    guess = torch.where(wrong, torch.randint(5, truth.shape, generator=generator), truth)
    prior = torch.where(torch.nn.functional.one_hot(guess, 5) == 1, 0.7, 0.075)

    def accuracy(predictions: Tensor) -> float:
        return (predictions == truth)[query].double().mean().item()

    alone = accuracy(tim_ext.adm(features, labels).predictions)
    for solve in (tim_ext.adm, tim_ext.robust, partial(tim_ext.gd, lr=1e-3)):
        together = accuracy(solve(features, labels, sample_prior=prior).predictions)
        assert together > max(accuracy(guess), alone) + 0.03


def test_the_loss_of_gd_falls_with_its_term():
    options = {"lr": 1e-3, "iterations": 100, "history": True, "sample_prior_weight": 0.7}
    history = tim_ext.gd(TASK.features, TASK.labels, sample_prior=PRIOR, **options).history
    assert (history.loss.diff() < 0).all()
    probs = tim_ext.gd(TASK.features, TASK.labels, sample_prior=PRIOR, **options).probs[QUERY]
    prior = PRIOR[QUERY]
    largest = prior.amax(dim=1, keepdim=True)
    log_prior = torch.where(largest > 0, prior / largest, 1).clamp(min=LEAST_SHARE).log()
    cross = -(probs * log_prior).sum(dim=1).mean()
    torch.testing.assert_close(history.prior_cross_entropy[-1], cross, rtol=0, atol=1e-12)
    terms = (history.cross_entropy, history.marginal_entropy, history.conditional_entropy)
    loss = 0.1 * terms[0] - terms[1] + 0.1 * terms[2] + 0.7 * history.prior_cross_entropy
    torch.testing.assert_close(history.loss, loss, rtol=0, atol=1e-12)


# The q-update against the objective it minimises ------------------------------------------------------

ALPHA, BETA, M, LAM_0 = 0.3, 0.8, 1.2, 0.6


def random_case(queries: int, classes: int, seed: int) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    log_prior = draw(queries, classes)
    return SimpleNamespace(
        log_p=(2 * draw(queries, classes)).log_softmax(dim=1),
        log_prior=log_prior - log_prior.amax(dim=1, keepdim=True),
        prior=draw(classes).softmax(dim=0),
        v=(draw(queries) / 2).exp(),
    )


def objective(q: Tensor, its: SimpleNamespace) -> Tensor:
    """What the docstring of q_update says that q minimises, with sample weights v in every mean."""
    share = its.v / its.v.sum()
    qhat = share @ q
    marginal = (qhat * (qhat / its.prior).log()).sum()
    cross = -share @ (q * its.log_p).sum(dim=1)
    penalty = share @ (q * (q.log() - its.log_p)).sum(dim=1)
    with_prior = -share @ (q * its.log_prior).sum(dim=1)
    return M * marginal + ALPHA * cross + BETA * penalty + LAM_0 * with_prior


def update(its: SimpleNamespace) -> Tensor:
    return reference.q_update(its.log_p, ALPHA, BETA, M, its.prior, its.v, its.log_prior, LAM_0)


@pytest.mark.parametrize("seed", range(3))
def test_q_is_the_minimiser_for_one_query(seed):
    """With one query there is one normaliser, and dropping its index drops nothing."""
    its = random_case(1, 4, seed)
    best = minimise(lambda x: objective(x.softmax(dim=1), its), its.log_p).softmax(dim=1)
    torch.testing.assert_close(update(its), best, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_q_is_the_minimiser_with_one_normaliser_for_all(seed):
    """One multiplier mu in place of one for each sample: the rows of the minimiser then do not sum to 1, and
    the update is that minimiser with its rows scaled to do so."""
    its = random_case(12, 4, seed)
    share = its.v / its.v.sum()
    best = minimise(lambda x: objective(x.exp(), its) - 0.7 * share @ x.exp().sum(dim=1), its.log_p)
    torch.testing.assert_close(update(its), best.softmax(dim=1), rtol=0, atol=1e-9)


def test_q_is_near_the_minimiser():
    for seed in range(4):
        its = random_case(30, 4, seed)
        best = minimise(lambda x, at=its: objective(x.softmax(dim=1), at), its.log_p).softmax(dim=1)
        start, found, least = (objective(q, its) for q in (its.log_p.exp(), update(its), best))
        assert least <= found
        assert start - found > 0.85 * (start - least)


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_one_iteration_of_adm_uses_this_q(form):
    """One update from the prototypes, by hand."""
    task = make_task(0, shots=(2, 1, 3, 1), queries=20, d=11, noise=1.2)
    given, weight = random_prior(task), random_weight(task)
    options = {"sample_prior": given, "sample_prior_weight": LAM_0, "sample_weight": weight}
    found = tim_ext.adm(task.features, task.labels, iterations=1, normalize=False, form=form, **options)
    z, query = task.features, task.labels == -1
    a = reference.one_hot_rows(task.labels, 4).double()
    w = reference.prototypes(z, a)
    log_p = reference.log_distance_softmax(z, w, 15.0)
    largest = given.amax(dim=1, keepdim=True)
    log_prior = torch.where(largest > 0, given / largest, 1).clamp(min=LEAST_SHARE).log()
    a[query] = reference.q_update(
        log_p[query], 0.1, 1.0, 1.0, v=weight[query], log_prior=log_prior[query], lam_0=LAM_0
    )
    c = torch.where(query, int((~query).sum()) * weight / weight[query].sum(), 0.1 / 1.1)
    expected = reference.w_update(z, w, log_p.exp(), a, c)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)
