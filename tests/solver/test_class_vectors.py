"""Class vectors: what they are to the solver, that any input takes them, and what they are good for."""
# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.make_tasks import class_means, make_task
from helpers.real_features import real_file
from torch import Tensor

import tim_ext
from tim_ext import reference

K, D = 4, 12
VECTORS = torch.randn(K, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
SOLVERS = [tim_ext.adm, tim_ext.robust, tim_ext.gd]
solvers = pytest.mark.parametrize("solve", SOLVERS, ids=lambda solve: solve.__name__)


def task(seed: int, labelled: bool = True, padding: int = 2) -> tuple[Tensor, Tensor]:
    made = make_task(seed, shots=(2, 1, 3, 1), queries=21, d=D, noise=0.9, padding=padding)
    return made.features, made.labels if labelled else made.labels.clamp(max=-1)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def by_hand(z: Tensor, labels: Tensor, t: Tensor, weight: int) -> tuple[Tensor, Tensor]:
    """The task with its class vectors as further rows, class by class and row by row."""
    z, t = unit(z), unit(t)
    classes: list[list[Tensor]] = [[] for _ in t]
    for row, label in zip(z, labels.tolist(), strict=True):
        if label != -100:
            classes[label if label >= 0 else int((t @ row).argmax())].append(row)
    shares = [len(rows) / (len(rows) + 1) for rows in classes]
    means = [torch.stack(rows).mean(dim=0) if rows else torch.zeros(D).to(z) for rows in classes]
    centre = sum(a * m for a, m in zip(shares, means, strict=True)) / sum(shares)
    copies = weight if any(label >= 0 for label in labels.tolist()) else 1
    rows = torch.cat([unit(z - centre), *[unit(t - t.mean(dim=0))] * copies])
    return rows, torch.cat([labels, *[torch.arange(len(t))] * copies])


@solvers
@pytest.mark.parametrize("labelled", [True, False])
def test_they_are_labelled_rows(solve, labelled):
    z, y = task(0, labelled)
    result = solve(z, y, class_vectors=VECTORS, class_vector_weight=3)
    expected = solve(*by_hand(z, y, VECTORS, 3))
    for name in ("probs", "predictions"):
        torch.testing.assert_close(
            getattr(result, name), getattr(expected, name)[: len(z)], rtol=0, atol=1e-9
        )
    for name in ("weights", "proportions"):
        torch.testing.assert_close(getattr(result, name), getattr(expected, name), rtol=0, atol=1e-9)


@solvers
@pytest.mark.parametrize(
    "more", [{}, {"normalize": False, "history": True}, {"class_prior": [0.1, 0.2, 0.3, 0.4]}]
)
def test_the_reference_takes_them_too(solve, more):
    z, y = task(1)
    # copies of a row are equally near but for rounding, so that the graph of robust may have another of them
    given = {"class_vectors": VECTORS, "class_vector_weight": 1, "iterations": 20, **more}
    result, expected = solve(z, y, **given), getattr(reference, solve.__name__)(z, y, **given)
    torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=1e-9)
    torch.testing.assert_close(result.weights, expected.weights, rtol=0, atol=1e-9)


@solvers
def test_any_input(solve):
    """A batch whose tasks differ in having labels, a list, rows of a pool: all as each task alone."""
    tasks = [task(seed, labelled) for seed, labelled in ((0, True), (1, False), (2, True))]
    features, labels = torch.stack([z for z, _ in tasks]), torch.stack([y for _, y in tasks])
    own = torch.stack([VECTORS, VECTORS.flip(0), VECTORS.roll(1, 0)])
    alone = [solve(z, y, class_vectors=t).probs for (z, y), t in zip(tasks, own, strict=True)]
    batch = solve(features, labels, class_vectors=own)
    assert batch.probs.shape == (*labels.shape, K)
    assert torch.equal(batch.probs, torch.stack(alone))
    assert batch.predictions.shape == labels.shape
    index = torch.arange(features[..., 0].numel()).view(labels.shape)
    by_index = solve(features.flatten(0, 1), labels, index=index, class_vectors=own)
    assert torch.equal(by_index.probs, batch.probs)
    for z, y, t in ((features, labels, own), (list(features), list(labels), list(own))):
        short = solve(z, y, class_vectors=t, outputs=["predictions"])
        assert short.probs is None
        assert torch.equal(torch.stack(list(short.predictions)), batch.predictions)
    same = solve(features, labels, class_vectors=VECTORS)
    assert torch.equal(same.probs[0], alone[0])


def test_half_types_and_padding_and_nothing_changed():
    z, y = task(3)
    z[y == -100] = torch.nan
    before, vectors = z.clone(), VECTORS.half()
    full = tim_ext.adm(z.half().float(), y, class_vectors=vectors.float())
    half = tim_ext.adm(z.half(), y, class_vectors=vectors)
    assert torch.equal(half.probs, full.probs)
    assert half.predictions[y == -100].tolist() == [-100, -100]
    torch.testing.assert_close(z, before, rtol=0, atol=0, equal_nan=True)


Z, Y = task(4, padding=0)
NAN = torch.nan


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"class_vectors": VECTORS[:, 1:]}, ValueError, r"class_vectors: expected shape \[K, 12\], a row for each class, got \[4, 11\]"),
        ({"class_vectors": VECTORS[:0]}, ValueError, r"class_vectors: expected shape \[K, 12\], a row for each class, got \[0, 12\]"),
        ({"class_vectors": VECTORS[0]}, ValueError, r"class_vectors: expected shape \[K, 12\], .* got \[12\]"),
        ({"class_vectors": VECTORS.long()}, TypeError, "class_vectors: expected float32, .* got int64"),
        ({"class_vectors": [VECTORS]}, ValueError, r"class_vectors: expected one matrix \[K, d\], got 1 of them"),
        ({"class_vectors": VECTORS.clone().index_fill_(0, torch.tensor(2), NAN)}, ValueError, "class_vectors: expected finite values, got NaN or Inf for class 2"),
        ({"class_vectors": VECTORS, "num_classes": 5}, ValueError, r"class_vectors: expected shape \[5, 12\], a row for each class, got \[4, 12\]"),
        ({"class_vectors": VECTORS[:3]}, ValueError, r"labels: expected a class 0 to 2, .* got 3 at sample \d+"),
        ({"class_vectors": VECTORS, "class_vector_weight": 0}, ValueError, "class_vector_weight: expected an integer >= 1, got 0"),
        ({"class_vectors": VECTORS, "class_vector_weight": 0.5}, TypeError, "class_vector_weight: expected an integer, got float 0.5"),
        ({"class_vectors": VECTORS, "index": torch.arange(28) + 1}, ValueError, "index: expected rows 0 to 27 of features, got 28 at sample 27"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("solve", [tim_ext.adm, reference.adm], ids=["native", "reference"])
def test_refusals(solve, given, error, message):
    with pytest.raises(error, match=f"^{message}"):
        solve(Z, Y, **given)


@pytest.mark.parametrize("solve", [tim_ext.adm, reference.adm], ids=["native", "reference"])
def test_a_row_that_is_not_finite_is_named(solve):
    z = Z.clone()
    z[7, 3] = NAN
    with pytest.raises(ValueError, match=r"^features: expected finite values, got NaN or Inf at sample 7$"):
        solve(z, Y, class_vectors=VECTORS)


# What they are good for ---------------------------------------------------------------------------


def two_cones(counts: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Images [N, d] and texts [K, d], each around a direction of its own, and the classes of the images."""
    generator = torch.Generator().manual_seed(seed)
    directions = class_means(len(counts) + 2, 40, generator)
    means, image, text = directions[:-2], directions[-2], directions[-1]
    truth = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    noise = torch.randn(len(truth), 40, generator=generator, dtype=torch.float64)
    distortion = torch.randn(len(counts), 40, generator=generator, dtype=torch.float64)
    images = 2 * image + 0.6 * means[truth] + 0.08 * noise
    return images, 2 * text + 0.6 * means + 0.06 * distortion, truth


@pytest.mark.parametrize("counts", [[30] * 6, [150, 6, 6, 6, 6, 6], [40, 40, 40, 0, 0, 0]])
def test_names_alone_label_a_pool(counts):
    images, texts, truth = two_cones(counts)
    found = tim_ext.robust(images, torch.full_like(truth, -1), class_vectors=texts).predictions
    assert (found == truth).double().mean() > 0.97


def test_the_centre_is_not_that_of_a_class_with_most_of_the_images():
    images, texts, truth = two_cones([300, 5, 5, 5, 5, 5])
    nobody = torch.full_like(truth, -1)
    found = tim_ext.robust(images, nobody, class_vectors=texts).predictions
    rows = torch.cat([unit(x - x.mean(dim=0)) for x in (unit(images), unit(texts))])
    by_mean = tim_ext.robust(rows, torch.cat([nobody, torch.arange(len(texts))])).predictions[: len(truth)]
    assert (found == truth).double().mean() > 0.97
    assert (by_mean == truth).double().mean() < 0.9


@pytest.mark.parametrize(("name", "least"), [("rn50", 95.4), ("vit-b-32", 95.3), ("vit-l-14", 99.1)])
def test_real_images_and_names(name, least):
    """WHU-RS19, CLIP: as good as TransCLIP, or better (its 95.9, 90.3 and 99.1)."""
    with np.load(real_file(f"whurs19_clip_{name}.npz"), allow_pickle=False) as file:
        images, texts, truth = (torch.from_numpy(file[key].astype(kind)) for key, kind in KEYS.items())
    found = tim_ext.robust(images, torch.full_like(truth, -1), class_vectors=texts).predictions
    assert 100 * (found == truth).double().mean() >= least


KEYS = {"features": np.float32, "text": np.float32, "labels": np.int64}
