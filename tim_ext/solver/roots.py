"""The square root of features without a negative value, as after a ReLU: it evens out their skew."""

from __future__ import annotations

import torch
from torch import Tensor

from .batch import Batch
from .inputs import PADDING

LEAST = 1e-6  # added below the root


def with_roots(batch: Batch) -> Batch:
    """z <- sqrt(z + 1e-6) in every task whose samples have no negative value; padding does not count."""
    if batch.rows is not None and len(batch.rows) < len(batch.features):
        batch = _gathered(batch)  # tasks that use a part of a pool cost no copy of all of it
    features = batch.features if batch.features.dtype == torch.float64 else batch.features.float()
    negative = ~(features.amin(dim=1) >= 0)  # [M]; NaN counts as negative, and is refused as it is
    of_samples = (negative if batch.rows is None else negative[_within(batch.rows, len(features))]) & (
        batch.labels != PADDING
    )
    before = torch.cat([of_samples.new_zeros(1, dtype=torch.int64), of_samples.cumsum(0)])
    offsets = batch.offsets.to(before.device)
    takes_roots = before[offsets[1:]] == before[offsets[:-1]]  # [T]
    if not torch.compiler.is_compiling():
        if not takes_roots.any():
            return batch
        if takes_roots.all():
            return batch._replace(
                features=features.add(LEAST).sqrt_()
            )  # NaN at most in rows that do not count
    chosen = takes_roots.repeat_interleave(offsets.diff(), output_size=len(batch.labels))  # [R]
    if batch.rows is None:
        return batch._replace(features=torch.where(chosen[:, None], _roots(features), features))
    both = torch.cat([features, _roots(features)])  # one pool for both kinds of tasks
    return batch._replace(features=both, rows=torch.where(chosen, batch.rows + len(features), batch.rows))


def _gathered(batch: Batch) -> Batch:
    """The samples themselves in the place of the pool; rows that are out of range are left to be refused."""
    assert batch.rows is not None
    total, padding = len(batch.features), batch.labels == PADDING
    if not (((batch.rows >= 0) & (batch.rows < total)) | padding).all():
        return batch
    rows = batch.rows.masked_fill(padding, 0)
    return batch._replace(features=batch.features[rows], rows=None)


def _roots(features: Tensor) -> Tensor:
    return (features.clamp(min=0) + LEAST).sqrt()


def _within(rows: Tensor, total: int) -> Tensor:
    """Rows that are out of range are refused by the operator."""
    return rows.clamp(0, total - 1)
