"""The reference against the equations of TIM-ADM written a second time, as scalar loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task

from tim_ext import reference


def probabilities(z, w, tau):
    """p_ik = softmax_k(-tau/2 ||w_k - z_i||^2)"""
    p = np.zeros((len(z), len(w)))
    for i in range(len(z)):
        logits = [-tau / 2 * sum((w[k][j] - z[i][j]) ** 2 for j in range(len(z[i]))) for k in range(len(w))]
        total = sum(math.exp(value - max(logits)) for value in logits)
        for k in range(len(w)):
            p[i][k] = math.exp(logits[k] - max(logits)) / total
    return p


def adm_by_scalars(z, labels, classes, lam, alpha, beta, tau, m, iterations, v=None, prior=None, lam_0=0.0):
    """v [N] weighs the queries; prior [N, K] of rows whose largest value is 1"""
    v = np.ones(len(z)) if v is None else v
    prior = np.ones((len(z), classes)) if prior is None else prior
    S = [i for i in range(len(z)) if labels[i] >= 0]
    Q = [i for i in range(len(z)) if labels[i] == -1]
    d, size = len(z[0]), sum(v[i] for i in Q)
    w = np.zeros((classes, d))
    for k in range(classes):
        members = [i for i in S if labels[i] == k]
        for j in range(d):
            w[k][j] = sum(z[i][j] for i in members) / len(members)
    losses = []
    for t in range(iterations + 1):
        p = probabilities(z, w, tau)
        cross_entropy = -sum(math.log(p[i][labels[i]]) for i in S) / len(S)
        phat = [sum(v[i] * p[i][k] for i in Q) / size for k in range(classes)]
        marginal = -sum(value * math.log(value) for value in phat)
        pairs = [(i, k) for i in Q for k in range(classes)]
        conditional = -sum(v[i] * p[i][k] * math.log(p[i][k]) for i, k in pairs) / size
        with_prior = -sum(v[i] * p[i][k] * math.log(prior[i][k]) for i, k in pairs) / size
        losses.append(lam * cross_entropy - m * marginal + alpha * conditional + lam_0 * with_prior)
        if t == iterations:
            return p, w, losses
        q, r = np.zeros_like(p), p ** (1 + alpha / beta) * prior ** (lam_0 / beta)
        for i in Q:
            for k in range(classes):
                total = sum(v[n] * r[n][k] for n in Q)
                q[i][k] = r[i][k] / total ** (m / (m + beta))
            q[i] /= sum(q[i])
        c_s, c_q = lam / (beta + alpha), len(S) / size
        new = np.zeros_like(w)
        for k in range(classes):
            below = c_s * sum(labels[i] == k for i in S) + c_q * sum(v[i] * q[i][k] for i in Q)
            for j in range(d):
                support = sum((labels[i] == k) * z[i][j] + p[i][k] * (w[k][j] - z[i][j]) for i in S)
                query = sum(v[i] * (q[i][k] * z[i][j] + p[i][k] * (w[k][j] - z[i][j])) for i in Q)
                new[k][j] = (c_s * support + c_q * query) / below
        w = new


PAPER = {"lam": 0.1, "alpha": 0.1, "beta": 1.0, "temperature": 15.0, "marginal_weight": 1.0}


@pytest.mark.parametrize(
    ("shots", "queries", "d", "iterations", "changed"),
    [
        ((1, 1), 1, 2, 1, {}),
        ((2, 1, 3), 7, 4, 8, {}),
        ((5, 5), 10, 3, 8, {"lam": 0.7, "alpha": 0.4, "beta": 2.0, "temperature": 5.0}),
        ((1, 2, 2, 1), 9, 6, 5, {"marginal_weight": 0.0}),
        ((1, 2, 2, 1), 9, 6, 5, {"marginal_weight": 0.3}),
        ((3, 3), 4, 5, 5, {"alpha": 0.0}),
        ((1, 2, 2, 1), 9, 6, 5, {"sample_prior_weight": 0.6, "beta": 0.7, "alpha": 0.3}),
    ],
)
def test_equals_scalar_loops(shots, queries, d, iterations, changed):
    task = make_task(3, shots, queries, d, noise=0.8)
    options = PAPER | changed
    given = {}
    if "sample_prior_weight" in options:
        generator = torch.Generator().manual_seed(0)
        shape = len(task.labels), len(shots)
        given["sample_weight"] = torch.rand(shape[0], generator=generator, dtype=torch.float64)
        prior = torch.rand(shape, generator=generator, dtype=torch.float64)
        given["sample_prior"] = prior / prior.amax(dim=1, keepdim=True)
    p, w, losses = adm_by_scalars(
        task.features.numpy(),
        task.labels.tolist(),
        len(shots),
        options["lam"],
        options["alpha"],
        options["beta"],
        options["temperature"],
        options["marginal_weight"],
        iterations,
        *(tensor.numpy() for tensor in given.values()),
        lam_0=options.get("sample_prior_weight", 0.0),
    )
    options |= given
    result = reference.adm(
        task.features, task.labels, normalize=False, iterations=iterations, history=True, **options
    )
    np.testing.assert_allclose(result.probs, p, rtol=0, atol=1e-11)
    np.testing.assert_allclose(result.weights, w, rtol=0, atol=1e-11)
    np.testing.assert_allclose(result.history.loss, losses, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(result.predictions, p.argmax(axis=1))


def test_normalises_to_unit_length():
    task = make_task(0)
    scaled = task.features * torch.logspace(-200, 200, len(task.features), dtype=torch.float64)[:, None]
    unit = task.features / task.features.norm(dim=1, keepdim=True)
    expected = reference.adm(unit, task.labels, normalize=False, iterations=20)
    torch.testing.assert_close(
        reference.adm(scaled, task.labels, iterations=20).probs, expected.probs, rtol=0, atol=1e-12
    )


def test_classifies_separable_tasks():
    task = make_task(1, noise=0.3)
    assert task.accuracy(reference.adm(task.features, task.labels).predictions) == 1.0


def test_padding_changes_nothing():
    task = make_task(2, padding=9)
    used = task.labels != -100
    padded = reference.adm(task.features, task.labels)
    bare = reference.adm(task.features[used], task.labels[used])
    assert torch.equal(padded.probs[used], bare.probs)
    assert torch.equal(padded.weights, bare.weights)
    assert (padded.predictions[~used] == -100).all()
    assert (padded.probs[~used] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype):
    task = make_task(4, dtype=dtype)
    result = reference.adm(task.features, task.labels)
    assert result.probs.dtype == torch.float32
    assert torch.equal(result.probs, reference.adm(task.features.float(), task.labels).probs)
