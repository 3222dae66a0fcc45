"""Folders of images, labelled from a few labelled ones per class: found, encoded, solved.

support/cat/1.jpg           a folder for each class, named after it
support/dog/1.jpg
query/any/where/2.jpg       what to label, in folders or not
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError, listed
from ..solver.inputs import QUERY
from ..solver.presets import PRESETS, with_defaults
from .extraction import Encoded, Extractor
from .reading import ImageError, class_folders, find_images, shown


class Labelled(NamedTuple):
    """What was found about the images that could be read, and those that could not."""

    names: list[str]  # K classes
    known: Encoded  # S labelled images
    labels: Tensor  # [S]
    found: Encoded  # Q images to label
    probs: NDArray[np.float64]  # [Q, K]
    nearest: list[int]  # [K]  images of each class, by the nearest prototype
    skipped: list[ImageError]

    @property
    def proportions(self) -> NDArray[np.float64]:
        """[K], those that the method found."""
        shares: NDArray[np.float64] = self.probs.mean(axis=0)
        return shares


def label_images(
    classes: Mapping[str, Sequence[Path]],
    queries: Sequence[Path],
    extract: Extractor,
    method: str,
    hyper: Mapping[str, Any],
    spool: BinaryIO,
) -> Labelled:
    """Labels all `queries` at once from the images of the classes. The pictures of the result are read from
    `spool`, a file that is open as long as they are used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # of odd files, which are read or listed
        known, known_skipped = extract([path for paths in classes.values() for path in paths], spool)
        labels = number_classes(classes, known, known_skipped)
        found, found_skipped = extract(queries, spool)
    if not found.paths:
        raise UserError(f"--query: none of the {len(queries):,} images can be read; {found_skipped[0]}")
    probs = solve(method, known.features, labels, found.features, hyper)
    nearest = solve("adm", known.features, labels, found.features, {"iterations": 0}).argmax(axis=1)
    counts = np.bincount(nearest, minlength=len(classes)).tolist()
    return Labelled(list(classes), known, labels, found, probs, counts, [*known_skipped, *found_skipped])


def find_classes_and_queries(support: Path, query: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """The labelled images of each class, and the images to label."""
    for option, folder in (("--support", support), ("--query", query)):
        if not folder.is_dir():
            raise UserError(f"{option}: expected a folder, got {shown(folder)}, which is not one")
    if support.resolve() in (query.resolve(), *query.resolve().parents):
        raise UserError(
            f"--query: expected a folder outside --support, got {shown(query)} in {shown(support)}"
        )
    classes = {shown(folder.name): find_images(folder) for folder in class_folders(support)}
    expected = f"--support: expected two folders or more in {shown(support)}, one for each class"
    if len(classes) < 2:
        got = f"one, {next(iter(classes))!r}" if classes else "none"
        raise UserError(f"{expected}, got {got}")
    empty = [name for name, paths in classes.items() if not paths]
    if empty:
        raise UserError(f"--support: expected images of every class, got none of {listed(empty)}")
    queries = find_images(query, without=[support])
    if not queries:
        raise UserError(f"--query: expected images in {shown(query)}, got none")
    return classes, queries


def number_classes(
    classes: Mapping[str, Sequence[Path]], known: Encoded, skipped: Sequence[ImageError]
) -> Tensor:
    """[S]: the class of each labelled image that could be read; every class must have one."""
    number = {path: k for k, paths in enumerate(classes.values()) for path in paths}
    labels = torch.tensor([number[path] for path in known.paths], dtype=torch.int64)
    have = set(labels.tolist())
    lost = [name for k, name in enumerate(classes) if k not in have]
    if lost:
        first = next(error for error in skipped if number[error.path] not in have)
        raise UserError(f"--support: none of the images of {listed(lost)} can be read; {first}")
    return labels


def solve(
    method: str, known: Tensor, labels: Tensor, found: Tensor, hyper: Mapping[str, Any]
) -> NDArray[np.float64]:
    """[Q, K]: the probabilities of the images to label."""
    queries = labels.new_full((len(found),), QUERY)
    hyper = with_defaults(method, hyper, support=len(labels), num_classes=int(labels.max()) + 1)
    result = PRESETS[method].solve(
        torch.cat([known, found]), torch.cat([labels, queries]), outputs=("probs",), **hyper
    )
    assert isinstance(result.probs, Tensor)
    return result.probs[len(labels) :].numpy().astype(np.float64)


def best_two(probs: NDArray[np.float64]) -> Iterator[tuple[int, float, int, float]]:
    """For each image: the most probable class, its probability; the class that comes second, and its."""
    order = np.argsort(-probs, axis=1, kind="stable")
    for row, (first, second) in zip(probs.tolist(), order[:, :2].tolist(), strict=True):
        yield first, row[first], second, row[second]
