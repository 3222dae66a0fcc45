"""Class vectors: a labelled sample of each class from elsewhere, as the text embedding of its name.

For encoders of images and texts, which put each of the two into a cone of its own. So each is taken from its
own centre, and the rest is TIM on labelled and unlabelled samples: no kernel knows of it. All at unit length,

    t_k <- unit(t_k - mean_j t_j)
    z_i <- unit(z_i - c),   c = sum_k a_k m_k / sum_k a_k,   a_k = n_k / (n_k + 1)

m_k is the mean of the n_k samples that are labelled k or, without a label, nearest to t_k by cosine. The mean
of the classes, and not of the samples: where most samples are of one class, their mean is that class, and
taking it away leaves noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, make_batch, own_samples, refuse, with_inputs
from .inputs import PADDING, check_device, real_type, refuse_shape, to_features
from .params import check_count
from .refusals import ROW_OUT_OF_RANGE
from .sample_inputs import with_sample_inputs


def batch_of(given: Mapping[str, Any]) -> Batch:
    """From the arguments of a solver, by name."""
    return with_sample_inputs(_samples_and_classes(given), given)


def _samples_and_classes(given: Mapping[str, Any]) -> Batch:
    if given["class_vectors"] is None:
        samples = given["features"], given["labels"], given["index"], given["num_classes"]
        return make_batch(*samples, given["class_prior"], given["weights"])
    num_classes = given["num_classes"]
    if num_classes is not None:
        num_classes = check_count("num_classes", num_classes, at_least=1)
    batch = with_class_vectors(
        own_samples(given["features"], given["labels"], given["index"], 1),  # K is that of the vectors
        given["class_vectors"],
        given["class_vector_weight"],
        num_classes,
        given["normalize"],
    )
    return with_inputs(batch, given["class_prior"], given["weights"])


def with_class_vectors(
    batch: Batch, vectors: Any, weight: int, num_classes: int | None, normalize: bool
) -> Batch:
    """Each task with its class vectors as labelled samples behind its own, all from their centres.

    Beside labelled samples a class vector counts as `weight` of them: it is there so many times.
    """
    weight = check_count("class_vector_weight", weight, at_least=1)
    matrices = _matrices(vectors, batch, num_classes)
    samples = _samples(batch)  # [R, d]
    features, labels, sizes, added = [], [], [], []
    parts = (torch.split(tensor, list(batch.sizes)) for tensor in (samples, batch.labels))
    for z, y, t in zip(*parts, matrices, strict=True):
        copies = weight if bool((y >= 0).any()) else 1
        z, t = _from_their_centres(z, y, t, normalize)
        features += [z, t.repeat(copies, 1)]
        labels += [y, torch.arange(len(t), device=y.device).repeat(copies)]
        sizes.append(len(z) + copies * len(t))
        added.append(copies * len(t))
    offsets = torch.tensor([0, *accumulate(sizes)], device="cpu")
    counts = [len(t) for t in matrices]
    return batch._replace(
        features=torch.cat(features),
        rows=None,
        labels=torch.cat(labels),
        offsets=offsets,
        classes=torch.tensor(counts, device="cpu"),
        sizes=sizes,
        counts=counts,
        added=added,
    )


def _matrices(value: Any, batch: Batch, num_classes: int | None) -> list[Tensor]:
    """[K_t, d] of each task from one [K, d] for every task, [T, K, d], or a list of [K_t, d]."""
    total, name = len(batch.sizes), "class_vectors"
    given = value if isinstance(value, (list, tuple)) else to_features(name, value)
    several = not isinstance(given, Tensor) or given.dim() == 3
    if several and (batch.lead == () or len(given) != total):
        expected = "one matrix [K, d]" + ("" if batch.lead == () else f" or {total}, one for each task")
        raise ValueError(f"{name}: expected {expected}, got {len(given)} of them")
    if not several:
        return [_matrix(name, given, batch, num_classes)] * total
    return [_matrix(f"{name}[{t}]", one, batch, num_classes) for t, one in enumerate(given)]


def _matrix(name: str, value: Any, batch: Batch, num_classes: int | None) -> Tensor:
    tensor, dim = to_features(name, value), batch.features.shape[1]
    rows = "K" if num_classes is None else str(num_classes)
    wrong_count = num_classes is not None and len(tensor) != num_classes
    if tensor.dim() != 2 or 0 in tensor.shape or tensor.shape[1] != dim or wrong_count:
        refuse_shape(name, f"[{rows}, {dim}], a row for each class", tensor)
    check_device(name, tensor, batch.features, "features")
    finite = tensor.isfinite().all(dim=1)
    if not finite.all():
        wrong = int((~finite).nonzero()[0])
        raise ValueError(f"{name}: expected finite values, got NaN or Inf for class {wrong}")
    return tensor.to(real_type(batch.features))


def _samples(batch: Batch) -> Tensor:
    """[R, d], of the type computed in."""
    if batch.rows is None:
        return batch.features.to(real_type(batch.features))
    total, padding = len(batch.features), batch.labels == PADDING
    wrong = ((batch.rows < 0) | (batch.rows >= total)) & ~padding
    if wrong.any():  # as the operator would refuse it
        sample = int(wrong.nonzero()[0])
        task = int((batch.offsets <= sample).sum()) - 1
        refuse(batch, task, ROW_OUT_OF_RANGE, sample - int(batch.offsets[task]), int(batch.rows[sample]))
    return batch.features[batch.rows.masked_fill(padding, 0)].to(real_type(batch.features))


def _from_their_centres(z: Tensor, labels: Tensor, t: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    """Rows that are not finite stay as they are, to be refused by their number."""
    finite = z.isfinite().all(dim=1)
    used = (labels != PADDING) & finite
    one, other = (_unit(x) if normalize else x for x in (torch.where(finite[:, None], z, 0), t))
    nearest = (_unit(one) @ _unit(other).T).argmax(dim=1)
    known = (labels >= 0) & (labels < len(t))
    owner = torch.where(known, labels, nearest)
    members = torch.nn.functional.one_hot(owner, len(t)).to(z) * used[:, None]  # [N, K]
    n = members.sum(dim=0)  # [K]
    # a_k m_k = sum of the class / (n_k + 1)
    centre = ((members / (n + 1)).sum(dim=1) @ one) / (n / (n + 1)).sum().clamp(min=0.5)
    z = torch.where(finite[:, None], one - centre, z)
    t = other - other.mean(dim=0)
    return (_unit_where(z, finite), _unit(t)) if normalize else (z, t)


def _unit(x: Tensor) -> Tensor:
    length = x.norm(dim=1, keepdim=True)
    return x / torch.where(length > 0, length, 1)


def _unit_where(x: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(chosen[:, None], _unit(x), x)
