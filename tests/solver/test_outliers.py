"""`Result.outlier`: planted samples of other classes, its equations by hand, and that any input takes it."""

# ruff: noqa: E501

from __future__ import annotations

import pytest
import torch
from helpers.make_tasks import class_means, make_task
from helpers.real_features import real_features
from torch import Tensor

import tim_ext
from tim_ext import reference
from tim_ext.solver import outliers
from tim_ext.solver.params import ROBUST

D = 48
SOLVERS = [tim_ext.adm, tim_ext.robust, tim_ext.gd]


def planted(
    seed: int,
    classes: int = 5,
    shots: int = 3,
    inliers: int = 12,
    foreign: int = 24,
    noise: float = 0.8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Features [N, d], labels [N], which are foreign [N], of three classes that have no support."""
    generator = torch.Generator().manual_seed(seed)
    means = class_means(classes + 3, D, generator)
    truth = torch.cat(
        [
            torch.arange(classes).repeat_interleave(shots + inliers),
            classes + torch.arange(foreign) % 3,
        ]
    )
    scatter = torch.randn(len(truth), D, generator=generator, dtype=torch.float64) / D**0.5
    features = means[truth] + noise * scatter
    labels = truth.clone()
    labels[truth >= classes] = -1
    labels[: classes * (shots + inliers)].view(classes, -1)[:, shots:] = -1
    order = torch.randperm(len(truth), generator=generator)
    return features[order], labels[order], (truth >= classes)[order]


def outlier(features: Tensor, labels: Tensor, solve=tim_ext.robust, **more) -> Tensor:
    return solve(features, labels, outputs=["outlier"], **more).outlier


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Of a foreign and another query, how often the foreign one has the larger score."""
    return float((scores[positive][:, None] > scores[~positive]).double().mean())


@pytest.mark.parametrize(("shots", "noise", "at_least"), [(1, 0.8, 0.9), (5, 0.8, 0.97), (5, 0.2, 1.0)])
def test_planted_samples_are_found(shots, noise, at_least):
    found = []
    for seed in range(10):
        z, y, foreign = planted(seed, shots=shots, noise=noise)
        o, query = outlier(z, y), y == -1
        found.append(auroc(o[query], foreign[query]))
        assert o[query & foreign].mean() > 0.5 > 2 * o[query & ~foreign].mean()
    assert sum(found) / len(found) >= at_least


def test_their_share_is_about_the_sum():
    """Without any, with a fifth, with two fifths of the queries."""
    for count, least, most in ((0, 0.0, 0.08), (15, 0.12, 0.26), (40, 0.3, 0.46)):
        means = []
        for seed in range(10):
            z, y, _ = planted(seed, shots=5, foreign=count, noise=0.6)
            means.append(float(outlier(z, y)[y == -1].mean()))
        assert least <= sum(means) / len(means) <= most


def by_hand(z: Tensor, labels: Tensor, count: int) -> Tensor:
    """The equations of tim_ext/solver/outliers.py with matrices, for features with negative values."""
    z = reference.unit_length(z)
    n, query = len(z), labels == -1
    reach = 0.7 * (int((labels >= 0).sum()) / count) ** -0.2
    a = reference.neighbour_graph(z, reference.neighbour_count(n, count))
    d = a.sum(dim=1)
    m = torch.linalg.inv(torch.eye(n).double() - reach * a / d.sqrt() / d.sqrt()[:, None])
    z = reference.smooth(z, count, reach)

    def score(w: Tensor) -> Tensor:
        distance = torch.stack([(z - w_k).square().sum(dim=1) for w_k in w], dim=1).sort(dim=1).values
        mu = distance[query, 1].median()
        x = (distance[:, 0] / mu).clamp(max=1) * query
        s = m @ (d.sqrt() * x) / (m @ d.sqrt())
        return torch.where(query, 1 / (1 + (-12 * (s - 0.65)).exp()), 0)

    prototypes = torch.stack([z[labels == k].mean(dim=0) for k in range(count)])
    inlier = 1 - score(prototypes) ** 2
    w = reference.adm(
        z, labels, sample_weight=inlier, normalize=False, **{**vars(ROBUST), "smoothing": 0}
    ).weights
    return score((prototypes + w) / 2)


@pytest.mark.parametrize("dense", [400, 0])
def test_equations(monkeypatch, dense):
    """With the graph as a matrix, and by its edges."""
    monkeypatch.setattr(outliers, "DENSE", dense)
    for seed in range(3):
        z, y, _ = planted(seed)
        expected = by_hand(z, y, 5)
        torch.testing.assert_close(outlier(z, y), expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(outlier(z, y, reference.robust, iterations=0), expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(outlier(z.float(), y), expected.float(), rtol=0, atol=2e-4)


def test_neighbours_come_in_parts(monkeypatch):
    z, y, _ = planted(1)
    whole = outlier(z, y)
    monkeypatch.setattr(outliers, "COMPARED", 7 * len(z))
    torch.testing.assert_close(outlier(z, y), whole, rtol=0, atol=1e-12)


def test_every_solver_gives_the_same_and_nothing_else_changes():
    z, y, _ = planted(2)
    expected = outlier(z, y)
    for solve in SOLVERS:
        plain = solve(z, y, iterations=20)
        result = solve(z, y, iterations=20, outputs=("probs", "predictions", "weights", "outlier"))
        assert torch.equal(result.outlier, expected)
        assert plain.outlier is None
        for name in ("probs", "predictions", "weights", "proportions"):
            assert torch.equal(getattr(result, name), getattr(plain, name))
    assert outlier(z, y).dtype == torch.float64
    assert solve(z, y, iterations=0, outputs=["outlier"]).probs is None


@pytest.mark.parametrize("solve", SOLVERS, ids=lambda solve: solve.__name__)
def test_automatic_weights(solve):
    tasks = [planted(seed) for seed in range(2)]
    features, labels = torch.stack([z for z, _, _ in tasks]), torch.stack([y for _, y, _ in tasks])
    # proportions that are given are not judged by those of the pool
    more = {
        "iterations": 20,
        "class_prior": torch.full((int(labels.max()) + 1,), 1 / (int(labels.max()) + 1)),
    }
    weight = 1 - outlier(features, labels) ** 4
    expected = solve(features, labels, sample_weight=weight, **more)
    found = solve(features, labels, sample_weight="auto", **more)
    assert torch.equal(found.probs, expected.probs)
    assert found.outlier is None
    listed = solve(list(features), list(labels), sample_weight="auto", outputs=["probs", "outlier"], **more)
    assert torch.equal(listed.probs[1], expected.probs[1])
    assert torch.equal(1 - listed.outlier[1] ** 4, weight[1])
    assert not torch.equal(found.probs, solve(features, labels, **more).probs)
    slow, fast = (
        getattr(package, solve.__name__)(features, labels, sample_weight="auto", iterations=20).probs
        for package in (reference, tim_ext)
    )
    torch.testing.assert_close(slow, fast, rtol=0, atol=1e-7)


def test_automatic_weights_count_by_what_the_pool_says_of_its_proportions():
    labels = torch.zeros(4, dtype=torch.int64)
    o, m_1 = torch.tensor([0.0, 0.5, 1.0, 1.0]), torch.tensor([0.2, 0.2, 0.2, 1.0])

    def weight(m, prior=None):
        return outliers.inlier_weight(outliers.Scores(o, m_1), {"marginal_weight": m, "class_prior": prior})

    torch.testing.assert_close(weight(1.0), torch.tensor([1.0, 1 - 0.2 / 16, 0.8, 0.0]))
    torch.testing.assert_close(weight(0.4), torch.tensor([1.0, 1 - 0.5 / 16, 0.5, 0.0]))
    for args in ((0.2,), (0.0,), ("auto",), (1.0, labels)):
        torch.testing.assert_close(weight(*args), 1 - o**4)


def test_foreign_samples_stay_where_equal_classes_are_forced_upon_others():
    """adm with few queries of three classes, which foreign samples fill first."""
    z, y, foreign = planted(3)
    of = tim_ext.robust(z, y).predictions
    rare = (y == -1) & ~foreign & (of < 3) & (torch.arange(len(y)) % 6 > 0)
    z, y = z[~rare], y[~rare]
    o = outlier(z, y)
    heavy = tim_ext.adm(z, y, sample_weight=1 - o**4).probs
    none = tim_ext.adm(z, y).probs
    found = tim_ext.adm(z, y, sample_weight="auto").probs
    assert float((found - none).abs().mean()) < 0.5 * float((heavy - none).abs().mean())


def test_alone_in_a_batch_in_a_list_and_by_index(monkeypatch):
    tasks = [planted(seed) for seed in range(5)]
    alone = torch.stack([outlier(z, y) for z, y, _ in tasks])
    features, labels = torch.stack([z for z, _, _ in tasks]), torch.stack([y for _, y, _ in tasks])
    assert torch.equal(outlier(features, labels), alone)
    assert torch.equal(torch.stack(outlier(list(features), list(labels))), alone)
    index = torch.arange(labels.numel()).view(labels.shape)
    assert torch.equal(outlier(features.flatten(0, 1), labels, index=index), alone)
    monkeypatch.setattr(outliers, "BLOCK", 1)  # every task in a block of its own
    assert torch.equal(outlier(features, labels), alone)
    z, y, _ = planted(7, classes=3)
    ragged = outlier([features[0], z], [labels[0], y])
    assert torch.equal(ragged[0], alone[0])
    assert torch.equal(ragged[1], outlier(z, y))


def test_threads_matter_by_rounding_alone():
    z, y, _ = planted(3)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(outlier(z.float(), y))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_padding_support_and_half_types():
    z, y, _ = planted(4)
    nothing = torch.full((3, D), torch.nan, dtype=z.dtype)
    padded = torch.cat([nothing[:1], z, nothing[1:]]), torch.cat([y[:1] * 0 - 100, y, y[:2] * 0 - 100])
    before = [x.clone() for x in padded]
    o = outlier(*padded)
    assert torch.equal(o[1:-2], outlier(z, y))
    assert o[[0, -2, -1]].tolist() == [0, 0, 0]
    assert (o[padded[1] >= 0] == 0).all()
    assert ((o >= 0) & (o <= 1)).all()
    torch.testing.assert_close(padded[0], before[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(outlier(z.half(), y), outlier(z.half().float(), y))
    assert outlier(z.bfloat16(), y).dtype == torch.float32


def test_lengths_and_order_do_not_matter():
    z, y, _ = planted(5)
    expected = outlier(z, y)
    torch.testing.assert_close(outlier(z * torch.rand(len(z), 1).double() * 9, y), expected)
    order = torch.randperm(len(z))
    torch.testing.assert_close(outlier(z[order], y[order]), expected[order])
    renamed = torch.where(y >= 0, 4 - y, y)
    torch.testing.assert_close(outlier(z, renamed), expected)
    unit = reference.unit_length(z)
    torch.testing.assert_close(
        outlier(unit * 3, y, normalize=False, temperature=2.0), outlier(unit * 3, y, normalize=False)
    )


def test_tasks_with_little_in_them():
    made = make_task(0, shots=(2, 1), queries=0, d=6)
    assert not outlier(made.features, made.labels).any()
    one = make_task(0, shots=(1, 1), queries=1, d=6)
    assert outlier(one.features, one.labels).isfinite().all()
    same = torch.ones(9, 4)
    labels = torch.tensor([0, 1, *[-1] * 7])
    assert (outlier(same, labels) < 0.01).all()  # nothing is far from anything
    zeros = outlier(torch.zeros(9, 4), labels)
    assert ((zeros >= 0) & (zeros <= 1)).all()


def test_class_vectors_leave_no_rows_behind():
    z, y, foreign = planted(6, noise=0.4)
    vectors = torch.stack([z[y == k].mean(dim=0) for k in range(5)])
    o = outlier(z, y, class_vectors=vectors)
    assert o.shape == y.shape
    query = y == -1
    assert auroc(o[query], foreign[query]) > 0.95
    batch = outlier(torch.stack([z, z.flip(0)]), torch.stack([y, y.flip(0)]), class_vectors=vectors)
    assert torch.equal(batch[0], o)


@pytest.mark.parametrize("name", ["cifarfs_test", "omniglot", "clinc150"])
def test_real_features(name):
    """5 ways, 5 shots, two fifths foreign: above 0.8, and above the nearest prototype and the largest p."""
    data = real_features(f"{name}_features.npz")
    found: dict[str, list[float]] = {"outlier": [], "distance": [], "largest": []}
    for seed in range(20):
        order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(seed))
        classes = data.labels[order].unique()[torch.randperm(int(data.labels.max()) + 1)[:10]]
        rows = torch.cat(
            [order[data.labels[order] == k][: 20 if i < 5 else 10] for i, k in enumerate(classes)]
        )
        truth = torch.cat([torch.arange(5).repeat_interleave(20), torch.full((50,), 5)])
        labels = torch.where((torch.arange(150) % 20 < 5) & (truth < 5), truth, -1)
        z, query, foreign = reference.unit_length(data.features[rows].float()), labels == -1, truth == 5
        result = tim_ext.adm(z, labels, iterations=0, outputs=["outlier", "probs", "weights"])
        scores = {"outlier": result.outlier, "distance": torch.cdist(z, result.weights).amin(dim=1)}
        for key, score in (scores | {"largest": -result.probs.amax(dim=1)}).items():
            found[key].append(auroc(score[query], foreign[query]))
    means = {key: sum(values) / 20 for key, values in found.items()}
    assert means["outlier"] > max(0.8, means["distance"], means["largest"])


Z, Y, _ = planted(8)


@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (Z, Y.clamp(max=0), ValueError, "outputs: expected two classes or more for 'outlier', got one"),
        ([Z, Z], [Y, Y.clamp(max=0)], ValueError, "'outlier', got one in task 1"),
        (Z.index_fill(0, torch.tensor(3), torch.nan), Y, ValueError, "features: expected finite values, got NaN or Inf at sample 3"),
        (Z, Y.clamp(max=-1), ValueError, "labels: expected support samples"),
        (Z, torch.where(Y == 1, -1, Y), ValueError, "labels: expected support of each class 0 to 4, got none of class 1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("solve", [tim_ext.robust, reference.robust], ids=["native", "reference"])
def test_refusals(solve, features, labels, error, message):
    with pytest.raises(error, match=message):
        solve(features, labels, outputs=["outlier"])


def test_others_say_that_they_have_none():
    with pytest.raises(ValueError, match=r"outputs: .* 'weights', 'outlier', .*got 'outliers'"):
        tim_ext.adm(Z, Y, outputs=["outliers"])
    with pytest.raises(ValueError, match=r"outputs: .* 'weights', got 'outlier'"):
        tim_ext.baselines.paddle(Z, Y, outputs=["outlier"])
