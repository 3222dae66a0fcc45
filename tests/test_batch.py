"""What is refused, in which words, and what shapes come back: the same for all solvers and their references."""
# ruff: noqa: E501

from __future__ import annotations

import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from make_tasks import make_task

import tim_ext
from tim_ext import reference

SOLVERS = {
    "adm": tim_ext.adm,
    "reference adm": reference.adm,
    "gd": partial(tim_ext.gd, iterations=20),
    "reference gd": partial(reference.gd, iterations=20),
}
every = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)

X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.2, 0.8]])  # one task
Y = torch.tensor([0, 1, -1, -1])
X3, Y2 = X.expand(3, 4, 2), Y.expand(3, 4)  # three of them
FLOATS = "expected float32, float64, float16, bfloat16"
NAN = torch.nan


def put(tensor: torch.Tensor, place: tuple[int, ...] | int, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


REFUSALS = [
    # shapes
    ((X[0], Y), {}, ValueError, "features: expected shape [N, d], [T, N, d] or a list of [N, d], none of them 0, got [2]"),
    ((X3[None], Y2[None]), {}, ValueError, "features: expected shape [N, d], [T, N, d] or a list of [N, d], none of them 0, got [1, 3, 4, 2]"),
    ((X[:0], Y[:0]), {}, ValueError, "got [0, 2]"),
    ((X[:, :0], Y), {}, ValueError, "got [4, 0]"),
    ((X3[:0], Y2[:0]), {}, ValueError, "got [0, 4, 2]"),
    ((X, Y[:3]), {}, ValueError, "labels: expected shape [4] to match features, got [3]"),
    ((X, Y2), {}, ValueError, "labels: expected shape [4] to match features, got [3, 4]"),
    ((X3, Y), {}, ValueError, "labels: expected shape [3, 4] to match features, got [4]"),
    ((X3, Y2.T), {}, ValueError, "labels: expected shape [3, 4] to match features, got [4, 3]"),
    # types
    ((X.long(), Y), {}, TypeError, f"features: {FLOATS}, got int64 (convert with .float())"),
    ((X.bool(), Y), {}, TypeError, f"features: {FLOATS}, got bool"),
    ((X.to(torch.complex64), Y), {}, TypeError, f"features: {FLOATS}, got complex64"),
    ((X.to(torch.float8_e4m3fn), Y), {}, TypeError, f"features: {FLOATS}, got float8_e4m3fn"),
    ((X.to_sparse(), Y), {}, TypeError, "features: expected a dense tensor, got torch.sparse_coo"),
    (("text", Y), {}, TypeError, "features: expected a tensor or array, got str"),
    ((None, Y), {}, TypeError, "features: expected a tensor or array, got NoneType"),
    ((X, Y.float()), {}, TypeError, "labels: expected integers (int64 to int8, or uint8), got float32"),
    ((X, Y.bool()), {}, TypeError, "labels: expected integers (int64 to int8, or uint8), got bool"),
    ((X, [0, 1, -1, None]), {}, TypeError, "labels: expected a tensor or array, got list"),
    # devices: meta stands for any other device
    ((X, Y.to("meta")), {}, ValueError, "labels: expected device cpu as features, got meta"),
    ((X, Y), {"index": Y.to("meta")}, ValueError, "index: expected device cpu as features, got meta"),
    ((X.to("meta"), Y), {}, ValueError, "features: expected a tensor with data, got one on device meta"),
    # lists
    (([], []), {}, ValueError, "features: expected at least one task, got an empty list"),
    (([X, X[0]], [Y, Y]), {}, ValueError, "features[1]: expected shape [N, d], neither of them 0, as features is a list, got [2]"),
    (([X, X[:0]], [Y, Y[:0]]), {}, ValueError, "features[1]: expected shape [N, d], neither of them 0, as features is a list, got [0, 2]"),
    (([X, X[:, :1]], [Y, Y]), {}, ValueError, "features[1]: expected shape [N, 2] as in features[0], got [4, 1]"),
    (([X, X.double()], [Y, Y]), {}, TypeError, "features[1]: expected float32 as in features[0], got float64"),
    (([X, X.long()], [Y, Y]), {}, TypeError, f"features[1]: {FLOATS}, got int64"),
    (([X, X], [Y]), {}, ValueError, "labels: expected 2 tasks to match features, got 1"),
    (([X, X], Y2[:2]), {}, TypeError, "labels: expected a list of vectors, as features is a list, got Tensor"),
    (([X, X], [Y, Y[:3]]), {}, ValueError, "labels[1]: expected shape [4] to match features[1], got [3]"),
    (([X, X], [Y, Y.float()]), {}, TypeError, "labels[1]: expected integers (int64 to int8, or uint8), got float32"),
    (([X, X], [Y, Y.to("meta")]), {}, ValueError, "labels[1]: expected device cpu as features, got meta"),
    # a pool and an index
    ((X3, Y), {"index": Y}, ValueError, "features: expected shape [M, d] with index=, neither of them 0, got [3, 4, 2]"),
    (([X], [Y]), {"index": [Y]}, TypeError, "features: expected a pool [M, d] with index=, got a list"),
    ((X, Y), {"index": Y.float()}, TypeError, "index: expected integers (int64 to int8, or uint8), got float32"),
    ((X, Y), {"index": Y2[None]}, ValueError, "index: expected shape [N], [T, N] or a list of [N], none of them 0, got [1, 3, 4]"),
    ((X, Y[:0]), {"index": Y[:0]}, ValueError, "none of them 0, got [0]"),
    ((X, []), {"index": []}, ValueError, "index: expected at least one task, got an empty list"),
    ((X, Y), {"index": Y2}, ValueError, "labels: expected shape [3, 4] to match index, got [4]"),
    ((X, [Y]), {"index": [Y, Y]}, ValueError, "labels: expected 2 tasks to match index, got 1"),
    ((X, [Y]), {"index": [Y[:3]]}, ValueError, "labels[0]: expected shape [3] to match index[0], got [4]"),
    ((X, [Y]), {"index": [Y2]}, ValueError, "index[0]: expected shape [N], not 0, as index is a list, got [3, 4]"),
    ((X, Y), {"index": [0, 1, 2, 4]}, ValueError, "index: expected rows 0 to 3 of features, got 4 at sample 3"),
    ((X, Y), {"index": [0, -1, 2, 3]}, ValueError, "index: expected rows 0 to 3 of features, got -1 at sample 1"),
    ((X, Y2), {"index": put(Y2 * 0, (2, 1), 9)}, ValueError, "got 9 at sample 1 in task 2"),
    # values of features
    ((put(X, (2, 1), NAN), Y), {}, ValueError, "features: expected finite values, got NaN or Inf at sample 2"),
    ((put(X, (0, 0), torch.inf), Y), {}, ValueError, "features: expected finite values, got NaN or Inf at sample 0"),
    ((put(X, (3, 0), -torch.inf).half(), Y), {}, ValueError, "got NaN or Inf at sample 3"),
    ((put(X.double(), (3, 1), NAN), Y), {"normalize": False}, ValueError, "got NaN or Inf at sample 3"),
    ((put(X3, (1, 3, 0), NAN), Y2), {}, ValueError, "got NaN or Inf at sample 3 in task 1"),
    (([X, put(X, (2, 1), NAN)], [Y, Y]), {}, ValueError, "got NaN or Inf at sample 2 in task 1"),
    ((put(X, (3, 1), NAN), Y[None]), {"index": [[0, 3, 2, 1]]}, TypeError, "labels: expected a list of vectors"),
    ((put(X, (3, 1), NAN), Y), {"index": [0, 3, 2, 1]}, ValueError, "got NaN or Inf at sample 1"),
    # values of labels
    ((X, put(Y, 2, -2)), {}, ValueError, "labels: expected a class 0 to 1, -1 for a query or -100 for padding, got -2 at sample 2"),
    ((X, put(Y, 3, -99)), {}, ValueError, "got -99 at sample 3"),
    ((X, put(Y, 1, 2)), {"num_classes": 2}, ValueError, "labels: expected a class 0 to 1, -1 for a query or -100 for padding, got 2 at sample 1"),
    ((X3, put(Y2, (2, 3), -7)), {}, ValueError, "got -7 at sample 3 in task 2"),
    ((X, put(Y, 1, 2)), {}, ValueError, "labels: expected support of each class 0 to 2, got none of class 1"),
    ((X, Y), {"num_classes": 3}, ValueError, "labels: expected support of each class 0 to 2, got none of class 2"),
    (([X, X], [Y, put(Y, 0, 1)]), {}, ValueError, "labels: expected support of each class 0 to 1, got none of class 0 in task 1"),
    ((X, Y * 0 - 1), {}, ValueError, "labels: expected support samples (labels >= 0), got none"),
    ((X, Y * 0 - 100), {}, ValueError, "labels: expected support samples (labels >= 0), got none"),
    ((X3, put(Y2, 1, -1)), {}, ValueError, "labels: expected support samples (labels >= 0), got none in task 1"),
    ((X, put(Y, 1, 10**15)), {}, ValueError, f"labels: expected support of each class 0 to {10**15}, got only 4 samples (label {10**15})"),
    ((X, put(Y, 1, 2**63 - 1)), {}, ValueError, f"got only 4 samples (label {2**63 - 1})"),
    ((X, Y), {"num_classes": 5}, ValueError, "labels: expected support of each class 0 to 4, got only 4 samples (num_classes=5)"),
    (([X, X[:2]], [Y, Y[:2] + 1]), {}, ValueError, "got only 2 samples in task 1 (label 2)"),
    # class_prior
    ((X, Y), {"class_prior": [0.5, 0.4, 0.1]}, ValueError, "class_prior: expected shape [2], one proportion for each class, got [3]"),
    ((X, Y), {"class_prior": 1.0}, ValueError, "class_prior: expected shape [2], one proportion for each class, got []"),
    ((X, Y), {"class_prior": [[0.5, 0.5]]}, ValueError, "class_prior: expected one vector [K], got a list of 1"),
    ((X, Y), {"class_prior": torch.full((3, 2), 0.5)}, ValueError, "class_prior: expected one vector [K], got a list of 3"),
    ((X3, Y2), {"class_prior": torch.full((2, 2), 0.5)}, ValueError, "class_prior: expected one vector [K] or 3, one for each task, got a list of 2"),
    ((X3, Y2), {"class_prior": [[0.5, 0.5]] * 4}, ValueError, "class_prior: expected one vector [K] or 3, one for each task, got a list of 4"),
    ((X3, Y2), {"class_prior": torch.full((3, 3), 1 / 3)}, ValueError, "class_prior[0]: expected shape [2], one proportion for each class, got [3]"),
    ((X3, Y2), {"class_prior": torch.full((3, 2, 1), 0.5)}, ValueError, "class_prior: expected shape [2], one proportion for each class, got [3, 2, 1]"),
    (([X, X], [Y, put(Y, 2, 2)]), {"class_prior": [0.5, 0.5]}, ValueError, "class_prior: expected a list of vectors, as task 0 has 2 classes and task 1 has 3, got one vector"),
    (([X, X], [Y, put(Y, 2, 2)]), {"class_prior": [[0.5, 0.5], [0.5, 0.5]]}, ValueError, "class_prior[1]: expected shape [3], one proportion for each class, got [2]"),
    ((X, Y), {"class_prior": [0.0, 1.0]}, ValueError, "class_prior: expected numbers > 0, got 0.0 for class 0"),
    ((X, Y), {"class_prior": [1.2, -0.2]}, ValueError, "class_prior: expected numbers > 0, got -0.2 for class 1"),
    ((X, Y), {"class_prior": [0.5, NAN]}, ValueError, "class_prior: expected numbers > 0, got nan for class 1"),
    ((X, Y), {"class_prior": [0.5, torch.inf]}, ValueError, "class_prior: expected numbers > 0, got inf for class 1"),
    ((X, Y), {"class_prior": [0.5, 0.6]}, ValueError, "class_prior: expected proportions of sum 1, got a sum of 1.1"),
    ((X, Y), {"class_prior": [3, 1]}, ValueError, "class_prior: expected proportions of sum 1, got a sum of 4"),
    ((X3, Y2), {"class_prior": [[0.5, 0.5], [0.5, 0.5], [0.5, 0.4]]}, ValueError, "class_prior[2]: expected proportions of sum 1, got a sum of 0.9"),
    ((X, Y), {"class_prior": "even"}, TypeError, "class_prior: expected a tensor or array, got str"),
    ((X, Y), {"class_prior": torch.tensor([True, True])}, TypeError, "class_prior: expected numbers, got bool"),
    ((X, Y), {"class_prior": torch.full((2,), 0.5, device="meta")}, ValueError, "class_prior: expected a tensor with data, got one on device meta"),
    # hyper-parameters
    ((X, Y), {"lam": -0.1}, ValueError, "lam: expected a finite number >= 0, got -0.1"),
    ((X, Y), {"alpha": -1}, ValueError, "alpha: expected a finite number >= 0, got -1"),
    ((X, Y), {"temperature": 0.0}, ValueError, "temperature: expected a finite number > 0, got 0.0"),
    ((X, Y), {"temperature": torch.inf}, ValueError, "temperature: expected a finite number > 0, got inf"),
    ((X, Y), {"marginal_weight": -1.0}, ValueError, "marginal_weight: expected a finite number >= 0, got -1.0"),
    ((X, Y), {"tol": -1e-3}, ValueError, "tol: expected a finite number >= 0, got -0.001"),
    ((X, Y), {"lam": "0.1"}, TypeError, "lam: expected a finite number, got str '0.1'"),
    ((X, Y), {"lam": None}, TypeError, "lam: expected a finite number, got NoneType None"),
    ((X, Y), {"lam": True}, TypeError, "lam: expected a finite number, got bool True"),
    ((X, Y), {"iterations": -1}, ValueError, "iterations: expected an integer >= 0, got -1"),
    ((X, Y), {"iterations": 1.5}, TypeError, "iterations: expected an integer, got float 1.5"),
    ((X, Y), {"iterations": True}, TypeError, "iterations: expected an integer, got bool True"),
    ((X, Y), {"num_classes": 0}, ValueError, "num_classes: expected an integer >= 1, got 0"),
    ((X, Y), {"num_classes": 2.0}, TypeError, "num_classes: expected an integer, got float 2.0"),
    ((X, Y), {"outputs": ("probs", "logits")}, ValueError, "outputs: expected a tuple of names out of 'probs', 'predictions', 'weights', got 'logits'"),
    ((X, Y), {"outputs": "probs"}, TypeError, "got str 'probs'"),
    ((X, Y), {"outputs": None}, TypeError, "got NoneType None"),
]  # fmt: skip


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
    ({"solver": "fast"}, ValueError, "solver: expected one of 'auto', 'dual', 'primal', got 'fast'"),
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
    shapes = "probs=[4, 2], predictions=[4], weights=[2, 2], iterations=7, history=None"
    assert repr(solve(X, Y, iterations=7)) == f"Result({shapes})"
    shapes = "probs=list of 1, predictions=list of 1, weights=None, iterations=[1], history=None"
    assert repr(solve([X], [Y], outputs=("probs", "predictions"))) == f"Result({shapes})"


@every
def test_result_is_read_only(solve):
    with pytest.raises(AttributeError):
        solve(X, Y).probs = None
