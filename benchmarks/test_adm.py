"""tim_ext.adm beside plain torch: the same tensors, the same 150 iterations."""

from __future__ import annotations

import torch
from torch import Tensor

import tim_ext

from . import competitors, jax_competitors
from .comparison import Candidate, Comparison
from .conftest import suite
from .tasks import Shape, Tasks

LOOP = "torch loop"
RIVALS = {
    LOOP: competitors.torch_loop,
    "torch loop, torch.compile": competitors.compiled_torch_loop,
    "torch loop, regrouped": competitors.torch_regrouped_loop,
    "torch loop, Gram domain": competitors.torch_gram_loop,
    "JAX": jax_competitors.jax_loop,
    "JAX, Gram domain": jax_competitors.jax_gram_loop,
}
ALIKE = 0.999  # of the predictions: float32 can tip a sample that lies between two classes


def solve(tasks: Tasks) -> Tensor:
    if len(tasks.features) == 1:  # what a user with one task passes
        return tim_ext.adm(*tasks.one()).predictions[None]
    return tim_ext.adm(tasks.features, tasks.labels).predictions


def check(name: str, predictions: Tensor, tasks: Tasks) -> None:
    if name == "nearest prototype":
        ways = int(tasks.truth.max()) + 1
        assert tasks.accuracy(predictions) > 1 / ways, "no better than chance"
        return
    alike = (predictions == solve(tasks)).double().mean()
    assert alike >= ALIKE, f"{alike:.2%} of the predictions are those of tim_ext.adm, expected {ALIKE:.1%}"


def compare(
    shape: Shape, threads: int, *, rivals: tuple[str, ...] = tuple(RIVALS), quick: bool = False
) -> Comparison:
    candidates = {"tim_ext.adm": Candidate(solve, shape.adm_multiply_adds(), shape.bytes())}
    for name in rivals:
        jax = {"missing": jax_competitors.MISSING, "cpu_only": True} if name.startswith("JAX") else {}
        candidates[name] = Candidate(
            lambda tasks, rival=RIVALS[name]: rival(tasks.features, tasks.labels, tasks.support), **jax
        )
    candidates["nearest prototype"] = Candidate(
        lambda tasks: competitors.nearest_prototype(tasks.features, tasks.labels, tasks.support),
        note="inductive: another problem",
    )
    return Comparison(
        f"{shape}, {threads} thread{'s' * (threads > 1)}",
        shape.make,
        candidates,
        check,
        reference=LOOP,
        tasks=shape.tasks,
        threads=threads,
        quick=quick,
        headline=quick,
        devices=("cpu", "cuda"),
    )


PLAIN = (LOOP, "torch loop, regrouped", "torch loop, Gram domain")
THREADS = min(2, torch.get_num_threads())
COMPARISONS = [
    compare(Shape(200), THREADS, quick=True),
    compare(Shape(1), 1, quick=True),
    compare(Shape(200, shots=1), THREADS, rivals=PLAIN),
    compare(Shape(200, dim=1280), THREADS, rivals=PLAIN),
    compare(Shape(20, ways=20), THREADS, rivals=PLAIN),
]


@suite("adm", COMPARISONS)
def test_adm(run, comparison, candidate, device):
    run(comparison, candidate, device)
