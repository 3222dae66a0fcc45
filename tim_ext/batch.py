"""From what users pass to the flat batch of csrc/ops.cpp, and from flat results back to the user's shapes.

Every check of features, labels, index and class_prior is here, and every sentence that refuses them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from .params import TimParams, check_count
from .result import History, Result

QUERY, PADDING = -1, -100
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# csrc/common/status.h
NOT_FINITE, LABEL_OUT_OF_RANGE, CLASS_WITHOUT_SUPPORT, NO_SUPPORT, ROW_OUT_OF_RANGE = 1, 2, 3, 4, 5
RESULT_NOT_FINITE = 6


class Batch(NamedTuple):
    """T tasks; task t owns the samples offsets[t] .. offsets[t + 1] and has classes[t] classes."""

    features: Tensor  # [M, d]
    rows: Tensor | None  # [R]  int64: sample r is row rows[r] of features; None: row r
    labels: Tensor  # [R]  int64
    offsets: Tensor  # [T + 1]  int64, CPU
    classes: Tensor  # [T]  int64, CPU
    sizes: Sequence[int]  # N_t
    counts: Sequence[int]  # K_t
    lead: tuple[int, ...] | None  # () for one task, (T,) for a batch of equal shapes, None for a list
    class_prior: Tensor | None = None  # [sum K_t]  float64, CPU; None: uniform

    def tasks(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Rows [N], labels [N] and K of each task."""
        for end, size, count in zip(accumulate(self.sizes), self.sizes, self.counts, strict=True):
            samples = slice(end - size, end)
            rows = torch.arange(end - size, end, device=self.labels.device)
            yield rows if self.rows is None else self.rows[samples], self.labels[samples], count

    def priors(self) -> Sequence[Tensor | None]:
        """The class prior [K] of each task."""
        if self.class_prior is None:
            return [None] * len(self.counts)
        return torch.split(self.class_prior, list(self.counts))


def make_batch(
    features: Any, labels: Any, index: Any = None, num_classes: int | None = None, class_prior: Any = None
) -> Batch:
    """Checks everything that needs no look at the feature values, and copies only what is not contiguous."""
    if num_classes is not None:
        num_classes = check_count("num_classes", num_classes, at_least=1)
    batch = _make_batch(features, labels, index, num_classes)
    return batch if class_prior is None else batch._replace(class_prior=_class_prior(class_prior, batch))


def _make_batch(features: Any, labels: Any, index: Any, num_classes: int | None) -> Batch:
    if index is not None:
        return _from_pool(features, labels, index, num_classes)
    if isinstance(features, (list, tuple)):
        return _from_list(features, labels, num_classes)

    features = _features("features", features)
    shape = features.shape
    if len(shape) not in (2, 3) or 0 in shape:
        _refuse_shape("features", "[N, d], [T, N, d] or a list of [N, d], none of them 0", features)
    labels = _integers("labels", labels, features, shape[:-1], "features")
    flat = features if len(shape) == 2 else features.reshape(-1, shape[-1])
    return _equal_tasks(flat.contiguous(), None, labels, num_classes)


def make_image_batch(images: Any, labels: Any, num_classes: int | None, class_prior: Any) -> Batch:
    """Samples of any shape and type: images [N, ...] with labels [N], or [T, N, ...] with labels [T, N]."""
    if num_classes is not None:
        num_classes = check_count("num_classes", num_classes, at_least=1)
    images = _tensor("images", images)
    _check_data("images", images)
    labels = _integers("labels", labels, None).to(images.device)
    lead = labels.dim()
    if lead not in (1, 2) or 0 in labels.shape:
        _refuse_shape("labels", "[N] or [T, N], neither of them 0", labels)
    if images.shape[:lead] != labels.shape:
        _refuse_shape("images", f"{[*labels.shape, '...']} to match labels".replace("'", ""), images)
    batch = _equal_tasks(images.flatten(0, lead - 1), None, labels, num_classes)
    return batch if class_prior is None else batch._replace(class_prior=_class_prior(class_prior, batch))


def _from_pool(features: Any, labels: Any, index: Any, num_classes: int | None) -> Batch:
    if isinstance(features, (list, tuple)):
        raise TypeError(f"features: expected a pool [M, d] with index=, got a {type(features).__name__}")
    if isinstance(features, np.memmap) and not features.flags.c_contiguous:  # a copy of what may not fit
        raise ValueError("features: expected a memory-mapped pool in C order, got another: save it anew")
    features = _features("features", features)
    if features.dim() != 2 or 0 in features.shape:
        _refuse_shape("features", "[M, d] with index=, neither of them 0", features)
    if _is_list_of_vectors(index):
        rows, sizes = _integer_list("index", index, features, None)
        labels, _ = _integer_list("labels", labels, features, sizes, "index")
        return _unequal_tasks(features.contiguous(), torch.cat(rows), labels, sizes, num_classes)
    index = _integers("index", index, features)
    if index.dim() not in (1, 2) or 0 in index.shape:
        _refuse_shape("index", "[N], [T, N] or a list of [N], none of them 0", index)
    labels = _integers("labels", labels, features, index.shape, "index")
    return _equal_tasks(features.contiguous(), index.reshape(-1).contiguous(), labels, num_classes)


def _from_list(features: Sequence[Any], labels: Any, num_classes: int | None) -> Batch:
    if not features:
        raise ValueError("features: expected at least one task, got an empty list")
    items = [_features(f"features[{t}]", item) for t, item in enumerate(features)]
    first = items[0]
    for t, item in enumerate(items):
        if item.dim() != 2 or 0 in item.shape:
            _refuse_shape(f"features[{t}]", "[N, d], neither of them 0, as features is a list", item)
        if item.shape[1] != first.shape[1]:
            _refuse_shape(f"features[{t}]", f"[N, {first.shape[1]}] as in features[0]", item)
        if item.dtype != first.dtype:
            raise TypeError(f"features[{t}]: expected {_dtype(first)} as in features[0], got {_dtype(item)}")
        _check_device(f"features[{t}]", item, first, "features[0]")
    sizes = [item.shape[0] for item in items]
    labels, _ = _integer_list("labels", labels, first, sizes, "features")
    return _unequal_tasks(torch.cat(items), None, labels, sizes, num_classes)


def _equal_tasks(features: Tensor, rows: Tensor | None, labels: Tensor, num_classes: int | None) -> Batch:
    """Tasks of one shape, and of one number of classes: that of the largest label."""
    lead, size, samples = tuple(labels.shape[:-1]), labels.shape[-1], labels.numel()
    count = max(int(labels.max()) + 1, 1) if num_classes is None else num_classes
    total = samples // size
    _check_count(0, 1, size, count, num_classes)
    layout = (
        _equal_layout if type(labels) is Tensor else _equal_layout.__wrapped__
    )  # no cache of fake tensors
    offsets, classes = layout(total, size, count)
    flat = labels.reshape(-1).contiguous() if lead else labels.contiguous()
    return Batch(features, rows, flat, offsets, classes, [size] * total, [count] * total, lead)


@lru_cache(maxsize=4)  # one small task after the other: two tensors less to make for each
def _equal_layout(total: int, size: int, count: int) -> tuple[Tensor, Tensor]:
    offsets = torch.arange(0, total * size + 1, size, device="cpu")
    return offsets, torch.full((total,), count, device="cpu")


def _unequal_tasks(
    features: Tensor, rows: Tensor | None, labels: list[Tensor], sizes: list[int], num_classes: int | None
) -> Batch:
    """Tasks of different sizes, each with its own number of classes."""
    if num_classes is None:
        counts = [max(top + 1, 1) for top in torch.stack([item.max() for item in labels]).tolist()]
    else:
        counts = [num_classes] * len(sizes)
    for t, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        _check_count(t, len(sizes), size, count, num_classes)
    offsets = torch.tensor([0, *accumulate(sizes)], device="cpu")
    classes = torch.tensor(counts, device="cpu")
    return Batch(features, rows, torch.cat(labels), offsets, classes, sizes, counts, None)


def _check_count(task: int, total: int, size: int, count: int, num_classes: int | None) -> None:
    """More classes than samples cannot all have support: refused before anything of size K is allocated."""
    if count > size:
        source = f"num_classes={count}" if num_classes is not None else f"label {count - 1}"
        raise ValueError(
            f"labels: expected support of each class 0 to {count - 1}, "
            f"got only {size} samples{in_task(task, total)} ({source})"
        )


# The class prior ----------------------------------------------------------------------------------


def _class_prior(value: Any, batch: Batch) -> Tensor:
    """[sum K_t] from one [K] for every task, [T, K], or a list of [K_t]."""
    total, counts = len(batch.counts), batch.counts
    vectors = value if _is_list_of_vectors(value) else _numbers("class_prior", value)
    several = not isinstance(vectors, Tensor) or vectors.dim() == 2
    if several and (batch.lead == () or len(vectors) != total):
        expected = "one vector [K]" + ("" if batch.lead == () else f" or {total}, one for each task")
        raise ValueError(f"class_prior: expected {expected}, got a list of {len(vectors)}")
    if several:
        return torch.cat([_proportions(f"class_prior[{t}]", vectors[t], K) for t, K in enumerate(counts)])
    for t, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(
                f"class_prior: expected a list of vectors, as task 0 has {counts[0]} classes "
                f"and task {t} has {count}, got one vector"
            )
    return _proportions("class_prior", vectors, counts[0]).repeat(total)


def _proportions(name: str, value: Any, count: int) -> Tensor:
    """[K], > 0 and of sum 1, in float64 on the CPU."""
    tensor = _numbers(name, value)
    if not (tensor.dtype.is_floating_point or tensor.dtype in INTEGERS):
        raise TypeError(f"{name}: expected numbers, got {_dtype(tensor)}")
    if tensor.shape != (count,):
        _refuse_shape(name, f"[{count}], one proportion for each class", tensor)
    _check_data(name, tensor)
    values = tensor.tolist()
    for k, share in enumerate(values):
        if not 0 < share < math.inf:
            raise ValueError(f"{name}: expected numbers > 0, got {share} for class {k}")
    if not math.isclose(sum(values), 1, rel_tol=1e-3):
        raise ValueError(f"{name}: expected proportions of sum 1, got a sum of {sum(values):.6g}")
    return torch.tensor([share / sum(values) for share in values], dtype=torch.float64, device="cpu")


def _numbers(name: str, value: Any) -> Tensor:
    """Plain numbers in float64, which is what they are."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, Real) for item in value):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    return _tensor(name, value)


# Tensors ------------------------------------------------------------------------------------------


def _features(name: str, value: Any) -> Tensor:
    tensor = _tensor(name, value)
    if tensor.dtype not in FLOATS:
        hint = " (convert with .float())" if tensor.dtype in INTEGERS else ""
        raise TypeError(f"{name}: expected {', '.join(map(_dtype, FLOATS))}, got {_dtype(tensor)}{hint}")
    _check_data(name, tensor)
    return tensor


def _integers(
    name: str,
    value: Any,
    features: Tensor | None,
    shape: Sequence[int] | None = None,
    like: str = "",
    keep: bool = False,
) -> Tensor:
    """As int64, or with `keep` as they are."""
    tensor = _tensor(name, value)
    if tensor.dtype not in INTEGERS:
        raise TypeError(f"{name}: expected integers (int64 to int8, or uint8), got {_dtype(tensor)}")
    if features is None:
        _check_data(name, tensor)
    else:
        _check_device(name, tensor, features, "features")
    if shape is not None and tensor.shape != shape:
        _refuse_shape(name, f"{list(shape)} to match {like}", tensor)
    return tensor if keep or tensor.dtype == torch.int64 else tensor.long()


def _integer_list(
    name: str, value: Any, features: Tensor, sizes: list[int] | None, like: str = ""
) -> tuple[list[Tensor], list[int]]:
    if not _is_list_of_vectors(value):
        kind = type(value).__name__
        raise TypeError(f"{name}: expected a list of vectors, as {like} is a list, got {kind}")
    if not value:
        raise ValueError(f"{name}: expected at least one task, got an empty list")
    if sizes is not None and len(value) != len(sizes):
        raise ValueError(f"{name}: expected {len(sizes)} tasks to match {like}, got {len(value)}")
    items = []
    for t, item in enumerate(value):
        shape = None if sizes is None else (sizes[t],)
        items.append(_integers(f"{name}[{t}]", item, features, shape, f"{like}[{t}]"))
        if items[t].dim() != 1 or not len(items[t]):
            _refuse_shape(f"{name}[{t}]", f"[N], not 0, as {name} is a list", items[t])
    return items, [len(item) for item in items]


def _is_list_of_vectors(value: Any) -> bool:
    """A list of tasks; a list of plain numbers is one vector."""
    return isinstance(value, (list, tuple)) and not any(isinstance(item, Real) for item in value)


def _tensor(name: str, value: Any) -> Tensor:
    tensor: Tensor
    if isinstance(value, Tensor):
        tensor = value
    else:
        try:
            tensor = _from_foreign(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(
                f"{name}: expected a tensor or array, got {type(value).__name__} ({error})"
            ) from error
    if tensor.layout != torch.strided or tensor.is_nested:
        raise TypeError(f"{name}: expected a dense tensor, got {tensor.layout}")
    return tensor.detach() if tensor.requires_grad else tensor


def _from_foreign(value: Any) -> Tensor:
    if any(stride < 0 for stride in getattr(value, "strides", None) or ()):
        value = value.copy()  # torch has no negative strides
    with warnings.catch_warnings():  # a read-only array is fine: nothing here writes to its input
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.as_tensor(value)


def _check_data(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise ValueError(f"{name}: expected a tensor with data, got one on device meta")


def _check_device(name: str, tensor: Tensor, like: Tensor, like_name: str) -> None:
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected device {like.device} as {like_name}, got {tensor.device}")


def _refuse_shape(name: str, expected: str, tensor: Tensor) -> NoReturn:
    raise ValueError(f"{name}: expected shape {expected}, got {list(tensor.shape)}")


def _dtype(value: Tensor | torch.dtype) -> str:
    return str(value.dtype if isinstance(value, Tensor) else value).removeprefix("torch.")


# What only the values show ------------------------------------------------------------------------


def find_problem(features: Tensor, rows: Tensor, labels: Tensor, count: int) -> tuple[int, int, int]:
    """(code, position, value) of one task, as the kernels report it; padding is never looked at."""
    problem = find_label_problem(len(features), rows, labels, count)
    if problem[0] == 0:
        used = labels != PADDING
        wrong = ~features[rows[used]].isfinite().all(dim=1)
        if wrong.any():
            return NOT_FINITE, int(used.nonzero()[wrong][0]), 0
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


def check_status(batch: Batch, status: Tensor) -> None:
    """Turns the first refused task of status [T, 3] into a sentence."""
    for task, (code, position, value) in enumerate(status.tolist()):
        if code != 0:
            refuse(batch, task, code, position, value)


def refuse(batch: Batch, task: int, code: int, position: int, value: int) -> NoReturn:
    here = in_task(task, len(batch.sizes))
    raise ValueError(refusal(code, position, value, batch.counts[task], len(batch.features), here))


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
    }[code]


def in_task(task: int, total: int) -> str:
    return f" in task {task}" if total > 1 else ""


# Back to the user's shapes ------------------------------------------------------------------------


def make_result(
    batch: Batch,
    params: TimParams,
    outputs: Sequence[str],
    probs: Tensor,  # [sum N_t K_t]
    predictions: Tensor,  # [R]
    weights: Tensor,  # [sum K_t, d]
    iterations: Tensor,  # [T]
    history: Tensor,  # [T, iterations + 1 or 0, 3]
) -> Result:
    lead = (len(batch.sizes),) if batch.lead is None else batch.lead
    return Result(
        probs=_probs(batch, probs) if "probs" in outputs else None,
        predictions=_per_task(batch, batch.sizes, predictions) if "predictions" in outputs else None,
        weights=_per_task(batch, batch.counts, weights) if "weights" in outputs else None,
        iterations=iterations.view(lead),
        history=_history(params, history.view(*lead, -1, 3)) if history.shape[1] else None,
    )


def _probs(batch: Batch, flat: Tensor) -> Tensor | list[Tensor]:
    sizes, counts = batch.sizes, batch.counts
    if batch.lead is not None:
        return flat.view(*batch.lead, sizes[0], counts[0])
    blocks = torch.split(flat, list(map(int.__mul__, sizes, counts)))
    return [block.view(-1, count) for block, count in zip(blocks, counts, strict=True)]


def _per_task(batch: Batch, lengths: Sequence[int], flat: Tensor) -> Tensor | list[Tensor]:
    """flat [sum of lengths, ...]"""
    if batch.lead == ():
        return flat
    if batch.lead is not None:
        return flat.view(*batch.lead, lengths[0], *flat.shape[1:])
    return list(torch.split(flat, list(lengths)))


def _history(params: TimParams, terms: Tensor) -> History:
    cross_entropy, marginal, conditional = terms.unbind(-1)
    loss = params.lam * cross_entropy - params.marginal_weight * marginal + params.alpha * conditional
    return History(cross_entropy, marginal, conditional, loss)
