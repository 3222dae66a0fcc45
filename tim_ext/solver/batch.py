"""From what users pass to the flat batch of csrc/ops.cpp, and from flat results back to the user's shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from .inputs import (
    QUERY,
    check_data,
    check_device,
    dtype_name,
    is_list_of_vectors,
    refuse_shape,
    to_features,
    to_integer_list,
    to_integers,
    to_numbers,
    to_proportions,
    to_tensor,
    to_weights,
)
from .params import TimParams, check_count
from .refusals import in_task, refusal
from .result import History, Result


class Inputs(NamedTuple):
    """What a task is given besides its samples."""

    class_prior: Tensor | None  # [K]
    weights: Tensor | None  # [K, d]  the first W
    sample_weight: Tensor  # [N]  of a query, 1 if none are given; 0 of other samples
    sample_log_prior: Tensor | None  # [N, K]
    sample_prior_weight: float  # lam_0; 0 without a prior

    def of_samples(self, chosen: Tensor, like: Tensor) -> Inputs:
        """Those of some samples, in the type and on the device of `like`."""
        prior, log_prior = self.class_prior, self.sample_log_prior
        return self._replace(
            class_prior=None if prior is None else prior.to(like),
            sample_weight=self.sample_weight[chosen].to(like),
            sample_log_prior=None if log_prior is None else log_prior[chosen].to(like),
        )


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
    weights: Tensor | None = None  # [sum K_t, d]  the first W, of the type computed in; None: prototypes
    added: Sequence[int] | None = None  # class vectors at the end of each task
    # the two of sample_inputs.py, of the type computed in
    sample_weight: Tensor | None = None  # [R]
    sample_log_prior: Tensor | None = None  # [sum N_t K_t]
    sample_prior_weight: float = 0.0  # lam_0; 0 without a prior

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

    def sample_arguments(self) -> dict[str, Any]:
        """What is given for single samples, by the names that the operators have for it."""
        arguments: dict[str, Any] = {}
        if self.sample_weight is not None:
            arguments["sample_weight"] = self.sample_weight
        if self.sample_log_prior is not None:
            arguments["sample_log_prior"] = self.sample_log_prior
            arguments["sample_prior_weight"] = self.sample_prior_weight
        return arguments

    def inputs(self) -> Iterator[Inputs]:
        """What each task is given."""
        sizes, counts, none = list(self.sizes), list(self.counts), [None] * len(self.counts)
        weight = (self.labels == QUERY).double() if self.sample_weight is None else self.sample_weight
        log_prior, entries = self.sample_log_prior, list(map(int.__mul__, sizes, counts))
        for prior, first, v, logs, count in zip(
            self.priors(),
            none if self.weights is None else torch.split(self.weights, counts),
            torch.split(weight, sizes),
            none if log_prior is None else torch.split(log_prior, entries),
            counts,
            strict=True,
        ):
            logs = None if logs is None else logs.view(-1, count)
            yield Inputs(prior, first, v, logs, self.sample_prior_weight)


def make_batch(
    features: Any,
    labels: Any,
    index: Any = None,
    num_classes: int | None = None,
    class_prior: Any = None,
    weights: Any = None,
) -> Batch:
    """Checks everything that needs no look at the feature values, and copies only what is not contiguous."""
    if num_classes is not None:
        num_classes = check_count("num_classes", num_classes, at_least=1)
    return with_inputs(own_samples(features, labels, index, num_classes), class_prior, weights)


def with_inputs(batch: Batch, class_prior: Any, weights: Any) -> Batch:
    """With what is given for each class."""
    if class_prior is not None:
        batch = batch._replace(class_prior=_class_prior(class_prior, batch))
    if weights is not None:
        batch = batch._replace(weights=_first_weights(weights, batch))
    return batch


def own_samples(features: Any, labels: Any, index: Any, num_classes: int | None) -> Batch:
    """The samples alone, and K: that of the largest label, if it is not given."""
    if index is not None:
        return _from_pool(features, labels, index, num_classes)
    if isinstance(features, (list, tuple)):
        return _from_list(features, labels, num_classes)

    features = to_features("features", features)
    shape = features.shape
    if len(shape) not in (2, 3) or 0 in shape:
        refuse_shape("features", "[N, d], [T, N, d] or a list of [N, d], none of them 0", features)
    labels = to_integers("labels", labels, features, shape[:-1], "features")
    flat = features if len(shape) == 2 else features.reshape(-1, shape[-1])
    return _equal_tasks(flat.contiguous(), None, labels, num_classes)


def make_image_batch(images: Any, labels: Any, num_classes: int | None, class_prior: Any) -> Batch:
    """Samples of any shape and type: images [N, ...] with labels [N], or [T, N, ...] with labels [T, N]."""
    if num_classes is not None:
        num_classes = check_count("num_classes", num_classes, at_least=1)
    images = to_tensor("images", images)
    check_data("images", images)
    labels = to_integers("labels", labels, None).to(images.device)
    lead = labels.dim()
    if lead not in (1, 2) or 0 in labels.shape:
        refuse_shape("labels", "[N] or [T, N], neither of them 0", labels)
    if images.shape[:lead] != labels.shape:
        refuse_shape("images", f"{[*labels.shape, '...']} to match labels".replace("'", ""), images)
    batch = _equal_tasks(images.flatten(0, lead - 1), None, labels, num_classes)
    return batch if class_prior is None else batch._replace(class_prior=_class_prior(class_prior, batch))


def _from_pool(features: Any, labels: Any, index: Any, num_classes: int | None) -> Batch:
    if isinstance(features, (list, tuple)):
        raise TypeError(f"features: expected a pool [M, d] with index=, got a {type(features).__name__}")
    if isinstance(features, np.memmap) and not features.flags.c_contiguous:  # a copy of what may not fit
        raise ValueError("features: expected a memory-mapped pool in C order, got another: save it anew")
    features = to_features("features", features)
    if features.dim() != 2 or 0 in features.shape:
        refuse_shape("features", "[M, d] with index=, neither of them 0", features)
    if is_list_of_vectors(index):
        rows, sizes = to_integer_list("index", index, features, None)
        labels, _ = to_integer_list("labels", labels, features, sizes, "index")
        return _unequal_tasks(features.contiguous(), torch.cat(rows), labels, sizes, num_classes)
    index = to_integers("index", index, features)
    if index.dim() not in (1, 2) or 0 in index.shape:
        refuse_shape("index", "[N], [T, N] or a list of [N], none of them 0", index)
    labels = to_integers("labels", labels, features, index.shape, "index")
    return _equal_tasks(features.contiguous(), index.reshape(-1).contiguous(), labels, num_classes)


def _from_list(features: Sequence[Any], labels: Any, num_classes: int | None) -> Batch:
    if not features:
        raise ValueError("features: expected at least one task, got an empty list")
    items = [to_features(f"features[{t}]", item) for t, item in enumerate(features)]
    first = items[0]
    for t, item in enumerate(items):
        if item.dim() != 2 or 0 in item.shape:
            refuse_shape(f"features[{t}]", "[N, d], neither of them 0, as features is a list", item)
        if item.shape[1] != first.shape[1]:
            refuse_shape(f"features[{t}]", f"[N, {first.shape[1]}] as in features[0]", item)
        if item.dtype != first.dtype:
            raise TypeError(
                f"features[{t}]: expected {dtype_name(first)} as in features[0], got {dtype_name(item)}"
            )
        check_device(f"features[{t}]", item, first, "features[0]")
    sizes = [item.shape[0] for item in items]
    labels, _ = to_integer_list("labels", labels, first, sizes, "features")
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


def _class_prior(value: Any, batch: Batch) -> Tensor:
    """[sum K_t] from one [K] for every task, [T, K], or a list of [K_t]."""
    total, counts = len(batch.counts), batch.counts
    vectors = value if is_list_of_vectors(value) else to_numbers("class_prior", value)
    several = not isinstance(vectors, Tensor) or vectors.dim() == 2
    if several and (batch.lead == () or len(vectors) != total):
        expected = "one vector [K]" + ("" if batch.lead == () else f" or {total}, one for each task")
        raise ValueError(f"class_prior: expected {expected}, got a list of {len(vectors)}")
    if several:
        return torch.cat([to_proportions(f"class_prior[{t}]", vectors[t], K) for t, K in enumerate(counts)])
    for t, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(
                f"class_prior: expected a list of vectors, as task 0 has {counts[0]} classes "
                f"and task {t} has {count}, got one vector"
            )
    return to_proportions("class_prior", vectors, counts[0]).repeat(total)


def _first_weights(value: Any, batch: Batch) -> Tensor:
    """[sum K_t, d] from one [K, d] for every task, [T, K, d], or a list of [K_t, d]."""
    total, counts = len(batch.counts), batch.counts
    matrices = value if isinstance(value, (list, tuple)) else to_features("weights", value)
    several = not isinstance(matrices, Tensor) or matrices.dim() == 3
    if several and (batch.lead == () or len(matrices) != total):
        expected = "one matrix [K, d]" + ("" if batch.lead == () else f" or {total}, one for each task")
        raise ValueError(f"weights: expected {expected}, got {len(matrices)} of them")
    if several:
        return torch.cat(
            [to_weights(f"weights[{t}]", matrices[t], K, batch.features) for t, K in enumerate(counts)]
        )
    for t, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(
                f"weights: expected a list of matrices, as task 0 has {counts[0]} classes "
                f"and task {t} has {count}, got one matrix"
            )
    return to_weights("weights", matrices, counts[0], batch.features).repeat(total, 1)


def check_status(batch: Batch, status: Tensor) -> None:
    """Turns the first refused task of status [T, 3] into a sentence."""
    for task, (code, position, value) in enumerate(status.tolist()):
        if code != 0:
            refuse(batch, task, code, position, value)


def refuse(batch: Batch, task: int, code: int, position: int, value: int) -> NoReturn:
    here = in_task(task, len(batch.sizes))
    raise ValueError(refusal(code, position, value, batch.counts[task], len(batch.features), here))


def make_result(
    batch: Batch,
    params: TimParams,
    outputs: Sequence[str],
    probs: Tensor,  # [sum N_t K_t]
    predictions: Tensor,  # [R]
    weights: Tensor,  # [sum K_t, d]
    iterations: Tensor,  # [T]
    history: Tensor,  # [T, iterations + 1 or 0, 3], or 4 with a sample prior
    proportions: Tensor,  # [sum K_t]
    marginal_weights: Tensor | None = None,  # [T], of a method that has any
    confidence: Tensor | None = None,  # [R], if asked for
) -> Result:
    if batch.added is not None:
        if confidence is not None:
            confidence = _own_samples(batch, confidence)
        batch, probs, predictions = _without_added(batch, outputs, probs, predictions)
    lead = (len(batch.sizes),) if batch.lead is None else batch.lead
    marginal_weight = None if marginal_weights is None else marginal_weights.view(lead)
    return Result(
        probs=_probs(batch, probs) if "probs" in outputs else None,
        predictions=_per_task(batch, batch.sizes, predictions) if "predictions" in outputs else None,
        weights=_per_task(batch, batch.counts, weights) if "weights" in outputs else None,
        iterations=iterations.view(lead),
        proportions=_per_task(batch, batch.counts, proportions),
        marginal_weight=marginal_weight,
        confidence=None if confidence is None else _per_task(batch, batch.sizes, confidence),
        history=make_history(
            params, history.view(*lead, *history.shape[1:]), marginal_weight, batch.sample_prior_weight
        )
        if marginal_weight is not None and history.shape[1]
        else None,
    )


def per_sample(batch: Batch, flat: Tensor) -> Tensor | list[Tensor]:
    """[.., N] of the caller's samples, from a number for each sample, flat [R]."""
    if batch.added is None:
        return _per_task(batch, batch.sizes, flat)
    own = [size - added for size, added in zip(batch.sizes, batch.added, strict=True)]
    parts = [part[:n] for part, n in zip(torch.split(flat, list(batch.sizes)), own, strict=True)]
    return _per_task(batch, own, torch.cat(parts))


def _without_added(
    batch: Batch, outputs: Sequence[str], probs: Tensor, predictions: Tensor
) -> tuple[Batch, Tensor, Tensor]:
    """The caller's samples alone."""
    assert batch.added is not None
    own = [size - added for size, added in zip(batch.sizes, batch.added, strict=True)]
    probs = _own_samples(batch, probs, batch.counts) if "probs" in outputs else probs
    predictions = _own_samples(batch, predictions) if "predictions" in outputs else predictions
    return batch._replace(sizes=own), probs, predictions


def _own_samples(batch: Batch, flat: Tensor, widths: Sequence[int] | None = None) -> Tensor:
    """flat [sum N_t width_t] without the class vectors."""
    assert batch.added is not None
    widths = [1] * len(batch.sizes) if widths is None else widths
    parts = torch.split(flat, list(map(int.__mul__, batch.sizes, widths)))
    shapes = zip(parts, batch.sizes, batch.added, widths, strict=True)
    return torch.cat([part[: (size - added) * k] for part, size, added, k in shapes])


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


def make_history(
    params: TimParams, terms: Tensor, marginal_weight: Tensor, sample_prior_weight: float = 0.0
) -> History:
    """terms [.., iterations + 1, 3 or 4]; marginal_weight [..] is that of the last iterations."""
    cross_entropy, marginal, conditional, *with_priors = terms.unbind(-1)
    loss = params.lam * cross_entropy - marginal_weight[..., None] * marginal + params.alpha * conditional
    if not with_priors:
        return History(cross_entropy, marginal, conditional, loss)
    loss = loss + sample_prior_weight * with_priors[0]
    return History(cross_entropy, marginal, conditional, loss, with_priors[0])
