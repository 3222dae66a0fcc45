"""TIMClassifier on new samples: the distance softmax, after a smoothed fit among the samples of `fit`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task

from tim_ext import reference
from tim_ext.solver.extension import extend

pytest.importorskip("sklearn", "1.6")

from tim_ext.estimator import TIMClassifier


def task(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[np.ndarray, np.ndarray]:
    made = make_task(seed, (5,) * 5, d=16, noise=0.8, dtype=dtype)
    return made.features.numpy(), made.labels.numpy()


def distance_softmax(X: np.ndarray, weights: np.ndarray, temperature: float, normalize: bool) -> np.ndarray:
    """softmax_k(-tau/2 ||w_k - z_i||^2), by that formula, in float64."""
    z, w = X.astype(np.float64), weights.astype(np.float64)
    if normalize:
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
    logits = -temperature / 2 * ((z[:, None] - w) ** 2).sum(axis=2)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("method", ["adm", "gd"])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-13), (np.float32, 2e-5)])
def test_new_samples_get_the_distance_softmax(method, normalize, dtype, error) -> None:
    X, y = task()
    model = TIMClassifier(method, normalize=normalize, temperature=7.0).fit(X.astype(dtype), y)
    new = task(seed=1)[0].astype(dtype)
    p = model.predict_proba(new)
    assert p.dtype == dtype
    assert p.shape == (100, 5)
    np.testing.assert_allclose(p, distance_softmax(new, model.weights_, 7.0, normalize), atol=error)
    assert np.array_equal(model.predict(new), p.argmax(axis=1))


@pytest.mark.parametrize("method", ["adm", "gd"])
def test_the_samples_of_fit_get_their_transduction(method) -> None:
    X, y = task()
    model = TIMClassifier(method).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), model.label_distributions_, atol=1e-10)
    assert np.array_equal(model.predict(X), model.transduction_)
    assert np.array_equal(model.predict(X[[4]]), model.transduction_[[4]])


def test_float32_and_float64_meet_in_float64() -> None:
    X, y = task()
    single = TIMClassifier("adm").fit(X.astype(np.float32), y)
    assert single.predict_proba(X).dtype == np.float64
    np.testing.assert_allclose(
        single.predict_proba(X), distance_softmax(X, single.weights_, 15.0, True), atol=1e-13
    )
    assert TIMClassifier().fit(X, y).predict_proba(X.astype(np.float32)).dtype == np.float64
    assert TIMClassifier().fit((100 * X).astype(int), y).weights_.dtype == np.float64


def test_a_new_sample_that_overflows_is_refused() -> None:
    X, y = task(dtype=torch.float32)
    model = TIMClassifier(normalize=False).fit(X, y)
    with pytest.raises(ValueError, match="X: expected finite probabilities, got NaN"):
        model.predict_proba(np.full((1, 16), 3e38, dtype=np.float32))


# After a smoothed fit -----------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("roots", [True, False])
def test_new_samples_are_smoothed_among_those_of_fit(roots, normalize) -> None:
    """y = z + r sum_j s_j y_j by its equations, dense and in float64."""
    X, y = task()
    X, new = (np.abs(one) if roots else one for one in (X, task(seed=1)[0]))
    model = TIMClassifier(normalize=normalize, smoothing=0.6, temperature=4.0).fit(X, y)
    z, z_new = (torch.from_numpy(np.sqrt(one + 1e-6) if roots else one) for one in (X, new))
    if normalize:
        z, z_new = reference.unit_length(z), reference.unit_length(z_new)
    a = reference.neighbour_graph(z, 10)
    degree = a.sum(dim=1)
    x = reference.unit_length(z - z.mean(dim=0))
    least = (x @ x.T).fill_diagonal_(-1).sort(dim=1).values[:, -10]
    smoothed = torch.linalg.solve(torch.eye(100) - 0.6 * a / (degree[:, None] * degree).sqrt(), z)
    for row, p in zip(z_new, model.predict_proba(new), strict=True):
        cos = torch.cosine_similarity(row - z.mean(dim=0), z - z.mean(dim=0))
        both = (cos >= cos.sort().values[-10]).double() + (cos >= least).double()
        b = both / 2 * cos.clamp(min=0) ** 3
        moved = row + 0.6 * (b / (b.sum() * degree).sqrt()) @ smoothed
        moved *= row.norm() / moved.norm()
        wanted = reference.log_distance_softmax(moved[None], torch.from_numpy(model.weights_), 4.0).exp()[0]
        np.testing.assert_allclose(p, wanted, atol=1e-10)


@pytest.mark.parametrize("reach", [0.3, 0.7, 0.97])
def test_the_samples_of_fit_are_smoothed_as_the_reference_does(reach) -> None:
    z = reference.unit_length(torch.from_numpy(task()[0]))
    y = extend(z, 5, reach).y
    torch.testing.assert_close(reference.unit_length(y), reference.smooth(z, 5, reach), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_samples_of_a_smoothed_fit_get_their_probabilities_bit_for_bit(dtype) -> None:
    X, y = (array.astype(kind) for array, kind in zip(task(), (dtype, int), strict=True))
    model = pickle.loads(pickle.dumps(TIMClassifier().fit(X, y)))
    assert np.array_equal(model.predict_proba(X), model.label_distributions_)
    assert np.array_equal(model.predict_proba(X[[40]]), model.label_distributions_[[40]])
    off = X.copy()
    off[:, 0] += 1e-3
    assert not (model.predict_proba(off) == model.label_distributions_).all(axis=1).any()
    X[1] = X[0]  # two of them are equal
    model.fit(X, y)
    assert np.array_equal(model.predict_proba(X[:2]), model.label_distributions_[[0, 0]])


def test_new_samples_gain_from_those_of_fit() -> None:
    """One class has most samples. Floor: prototypes of the labelled ones; roof: a fit with all of them."""
    right: dict[str, list[float]] = {"prototype": [], "new": [], "again": []}
    for seed in range(10):
        made = make_task(seed, (1,) * 5, 400, d=16, noise=1.0)
        X, y, truth = made.features.numpy(), made.labels.numpy(), made.truth.numpy()
        keep = (y >= 0) | (truth == 0) | (np.arange(len(y)) % 4 == 0)
        X, y, truth = X[keep], y[keep], truth[keep]
        new = (y < 0) & (np.arange(len(y)) % 2 == 0)
        found = {
            "prototype": TIMClassifier("adm", iterations=0).fit(X[~new], y[~new]).predict(X[new]),
            "new": TIMClassifier().fit(X[~new], y[~new]).predict(X[new]),
            "again": TIMClassifier().fit(X, y).transduction_[new],
        }
        for name, classes in found.items():
            right[name].append(np.mean(classes == truth[new]))
    prototype, of_new, again = (np.mean(shares) for shares in right.values())
    assert of_new > prototype + 0.05
    assert of_new > again - 0.03


def test_negative_features_after_a_fit_without_any() -> None:
    """The fit took square roots: what is below 0 counts as 0."""
    X, y = task()
    X = np.abs(X)
    model = TIMClassifier().fit(X, y)
    new = np.abs(task(seed=1)[0])
    new[:, 3] = 0
    p = model.predict_proba(new)
    new[:, 3] = -2
    assert np.array_equal(model.predict_proba(new), p)
