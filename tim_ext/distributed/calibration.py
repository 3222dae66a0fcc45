"""The confidences of a labelled pool: `Result.confidence` of some of its rows, and by them those of all.

The rows are all that were labelled by hand (of very many, some of each class) and a random sample of the
others, so that the work does not grow with the pool. Where the sample is all the others, each row has its own
confidence. Or else a row gets what the sample's rows of its largest probability have: the means of the
monotone function of p that is nearest to their confidences, and straight lines between these means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..files.label_files import Support
from ..files.predictions import RECORD, Records
from ..solver.class_vectors import batch_of
from ..solver.confidence import confidences, most_queries
from ..solver.inputs import QUERY
from ..solver.params import CLASS_VECTOR_WEIGHT
from ..solver.solve import judge

MOST_LABELLED = 10_000  # or one of each class
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Calibration:
    classes: int  # rows of a larger number are of none of them, and keep what they have
    labelled: NDArray[np.int64]  # rows, sorted
    rows: NDArray[np.int64] | None  # of `sure`, sorted, if that is each row's own confidence
    largest: Numbers  # p, ascending
    sure: Numbers  # confidences at these

    def __call__(self, start: int, records: Records) -> Records:
        """Records of the rows from `start` on: with confidences for largest probabilities, and 1 for rows
        that were labelled."""
        records = records.copy()
        rows = np.arange(start, start + len(records))
        known = np.isin(rows, self._between(self.labelled, rows))
        if self.rows is None:
            found = np.interp(records["confidence"], self.largest, self.sure)
        else:
            found = np.ones(len(records))
            found[~known] = self.sure[np.searchsorted(self.rows, rows[~known])]
        found = np.where(records["label"] < self.classes, found, records["confidence"])
        records["confidence"] = np.where(known, 1.0, found)
        return records

    @staticmethod
    def _between(labelled: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        ends = np.searchsorted(labelled, [rows[0], rows[-1] + 1]) if len(rows) else (0, 0)
        return labelled[ends[0] : ends[1]]


def calibrate(
    pool: Tensor,  # [M, d]
    support: Support,
    found: Callable[[NDArray[np.int64]], Records],  # what the method found of these rows
    *,
    class_prior: Any = None,
    class_vectors: Tensor | None = None,
) -> Calibration:
    """The same rows are drawn every time."""
    draw = np.random.default_rng(0)
    labelled = np.sort(support.rows.numpy())
    known = _draw_labelled(support, draw)
    sample = _draw_queries(len(pool), labelled, most_queries(len(known), len(support.class_names)), draw)
    classes = len(support.class_names)
    if len(sample) == 0:
        return Calibration(classes, labelled, None, np.ones(1), np.ones(1))
    rows = np.concatenate([support.rows.numpy()[known], sample])
    order = np.argsort(rows, kind="stable")
    labels = torch.cat([support.labels.long()[known], torch.full((len(sample),), QUERY)])[order]
    records = found(sample)
    belongs = records["label"] < classes
    predictions = torch.full((len(rows),), QUERY)
    predictions[len(known) :] = torch.from_numpy(np.where(belongs, records["label"], 0).astype(np.int64))
    sure = _confidences(pool, rows[order], labels, predictions[order], support, class_prior, class_vectors)
    own: Numbers = sure[labels == QUERY].double().numpy()
    if len(sample) + len(labelled) == len(pool):
        return Calibration(classes, labelled, sample, np.zeros(0), own)
    largest = records["confidence"].astype(np.float64)
    if not belongs.any():
        return Calibration(classes, labelled, None, np.ones(1), np.ones(1))
    return Calibration(classes, labelled, None, *monotone(largest[belongs], own[belongs]))


def _draw_queries(
    total: int, labelled: NDArray[np.int64], most: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Rows without a label, sorted: all of them, or so many."""
    others = total - len(labelled)
    places = np.arange(others) if others <= most else draw.choice(others, most, replace=False)
    places = np.sort(places)
    # the row that has so many rows without a label before it
    before = labelled - np.arange(len(labelled))
    return places + np.searchsorted(before, places, side="right")


def _draw_labelled(support: Support, draw: np.random.Generator) -> NDArray[np.int64]:
    """Places in `support`: all of them, or some of each class."""
    if len(support.rows) <= MOST_LABELLED:
        return np.arange(len(support.rows))
    labels = support.labels.numpy()
    most = max(1, MOST_LABELLED // len(support.class_names))
    order = draw.permutation(len(labels))
    chosen = [order[labels[order] == k][:most] for k in range(len(support.class_names))]
    return np.sort(np.concatenate(chosen))


def _confidences(
    pool: Tensor,
    rows: NDArray[np.int64],
    labels: Tensor,
    predictions: Tensor,
    support: Support,
    class_prior: Any,
    class_vectors: Tensor | None,
) -> Tensor:
    batch = batch_of(
        {
            "features": pool[torch.from_numpy(rows)],
            "labels": labels,
            "index": None,
            "num_classes": len(support.class_names),
            "normalize": True,
            "class_prior": class_prior,
            "weights": None,
            "class_vectors": class_vectors,
            "class_vector_weight": CLASS_VECTOR_WEIGHT,
            "sample_weight": None,
            "sample_prior": None,
        }
    )
    added = 0 if batch.added is None else batch.added[0]
    predictions = torch.cat([predictions, torch.full((added,), QUERY)])
    return confidences(batch, predictions, judge)[: len(rows)]


def monotone(p: Numbers, c: Numbers) -> tuple[Numbers, Numbers]:
    """p ascending, and at these the values of the monotone function nearest to c(p): neighbours that fall
    are replaced by their mean, until none do (pool adjacent violators)."""
    order = np.argsort(p, kind="stable")
    blocks: list[tuple[float, float, int]] = []  # mean of p, mean of c, how many
    for one, value in zip(p[order].tolist(), c[order].tolist(), strict=True):
        blocks.append((one, value, 1))
        while len(blocks) > 1 and (blocks[-2][1] >= blocks[-1][1] or blocks[-2][0] == blocks[-1][0]):
            (x, y, n), (u, v, m) = blocks[-2:]
            blocks[-2:] = [((n * x + m * u) / (n + m), (n * y + m * v) / (n + m), n + m)]
    return np.array([block[0] for block in blocks]), np.array([block[1] for block in blocks])


class Sureness(NamedTuple):
    """Of the rows without a label."""

    mean: float
    below_half: float  # share


def sureness(blocks: Iterator[Records], total: int, labelled: int) -> Sureness:
    mean, unsure = 0.0, 0
    for block in blocks:
        mean += float(block["confidence"].sum(dtype=np.float64))
        unsure += int((block["confidence"] < 0.5).sum())  # labelled rows have 1
    queries = max(total - labelled, 1)
    return Sureness((mean - labelled) / queries, unsure / queries)


def records_of(drafts: list[Path], counts: list[int], rows: NDArray[np.int64]) -> Records:
    """Of these rows, sorted, wherever they are."""
    found = np.empty(len(rows), RECORD)
    start = 0
    for draft, count in zip(drafts, counts, strict=True):
        first, last = np.searchsorted(rows, [start, start + count])
        if last > first:
            records: Records = np.memmap(draft, RECORD, "r")
            found[first:last] = records[rows[first:last] - start]
        start += count
    return found
