"""Why a task is refused: the codes that kernels report, found in plain torch too, and their sentences."""

from __future__ import annotations

import torch
from torch import Tensor

from .inputs import PADDING, QUERY

# csrc/common/status.h
NOT_FINITE, LABEL_OUT_OF_RANGE, CLASS_WITHOUT_SUPPORT, NO_SUPPORT, ROW_OUT_OF_RANGE = 1, 2, 3, 4, 5
RESULT_NOT_FINITE, WEIGHTS_NOT_FINITE = 6, 7


def find_problem(
    features: Tensor, rows: Tensor, labels: Tensor, count: int, weights: Tensor | None = None
) -> tuple[int, int, int]:
    """(code, position, value) of one task, as the kernels report it; padding is never looked at."""
    problem = find_label_problem(len(features), rows, labels, count)
    if problem[0] == 0:
        used = labels != PADDING
        wrong = ~features[rows[used]].isfinite().all(dim=1)
        if wrong.any():
            return NOT_FINITE, int(used.nonzero()[wrong][0]), 0
        if weights is not None and not weights.isfinite().all():
            return WEIGHTS_NOT_FINITE, 0, int((~weights.isfinite().all(dim=1)).nonzero()[0])
    return problem


def find_label_problem(total: int, rows: Tensor, labels: Tensor, count: int) -> tuple[int, int, int]:
    used = labels != PADDING
    for code, wrong, values in (
        (LABEL_OUT_OF_RANGE, used & ((labels < QUERY) | (labels >= count)), labels),
        (ROW_OUT_OF_RANGE, used & ((rows < 0) | (rows >= total)), rows),
    ):
        if wrong.any():
            position = int(wrong.nonzero()[0])
            return code, position, int(values[position])
    samples = torch.bincount(labels[labels >= 0], minlength=count)
    if not samples.any():
        return NO_SUPPORT, 0, 0
    if not samples.all():
        return CLASS_WITHOUT_SUPPORT, 0, int((samples == 0).nonzero()[0])
    return 0, 0, 0


def refusal(code: int, position: int, value: int, classes: int | None, rows: int = 0, here: str = "") -> str:
    """The sentence for a code of csrc/common/status.h; `classes` is None if K is not known yet."""
    sample = f"sample {position}{here}"
    known = "class >= 0" if classes is None else f"class 0 to {classes - 1}"
    markers = f"{QUERY} for a query or {PADDING} for padding"
    return {
        NOT_FINITE: f"features: expected finite values, got NaN or Inf at {sample}",
        LABEL_OUT_OF_RANGE: f"labels: expected a {known}, {markers}, got {value} at {sample}",
        CLASS_WITHOUT_SUPPORT: f"labels: expected support of each {known}, got none of class {value}{here}",
        NO_SUPPORT: f"labels: expected support samples (labels >= 0), got none{here}",
        ROW_OUT_OF_RANGE: f"index: expected rows 0 to {rows - 1} of features, got {value} at {sample}",
        RESULT_NOT_FINITE: "the hyper-parameters (or features with normalize=False) are too extreme: "
        f"expected finite probabilities, got NaN or Inf{here}; float64 has a wider range",
        WEIGHTS_NOT_FINITE: f"weights: expected finite values, got NaN or Inf for class {value}{here}",
    }[code]


def in_task(task: int, total: int) -> str:
    return f" in task {task}" if total > 1 else ""
