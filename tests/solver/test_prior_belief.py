"""How much priors are believed: by their docstring, and by what it should lead to."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.make_tasks import make_batch, make_task

import tim_ext
from tim_ext import reference
from tim_ext.solver.prior_belief import LAM_0, TEMPERATURES, UNKNOWN, belief

SOLVERS = (tim_ext.adm, tim_ext.robust, tim_ext.gd, reference.adm, reference.gd)
every = pytest.mark.parametrize("solve", SOLVERS, ids=lambda f: f"{f.__module__}.{f.__name__}")


def by_the_docstring(logs, labels):
    """I t of one task, sample by sample."""
    known = [i for i in range(len(labels)) if labels[i] >= 0 and len(set(logs[i].tolist())) > 1]
    if not known:
        return UNKNOWN

    def entropy(t):
        missed = [-torch.log_softmax(t * logs[i], 0) for i in known]
        own = sum(float(m[labels[i]]) for m, i in zip(missed, known, strict=True))
        anybody = sum(float(m.mean()) for m in missed) / len(missed)
        return (own + anybody) / (len(known) + 1)

    t = min(TEMPERATURES, key=entropy)
    return max(0.0, 1 - entropy(t) / math.log(logs.shape[1])) * t


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_docstring_says(seed):
    generator = torch.Generator().manual_seed(seed)
    T, N, K = 4, 12, 3
    logs = 3 * torch.randn(T, N, K, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, K, (T, N), generator=generator)
    logs[:, :3] = 0  # flat
    labels[1] = -1  # none that is labelled
    helpful = torch.nn.functional.one_hot(labels.clamp(min=0), K) * 4
    logs[2:] += helpful[2:]
    found = belief(logs.reshape(-1, K), labels.flatten(), T)
    expected = [by_the_docstring(logs[t], labels[t].tolist()) for t in range(T)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert found[1] == UNKNOWN
    assert found[2:].min() > found[0]


def priors(labels, truth, right: bool, sure: float):
    """One-hot guesses softened, right everywhere or of no use."""
    guess = truth if right else torch.arange(truth.numel()).view(truth.shape) % 5
    return torch.where(torch.nn.functional.one_hot(guess, 5) == 1, sure, (1 - sure) / 4)


def test_good_priors_are_believed_and_useless_ones_are_not():
    features, labels, tasks = make_batch(range(8), shots=(4,) * 5, queries=40, d=24, noise=1.7)
    truth, query = torch.stack([task.truth for task in tasks]), labels == -1

    def right(**given):
        return (tim_ext.adm(features, labels, **given).predictions == truth)[query].double().mean()

    alone, good = right(), right(sample_prior=priors(labels, truth, True, 0.9))
    useless = priors(labels, truth, False, 0.9)
    assert good > alone + 0.1
    assert abs(right(sample_prior=useless) - alone) < 0.02
    assert (
        right(sample_prior=useless, sample_prior_weight=LAM_0) < alone - 0.02
    )  # what believing them would cost


@every
def test_without_a_word_on_labelled_samples_it_is_half_of_lam_0(solve):
    task = make_task(3, shots=(2, 3, 1), queries=20, d=40, noise=1.7)
    prior = torch.rand(len(task.labels), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior[task.labels >= 0] = 0
    found = solve(task.features, task.labels, iterations=20, sample_prior=prior)
    half = {"sample_prior": prior, "sample_prior_weight": LAM_0 * UNKNOWN}
    expected = solve(task.features, task.labels, iterations=20, **half)
    torch.testing.assert_close(found.probs, expected.probs, rtol=0, atol=1e-10)
    plain = solve(task.features, task.labels, iterations=20)
    assert (found.probs - plain.probs).abs().max() > 1e-6


def test_a_task_is_the_same_alone_in_a_batch_and_in_a_list():
    features, labels, _ = make_batch(range(6), shots=(2, 1, 3, 1, 2), queries=20, d=30, noise=1.0)
    prior = torch.rand(*labels.shape, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = tim_ext.adm(features, labels, sample_prior=prior)
    ragged = tim_ext.adm(list(features), list(labels), sample_prior=list(prior))
    for t in range(6):
        alone = tim_ext.adm(features[t], labels[t], sample_prior=prior[t])
        assert torch.equal(batch.probs[t], alone.probs)
        assert torch.equal(ragged.probs[t], alone.probs)


def test_a_label_out_of_range_is_refused_as_ever():
    task = make_task(3, shots=(2, 3, 1), queries=20, d=40)
    labels = task.labels.clone()
    labels[0] = 3
    prior = torch.ones(len(labels), 3)
    prior[:, 0] = 2
    with pytest.raises(ValueError, match="labels: expected a class 0 to 2"):
        tim_ext.adm(task.features, labels, num_classes=3, sample_prior=prior)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_values_at_labelled_samples_count_only_if_they_are_asked(value):
    task = make_task(3, shots=(2, 3, 1), queries=20, d=40)
    prior = torch.ones(len(task.labels), 3, dtype=torch.float64)
    at = int((task.labels >= 0).nonzero()[0])
    prior[at, 1] = value
    with pytest.raises(ValueError, match=rf"sample_prior: .* got {value} for class 1 at sample {at}"):
        tim_ext.adm(task.features, task.labels, sample_prior=prior)
    tim_ext.adm(task.features, task.labels, sample_prior=prior, sample_prior_weight=0.1)
