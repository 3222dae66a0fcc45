"""The baselines against easyfsl, an independent implementation, where the algorithms coincide.

easyfsl needs torchvision, and that the torch it was built for: `pip install 'tim_ext[compare]'`.
docs/baselines.md lists what differs and why.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.make_tasks import Task, make_task
from torch import Tensor

from tim_ext import baselines
from tim_ext.tasks import balanced

try:
    from easyfsl import methods
except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision for another torch
    pytest.skip(f"easyfsl does not import ({error}): pip install 'tim_ext[compare]'", allow_module_level=True)

FLOAT64 = {"atol": 1e-9, "rtol": 1e-7}
SHAPES = {
    "5-way 1-shot": {"shots": (1,) * 5, "queries": 75},
    "5-way 5-shot": {"shots": (5,) * 5, "queries": 75},
    "20-way": {"shots": (2,) * 20, "queries": 100},
    "unequal shots": {"shots": (1, 4, 2, 7), "queries": 40},
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def make_tasks(shape: dict[str, Any], dtype: torch.dtype = torch.float64) -> list[Task]:
    """Hard tasks with positive features, as after a ReLU."""
    tasks = [make_task(seed, d=32, noise=2.5, dtype=dtype, **shape) for seed in range(4)]
    for task in tasks:
        task.features.add_(1.0).abs_().add_(0.1)
    return tasks


def easyfsl_probs(classifier: Any, task: Task) -> Tensor:
    """[Q, K]"""
    support = task.labels >= 0
    classifier.process_support_set(task.features[support], task.labels[support])
    return classifier(task.features[~support]).detach()


def assert_parity(
    ours: Any, theirs: Any, tasks: list[Task], tolerance: dict[str, float] = FLOAT64, **options: Any
) -> None:
    """`ours` on all tasks at once against a new classifier of `theirs` for each."""
    result = ours([task.features for task in tasks], [task.labels for task in tasks], **options)
    for task, probs, predictions in zip(tasks, result.probs, result.predictions, strict=True):
        expected = easyfsl_probs(theirs(), task)
        query = task.labels == -1
        torch.testing.assert_close(probs[query], expected, **tolerance)
        assert torch.equal(predictions[query], expected.argmax(dim=1))
    accuracies = [task.accuracy(p) for task, p in zip(tasks, result.predictions, strict=True)]
    assert max(accuracies) < 1  # else the tasks are too easy to tell methods apart


@shapes
@pytest.mark.parametrize("transform", ["none", "l2", "cl2"])
def test_simple_shot(shape, transform):
    tasks = make_tasks(shape)
    mean = torch.linspace(0.8, 1.2, 32, dtype=torch.float64)
    settings = {
        "none": {},
        "l2": {"feature_normalization": 2},
        "cl2": {"feature_normalization": 2, "feature_centering": mean},
    }[transform]
    assert_parity(
        baselines.prototype,
        lambda: methods.SimpleShot(use_softmax=True, **settings),
        tasks,
        metric="cosine",
        temperature=1.0,
        transform=transform,
        base_mean=mean,
    )


@shapes
def test_prototypical_networks_up_to_the_square_of_the_distance(shape):
    """easyfsl takes the softmax of the negative distances: the same predictions."""
    for task in make_tasks(shape):
        predictions = baselines.protonet(task.features, task.labels).predictions
        expected = easyfsl_probs(methods.PrototypicalNetworks(), task).argmax(dim=1)
        assert torch.equal(predictions[task.labels == -1], expected)


@shapes
@pytest.mark.parametrize("transform", ["none", "l2"])
def test_bd_cspn(shape, transform):
    assert_parity(
        baselines.bd_cspn,
        lambda: methods.BDCSPN(use_softmax=True, feature_normalization=2 if transform == "l2" else None),
        make_tasks(shape),
        transform=transform,
        scale=1.0,
        temperature=1.0,
    )


@shapes
@pytest.mark.parametrize(("knn", "lam", "iterations"), [(3, 0.7, 20), (6, 0.3, 5)])
def test_laplacian_shot(shape, knn, lam, iterations):
    """easyfsl takes float32 only."""
    assert_parity(
        baselines.laplacian_shot,
        lambda: methods.LaplacianShot(
            inference_steps=iterations, knn=knn, lambda_regularization=lam, feature_normalization=2
        ),
        make_tasks(shape, torch.float32),
        tolerance={"atol": 1e-5, "rtol": 0},
        scale=1.0,
        neighbors=knn - 1,
        lam=lam,
        iterations=iterations,
    )


@shapes
@pytest.mark.parametrize(("lam", "iterations"), [(10.0, 10), (3.0, 20)])
def test_pt_map(shape, lam, iterations):
    """easyfsl adds 1e-6 to the features before their root, 1e-10 to sums, and stops at a change of 1e-6."""
    assert_parity(
        baselines.pt_map,
        lambda: methods.PTMAP(
            fine_tuning_steps=iterations, lambda_regularization=lam, feature_normalization=2
        ),
        make_tasks(shape),
        tolerance={"atol": 2e-5, "rtol": 0},
        transform="l2+power",
        lam=lam,
        iterations=iterations,
    )


@shapes
@pytest.mark.parametrize(("lr", "temperature"), [(1e-4, 1.0), (1e-2, 10.0)])
def test_finetune(shape, lr, temperature):
    assert_parity(
        baselines.finetune_cosine,
        lambda: methods.Finetune(
            use_softmax=True, fine_tuning_steps=50, fine_tuning_lr=lr, temperature=temperature
        ),
        make_tasks(shape),
        transform="none",
        iterations=50,
        lr=lr,
        temperature=temperature,
    )


# ours, theirs, options of ours, and the type of the features: in float32, the PT-MAP of easyfsl underflows
ON_REAL_FEATURES: dict[str, tuple[Any, Any, dict[str, Any], type]] = {
    "SimpleShot": (baselines.prototype, methods.SimpleShot, {"metric": "cosine"}, np.float32),
    "BD-CSPN": (baselines.bd_cspn, methods.BDCSPN, {"scale": 1.0}, np.float32),
    "LaplacianShot": (baselines.laplacian_shot, methods.LaplacianShot, {"scale": 1.0}, np.float32),
    "PT-MAP": (baselines.pt_map, methods.PTMAP, {"transform": "l2+power", "iterations": 10}, np.float64),
    "Finetune": (
        baselines.finetune_cosine,
        methods.Finetune,
        {"iterations": 200, "lr": 1e-4, "temperature": 1.0},
        np.float32,
    ),
}


@pytest.mark.skipif("TIM_EXT_DATA" not in os.environ, reason="TIM_EXT_DATA is not set: no real features")
@pytest.mark.parametrize(
    ("ours", "theirs", "options", "dtype"), ON_REAL_FEATURES.values(), ids=ON_REAL_FEATURES
)
@pytest.mark.parametrize("shots", [1, 5])
def test_predictions_on_real_features(ours, theirs, options, dtype, shots):
    with np.load(Path(os.environ["TIM_EXT_DATA"]) / "cifarfs_test_features.npz") as data:
        pool, labels = torch.from_numpy(data["features"].astype(dtype)), data["labels"]
    tasks = balanced(labels, shots=shots, seed=1)[:2]
    result = ours(pool, tasks.labels, index=tasks.index, **options)
    query = tasks.labels == -1
    expected = [
        easyfsl_probs(theirs(feature_normalization=2), Task(pool[rows], task_labels, truth)).argmax(dim=1)
        for rows, task_labels, truth in zip(tasks.index, tasks.labels, tasks.truth, strict=True)
    ]
    same = (result.predictions[query] == torch.cat(expected)).double().mean()
    # the plan of PT-MAP is exact here, and within 1e-10 of sums and 1e-6 of features in easyfsl
    assert same == 1 or (ours is baselines.pt_map and same > 0.98)
