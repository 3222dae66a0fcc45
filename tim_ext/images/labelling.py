"""Folders of images, labelled from a few labelled ones per class, or from the names of the classes.

support/cat/1.jpg           a folder for each class, named after it
support/dog/1.jpg
query/any/where/2.jpg       what to label, in folders or not
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError, listed
from ..solver.inputs import QUERY
from ..solver.presets import PRESETS, with_defaults
from ..solver.solve import robust
from .extraction import Encoded, Extractor
from .reading import ImageError, class_folders, find_images, shown

FEW = 3  # images per class, below which names alone are labelled by the nearest text: docs/label.md


class Labelled(NamedTuple):
    """What was found about the images that could be read, and those that could not."""

    names: list[str]  # K classes
    known: Encoded  # S labelled images
    labels: Tensor  # [S]
    found: Encoded  # Q images to label
    probs: NDArray[np.float64]  # [Q, K]
    confidence: NDArray[np.float64]  # [Q]  that the most probable class is right
    nearest: NDArray[np.int64]  # [Q]  class of the nearest prototype
    by_nearest: bool  # whether `probs` are those of the nearest prototype, as there are too few images
    outlier: NDArray[np.float64]  # [Q]  0 .. 1: of none of the classes
    skipped: list[ImageError]

    def proportions(self, foreign: NDArray[np.bool_]) -> NDArray[np.float64]:
        """[K], those that the method found, of the images that are not foreign [Q]."""
        shares: NDArray[np.float64] = self.probs[~foreign].sum(axis=0) / len(self.probs)
        return shares


def label_images(
    classes: Mapping[str, Sequence[Path]],
    queries: Sequence[Path],
    extract: Extractor,
    method: str,
    hyper: Mapping[str, Any],
    spool: BinaryIO,
    vectors: Tensor | None = None,
    none_of_these: bool = False,
) -> Labelled:
    """Labels all `queries` at once from the images of the classes, and from `vectors` [K, d] of their names,
    if there are any; with `none_of_these` an image counts the less the more foreign it looks. Names alone,
    with few images, are labelled by the nearest of them, unless `iterations` are given. The pictures of the
    result are read from `spool`, a file that is open as long as they are used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # of odd files, which are read or listed
        known, known_skipped = extract([path for paths in classes.values() for path in paths], spool)
        labels = number_classes(classes, known, known_skipped)
        found, found_skipped = extract(queries, spool)
    if not found.paths:
        raise UserError(f"--query: none of the {len(queries):,} images can be read; {found_skipped[0]}")
    task = known.features, labels, found.features
    outlier = find_outliers(*task, vectors)
    if none_of_these and len(classes) > 1:
        hyper = {**hyper, "sample_weight": "auto"}
    few = not known.paths and len(found.paths) < FEW * len(classes) and "iterations" not in hyper
    nearest, sure = solve("adm", *task, {"iterations": 0}, vectors, judged=few)
    probs = nearest
    if not few:
        probs, sure = solve(method, *task, hyper, vectors)
    return Labelled(
        names=list(classes),
        known=known,
        labels=labels,
        found=found,
        probs=probs,
        confidence=sure,
        nearest=nearest.argmax(axis=1),
        by_nearest=few,
        outlier=outlier.double().numpy(),
        skipped=[*known_skipped, *found_skipped],
    )


def find_classes_and_queries(
    support: Path | None, query: Path, names: Collection[str] | None = None
) -> tuple[dict[str, list[Path]], list[Path]]:
    """The labelled images of each class, and the images to label.

    The classes are `names`, or without any the folders of `support`. Unless names is None, a class may have
    no image.
    """
    for option, folder in (("--support", support), ("--query", query)):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{option}: expected a folder, got {shown(folder)}, which is not one")
    classes = {} if support is None else _find_classes(support, query, names)
    if names:
        unknown = [name for name in classes if name not in names]
        if unknown:
            raise UserError(
                "--class-names: expected the names of all folders in --support, "
                f"got none of {listed(unknown)}"
            )
        classes = {name: classes.get(name, []) for name in names}
    queries = find_images(query, without=[] if support is None else [support])
    if not queries:
        raise UserError(f"--query: expected images in {shown(query)}, got none")
    return classes, queries


def _find_classes(support: Path, query: Path, names: Collection[str] | None) -> dict[str, list[Path]]:
    if support.resolve() in (query.resolve(), *query.resolve().parents):
        raise UserError(
            f"--query: expected a folder outside --support, got {shown(query)} in {shown(support)}"
        )
    classes = {shown(folder.name): find_images(folder) for folder in class_folders(support)}
    fewest, folders = (1, "a folder") if names else (2, "two folders")
    if len(classes) < fewest:
        got = f"one, {next(iter(classes))!r}" if classes else "none"
        raise UserError(
            f"--support: expected {folders} or more in {shown(support)}, one for each class, got {got}"
        )
    empty = [name for name, paths in classes.items() if not paths]
    if empty and names is None:
        raise UserError(f"--support: expected images of every class, got none of {listed(empty)}")
    return classes


def number_classes(
    classes: Mapping[str, Sequence[Path]], known: Encoded, skipped: Sequence[ImageError]
) -> Tensor:
    """[S]: the class of each labelled image that could be read; every class that has images must have one."""
    number = {path: k for k, paths in enumerate(classes.values()) for path in paths}
    labels = torch.tensor([number[path] for path in known.paths], dtype=torch.int64)
    have = set(labels.tolist())
    lost = [name for k, (name, paths) in enumerate(classes.items()) if paths and k not in have]
    if lost:
        first = next(error for error in skipped if number[error.path] not in have)
        raise UserError(f"--support: none of the images of {listed(lost)} can be read; {first}")
    return labels


def solve(
    method: str,
    known: Tensor,  # [S, d]
    labels: Tensor,  # [S]
    found: Tensor,  # [Q, d]
    hyper: Mapping[str, Any],
    vectors: Tensor | None = None,  # [K, d]
    *,
    judged: bool = True,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the images to label: probabilities [Q, K], and confidences [Q], none unless `judged`."""
    queries = labels.new_full((len(found),), QUERY)
    classes = int(labels.max()) + 1 if vectors is None else len(vectors)
    hyper = with_defaults(method, hyper, support=len(labels), num_classes=classes)
    result = PRESETS[method].solve(
        torch.cat([known, found]),
        torch.cat([labels, queries]),
        class_vectors=vectors,
        outputs=("probs", "confidence") if judged else ("probs",),
        **hyper,
    )
    assert isinstance(result.probs, Tensor)
    sure = result.confidence if isinstance(result.confidence, Tensor) else result.probs.new_empty(0)
    return (
        result.probs[len(labels) :].numpy().astype(np.float64),
        sure[len(labels) :].numpy().astype(np.float64),
    )


def find_outliers(known: Tensor, labels: Tensor, found: Tensor, vectors: Tensor | None = None) -> Tensor:
    """[Q]; 0 if there is one class."""
    if (int(labels.max()) + 1 if vectors is None else len(vectors)) < 2:
        return torch.zeros(len(found))
    queries = labels.new_full((len(found),), QUERY)
    task = torch.cat([known, found]), torch.cat([labels, queries])
    result = robust(*task, class_vectors=vectors, iterations=0, outputs=("outlier",))
    assert isinstance(result.outlier, Tensor)
    return result.outlier[len(labels) :]


def best_two(
    probs: NDArray[np.float64], confidence: NDArray[np.float64]
) -> Iterator[tuple[int, float, int, float]]:
    """For each image: the most probable class and its confidence; the class that comes second, and its share
    of the rest, (1 - confidence) p_second / (1 - p_first), at most the confidence."""
    order = np.argsort(-probs, axis=1, kind="stable")
    for row, sure, (first, second) in zip(
        probs.tolist(), confidence.tolist(), order[:, :2].tolist(), strict=True
    ):
        rest = 1 - row[first]
        share = min(row[second] / rest, 1.0) if rest > 0 else 0.0
        yield first, sure, second, min((1 - sure) * share, sure)
