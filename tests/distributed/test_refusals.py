"""What one rank must refuse, all ranks refuse with one message."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from helpers.ranks import F32, F64, TASK, collect, halves, start_ranks

import tim_ext
from tim_ext import distributed


def fail_at(when: int, done: int) -> None:
    if done == when:
        raise OSError("disk full")


# what rank 1 does differently from rank 0, and what both must say
REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "d": (
        {"columns": 9},
        "ValueError",
        "d: expected the same on all ranks, got 10 on rank 0 and 9 on rank 1",
    ),
    "dtype": (
        {"dtype": F32},
        "ValueError",
        "dtype: expected the same on all ranks, got 'float64' on rank 0 and",
    ),
    "alpha": (
        {"alpha": 0.2},
        "ValueError",
        "alpha: expected the same on all ranks, got 0.1 on rank 0 and 0.2",
    ),
    "iterations": ({"iterations": 3}, "ValueError", "iterations: expected the same on all ranks, got 150"),
    "normalize": ({"normalize": False}, "ValueError", "normalize: expected the same on all ranks"),
    "prior": ({"class_prior": [0.2, 0.3, 0.5]}, "ValueError", "class_prior: expected the same on all ranks"),
    "weights": (
        {"weights": TASK.features[:3]},
        "ValueError",
        "weights: expected the same on all ranks, got None",
    ),
    "sample weights": (
        {"sample_weight": [1.0]},
        "ValueError",
        "rank 1: sample_weight: expected None over ranks, got one: tim_ext.adm in one process takes it",
    ),
    "sample priors": (
        {"sample_prior": [[1.0]]},
        "ValueError",
        "rank 1: sample_prior: expected None over ranks, got one: tim_ext.adm in one process takes it",
    ),
    "method": ({"method": "gd"}, "ValueError", "method: expected the same on all ranks, got 'adm' on rank 0"),
    "beta": ({"beta": -1}, "ValueError", "rank 1: beta: expected a finite number > 0, got -1.0"),
    "integers": ({"dtype": torch.int64}, "TypeError", "rank 1: features: expected float32, float64"),
    "shape": ({"rows": 5}, "ValueError", "rank 1: labels: expected shape [5] to match features, got"),
    "NaN": ({"nan": 4}, "ValueError", "rank 1: features: expected finite values, got NaN or Inf at sample 4"),
    "label": ({"label": -7}, "ValueError", "rank 1: labels: expected a class"),
    "class": (
        {"label": 5},
        "ValueError",
        "labels: expected support of each class 0 to 5, got none of class 3",
    ),
    "huge label": (
        {"label": 10**9},
        "ValueError",
        "labels: expected support of each class 0 to 1000000000, got only",
    ),
    "callback": ({"callback": partial(fail_at, 2)}, "RuntimeError", "rank 1: OSError: disk full"),
    "last callback": ({"callback": partial(fail_at, 150)}, "RuntimeError", "rank 1: OSError: disk full"),
}


def refused_cases(rank: int, results: Any) -> None:
    for name, (changed, _, _) in REFUSALS.items():
        try:
            different(rank, **changed)
            results.put((name, rank, "", ""))
        except Exception as error:
            results.put((name, rank, type(error).__name__, str(error)))
    result = distributed.adm(*halves(rank))  # the group is as good as new
    results.put(("after", rank, "", result.predictions.tolist()))


def different(rank: int, **changed: Any) -> None:
    features, labels = halves(rank)
    if rank == 0:
        distributed.adm(features, labels)
        return
    features = features[: changed.pop("rows", None), : changed.pop("columns", None)]
    features = features.to(changed.pop("dtype", F64)).clone()
    labels = labels.clone()
    if "nan" in changed:
        features[changed.pop("nan"), 3] = torch.nan
    if "label" in changed:
        labels[11] = changed.pop("label")
    getattr(distributed, changed.pop("method", "adm"))(features, labels, **changed)


def test_all_ranks_refuse_with_one_message():
    results, processes = start_ranks(refused_cases, 2)
    got: dict[str, dict[int, tuple[str, Any]]] = {}
    for name, rank, kind, text in collect(results, processes, 2 * (len(REFUSALS) + 1)):
        got.setdefault(name, {})[rank] = kind, text
    for name, (_, kind, text) in REFUSALS.items():
        assert got[name][0] == got[name][1], name
        assert got[name][0][0] == kind, (name, got[name])
        assert got[name][0][1].startswith(text), (name, got[name])
        assert "\n" not in got[name][0][1]
    whole = tim_ext.adm(TASK.features, TASK.labels)
    assert got["after"][0][1] + got["after"][1][1] == whole.predictions.tolist()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"features": TASK.features[0]}, ValueError, r"features: expected shape \[n, d\]"),
        ({"features": TASK.features.int()}, TypeError, "features: expected float32"),
        ({"labels": TASK.labels[1:]}, ValueError, "labels: expected shape"),
        ({"labels": torch.full_like(TASK.labels, -1)}, ValueError, "labels: expected support samples"),
        ({"num_classes": 2}, ValueError, "labels: expected a class 0 to 1, -1 for a query"),
        (
            {"num_classes": 4},
            ValueError,
            "labels: expected support of each class 0 to 3, got none of class 3",
        ),
        ({"class_prior": [0.5, 0.5]}, ValueError, "class_prior: expected shape"),
        (
            {"weights": TASK.features[:4]},
            ValueError,
            r"weights: expected shape \[3, 10\], a row for each class",
        ),
        (
            {"weights": TASK.features[:3, :9]},
            ValueError,
            r"weights: expected shape \[K, 10\] to match features",
        ),
        (
            {"weights": TASK.features[:3] / 0},
            ValueError,
            "weights: expected finite values, got NaN or Inf for",
        ),
        ({"cache_bytes": -1}, ValueError, "cache_bytes: expected an integer >= 0, got -1"),
        ({"callback": 3}, TypeError, "callback: expected a function, got int"),
        ({"outputs": ["confidences"]}, ValueError, "outputs: expected a tuple of names out of 'probs'"),
        ({"group": "all"}, ValueError, "group: expected a process group"),
        (
            {"normalize": False, "features": TASK.features * 1e200},
            ValueError,
            "the hyper-parameters .* are too extreme",
        ),
    ],
)
def test_one_process_refuses(options, kind, text):
    arguments = {"features": TASK.features, "labels": TASK.labels} | options
    with pytest.raises(kind, match=text) as caught:
        distributed.adm(**arguments)
    assert "\n" not in str(caught.value)
