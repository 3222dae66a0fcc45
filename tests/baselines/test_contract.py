"""What every baseline keeps to, as the solvers do: shapes, promises, refusals."""
# ruff: noqa: E501

from __future__ import annotations

import doctest
import inspect
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from helpers.baseline_tasks import METHODS, NAN, every, means, ragged, task_lists, transformed
from helpers.make_tasks import make_task
from helpers.paths import DOCS
from helpers.refusals import REFUSALS

import tim_ext
from tim_ext import baselines, transforms
from tim_ext.baselines import pieces
from tim_ext.solver.batch import make_batch
from tim_ext.solver.params import KNOWN_OUTPUTS, OUTPUTS

# Shapes --------------------------------------------------------------------------------------------


def assert_close(result: tim_ext.Result, expected: tim_ext.Result, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(result.probs, expected.probs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(result.weights, expected.weights, atol=tolerance, rtol=tolerance)
    assert torch.equal(result.predictions, expected.predictions)
    assert torch.equal(result.iterations, expected.iterations)


def of_task(result: tim_ext.Result, t: int) -> tim_ext.Result:
    return tim_ext.Result(result.probs[t], result.predictions[t], result.weights[t], result.iterations[t])


@every
@pytest.mark.parametrize("piece_bytes", [1, 3000, 2**23])
def test_a_task_alone_in_a_batch_in_a_list_and_by_index(method, piece_bytes, monkeypatch):
    tasks = [make_task(seed, shots=(2, 1, 3), queries=9, d=6, noise=0.8, padding=2) for seed in range(5)]
    alone = [method(task.features, task.labels) for task in tasks]
    for module in ("pieces", "laplacian_shot"):
        monkeypatch.setattr(sys.modules[f"tim_ext.baselines.{module}"], "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(sys.modules["tim_ext.baselines.alpha_am"], "GRAPH_BYTES", piece_bytes)
    z, labels = map(torch.stack, task_lists(tasks))
    order = torch.randperm(z.shape[0] * z.shape[1], generator=torch.Generator().manual_seed(0))
    pool = torch.cat([z.flatten(0, 1)[order], z.new_full((200, 6), NAN)])  # rows nobody asks for
    rows = order.argsort().view(labels.shape)
    rows = torch.where(labels == -100, 10**9, rows)  # rows there are not
    longer = make_task(9, shots=(2, 1, 3, 1), queries=30, d=6, noise=0.8)
    others = [*tasks, longer]
    for result in (
        method(z, labels),
        method(pool, labels, index=rows),
        method(pool[: z.shape[0] * z.shape[1]], labels, index=rows),  # transformed as a whole
        method(pool, list(labels), index=list(rows)),
        method(z.numpy(), labels.numpy()),
        method(*task_lists(others)),
    ):
        for t in range(len(tasks)):
            assert_close(of_task(result, t), alone[t])
    assert_close(of_task(method(*task_lists(others)), 5), method(longer.features, longer.labels))


@every
def test_shapes(method):
    z, labels = torch.randn(3, 7, 4), torch.tensor([0, 1, -1, -1, 1, -1, -100])
    for lead in [(), (1,), (3,)]:
        result = method(z[0].expand(*lead, 7, 4), labels.expand(*lead, 7))
        assert result.probs.shape == (*lead, 7, 2)
        assert result.predictions.shape == (*lead, 7)
        assert result.weights.shape == (*lead, 2, 4)
        assert result.iterations.shape == lead
        assert (result.predictions.dtype, result.iterations.dtype) == (torch.int64, torch.int64)
        assert result.probs.dtype == result.weights.dtype == torch.float32
        assert result.history is None
    ragged = method([z[0], z[1, :3]], [labels, [0, 1, 2]])
    assert [list(p.shape) for p in ragged.probs] == [[7, 2], [3, 3]]
    assert [list(w.shape) for w in ragged.weights] == [[2, 4], [3, 4]]


@every
@pytest.mark.parametrize("outputs", [(), ("predictions",), ["weights", "probs"]])
def test_outputs_not_asked_for_are_none(method, outputs):
    task = make_task(0, d=6)
    result, everything = (
        method(task.features, task.labels, outputs=outputs),
        method(task.features, task.labels),
    )
    for name in ("probs", "predictions", "weights"):
        value = getattr(result, name)
        assert (value is not None) == (name in outputs)
        assert value is None or torch.equal(value, getattr(everything, name))


@every
def test_dtypes(method):
    task = make_task(4, shots=(3, 2, 1), queries=12, d=6, noise=0.5)
    expected = method(task.features, task.labels)
    for dtype, tolerance in [(torch.float32, 1e-3), (torch.float16, 0.03), (torch.bfloat16, 0.2)]:
        result = method(task.features.to(dtype), task.labels)
        assert result.probs.dtype == result.weights.dtype == torch.float32
        torch.testing.assert_close(result.probs.double(), expected.probs, atol=tolerance, rtol=0)
    by_index = method(task.features.half(), task.labels, index=torch.arange(len(task.labels)))
    torch.testing.assert_close(by_index.probs, method(task.features.half(), task.labels).probs)


@every
def test_probabilities_and_predictions_belong_together(method):
    task = make_task(8, shots=(2, 1, 3), queries=30, d=6, noise=1.5)
    result = method(task.features, task.labels)
    torch.testing.assert_close(result.probs.sum(dim=1), torch.ones(len(task.labels), dtype=torch.float64))
    assert torch.equal(result.probs.argmax(dim=1), result.predictions)
    if "paddle" not in str(method):  # on a hard task, all queries end in one class
        assert task.accuracy(result.predictions) > 0.4  # a third by chance


@pytest.mark.parametrize("name", ["laplacian_shot", "pt_map", "paddle", "protolp"])
def test_support_samples_keep_their_label_where_queries_are_assigned_together(name):
    task = make_task(8, shots=(2, 1, 3), queries=30, d=6, noise=3.0)
    result = METHODS[name](task.features, task.labels)
    support = task.labels >= 0
    assert torch.equal(result.predictions[support], task.labels[support])
    assert (result.probs[support].max(dim=1).values == 1).all()


def test_pieces_are_of_one_kind_and_bounded(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2000)
    tasks = [task for seed in range(20) for task in ragged(seed) if task.features.shape[1] == 5]
    batch = make_batch(*task_lists(tasks))
    kinds = [float(t % 2) for t in range(len(tasks))]
    seen = []
    for members, kind in pieces.split(batch, kinds, batch.features.shape[1], len(tasks)):
        sizes = [batch.sizes[t] for t in members]
        assert len(members) == 1 or len(members) * max(sizes) * 5 * 8 <= 2000
        assert len({batch.counts[t] for t in members}) == 1
        assert {kinds[t] for t in members} == {kind}
        seen += members.tolist()
    assert sorted(seen) == list(range(len(tasks)))


def test_laplacian_shot_stops_a_task_at_its_third_update_at_the_earliest():
    tasks = [make_task(t, shots=(2, 1, 3), queries=9, d=6, noise=0.8) for t in range(3)]
    assert baselines.laplacian_shot(*task_lists(tasks), tol=10.0).iterations.tolist() == [3, 3, 3]
    assert baselines.laplacian_shot(*task_lists(tasks), tol=0.0, iterations=7).iterations.tolist() == [
        7,
        7,
        7,
    ]


# Promises ------------------------------------------------------------------------------------------


@every
def test_inputs_are_not_changed(method):
    tasks = [make_task(t, shots=(2, 1, 3), queries=9, d=6) for t in range(3)]
    z, labels = map(torch.stack, task_lists(tasks))
    before = z.clone(), labels.clone()
    for features, index in [(z, None), (z.flatten(0, 1), torch.arange(45).view(3, 15))]:
        method(features, labels, index=index)
        assert torch.equal(z, before[0])
        assert torch.equal(labels, before[1])


@every
def test_no_query_gives_the_prototypes(method):
    task = make_task(0, shots=(3, 2, 4), queries=0, d=6)
    result = method(task.features, task.labels)
    if "finetune" not in str(method):  # those learn from the support alone
        transform = inspect.signature(method).parameters.get("transform")
        z, labels = transformed(transform.default if transform else "none", task)
        torch.testing.assert_close(result.weights, means(z, labels))
        assert result.iterations == 0
    assert torch.equal(result.predictions, task.labels)
    other = make_task(1, shots=(3, 2, 4), queries=8, d=6)
    pair = method(*task_lists([task, other]))
    assert_close(of_task(pair, 0), result)
    assert_close(of_task(pair, 1), method(other.features, other.labels))


@every
def test_one_class_has_probability_1(method):
    task = make_task(0, shots=(3,), queries=5, d=6)
    result = method(task.features, task.labels)
    assert torch.equal(result.probs, torch.ones_like(result.probs))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_vectors_and_duplicates(method, dtype):
    task = make_task(0, shots=(3, 2, 4), queries=12, d=6, dtype=dtype)
    z = task.features.clone()
    z[task.labels == 0] = 0  # a class of zero vectors
    z[(task.labels == -1).nonzero()[:5, 0]] = z[task.labels == 1][0]
    result = method(z, task.labels)
    assert result.probs.isfinite().all()
    assert result.weights.isfinite().all()
    all_zero = method(torch.zeros_like(z), task.labels)
    assert all_zero.probs.isfinite().all()


@every
def test_detaches_and_works_in_any_mode(method):
    task = make_task(0, shots=(3, 2, 4), queries=12, d=6)
    expected = method(task.features, task.labels)
    result = method(task.features.clone().requires_grad_(), task.labels)
    assert not result.probs.requires_grad
    assert not result.weights.requires_grad
    with torch.inference_mode():
        assert torch.equal(method(task.features.clone(), task.labels).probs, expected.probs)
    with torch.device("meta"):
        assert torch.equal(method(task.features, task.labels).probs, expected.probs)
        torch.testing.assert_close(method(*task_lists([task, task])).probs[1], expected.probs)


@every
def test_equal_on_repetition_and_close_with_more_threads(method, set_threads):
    tasks = [make_task(t, shots=(3, 2, 4), queries=12, d=6, noise=1.0) for t in range(8)]
    expected = method(*task_lists(tasks))
    assert all(map(torch.equal, method(*task_lists(tasks)).probs, expected.probs))
    set_threads(2)
    for probs, before in zip(method(*task_lists(tasks)).probs, expected.probs, strict=True):
        torch.testing.assert_close(probs, before)


@every
def test_modes_reach_the_threads_of_the_pieces(method, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    tasks = [make_task(t, shots=(3, 2, 4), queries=12, d=6) for t in range(3)]
    expected = method(*task_lists(tasks))
    with torch.inference_mode():
        result = method(*task_lists(tasks))
    assert all(map(torch.equal, result.probs, expected.probs))
    z = [task.features.clone().requires_grad_() for task in tasks]
    assert not any(probs.requires_grad for probs in method(z, [task.labels for task in tasks]).probs)


# What is refused -----------------------------------------------------------------------------------


TASK_REFUSALS = [refusal for refusal in REFUSALS if set(refusal[1]) <= {"index", "num_classes", "outputs"}]


@every
@pytest.mark.parametrize(("arguments", "options", "error", "message"), TASK_REFUSALS)
def test_refuses_what_the_solvers_refuse_in_the_same_words(method, arguments, options, error, message):
    with pytest.raises(error) as expected:
        tim_ext.adm(*arguments, **options)
    with pytest.raises(error, match=re.escape(message)) as caught:
        method(*arguments, **options)
    more = "".join(f", {name!r}" for name in KNOWN_OUTPUTS if name not in OUTPUTS)  # of the solvers alone
    assert str(caught.value).replace(more, "") == str(expected.value).replace(more, "")


@every
def test_refuses_the_first_wrong_task_of_a_ragged_batch(method):
    good, small = make_task(0, shots=(2, 2), d=3), make_task(1, shots=(1, 1), queries=4, d=3)
    wrong = small.features.clone()
    wrong[3, 1] = NAN
    z = [good.features, good.features, wrong, small.features]
    labels = [good.labels, good.labels.clone(), small.labels, small.labels.clone()]
    with pytest.raises(
        ValueError, match="features: expected finite values, got NaN or Inf at sample 3 in task 2"
    ):
        method(z, labels)
    labels[1][:] = -1
    with pytest.raises(
        ValueError, match=re.escape("expected support samples (labels >= 0), got none in task 1")
    ):
        method(z, labels)


X, Y = torch.eye(4), torch.tensor([0, 1, -1, -1])
OWN_REFUSALS = [
    ("temperature", 0.0, ValueError, "temperature: expected a finite number > 0, got 0.0"),
    ("temperature", "hot", TypeError, "temperature: expected a finite number, got str 'hot'"),
    ("scale", -1.0, ValueError, "scale: expected a finite number >= 0, got -1.0"),
    ("lam", -1.0, ValueError, "lam: expected a finite number"),
    ("lam", None, TypeError, "lam: expected a finite number, got NoneType None"),
    ("alpha", NAN, ValueError, "alpha: expected a finite number >= 0, got nan"),
    ("marginal_weight", -1, ValueError, "marginal_weight: expected a finite number >= 0, got -1"),
    ("entropy_order", 0, ValueError, "entropy_order: expected a finite number > 0, got 0"),
    ("lr", -1e-3, ValueError, "lr: expected a finite number >= 0, got -0.001"),
    ("step", -1.0, ValueError, "step: expected a finite number >= 0, got -1.0"),
    ("tol", -1.0, ValueError, "tol: expected a finite number >= 0, got -1.0"),
    ("neighbors", 0, ValueError, "neighbors: expected an integer >= 1, got 0"),
    ("neighbors", 2.0, TypeError, "neighbors: expected an integer, got float 2.0"),
    ("reach", 1.0, ValueError, "reach: expected a number from 0 to below 1, got 1.0"),
    ("mix", 1.5, ValueError, "mix: expected a number from 0 to 1, got 1.5"),
    ("iterations", -1, ValueError, "iterations: expected an integer >= 0, got -1"),
    ("iterations", True, TypeError, "iterations: expected an integer, got bool True"),
    ("balanced", 1, TypeError, "balanced: expected True or False, got int 1"),
    ("rectify", 1, TypeError, "rectify: expected True or False, got int 1"),
    ("metric", "manhattan", ValueError, "metric: expected one of 'euclidean', 'cosine', got 'manhattan'"),
    ("transform", "l3", ValueError, "transform: expected 'none', 'cl2', or steps joined by '+' out of"),
    ("transform", "cl2", ValueError, "base_mean: expected the mean [d] of the base features, as transform='cl2'"),
    ("base_mean", torch.ones(5), ValueError, "base_mean: expected shape [4], one number for each feature, got [5]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "name", "value", "error", "message"),
    [
        pytest.param(method, *refusal, id=f"{method_name}-{refusal[0]}-{refusal[1]}")
        for method_name, method in METHODS.items()
        for refusal in OWN_REFUSALS
        if refusal[0] in inspect.signature(method).parameters
    ],
)
def test_refuses_hyper_parameters(method, name, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        method(X, Y, **{name: value})


def test_every_hyper_parameter_has_a_refusal():
    names = {name for method in METHODS.values() for name in inspect.signature(method).parameters}
    task = {"features", "labels", "index", "num_classes", "outputs"}
    assert names - task == {name for name, *_ in OWN_REFUSALS}


@pytest.mark.parametrize("name", [name for name in METHODS if name != "protonet"])
def test_results_that_are_not_finite_are_refused(name):
    huge = torch.cat([X, X]) * 1e30  # in float32, the square of a length overflows
    with pytest.raises(
        ValueError, match="too extreme: expected finite probabilities, got NaN or Inf in task 1"
    ):
        METHODS[name]([X, huge[:4]], [Y, Y], transform="none")
    METHODS[name]([X, huge[:4]], [Y, Y])


def test_numpy_numbers():
    expected = baselines.laplacian_shot(X, Y, lam=0.5, neighbors=1, rectify=False)
    result = baselines.laplacian_shot(
        X, Y, lam=np.float32(0.5), neighbors=np.int64(1), rectify=np.bool_(False)
    )
    assert torch.equal(result.probs, expected.probs)


def test_examples_of_the_docs():
    page = (DOCS / "baselines.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/baselines.md", "exec"), names)
    assert names["result"].predictions.shape == (100,)
    assert all(f"`{name}`" in page for name in [*METHODS, *transforms.STEPS])
    for module in ("tim_ext.transforms", "tim_ext.baselines.prototype"):
        tried = doctest.testmod(sys.modules[module])
        assert tried.attempted > 0
        assert tried.failed == 0
