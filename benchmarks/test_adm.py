"""tim_ext.adm against plain torch over tasks, samples, classes and dimensions: `pytest benchmarks`."""

from __future__ import annotations

import pytest
import torch

import tim_ext

from . import competitors, measure
from .tasks import make_tasks

SHAPES = {  # tasks, ways, shots, queries per class, dim
    "1 task": (1, 5, 5, 15, 640),
    "200 tasks": (200, 5, 5, 15, 640),
    "200 tasks, 1 shot": (200, 5, 1, 15, 640),
    "200 tasks, d=64": (200, 5, 5, 15, 64),
    "200 tasks, d=1280": (200, 5, 5, 15, 1280),
    "50 tasks, 10 ways": (50, 10, 5, 15, 640),
    "20 tasks, 20 ways": (20, 20, 5, 15, 640),
    "1 task, 50 ways": (1, 50, 5, 15, 640),
}
METHODS = {
    "tim_ext.adm": lambda features, labels, support: tim_ext.adm(features, labels).predictions,
    "torch loop": competitors.torch_loop,
    "torch loop, Gram domain": competitors.torch_gram_loop,
    "nearest prototype": competitors.nearest_prototype,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_adm(timed, shape, method):
    tasks, ways, shots, queries, dim = SHAPES[shape]
    features, labels = make_tasks(tasks, ways, shots, queries, dim)
    call = METHODS[method]
    if method.startswith("torch"):
        equal = call(features, labels, ways * shots) == tim_ext.adm(features, labels).predictions
        assert equal.float().mean() > 0.999
    work = measure.adm_multiply_adds(tasks, features.shape[1], dim, ways) if method == "tim_ext.adm" else 0.0
    timed(shape, method, lambda: call(features, labels, ways * shots), work)


@pytest.mark.parametrize("solver", ["dual", "primal", "auto"])
@pytest.mark.parametrize("queries", [15, 60, 250, 1000])
def test_solver(timed, queries, solver):
    """Where the dual form ends and the primal one begins: one task, d = 256."""
    features, labels = make_tasks(1, 5, 5, queries, 256)
    samples = features.shape[1]
    timed(f"{samples} samples, d = 256", solver, lambda: tim_ext.adm(features, labels, solver=solver))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_dtype(timed, dtype):
    features, labels = make_tasks(100, dtype=dtype)
    timed("100 tasks by dtype", str(dtype), lambda: tim_ext.adm(features, labels))
