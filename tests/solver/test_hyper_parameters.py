"""Hyper-parameters cannot be exchanged on their way into the kernels.

Each has a value of its own, far from the defaults. Every implementation then agrees with the reference, and
the reference with any two of them exchanged ends somewhere else. All values are below 1, so that each is
allowed in the place of any other.
"""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
from helpers.backends import backends

import tim_ext
from tim_ext import distributed, reference

FORMS = {"dual": {"form": "dual"}, "primal": {"form": "primal"}}
LOSS = {"lam": 0.23, "alpha": 0.37, "temperature": 0.94, "marginal_weight": 0.53}
ADM = {**LOSS, "beta": 0.71, "smoothing": 0.47, "relaxation": 0.83, "tol": 0.0}
GD = {**LOSS, "entropy_order": 0.67, "lr": 0.031, "beta1": 0.83, "beta2": 0.91, "eps": 0.017, "tol": 0.0}
GRADIENT = {**LOSS, "entropy_order": 0.67}
MUST_NOT_BE_ZERO = {"temperature", "beta", "relaxation", "entropy_order", "lr", "eps", "sample_prior_weight"}
ATOL, APART = 1e-11, 1e-5

generator = torch.Generator().manual_seed(3)
K, N, D = 4, 23, 6
FEATURES = 2 * torch.randn(N, D, generator=generator, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 3, 3, 1, *[-1] * (N - 6)])
PRIOR = torch.tensor([0.41, 0.29, 0.17, 0.13], dtype=torch.float64)
WEIGHTS = torch.randn(K, D, generator=generator, dtype=torch.float64)
SAMPLES = {
    "sample_weight": torch.rand(N, generator=generator, dtype=torch.float64),
    "sample_prior": torch.rand(N, K, generator=generator, dtype=torch.float64),
}
OTHERS = {"class_prior": PRIOR, "normalize": False, "history": True}
SUPPORT, QUERY = LABELS >= 0, LABELS == -1


def adm(solve, hyper, **more):
    result = solve(FEATURES, LABELS, iterations=6, **hyper, **OTHERS | more)
    return torch.cat([result.probs.flatten(), result.weights.flatten()])


def gd(solve, hyper, **more):
    options = dict(hyper)
    betas = options.pop("beta1"), options.pop("beta2")
    result = solve(FEATURES, LABELS, iterations=7, betas=betas, **options, **OTHERS | more)
    return torch.cat([result.probs.flatten(), result.weights.flatten()])


def gradient(hyper, prior=PRIOR):
    w = WEIGHTS.clone().requires_grad_()
    y = reference.one_hot_rows(LABELS, K).to(w)
    log_p = reference.log_distance_softmax(FEATURES, w, hyper["temperature"])
    terms = reference.loss_terms(log_p, y, SUPPORT, QUERY, prior, hyper["entropy_order"])
    loss = reference.loss(terms, SimpleNamespace(**hyper))
    return torch.cat([loss[None], terms, torch.autograd.grad(loss, w)[0].flatten()]).detach()


LOG_P = reference.log_distance_softmax(FEATURES, WEIGHTS, 0.94)
Q_UPDATE = {name: ADM[name] for name in ("alpha", "beta", "marginal_weight")}
W_UPDATE = {name: ADM[name] for name in ("lam", "alpha", "beta")}


def q_update(hyper):
    a = reference.one_hot_rows(LABELS, K).to(LOG_P)
    a[QUERY] = reference.q_update(LOG_P[QUERY], hyper["alpha"], hyper["beta"], hyper["marginal_weight"])
    return a


def w_update(hyper):
    c = LOG_P.new_full((N,), int(SUPPORT.sum()) / int(QUERY.sum()))
    c[SUPPORT] = hyper["lam"] / (hyper["beta"] + hyper["alpha"])
    return reference.w_update(FEATURES, WEIGHTS, LOG_P.exp(), q_update(ADM), c)


WITH_PRIORS = {"sample_prior_weight": 0.59}
REFERENCES = {
    "adm": (ADM | WITH_PRIORS, lambda hyper: adm(reference.adm, hyper, **SAMPLES)),
    "gd": (GD | WITH_PRIORS, lambda hyper: gd(reference.gd, hyper, **SAMPLES)),
    "gd_gradient": (GRADIENT, gradient),
    "q_update": (Q_UPDATE, q_update),
    "w_update": (W_UPDATE, w_update),
}


def allowed(hyper, pair):
    return 0 not in (hyper[name] for name in pair) or not MUST_NOT_BE_ZERO.intersection(pair)


EXCHANGES = [
    pytest.param(name, *pair, id="-".join((name, *pair)))
    for name, (hyper, _) in REFERENCES.items()
    for pair in combinations(hyper, 2)
    if allowed(hyper, pair)
]
# c_S = lam / (beta + alpha) is all that w_update has of these two, and both change it alike.
ALIKE = {("w_update", "alpha", "beta")}


@pytest.mark.parametrize(("name", "first", "second"), EXCHANGES)
def test_an_exchange_would_show(name, first, second):
    hyper, compute = REFERENCES[name]
    exchanged = hyper | {first: hyper[second], second: hyper[first]}
    distance = (compute(exchanged) - compute(hyper)).abs().max()
    if (name, first, second) in ALIKE:
        assert distance == 0
    else:
        assert distance > APART


@pytest.mark.parametrize(("solve", "method", "hyper"), [(adm, reference.adm, ADM), (gd, reference.gd, GD)])
def test_lost_weights_would_show(solve, method, hyper):
    assert (solve(method, hyper, weights=WEIGHTS) - solve(method, hyper)).abs().max() > APART


@pytest.mark.parametrize("lost", SAMPLES)
@pytest.mark.parametrize(("solve", "method", "hyper"), [(adm, reference.adm, ADM), (gd, reference.gd, GD)])
def test_lost_samples_would_show(solve, method, hyper, lost):
    whole = solve(method, hyper, **SAMPLES, **WITH_PRIORS)
    assert (solve(method, hyper, **{**SAMPLES, lost: None}, **WITH_PRIORS) - whole).abs().max() > APART


@pytest.mark.parametrize("solve", [adm, gd, gradient], ids=["adm", "gd", "gd_gradient"])
def test_a_lost_class_prior_would_show(solve):
    if solve is gradient:
        with_prior, without = gradient(GRADIENT), gradient(GRADIENT, None)
    else:
        method, hyper = {adm: (reference.adm, ADM), gd: (reference.gd, GD)}[solve]
        with_prior, without = solve(method, hyper), solve(method, hyper, class_prior=None)
    assert (with_prior - without).abs().max() > APART


def assert_near(result, expected):
    torch.testing.assert_close(result, expected, rtol=0, atol=ATOL)


@backends
@pytest.mark.parametrize("form", FORMS)
def test_adm(backend, form):
    assert_near(adm(backend.adm, ADM, **FORMS[form]), adm(reference.adm, ADM))


@backends
def test_gd(backend):
    assert_near(gd(backend.gd, GD), gd(reference.gd, GD))


@backends
def test_with_weights(backend):
    assert_near(adm(backend.adm, ADM, weights=WEIGHTS), adm(reference.adm, ADM, weights=WEIGHTS))
    assert_near(gd(backend.gd, GD, weights=WEIGHTS), gd(reference.gd, GD, weights=WEIGHTS))


@backends
@pytest.mark.parametrize("form", FORMS)
def test_with_samples(backend, form):
    more = SAMPLES | WITH_PRIORS
    assert_near(adm(backend.adm, ADM, **FORMS[form], **more), adm(reference.adm, ADM, **more))
    assert_near(gd(backend.gd, GD, **more), gd(reference.gd, GD, **more))


@backends
def test_gd_gradient(backend):
    loss, terms, slope = backend.gd_gradient(
        FEATURES[None], WEIGHTS[None], LABELS[None], class_prior=PRIOR[None], **GRADIENT
    )
    assert_near(torch.cat([loss, terms.flatten(), slope.flatten()]), gradient(GRADIENT))


@backends
def test_steps(backend):
    probs, log_probs = backend.distance_softmax(FEATURES[None], WEIGHTS[None], temperature=0.94)
    assert_near(log_probs[0], LOG_P)
    assert_near(probs[0], LOG_P.exp())
    q = backend.q_update(LOG_P[None], LABELS[None], **Q_UPDATE)
    assert_near(q[0], q_update(Q_UPDATE))
    w = backend.w_update(FEATURES[None], WEIGHTS[None], LOG_P.exp()[None], q, LABELS[None], **W_UPDATE)
    assert_near(w[0], w_update(W_UPDATE))


def test_distributed():
    for first in (None, WEIGHTS):
        assert_near(adm(distributed.adm, ADM, weights=first), adm(reference.adm, ADM, weights=first))
        assert_near(gd(distributed.gd, GD, weights=first), gd(reference.gd, GD, weights=first))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_number_of_iterations_arrives(dtype):
    result = tim_ext.adm(FEATURES.to(dtype), LABELS, iterations=6, **ADM)
    assert int(result.iterations) == 6
