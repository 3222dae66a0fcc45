"""What is refused, in which words, and what shapes come back: the same for all solvers and their references."""
# ruff: noqa: E501

from __future__ import annotations

import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task
from helpers.refusals import NAN, REFUSALS, X, Y

import tim_ext
from tim_ext import reference

SOLVERS = {
    "adm": tim_ext.adm,
    "reference adm": reference.adm,
    "gd": partial(tim_ext.gd, iterations=20),
    "reference gd": partial(reference.gd, iterations=20),
}
every = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)


@every
@pytest.mark.parametrize(("arguments", "options", "error", "message"), REFUSALS)
def test_refuses(solve, arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        solve(*arguments, **options)
    assert ("task" in str(caught.value)) == (
        "task" in message
    )  # tasks are numbered only where there are several


ADM_REFUSALS = [
    ({"beta": 0}, ValueError, "beta: expected a finite number > 0, got 0"),
    ({"beta": NAN}, ValueError, "beta: expected a finite number > 0, got nan"),
    ({"form": "fast"}, ValueError, "form: expected one of 'auto', 'dual', 'primal', got 'fast'"),
    (
        {"form": "dual", "weights": X[:2]},
        ValueError,
        "form: expected 'auto' or 'primal' with weights=, as the dual form keeps W as sums of samples",
    ),
]
GD_REFUSALS = [
    ({"entropy_order": 0}, ValueError, "entropy_order: expected a finite number > 0, got 0"),
    ({"entropy_order": -1.0}, ValueError, "entropy_order: expected a finite number > 0, got -1.0"),
    ({"entropy_order": torch.inf}, ValueError, "entropy_order: expected a finite number > 0, got inf"),
    ({"lr": -1e-4}, ValueError, "lr: expected a finite number >= 0, got -0.0001"),
    ({"lr": "fast"}, TypeError, "lr: expected a finite number, got str 'fast'"),
    ({"eps": 0.0}, ValueError, "eps: expected a finite number > 0, got 0.0"),
    ({"betas": 0.9}, TypeError, "betas: expected two numbers, each >= 0 and < 1, got float 0.9"),
    ({"betas": (0.9,)}, TypeError, "betas: expected two numbers, each >= 0 and < 1, got tuple (0.9,)"),
    ({"betas": (0.9, 1.0)}, ValueError, "betas: expected two numbers, each >= 0 and < 1, got (0.9, 1.0)"),
    ({"betas": (-0.1, 0.9)}, ValueError, "betas: expected a finite number >= 0, got -0.1"),
]


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (name, *refusal)
        for refusals, kind in [(ADM_REFUSALS, "adm"), (GD_REFUSALS, "gd")]
        for name in (kind, f"reference {kind}")
        for refusal in refusals
    ],
)
def test_refuses_hyper_parameters_of_its_own(name, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SOLVERS[name](X, Y, **options)


@every
def test_forms_of_the_class_prior(solve):
    task = make_task(7, shots=(2, 1, 3), queries=20, d=6, noise=1.0)
    features, labels, prior = task.features, task.labels, torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    expected = solve(features, labels, class_prior=prior).probs
    assert not torch.equal(expected, solve(features, labels).probs)
    for same in (prior.tolist(), prior.numpy(), tuple(prior.tolist()), prior.clone().requires_grad_()):
        assert torch.equal(solve(features, labels, class_prior=same).probs, expected)
    features, labels = torch.stack([features] * 2), torch.stack([labels] * 2)
    other = torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)
    for both in (torch.stack([prior, other]), [prior, other.tolist()]):
        for batch in ((features, labels), (list(features), list(labels))):
            probs = solve(*batch, class_prior=both).probs
            assert torch.equal(probs[0], expected)
            assert not torch.equal(probs[1], expected)
    for batch in ((features, labels), (list(features), list(labels))):
        assert torch.equal(solve(*batch, class_prior=prior).probs[1], expected)
    ragged = solve([features[0], X.double().repeat(1, 3)], [labels[0], Y], class_prior=[prior, [0.9, 0.1]])
    assert torch.equal(ragged.probs[0], expected)


@every
def test_a_class_prior_within_rounding_of_1_is_normalised(solve):
    expected = solve(X, Y, class_prior=[0.75, 0.25]).probs
    torch.testing.assert_close(solve(X, Y, class_prior=[0.75 * 1.0005, 0.25 * 1.0005]).probs, expected)
    torch.testing.assert_close(solve(X, Y, class_prior=torch.tensor([0.75, 0.25]).half()).probs, expected)


@every
@pytest.mark.parametrize("lead", [(), (1,), (3,)])
def test_shapes_of_equal_tasks(solve, lead):
    result = solve(X.expand(*lead, 4, 2), Y.expand(*lead, 4), iterations=5, history=True)
    assert result.probs.shape == (*lead, 4, 2)
    assert result.predictions.shape == (*lead, 4)
    assert result.weights.shape == (*lead, 2, 2)
    assert result.iterations.shape == lead
    assert result.history.loss.shape == (*lead, 6)
    assert (result.predictions.dtype, result.iterations.dtype) == (torch.int64, torch.int64)
    assert result.probs.dtype == result.weights.dtype == result.history.loss.dtype == torch.float32


@every
@pytest.mark.parametrize("kind", [list, tuple])
def test_shapes_of_a_list(solve, kind):
    features = kind([X, X[:3], torch.cat([X, X])])
    labels = kind([[0, 1, -1, -1], (0, 0, -1), torch.tensor([0, 1, 2, 3, -1, -1, -1, -100])])
    result = solve(features, labels, iterations=5, history=True)
    assert [list(p.shape) for p in result.probs] == [[4, 2], [3, 1], [8, 4]]
    assert [list(p.shape) for p in result.predictions] == [[4], [3], [8]]
    assert [list(w.shape) for w in result.weights] == [[2, 2], [1, 2], [4, 2]]
    assert result.iterations.tolist() == [5, 5, 5]
    assert result.history.loss.shape == (3, 6)


@every
def test_num_classes_of_a_batch_is_that_of_its_largest_label(solve):
    labels = torch.tensor([[0, 1, -1, -1], [0, 1, 2, -1]])
    with pytest.raises(ValueError, match="class 0 to 2, got none of class 2 in task 0"):
        solve(X.expand(2, 4, 2), labels)
    assert [p.shape[1] for p in solve([X, X], list(labels)).probs] == [2, 3]


@every
@pytest.mark.parametrize("outputs", [(), ("predictions",), ["weights", "probs"]])
def test_outputs_not_asked_for_are_none(solve, outputs):
    result, everything = solve(X, Y, outputs=outputs), solve(X, Y)
    for name in ("probs", "predictions", "weights"):
        value = getattr(result, name)
        assert (value is not None) == (name in outputs)
        assert value is None or torch.equal(value, getattr(everything, name))
    assert result.history is None


@every
def test_accepts_arrays_and_lists(solve):
    expected = solve(X, Y)
    for features, labels in [
        (X.numpy(), Y.numpy()),
        (X, Y.tolist()),
        (X, Y.to(torch.int8)),
        (X, Y.numpy().astype(np.int32)),
    ]:
        assert torch.equal(solve(features, labels).probs, expected.probs)
    ragged = solve([X.numpy(), X.numpy()], [Y.numpy(), Y.tolist()])
    assert all(torch.equal(probs, expected.probs) for probs in ragged.probs)


@every
def test_accepts_read_only_arrays_without_a_warning(solve):
    features = X.numpy().copy()
    features.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(solve(features, Y).probs, solve(X, Y).probs)


@every
def test_accepts_any_strides(solve):
    task = make_task(5)
    features, labels = task.features, task.labels
    expected = solve(features, labels).probs
    wide = torch.stack([features, features * 0], dim=-1)
    doubled = torch.stack([labels, labels], dim=1)
    for same_features, same_labels in [
        (features.T.contiguous().T, labels),
        (wide[..., 0], doubled[:, 0]),
        (features.numpy()[::-1].copy()[::-1], labels.numpy()[::-1].copy()[::-1]),
    ]:
        assert torch.equal(solve(same_features, same_labels).probs, expected)
    batch = solve(torch.stack([features] * 2, dim=1).transpose(0, 1), doubled.T).probs
    assert torch.equal(batch, torch.stack([expected] * 2))
    pool = torch.cat([features, features])
    rows = torch.arange(2 * len(labels)) // 2
    assert torch.equal(solve(pool, labels, index=rows[::2]).probs, expected)


@every
def test_detaches_from_autograd(solve):
    result = solve(X.clone().requires_grad_(), Y)
    assert not result.probs.requires_grad
    assert not result.weights.requires_grad


@every
def test_inference_mode_and_default_device_do_not_matter(solve):
    with torch.inference_mode():
        solve(X, Y)
    expected = solve(X, Y)
    with torch.device("meta"):
        assert torch.equal(solve(X, Y).probs, expected.probs)
        assert torch.equal(solve([X, X], [Y, Y]).probs[1], expected.probs)


@every
def test_takes_numpy_numbers(solve):
    expected = solve(X, Y, lam=0.25, iterations=3)
    result = solve(X, Y, lam=np.float32(0.25), iterations=np.int64(3), num_classes=np.int32(2))
    assert torch.equal(result.probs, expected.probs)


@every
def test_index_equals_gathered_features(solve):
    task = make_task(6)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(task.labels), generator=generator)
    rows = torch.argsort(order)  # pool[rows] = features
    pool = torch.cat([task.features[order], task.features.new_full((2, 64), NAN)])  # rows nobody asks for
    expected = solve(task.features, task.labels).probs
    assert torch.equal(solve(pool, task.labels, index=rows).probs, expected)
    assert torch.equal(solve(pool, task.labels, index=rows.int()).probs, expected)
    assert torch.equal(solve(pool, task.labels, index=rows.tolist()).probs, expected)
    batch = solve(pool, task.labels.expand(2, -1), index=rows.expand(2, -1)).probs
    assert torch.equal(batch, torch.stack([expected] * 2))
    ragged = solve(pool, [task.labels, [0, 1, -1]], index=[rows, [5, 6, 7]]).probs
    assert torch.equal(ragged[0], expected)
    assert torch.equal(ragged[1], solve(pool[5:8], [0, 1, -1]).probs)


@every
def test_padding_is_never_looked_at(solve):
    labels = torch.cat([Y, torch.tensor([-100])])
    expected = solve(X, Y).probs
    nan = solve(torch.cat([X, torch.full((1, 2), NAN)]), labels)
    assert torch.equal(nan.probs[:4], expected)
    assert nan.predictions[4] == -100
    assert (nan.probs[4] == 0).all()
    for row in (-1, 99):
        assert torch.equal(solve(X, labels, index=[0, 1, 2, 3, row]).probs[:4], expected)


@every
def test_result_prints_shapes(solve):
    last = "history=None, proportions=[2], marginal_weight=1.0, outlier=None, confidence=None"
    shapes = f"probs=[4, 2], predictions=[4], weights=[2, 2], iterations=7, {last}"
    assert repr(solve(X, Y, iterations=7)) == f"Result({shapes})"
    last = "history=None, proportions=list of 1, marginal_weight=[1], outlier=None, confidence=None"
    shapes = f"probs=list of 1, predictions=list of 1, weights=None, iterations=[1], {last}"
    assert repr(solve([X], [Y], outputs=("probs", "predictions"))) == f"Result({shapes})"


@every
def test_result_is_read_only(solve):
    with pytest.raises(AttributeError):
        solve(X, Y).probs = None
