"""`Result.confidence`: shapes, promises, equations, and that it says more than the largest probability."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.make_tasks import make_task
from torch import Tensor

import tim_ext
from tim_ext import reference
from tim_ext.evaluation.reliability import reliability
from tim_ext.solver import confidence
from tim_ext.solver.batch import make_batch
from tim_ext.solver.confidence import Neighbours, Part
from tim_ext.solver.solve import judge

ALL = ("probs", "predictions", "weights", "confidence")
SOLVERS = {"adm": tim_ext.adm, "robust": tim_ext.robust, "gd": tim_ext.gd}
solvers = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
FEW = {"iterations": 20}


def confidence_of(solve: Any, *task: Any, **options: Any) -> Any:
    return solve(*task, outputs=("confidence",), **options).confidence


# What it is -----------------------------------------------------------------------------------------


@solvers
def test_it_comes_when_asked_for_and_changes_nothing_else(solve):
    task = make_task(0, [2] * 4, 30, noise=1.2)
    plain, asked = (
        solve(task.features, task.labels, **FEW),
        solve(task.features, task.labels, outputs=ALL, **FEW),
    )
    assert plain.confidence is None
    for name in ("probs", "predictions", "weights", "proportions"):
        assert torch.equal(getattr(plain, name), getattr(asked, name)), name
    alone = solve(task.features, task.labels, outputs=("confidence",), **FEW)
    assert alone.probs is alone.predictions is alone.weights is None
    assert torch.equal(alone.confidence, asked.confidence)


@solvers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_values_of_labelled_samples_queries_and_padding(solve, dtype):
    task = make_task(1, [3] * 4, 40, noise=2.0, padding=5, dtype=dtype)
    found = solve(task.features, task.labels, outputs=ALL, **FEW)
    sure, labels = found.confidence, task.labels
    assert sure.shape == labels.shape
    assert sure.dtype == found.probs.dtype
    known = labels >= 0
    assert torch.equal(sure[known] == 1, (found.predictions == labels)[known])
    assert set(sure[known].tolist()) <= {0.0, 1.0}
    assert (sure[labels == -100] == 0).all()
    queries = sure[labels == -1]
    assert ((queries > 0) & (queries < 1)).all()
    assert queries.unique().numel() > 10


def test_a_labelled_sample_with_another_prediction_has_confidence_0():
    features = torch.tensor([[1.0, 0.0], [0.95, 0.1], [0.0, 1.0], [0.1, 0.9], [0.9, 0.2], [0.0, 0.9]])
    labels = torch.tensor([0, 0, 1, 0, -1, -1])  # sample 3 is among those of class 1
    found = tim_ext.adm(features, labels, outputs=ALL)
    assert found.predictions[3] == 1
    assert found.confidence[:4].tolist() == [1, 1, 1, 0]


def test_shapes_of_batches_lists_and_pools():
    tasks = [make_task(seed, [2] * 3, 12 + seed, noise=1.0) for seed in range(3)]
    ragged = confidence_of(tim_ext.robust, [t.features for t in tasks], [t.labels for t in tasks])
    assert [len(one) for one in ragged] == [len(t.labels) for t in tasks]
    features = torch.cat([t.features for t in tasks])
    start = 0
    for one, task in zip(ragged, tasks, strict=True):
        rows = torch.arange(start, start + len(task.labels))
        start += len(task.labels)
        assert torch.equal(one, confidence_of(tim_ext.robust, task.features, task.labels))
        assert torch.equal(one, confidence_of(tim_ext.robust, features, task.labels, index=rows))
    two = torch.stack([tasks[0].features] * 2), torch.stack([tasks[0].labels] * 2)
    assert torch.equal(confidence_of(tim_ext.robust, *two), ragged[0].expand(2, -1))


@pytest.mark.parametrize("queries", [0, 1])
@pytest.mark.parametrize("classes", [1, 2, 7])
def test_few_queries_and_few_classes(classes, queries):
    task = make_task(2, [1] * classes, queries)
    for solve in (tim_ext.adm, tim_ext.robust):
        sure = confidence_of(solve, task.features, task.labels)
        assert sure.isfinite().all()
        assert (sure[task.labels >= 0] == 1).all()


def test_equal_and_opposite_samples_have_a_confidence():
    features = torch.cat([torch.ones(6, 4), -torch.ones(4, 4), torch.zeros(2, 4)])
    labels = torch.tensor([0, 0, -1, -1, -1, -1, 1, 1, -1, -1, -1, -1])
    assert confidence_of(tim_ext.robust, features, labels).isfinite().all()


# Promises -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_task_does_not_depend_on_its_batch_threads_or_padding(dtype, set_threads):
    shapes = ([5] * 5, 75), ([1] * 3, 20), ([1, 3, 2], 200), ([1] * 20, 100)
    tasks = [make_task(seed, *shape, d=48, noise=1.5, dtype=dtype) for seed, shape in enumerate(shapes)]
    features, labels = [t.features for t in tasks], [t.labels for t in tasks]
    set_threads(1)
    alone = [confidence_of(tim_ext.robust, z, y) for z, y in zip(features, labels, strict=True)]
    for threads in (1, 3):
        set_threads(threads)
        batch = confidence_of(tim_ext.robust, features, labels)
        backwards = confidence_of(tim_ext.robust, features[::-1], labels[::-1])
        for t, one in enumerate(alone):
            assert torch.equal(batch[t], one), (threads, t)
            assert torch.equal(backwards[-1 - t], one), (threads, t)
    for t, one in enumerate(alone):
        z = torch.cat([features[t][:3], torch.full((4, 48), torch.nan, dtype=dtype), features[t][3:]])
        y = torch.cat([labels[t][:3], torch.full((4,), -100), labels[t][3:]])
        padded = confidence_of(tim_ext.robust, z, y)
        assert torch.equal(padded[y != -100], one)


def test_it_leaves_the_random_state_and_the_inputs_alone():
    task = make_task(3, [1] * 4, 30)
    before, features = torch.random.get_rng_state(), task.features.clone()
    confidence_of(tim_ext.adm, task.features, task.labels)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(task.features, features)


@pytest.mark.parametrize("shots", [1, 3])
def test_it_does_not_depend_on_the_default_device_or_on_inference_mode(shots, monkeypatch):
    monkeypatch.setattr(confidence, "MOST_QUERIES", 20)
    monkeypatch.setattr(confidence, "MOST_OF_A_CLASS", 2)
    task = make_task(3, [shots] * 4, 60)
    expected = confidence_of(tim_ext.robust, task.features, task.labels)
    with torch.device("meta"), torch.inference_mode():
        assert torch.equal(confidence_of(tim_ext.robust, task.features, task.labels), expected)


def test_small_chunks_change_nothing(monkeypatch):
    tasks = [make_task(seed, [2] * 3, 20, noise=1.5) for seed in range(5)]
    task = [t.features for t in tasks], [t.labels for t in tasks]
    whole = confidence_of(tim_ext.robust, *task)
    monkeypatch.setattr(confidence, "NUMBERS", 1)
    assert all(map(torch.equal, whole, confidence_of(tim_ext.robust, *task)))


@pytest.mark.parametrize("shots", [1, 4])
def test_many_queries_are_judged_in_parts(shots, monkeypatch):
    task = make_task(5, [shots] * 4, 300, noise=1.2)
    calls: list[list[int]] = []
    monkeypatch.setattr(confidence, "_batch_of", recording(confidence._batch_of, calls))
    whole = confidence_of(tim_ext.robust, task.features, task.labels)
    monkeypatch.setattr(confidence, "MOST_QUERIES", 100)
    monkeypatch.setattr(confidence, "MOST_OF_A_CLASS", 10)
    calls.clear()
    parts = confidence_of(tim_ext.robust, task.features, task.labels)
    assert calls[0] == [100 + 4 * shots] * 3
    queries = task.labels == -1
    assert (parts[queries] > 0).all()
    assert float((parts - whole)[queries].abs().mean()) < 0.1


@pytest.mark.parametrize(
    ("labelled", "classes", "most"), [(5, 5, 2000), (50, 150, 7500), (10, 999, 20000), (30000, 9, 30000)]
)
def test_how_many_queries_a_part_has(labelled, classes, most):
    assert confidence.most_queries(labelled, classes) == most


def recording(function: Any, calls: list[list[int]]) -> Any:
    def record(*arguments: Any) -> Any:
        batch = function(*arguments)
        calls.append(list(batch.sizes))
        return batch

    return record


def test_it_does_not_depend_on_the_length_of_the_features():
    task = make_task(6, [2] * 4, 40, noise=1.5)
    predictions = torch.zeros_like(task.labels)
    one, other = (
        confidence.confidences(make_batch(z, task.labels), predictions, judge)
        for z in (task.features, 64 * task.features)
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


# The equations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["adm", "robust"])
@pytest.mark.parametrize("prior", [None, [0.5, 0.2, 0.2, 0.1]])
@pytest.mark.parametrize("shots", [[3] * 4, [1] * 4, [1, 4, 2, 1]])
def test_it_is_that_of_the_reference(method, prior, shots):
    task = make_task(7, shots, 40, d=24, noise=1.2, dtype=torch.float64)
    options = {"class_prior": prior, "outputs": ALL}
    found = getattr(tim_ext, method)(task.features, task.labels, **options)
    expected = getattr(reference, method)(task.features, task.labels, **options)
    torch.testing.assert_close(found.confidence, expected.confidence, rtol=0, atol=1e-8)


def test_the_vote_of_the_neighbours():
    task = make_task(8, [2] * 3, 40, d=16, noise=1.5, dtype=torch.float64)
    z, y = task.features, task.labels
    p = tim_ext.robust(z, y).probs
    x = z / z.norm(dim=1, keepdim=True)
    x = x - x.mean(dim=0)
    x = x / x.norm(dim=1, keepdim=True)
    near, every = confidence.neighbours(z, 3), torch.ones(len(y), dtype=torch.bool)
    found = confidence.neighbour_vote(near, y[None], p[None], every[None])
    some = every & (torch.arange(len(y)) % 3 == 0)
    assert torch.equal(confidence.neighbour_vote(near, y[None], p[None], some[None]), found[some])
    for i in range(0, len(y), 7):
        cos = x @ x[i]
        cos[i] = -2
        near = cos.argsort(descending=True)[: round(len(y) / 6)]
        weight = cos[near].clamp(min=0) ** 3
        a = torch.stack([torch.eye(3).double()[y[j]] if y[j] >= 0 else p[j] for j in near])
        torch.testing.assert_close(found[i], weight @ a / weight.sum())


def test_what_comes_back_of_held_out_samples():
    y = torch.tensor([0, 0, 1, -1])
    labels = torch.tensor([[0, -1, 1, -1], [-1, 0, 1, -1]])
    p = torch.tensor(
        [[[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.5, 0.5]], [[0.3, 0.7], [0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]]
    )
    # all neighbours of equal weight; in the second solve sample 0 is a neighbour without a label
    near = Neighbours(torch.ones(4, 2), torch.tensor([[1, 2], [0, 3], [0, 1], [0, 1]]))
    found = confidence.returned(y, labels, p, near)
    assert found.total == 2
    assert float(found.h) == pytest.approx((1 + 0.45) / 2.5)
    assert float(found.g) == pytest.approx((0.8 + 0.3 + 0.45) / 2.5)
    assert float(found.s) == pytest.approx((0.8 + 0.7 + 0.45) / 2.5)
    # sample 1 gets class 0: votes 1 and 0.5; sample 0 gets class 1: votes 0 and 1
    assert float(found.u) == pytest.approx((0.75 + 0.5 + 0.45) / 2.5)


def test_the_terms_of_a_task():
    task = make_task(11, [3] * 4, 60, d=24, noise=2.0, dtype=torch.float64)
    batch = make_batch(task.features, task.labels)
    queries = task.labels == -1
    p = judge(batch)[0].view(-1, 4)
    labels = confidence.other_labels(part_of(task.labels, 4), p)
    more = torch.stack([judge(make_batch(task.features, one))[0].view(-1, 4) for one in labels])
    found = confidence.returned(task.labels, labels, more, confidence.neighbours(task.features, 4))
    predictions = p.argmax(dim=1)
    [(places, terms, share)] = confidence.evidence(batch, predictions, judge)
    assert torch.equal(places, queries.nonzero()[:, 0])
    assert share == 1.0
    v, e, h, g, mean_v, mean_p, _, product, over, slope, mean_e, size = terms.T
    every = torch.stack([p, *more])[:, queries].mean(dim=0)
    of_class = every.gather(1, predictions[queries][:, None])[:, 0]
    torch.testing.assert_close(e, of_class.clamp(0.005, 0.995).logit())
    assert float(h[0]) == pytest.approx(float(found.h.logit()))
    assert float(g[0]) == pytest.approx(float(found.g.logit()))
    assert float(mean_p[0]) == pytest.approx(float(p[queries].amax(dim=1).mean().logit()))
    assert float(mean_e[0]) == pytest.approx(float(every.amax(dim=1).mean().logit()))
    assert float(size[0]) == pytest.approx(float(torch.tensor(15.0).log()))
    assert found.total == 24
    assert float(over[0]) == pytest.approx(24 / 64 * float(found.h.logit() - found.u.logit()))
    torch.testing.assert_close(product, v * h)
    softness = found.h.logit() - found.s.logit()
    torch.testing.assert_close(slope, (v - mean_v + e - mean_e) * softness)


def part_of(labels: Tensor, classes: int, fixed: Tensor | None = None) -> Part:
    fixed = torch.zeros(len(labels), dtype=torch.bool) if fixed is None else fixed
    counts = torch.bincount(labels[labels >= 0], minlength=classes)
    return Part(0, torch.arange(len(labels)), labels, classes, fixed, counts)


def test_halves_of_the_labelled_samples_are_held_out_in_turn():
    labels = torch.tensor([0] * 5 + [1] * 2 + [-1] * 20)
    p = torch.full((27, 2), 0.5)
    others = confidence.other_labels(part_of(labels, 2), p)
    assert torch.equal(others[:, 7:], labels[7:].expand(4, -1))  # no query gets a label
    for first in (0, 2):
        one, other = others[first], others[first + 1]
        assert ((one[:7] >= 0) ^ (other[:7] >= 0)).all()  # held out once, by turns
        assert [int((one == k).sum()) for k in (0, 1)] == [3, 1]
        assert [int((other == k).sum()) for k in (0, 1)] == [2, 1]
    assert not torch.equal(others[0], others[2])
    kept = others[:, :7] >= 0
    assert torch.equal(others[:, :7][kept], labels[:7].expand(4, -1)[kept])


def test_a_confident_query_takes_the_place_of_an_only_sample():
    labels = torch.tensor([0, 1, 2, *[-1] * 60])
    p = torch.full((63, 3), 0.001)
    owner = torch.tensor([0, 1, 2, *[0, 1] * 29, 2, 2])  # class 2 has two queries: too few
    p[torch.arange(63), owner] = 0.6
    p[3, 0] = 1.0
    others = confidence.other_labels(part_of(labels, 3), p)
    assert (others[:, :2] == -1).all()
    assert (others[:, 2] == 2).all()
    for k in (0, 1):
        chosen = (others == k).nonzero()
        assert len(chosen) == 4  # one in each solve
        assert (owner[chosen[:, 1]] == k).all()
        assert chosen[:, 1].unique().numel() > 1


def test_class_vectors_keep_their_labels_beside_samples():
    labels = torch.tensor([0, 1, *[-1] * 20, 0, 0, 1, 1])
    fixed = torch.arange(26) >= 22
    others = confidence.other_labels(part_of(labels, 2, fixed), torch.full((26, 2), 0.5))
    assert torch.equal(others[:, 22:], labels[22:].expand(4, -1))
    assert others[0::2, :2].tolist() == [[0, 1]] * 2
    assert (others[1::2, :2] == -1).all()


@pytest.mark.parametrize("shots", [0, 1, 3])
def test_with_class_vectors(shots):
    task = make_task(9, [max(shots, 1)] * 4, 40, d=24, noise=1.0)
    own = slice(4 * max(shots, 1) if shots == 0 else 0, None)
    vectors = torch.stack([task.features[task.truth == k].mean(dim=0) for k in range(4)])
    z, y = task.features[own], task.labels[own]
    found = tim_ext.robust(z, y, class_vectors=vectors, outputs=ALL)
    assert found.confidence.shape == y.shape
    right = (found.predictions == task.truth[own])[y == -1]
    assert abs(float(found.confidence[y == -1].mean()) - float(right.double().mean())) < 0.2


# That it says something -------------------------------------------------------------------------------


def drawn(shots: int, noise: float, tasks: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and truth of tasks whose classes overlap and are not equally large."""
    some = [make_task(seed, [shots] * 5, 80, d=32, noise=noise) for seed in range(tasks)]
    features, labels, truth = (
        torch.stack([getattr(t, k) for t in some]) for k in ("features", "labels", "truth")
    )
    rare = (truth > 2) & (torch.arange(labels.shape[1]) % 3 > 0) & (labels == -1)
    return features, labels.masked_fill(rare, -100), truth


@pytest.mark.parametrize("method", ["adm", "robust"])
@pytest.mark.parametrize("shots", [1, 5])
def test_it_is_calibrated_where_the_largest_probability_is_not(method, shots):
    sure, largest, right = [], [], []
    for noise in (1.0, 2.0, 3.0):
        features, labels, truth = drawn(shots, noise)
        found = getattr(tim_ext, method)(features, labels, outputs=ALL)
        queries = labels == -1
        sure.append(found.confidence[queries])
        largest.append(found.probs.amax(dim=-1)[queries])
        right.append((found.predictions == truth)[queries])
    c, p, correct = map(torch.cat, (sure, largest, right))
    before, after = reliability(p, correct).error, reliability(c, correct).error
    assert before > 8  # or there was nothing to do
    assert after < before / 2, (before, after)
    low, high = c < c.median(), c >= c.median()
    assert correct[high].double().mean() > correct[low].double().mean() + 0.15


def test_predictions_of_another_method_are_judged_by_what_they_are():
    features, labels, truth = (one[0] for one in drawn(5, 0.7))
    queries = labels == -1
    batch = make_batch(features, labels)
    good = confidence.confidences(batch, truth, judge)[queries]
    bad = confidence.confidences(batch, (truth + 1) % 5, judge)[queries]
    assert good.mean() > 0.75
    assert bad.mean() < 0.25


# Refusals ---------------------------------------------------------------------------------------------


def test_other_names_and_other_methods_are_refused():
    task = make_task(0, [1] * 3, 5)
    names = "'probs', 'predictions', 'weights', 'outlier', 'confidence'"
    with pytest.raises(ValueError, match=f"outputs: expected a tuple of names out of {names}, got 'sure'"):
        tim_ext.adm(task.features, task.labels, outputs=("sure",))
    with pytest.raises(ValueError, match=r"outputs: .*, got 'confidence'"):
        tim_ext.baselines.pt_map(task.features, task.labels, outputs=("confidence",))
