"""What is given for single samples: how much each counts, and what is known of its class from elsewhere.

Only what stands at queries is looked at, and at labelled samples to tell how good the priors are. Both reach
the kernels flat, in the order of the samples and of `probs`; the prior as logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .batch import Batch
from .inputs import QUERY, check_data, check_device, check_numeric, real_type, refuse_shape, to_numbers
from .params import check_number, check_or_auto, is_auto
from .prior_belief import LAM_0, belief
from .refusals import in_task

# A prior leaves no class out altogether, as it may be wrong: each has at least this much of the largest.
LEAST_SHARE = 1e-6


class Rows(NamedTuple):
    """Samples of one task, or of all tasks if they are of one shape."""

    values: Tensor  # [n] or [n, K]
    labels: Tensor  # [n]
    task: int  # the first
    size: int  # samples of a task

    @property
    def is_query(self) -> Tensor:
        return self.labels == QUERY


def with_sample_inputs(batch: Batch, given: Mapping[str, Any]) -> Batch:
    """From the arguments of a solver, by name."""
    weight, prior = given["sample_weight"], given["sample_prior"]
    if weight is not None and not is_auto(weight):  # outliers.py finds those
        batch = batch._replace(sample_weight=_sample_weight(weight, batch))
    if prior is not None:
        positive = partial(check_number, positive=True)
        lam_0 = check_or_auto("sample_prior_weight", given["sample_prior_weight"], check=positive)
        logs = _log_prior(prior, batch, is_auto(lam_0))
        lam_0 = LAM_0 if isinstance(lam_0, str) else lam_0
        batch = batch._replace(sample_log_prior=logs, sample_prior_weight=lam_0)
    return batch


def _sample_weight(value: Any, batch: Batch) -> Tensor:
    """[R], 0 where there is no query."""
    parts = []
    for rows in _rows("sample_weight", value, batch, by_class=False):
        weight = torch.where(rows.is_query, rows.values.to(real_type(batch.features)), 0)
        _check_values("sample_weight", weight, rows, batch)
        parts.append(weight)
    return _flat(parts, batch, [1] * len(batch.sizes))


def _log_prior(value: Any, batch: Batch, judged: bool) -> Tensor:
    """[sum N_t K_t]  log prior_ik, the largest of a row 0; 0 for rows of zeros, and where no query is

    Judged: times how much each task believes them, by what they are at its labelled samples.
    """
    parts = []
    for rows in _rows("sample_prior", value, batch, by_class=True):
        counts = rows.is_query | ((rows.labels >= 0) & judged)
        share = torch.where(counts[:, None], rows.values.to(real_type(batch.features)), 0)  # [n, K]
        _check_values("sample_prior", share, rows, batch)
        largest = share.amax(dim=1, keepdim=True)
        share.div_(largest).masked_fill_(largest == 0, 1)
        logs = share.clamp_(min=LEAST_SHARE).log_()
        if judged:
            believed = belief(logs, rows.labels, len(logs) // rows.size).to(logs)  # [tasks]
            logs *= believed.repeat_interleave(rows.size)[:, None] * rows.is_query[:, None]
        parts.append(logs)
    return _flat(parts, batch, list(batch.counts))


def _rows(name: str, value: Any, batch: Batch, *, by_class: bool) -> list[Rows]:
    """The caller's samples, with a value or K values for each; those of class vectors are not among them."""
    total, added = len(batch.sizes), batch.added or [0] * len(batch.sizes)
    sizes = [size - more for size, more in zip(batch.sizes, added, strict=True)]
    what = "a row of shares of the classes for each sample" if by_class else "a weight for each sample"

    def checked(part_name: str, part: Any, *shape: int) -> Tensor:
        tensor = to_numbers(part_name, part)
        check_numeric(part_name, tensor)
        check_data(part_name, tensor)
        if tensor.shape != shape:
            refuse_shape(part_name, f"{list(shape)}, {what}", tensor)
        check_device(part_name, tensor, batch.features, "features")
        return tensor

    def tail(task: int) -> tuple[int, ...]:
        return (batch.counts[task],) if by_class else ()

    if batch.lead is not None:
        whole = checked(name, value, *batch.lead, sizes[0], *tail(0))
        values = list(whole.reshape(total, sizes[0], *tail(0)))
        if batch.added is None:  # in one piece
            return [Rows(whole.reshape(-1, *tail(0)), batch.labels, 0, sizes[0])]
    else:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{name}: expected a list, as the tasks are one, got {type(value).__name__}")
        if len(value) != total:
            raise ValueError(f"{name}: expected {total} of them, one for each task, got {len(value)}")
        values = [checked(f"{name}[{t}]", item, sizes[t], *tail(t)) for t, item in enumerate(value)]
    labels = torch.split(batch.labels, list(batch.sizes))
    return [Rows(values[t], labels[t][: sizes[t]], t, sizes[t]) for t in range(total)]


def _check_values(name: str, used: Tensor, rows: Rows, batch: Batch) -> None:
    """used: the values that count, in the type that they are computed in"""
    proper = used.isfinite() & (used >= 0)
    if bool(proper.all()):
        return
    row, *column = (~proper).nonzero()[0].tolist()
    at = f" for class {column[0]}" if column else ""
    task, sample = divmod(row, rows.size)
    here = in_task(rows.task + task, len(batch.sizes))
    got = rows.values[row][column[0]].item() if column else rows.values[row].item()
    raise ValueError(f"{name}: expected finite numbers >= 0, got {got}{at} at sample {sample}{here}")


def _flat(parts: list[Tensor], batch: Batch, widths: list[int]) -> Tensor:
    """All rows, and zeros for those of class vectors, which are no queries."""
    if batch.added is not None:
        ends = [
            part.new_zeros(more * width) for part, more, width in zip(parts, batch.added, widths, strict=True)
        ]
        parts = [row.flatten() for pair in zip(parts, ends, strict=True) for row in pair]
    return torch.cat([part.flatten() for part in parts])
