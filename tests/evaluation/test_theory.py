"""The quantities of the propositions, against autograd, brute force and their own statements."""

from __future__ import annotations

import math
import re

import pytest
import torch
from helpers.paths import DOCS
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tim_ext
from tim_ext import tasks as samplers
from tim_ext.evaluation import theory
from tim_ext.reference import unit_length


def random_probs(
    seed: int, tasks: int, queries: int, classes: int, sharpness: float
) -> tuple[Tensor, Tensor]:
    """Probabilities that lean to the true class: [T, Q, K], and that class [T, Q]"""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(classes, (tasks, queries), generator=generator)
    logits = torch.randn(tasks, queries, classes, generator=generator, dtype=torch.float64)
    logits += 1.5 * torch.nn.functional.one_hot(truth, classes)
    return (sharpness * logits).softmax(dim=-1), truth


def entropy_bits(probabilities: list[float]) -> float:
    return -sum(p * math.log2(p) for p in probabilities if p > 0)


# Mutual information and risk ----------------------------------------------------------------------


def test_mutual_information_is_that_of_the_history() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 40, 16, generator=generator, dtype=torch.float64)
    labels = torch.full((3, 40), -1)
    labels[:, :10] = torch.arange(10) % 5
    result = tim_ext.adm(features, labels, iterations=7, history=True)
    assert isinstance(result.probs, Tensor)
    assert result.history is not None
    torch.testing.assert_close(
        theory.mutual_information(result.probs[:, 10:]), result.history.mutual_information[:, -1]
    )


def test_mutual_information_at_its_ends() -> None:
    assert theory.mutual_information(torch.eye(4).repeat(3, 1)).item() == pytest.approx(math.log(4))
    assert theory.mutual_information(torch.full((8, 4), 0.25)).item() == pytest.approx(0, abs=1e-15)


def test_confusion_matrix_counts_pairs() -> None:
    probs, truth = random_probs(0, 2, 30, 4, 2.0)
    expected = torch.zeros(2, 4, 4, dtype=torch.float64)
    for t in range(2):
        for i in range(30):
            expected[t, truth[t, i]] += probs[t, i] / 30
    torch.testing.assert_close(theory.confusion_matrix(probs, truth), expected)
    torch.testing.assert_close(theory.confusion_matrix(probs, truth).sum((-2, -1)), torch.ones(2).double())


@pytest.mark.parametrize(
    ("rows", "dominant"),
    [
        ([[3, 2, 1], [0, 1, 0], [1, 1, 2]], True),
        ([[3, 3, 1], [0, 1, 0], [1, 1, 2]], False),  # > and not >=
        ([[3, 0, 0], [0, 1, 0], [9, 0, 2]], False),
        ([[3, 9, 0], [0, 10, 0], [0, 0, 2]], False),  # along the column only
        ([[3, 2, 0], [0, 0, 0], [0, 0, 2]], True),  # a class without queries
    ],
)
def test_diagonal_dominance(rows: list[list[float]], dominant: bool) -> None:
    matrix = torch.tensor(rows, dtype=torch.float64)
    assert theory.diagonal_dominant(matrix / matrix.sum()).item() is dominant


@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 12),
    queries=st.integers(1, 60),
    sharpness=st.sampled_from([0.1, 1.0, 3.0, 10.0, 100.0]),
)
def test_the_bound_holds(seed: int, classes: int, queries: int, sharpness: float) -> None:
    probs, truth = random_probs(seed, 20, queries, classes, sharpness)
    risk = theory.risk_bound(probs, truth)
    assert (risk.lemma_bound >= risk.error - 1e-12)[risk.decisions_dominant].all()
    assert (risk.bound >= 2 * risk.lemma_bound - 1e-9).all()  # the proposition leaves out the factor 1/2
    decisions = probs.argmax(dim=-1)
    torch.testing.assert_close(risk.error, (decisions != truth).double().mean(dim=-1))


def test_risk_bound_term_by_term() -> None:
    """One task, in plain Python."""
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.4, 0.0], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]).double()
    truth = torch.tensor([0, 0, 1, 2])
    risk = theory.risk_bound(probs, truth)

    def delta(x: float) -> float:
        return entropy_bits([x, 1 - x]) + x * math.log2(3 - 1)

    predicted, actual = [1.7 / 4, 1.7 / 4, 0.6 / 4], [2 / 4, 1 / 4, 1 / 4]
    divergence = sum(p * math.log2(p / y) for p, y in zip(predicted, actual, strict=True))
    uncertainty = sum(entropy_bits(row) for row in probs.tolist()) / 4
    assert uncertainty > 2 / 3  # so that delta is at its maximum
    epsilon = 1 - 0.4  # class 2 is predicted with 0.4
    g = -math.log2(1 - epsilon) - 2 * epsilon * math.log2(epsilon)
    assert risk.error.item() == 0
    assert risk.marginal_term.item() == pytest.approx(delta(math.sqrt(math.log(2) / 2 * divergence)))
    assert risk.uncertainty_term.item() == pytest.approx(math.log2(3))
    assert risk.confusion_term.item() == pytest.approx(g)
    assert risk.bound.item() == pytest.approx(
        delta(math.sqrt(math.log(2) / 2 * divergence)) + math.log2(3) + g
    )
    doubt = 1 - (0.7 + 0.6 + 0.8 + 0.4) / 4
    joint = theory.confusion_matrix(probs, truth).flatten().tolist()
    equivocation = entropy_bits(joint) - entropy_bits(predicted)
    assert risk.lemma_bound.item() == pytest.approx((equivocation + delta(doubt)) / 2)
    assert risk.dominant.item()
    assert risk.decisions_dominant.item()


def test_risk_bound_of_perfect_and_of_permuted_decisions() -> None:
    truth = torch.arange(12) % 3
    perfect = theory.risk_bound(torch.eye(3)[truth], truth)
    assert perfect.error.item() == perfect.bound.item() == perfect.lemma_bound.item() == 0
    # the paper's example of largest mutual information and an error of 1: the assumption is what fails
    permuted = theory.risk_bound(torch.eye(3)[(truth + 1) % 3], truth)
    assert permuted.error.item() == 1
    assert permuted.lemma_bound.item() == 0
    assert not permuted.dominant.item()
    assert not permuted.decisions_dominant.item()
    assert permuted.bound.item() == math.inf  # epsilon = 1


def test_risk_bound_with_an_absent_class() -> None:
    probs, _ = random_probs(1, 1, 10, 3, 3.0)
    risk = theory.risk_bound(probs[0], torch.zeros(10, dtype=torch.int64))
    assert risk.marginal_term.item() == pytest.approx(math.log2(3))  # KL is infinite
    assert math.isfinite(risk.bound.item())


@pytest.mark.parametrize(
    ("probs", "truth", "message"),
    [
        (torch.ones(3), torch.zeros(3).long(), r"probs: expected shape \[.., Q, K\]"),
        (torch.ones(0, 3), torch.zeros(0).long(), r"probs: expected shape \[.., Q, K\].*got \[0, 3\]"),
        (torch.ones(4, 3), torch.zeros(3).long(), r"truth: expected shape \[4\] to match probs, got \[3\]"),
        (torch.ones(2, 3), torch.tensor([0, 3]), "truth: expected classes 0 to 2, got 3"),
        (torch.ones(2, 3), torch.tensor([0, -1]), "truth: expected classes 0 to 2, got -1"),
        (torch.ones(2, 1), torch.tensor([0, 0]), "probs: expected at least 2 classes"),
    ],
)
def test_risk_bound_refuses(probs: Tensor, truth: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.risk_bound(probs, truth)


def test_truth_must_be_integers() -> None:
    with pytest.raises(TypeError, match="truth: expected integers, got float32"):
        theory.confusion_matrix(torch.ones(2, 3), torch.zeros(2))


# The Hessians -------------------------------------------------------------------------------------


def random_geometry(samples: int, d: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = unit_length(torch.randn(samples, d, generator=generator, dtype=torch.float64))
    w = 0.5 * torch.randn(classes, d, generator=generator, dtype=torch.float64) / d**0.5
    return z, w


@pytest.mark.parametrize(("samples", "d"), [(3, 7), (12, 5), (6, 6)])
@pytest.mark.parametrize("temperature", [1.0, 15.0])
def test_hessian_is_that_of_autograd(samples: int, d: int, temperature: float) -> None:
    z, w = random_geometry(samples, d, 4)
    scale = math.sqrt(temperature)

    def log_sum_exp(scaled: Tensor, k: int) -> Tensor:
        """sum_i log sum_j exp(-1/2 ||z_i - w_j||^2) with w_k = scaled, all in units of 1/sqrt(tau)"""
        weights = torch.cat([scale * w[:k], scaled[None], scale * w[k + 1 :]])
        distances = (scale * z[:, None] - weights).square().sum(dim=2)  # [n, K]
        return (-distances / 2).logsumexp(dim=1).sum()

    expected = torch.stack(
        [torch.autograd.functional.hessian(lambda x, k=k: log_sum_exp(x, k), scale * w[k]) for k in range(4)]
    )
    actual = theory.hessian(z, w, temperature)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        theory.largest_eigenvalue(z, w, temperature), torch.linalg.eigvalsh(expected)[:, -1]
    )


@pytest.mark.parametrize(("samples", "d"), [(3, 7), (12, 5)])
def test_the_printed_matrix_is_never_positive(samples: int, d: int) -> None:
    z, w = random_geometry(samples, d, 4)
    probs = (15 * (z @ w.T - w.square().sum(dim=1) / 2)).softmax(dim=1)  # [n, K]
    difference = z[None] - w[:, None]  # [K, n, d]
    factor = 15 * (probs * (probs - 1)).T  # the printed sign
    printed = torch.einsum("kn,kni,knj->kij", factor, difference, difference)
    printed = printed - probs.sum(dim=0)[:, None, None] * torch.eye(d)
    largest = theory.largest_eigenvalue(z, w, 15.0, as_printed=True)
    torch.testing.assert_close(largest, torch.linalg.eigvalsh(printed)[:, -1])
    assert (largest < 0).all()
    assert (theory.largest_eigenvalue(z, w, 15.0) > largest).all()


def test_eigenvalues_of_a_batch_are_those_of_its_tasks() -> None:
    pairs = [random_geometry(6, 9, 3, seed) for seed in range(4)]
    z, w = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    single = torch.stack([theory.largest_eigenvalue(*pair, 15.0) for pair in pairs])
    torch.testing.assert_close(theory.largest_eigenvalue(z, w, 15.0), single)


def test_eigenvalues_where_they_are_degenerate() -> None:
    """The same sample many times, of rank 1; and a single class, for which p = 1 and V = 0."""
    z, w = random_geometry(1, 9, 3)
    many = z.expand(20, 9)
    expected = torch.linalg.eigvalsh(theory.hessian(many, w, 15.0))[:, -1]
    torch.testing.assert_close(theory.largest_eigenvalue(many, w, 15.0), expected)
    z, w = random_geometry(20, 9, 1)
    torch.testing.assert_close(theory.largest_eigenvalue(z, w, 15.0), torch.tensor([-20.0]).double())


def test_eigenvalues_of_large_problems() -> None:
    z, w = random_geometry(150, 200, 3)
    expected = torch.linalg.eigvalsh(theory.hessian(z, w, 15.0))[:, -1]
    torch.testing.assert_close(theory.largest_eigenvalue(z, w, 15.0), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("features", "weights", "message"),
    [
        (torch.ones(5), torch.ones(2, 5), "features, weights: expected shapes"),
        (torch.ones(4, 5), torch.ones(2, 6), r"weights: expected shape \[K, 5\] to match .* got \[2, 6\]"),
        (torch.ones(3, 4, 5), torch.ones(2, 2, 5), r"weights: expected shape \[3, K, 5\]"),
    ],
)
def test_hessian_refuses(features: Tensor, weights: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.hessian(features, weights, 15.0)
    with pytest.raises(ValueError, match=message):
        theory.largest_eigenvalue(features, weights, 15.0)


# Over the iterations ------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [0, 1, 2, 3, 150, 1000])
def test_checkpoints(iterations: int) -> None:
    steps = theory.checkpoints(iterations)
    assert steps[0] == 0
    assert steps[-1] == iterations
    assert steps == sorted(set(steps))
    assert sum(steps) <= 2 * iterations


@pytest.fixture(scope="module")
def pool() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 12
    means = torch.randn(12, 48, generator=generator)
    return means[labels] + 2 * torch.randn(600, 48, generator=generator), labels


def ragged(tasks: samplers.Tasks) -> samplers.Tasks:
    """The same tasks as lists."""
    columns = (tasks.index, tasks.labels, tasks.truth, tasks.classes)
    return samplers.Tasks(*(list(column) for column in columns))


def test_convergence(pool: tuple[Tensor, Tensor]) -> None:
    tasks = samplers.balanced(pool[1], ways=4, shots=2, queries=6)[0:5]
    curve = theory.convergence(pool[0], tasks, iterations=20)
    assert curve.iterations.tolist() == theory.checkpoints(20)
    assert curve.accuracy.shape == curve.mutual_information.shape == (5, len(curve.iterations))
    assert (curve.seconds.diff() >= 0).all()
    assert (curve.seconds > 0).all()
    history = tim_ext.adm(pool[0], tasks.labels, index=tasks.index, iterations=20, history=True).history
    assert history is not None
    expected = history.mutual_information[:, curve.iterations]
    torch.testing.assert_close(curve.mutual_information, expected.double(), rtol=1e-4, atol=1e-5)
    query = tasks.labels == -1
    for c, step in enumerate(curve.iterations.tolist()):
        predictions = tim_ext.adm(pool[0], tasks.labels, index=tasks.index, iterations=step).predictions
        right = (predictions == tasks.truth) & query
        torch.testing.assert_close(curve.accuracy[:, c], right.sum(dim=1) / query.sum(dim=1).double())

    as_list = theory.convergence(pool[0], ragged(tasks), iterations=20)
    torch.testing.assert_close(as_list.accuracy, curve.accuracy)
    torch.testing.assert_close(as_list.mutual_information, curve.mutual_information)


def test_risk_over_the_iterations(pool: tuple[Tensor, Tensor]) -> None:
    tasks = samplers.balanced(pool[1], ways=4, shots=2, queries=6)[0:5]
    curve = theory.convergence(pool[0], tasks, tim_ext.gd, iterations=9)
    steps, bounds = theory.risk(pool[0], tasks, tim_ext.gd, iterations=9)
    torch.testing.assert_close(steps, curve.iterations)
    torch.testing.assert_close(bounds.error, 1 - curve.accuracy)
    assert bounds.dominant.shape == bounds.error.shape
    assert (bounds.lemma_bound >= bounds.error)[bounds.decisions_dominant].all()


@pytest.mark.parametrize("normalize", [True, False])
def test_curvature(pool: tuple[Tensor, Tensor], normalize: bool) -> None:
    features = pool[0] / 10
    tasks = samplers.balanced(pool[1], ways=4, shots=2, queries=6)[0:3]
    curve = theory.curvature(features, tasks, iterations=5, temperature=10.0, normalize=normalize)
    for c, step in enumerate(curve.iterations.tolist()):
        result = tim_ext.adm(
            features, tasks.labels, index=tasks.index, iterations=step, temperature=10.0, normalize=normalize
        )
        assert result.weights is not None
        for t in range(3):
            z = features[tasks.index[t]].double()
            z = unit_length(z) if normalize else z
            for values, printed, wanted in (
                (curve.support, curve.printed_support, tasks.labels[t] >= 0),
                (curve.query, curve.printed_query, tasks.labels[t] == -1),
            ):
                exact = torch.linalg.eigvalsh(theory.hessian(z[wanted], result.weights[t], 10.0))
                torch.testing.assert_close(values[t, c], exact.max(), rtol=1e-9, atol=1e-9)
                largest = theory.largest_eigenvalue(z[wanted], result.weights[t], 10.0, as_printed=True).max()
                torch.testing.assert_close(printed[t, c], largest)
    as_list = theory.curvature(features, ragged(tasks), iterations=5, temperature=10.0, normalize=normalize)
    torch.testing.assert_close(as_list.query, curve.query)


def test_initial_confusion(pool: tuple[Tensor, Tensor]) -> None:
    tasks = samplers.balanced(pool[1], ways=4, shots=2, queries=6)[0:5]
    mean, dominant = theory.initial_confusion(pool[0], tasks)
    torch.testing.assert_close(mean.sum(dim=1), torch.ones(4).double())
    assert dominant.shape == (5,)
    z = unit_length(pool[0].double())
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for index, labels, truth in zip(tasks.index, tasks.labels, tasks.truth, strict=True):
        w = torch.stack([z[index[labels == k]].mean(dim=0) for k in range(4)])
        probs = (-15 / 2 * torch.cdist(z[index[labels == -1]], w).square()).softmax(dim=1)
        for y in range(4):
            expected[y] += probs[truth[labels == -1] == y].mean(dim=0) / 5
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-5)


def test_initial_confusion_of_absent_classes_and_of_different_tasks(pool: tuple[Tensor, Tensor]) -> None:
    few = samplers.few_classes(pool[1], ways=4, present=2, shots=2, queries=12)[0:20]
    mean, _ = theory.initial_confusion(pool[0], few)
    torch.testing.assert_close(mean.sum(dim=1), torch.ones(4).double())
    random = samplers.meta_dataset(pool[1])[0:8]
    with pytest.raises(ValueError, match="tasks: expected the same number of classes in all tasks"):
        theory.initial_confusion(pool[0], random)


def test_the_python_of_the_page_runs() -> None:
    page = DOCS / "theory.md"
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    losses = names["losses"]
    assert isinstance(losses, Tensor)
    assert (losses[-1] < losses[0]).all()
