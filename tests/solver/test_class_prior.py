"""The class prior: what it does, and that the q-update of TIM-ADM with it is what its docstring derives."""

from __future__ import annotations

import pytest
import torch
from helpers.make_tasks import class_means, make_batch, make_task
from helpers.minimise import minimise
from torch import Tensor

import tim_ext
from tim_ext import reference

SOLVERS = {"adm": tim_ext.adm, "gd": tim_ext.gd}
every = pytest.mark.parametrize("name", SOLVERS)
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
adm_forms = pytest.mark.parametrize("form", ["dual", "primal"])

PRIOR = [0.1, 0.4, 0.2, 0.3]
TASK = make_task(11, shots=(3, 1, 4, 2), queries=30, d=20, noise=1.5)


@adm_forms
@dtypes
@pytest.mark.parametrize("options", [{}, {"tol": 1e-3}, {"history": True}, {"temperature": 3000.0}], ids=str)
def test_adm_equals_the_reference(form, dtype, options):
    """A history, a tolerance and logits beyond the range of exp each take their own way in the kernels."""
    noise = 0.3 if "temperature" in options else 1.5
    task = make_task(12, shots=(3, 1, 4, 2), queries=30, d=20, noise=noise)
    options = options | {"class_prior": PRIOR, "iterations": 20}
    expected = reference.adm(task.features, task.labels, **options)
    result = tim_ext.adm(task.features.to(dtype), task.labels, form=form, **options)
    atol = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(result.probs.double(), expected.probs, rtol=0, atol=atol)


@adm_forms
def test_adm_history_is_that_of_the_loss_with_the_prior(form):
    options = {"class_prior": PRIOR, "iterations": 20, "history": True}
    expected = reference.adm(TASK.features, TASK.labels, **options).history
    history = tim_ext.adm(TASK.features, TASK.labels, form=form, **options).history
    for term in ("cross_entropy", "marginal_entropy", "conditional_entropy", "loss"):
        torch.testing.assert_close(getattr(history, term), getattr(expected, term), rtol=0, atol=1e-9)


@every
def test_marginal_term_is_log_k_minus_the_divergence(name):
    solve = SOLVERS[name]
    prior = torch.tensor(PRIOR, dtype=torch.float64)
    result = solve(TASK.features, TASK.labels, class_prior=prior, iterations=5, history=True)
    phat = result.probs[TASK.labels == -1].mean(dim=0)
    divergence = (phat * (phat / prior).log()).sum()
    expected = torch.tensor(4.0, dtype=torch.float64).log() - divergence
    torch.testing.assert_close(result.history.marginal_entropy[5], expected, rtol=0, atol=1e-12)


@every
@dtypes
@pytest.mark.parametrize("classes", [3, 4, 7])
def test_a_uniform_prior_changes_nothing(name, dtype, classes):
    task = make_task(13, shots=[1 + k % 2 for k in range(classes)], queries=40, d=20, noise=0.8, dtype=dtype)
    options = {"iterations": 40, "history": True}
    usual = SOLVERS[name](task.features, task.labels, **options)
    uniform = SOLVERS[name](task.features, task.labels, class_prior=[1 / classes] * classes, **options)
    atol = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(uniform.probs, usual.probs, rtol=0, atol=atol)
    torch.testing.assert_close(uniform.history.loss, usual.history.loss, rtol=0, atol=atol)


@every
def test_a_task_does_not_depend_on_its_batch(name):
    tasks = [make_task(seed, shots=(1,) * (2 + seed), queries=30, d=16, noise=1.5) for seed in range(5)]
    priors = [torch.arange(1, 3 + seed) * 2 / ((2 + seed) * (3 + seed)) for seed in range(5)]
    solve = SOLVERS[name]
    batch = solve([t.features for t in tasks], [t.labels for t in tasks], class_prior=priors, iterations=30)
    for t, (task, prior) in enumerate(zip(tasks, priors, strict=True)):
        alone = solve(task.features, task.labels, class_prior=prior, iterations=30)
        assert torch.equal(batch.probs[t], alone.probs)
        assert torch.equal(batch.weights[t], alone.weights)


@every
@dtypes
@pytest.mark.parametrize("rare", [1e-12, 1e-45, 1e-300])
def test_a_tiny_proportion_gives_finite_results(name, dtype, rare):
    features, labels = TASK.features.to(dtype), TASK.labels
    result = SOLVERS[name](features, labels, class_prior=[rare, 0.5, 0.3, 0.2], history=True)
    for value in (result.probs, result.weights, result.history.loss):
        assert value.isfinite().all()
    assert result.probs[labels == -1, 0].mean() < 0.1


# Unequal proportions --------------------------------------------------------------------------------

COUNTS = torch.tensor([40, 20, 8, 4, 3])


def unequal_tasks(tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two-shot tasks whose queries are in the proportions COUNTS: features, labels and true classes."""
    truth = torch.cat([torch.arange(5).repeat_interleave(2), torch.arange(5).repeat_interleave(COUNTS)])
    features = []
    for seed in range(tasks):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(truth), 40, generator=generator, dtype=torch.float64) / 40**0.5
        features.append(class_means(5, 40, generator)[truth] + 1.2 * noise)
    labels = torch.where(torch.arange(len(truth)) < 10, truth, -1)
    return torch.stack(features), labels.expand(tasks, -1), truth.expand(tasks, -1)


@every
def test_knowing_the_proportions_helps(name):
    features, labels, truth = unequal_tasks(12)
    query = labels == -1

    def accuracy(**options):
        return (SOLVERS[name](features, labels, **options).predictions == truth)[query].double().mean()

    assert accuracy(class_prior=COUNTS / COUNTS.sum()) > accuracy() + 0.2


def test_a_high_entropy_order_helps_when_the_proportions_are_not_known():
    features, labels, truth = unequal_tasks(12)
    query = labels == -1
    accuracy = [
        (tim_ext.gd(features, labels, entropy_order=order).predictions == truth)[query].double().mean()
        for order in (1.0, 5.0)
    ]
    assert accuracy[1] > accuracy[0] + 0.1


# The q-update against the objective it minimises ------------------------------------------------------

ALPHA, BETA, M = 0.3, 0.8, 1.2


def q_objective(q: Tensor, log_p: Tensor, prior: Tensor) -> Tensor:
    """m sum_k qhat_k log(qhat_k / prior_k) - alpha mean_Q sum_k q_ik log p_ik + beta mean_Q KL(q_i || p_i)"""
    qhat = q.mean(dim=0)
    marginal = (qhat * (qhat / prior).log()).sum()
    cross = -(q * log_p).sum(dim=1).mean()
    penalty = (q * (q.log() - log_p)).sum(dim=1).mean()
    return M * marginal + ALPHA * cross + BETA * penalty


def random_log_p(queries: int, classes: int, seed: int, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(queries, classes, generator=generator, dtype=torch.float64)).log_softmax(
        dim=1
    )


PRIORS = {
    "uniform": torch.full((4,), 0.25, dtype=torch.float64),
    "unequal": torch.tensor(PRIOR, dtype=torch.float64),
    "extreme": torch.tensor([0.9, 0.05, 0.04, 0.01], dtype=torch.float64),
}
priors = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)


@priors
def test_q_is_the_minimiser_for_one_query(prior):
    """With one query there is one normaliser, and dropping its index drops nothing."""
    log_p = random_log_p(1, 4, seed=0)
    best = minimise(lambda x: q_objective(x.softmax(dim=1), log_p, prior), log_p).softmax(dim=1)
    torch.testing.assert_close(reference.q_update(log_p, ALPHA, BETA, M, prior), best, rtol=0, atol=1e-9)


@priors
def test_q_is_the_minimiser_with_one_normaliser_for_all(prior):
    """One multiplier mu in place of one for each sample: the rows of the minimiser then do not sum to 1, and
    the update is that minimiser with its rows scaled to do so."""
    log_p = random_log_p(12, 4, seed=1)
    mu = 0.7
    best = minimise(lambda x: q_objective(x.exp(), log_p, prior) - mu * x.exp().sum(dim=1).mean(), log_p)
    update = reference.q_update(log_p, ALPHA, BETA, M, prior)
    torch.testing.assert_close(update, best.softmax(dim=1), rtol=0, atol=1e-9)


@priors
def test_q_is_stationary_with_one_normaliser_for_all(prior):
    """|Q| times the derivative in q_ik, m log(qhat_k / prior_k) - (alpha + beta) log p_ik + beta log q_ik, is
    one and the same number for all i, k before the rows are scaled."""
    log_p = random_log_p(12, 4, seed=2)
    power = (1 + ALPHA / BETA) * log_p
    log_q = power + M / (M + BETA) * (prior.log() - power.logsumexp(dim=0))
    log_qhat = log_q.logsumexp(dim=0)
    slope = M * (log_qhat - prior.log()) - (ALPHA + BETA) * log_p + BETA * log_q
    torch.testing.assert_close(slope, slope[0, 0].expand_as(slope), rtol=0, atol=1e-12)
    update = reference.q_update(log_p, ALPHA, BETA, M, prior)
    torch.testing.assert_close(update, log_q.softmax(dim=1), rtol=0, atol=1e-12)


@priors
def test_q_is_near_the_minimiser(prior):
    """The update of the paper, and the same with any prior, gains most of what can be gained over q = p."""
    for seed in range(4):
        log_p = random_log_p(30, 4, seed)
        best = minimise(lambda x, at=log_p: q_objective(x.softmax(dim=1), at, prior), log_p).softmax(dim=1)
        update = reference.q_update(log_p, ALPHA, BETA, M, prior)
        start, found, least = (q_objective(q, log_p, prior) for q in (log_p.exp(), update, best))
        assert least <= found
        assert start - found > 0.85 * (start - least)


@adm_forms
def test_one_iteration_of_adm_uses_this_q(form):
    """One update from the prototypes, by hand."""
    features, labels, _ = make_batch(range(2), shots=(2, 1, 3, 1), queries=20, d=11, noise=1.2)
    prior = torch.tensor(PRIOR, dtype=torch.float64)
    result = tim_ext.adm(features, labels, iterations=1, normalize=False, class_prior=prior, form=form)
    for z, y, weights in zip(features, labels, result.weights, strict=True):
        a = reference.one_hot_rows(y, 4).double()
        w = reference.prototypes(z, a)
        log_p = reference.log_distance_softmax(z, w, 15.0)
        query = y == -1
        a[query] = reference.q_update(log_p[query], 0.1, 1.0, 1.0, prior)
        c_q = int((~query).sum()) / int(query.sum())
        c = c_q * query.double() + 0.1 / 1.1 * (~query).double()
        expected = reference.w_update(z, w, log_p.exp(), a, c)
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
