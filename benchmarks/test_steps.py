"""The step operators beside the torch expressions they replace, on 200 tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

import tim_ext  # noqa: F401  (registers the operators)

from . import competitors as plain
from .comparison import Call, Candidate, Comparison
from .conftest import suite
from .tasks import Shape, Tasks

OPS: Any = torch.ops.tim_ext
LAM, ALPHA, BETA, TAU = plain.LAM, plain.ALPHA, plain.BETA, plain.TAU
SHAPE = Shape(200)
THREADS = min(2, torch.get_num_threads())


@dataclass(frozen=True)
class State:
    """Unit features, and what the steps make of them at the prototypes."""

    z: Tensor  # [T, N, d]
    labels: Tensor
    support: int
    y: Tensor  # [T, S, K]
    W: Tensor  # [T, K, d]
    probs: Tensor  # [T, N, K]
    log_probs: Tensor
    q: Tensor  # y on the support samples


def make(device: torch.device) -> State:
    tasks: Tasks = SHAPE.make(device)
    z = normalize(tasks.features, dim=-1)
    y = one_hot(tasks.labels[:, : tasks.support]).to(z.dtype)
    W = y.mT @ z[:, : tasks.support] / y.sum(1)[..., None]
    log_probs = plain.distance_logits(z, W).log_softmax(-1)
    q = torch.cat([y, plain.assignments(log_probs[:, tasks.support :])], 1)
    return State(z, tasks.labels, tasks.support, y, W, log_probs.exp(), log_probs, q)


def torch_softmax(s: State) -> tuple[Tensor, Tensor]:
    log_p = plain.distance_logits(s.z, s.W).log_softmax(-1)
    return log_p.exp(), log_p


def torch_q(s: State) -> Tensor:
    return torch.cat([s.y, plain.assignments(s.log_probs[:, s.support :])], 1)


def torch_w(s: State) -> Tensor:
    c_s, c_q = LAM / (BETA + ALPHA), s.support / (s.z.shape[1] - s.support)
    X, p_s, p_q, q = s.q - s.probs, s.probs[:, : s.support], s.probs[:, s.support :], s.q[:, s.support :]
    total = (
        c_s * X[:, : s.support].mT @ s.z[:, : s.support] + c_q * X[:, s.support :].mT @ s.z[:, s.support :]
    )
    B = c_s * p_s.sum(1) + c_q * p_q.sum(1)
    return (total + B[..., None] * s.W) / (c_s * s.y.sum(1) + c_q * q.sum(1))[..., None]


def torch_gradient(s: State) -> Tensor:
    W = s.W.clone().requires_grad_()
    plain.gd_loss(W, s.z, s.y).backward()
    assert W.grad is not None
    return W.grad


def ours_gradient(s: State) -> Tensor:
    options = {"lam": LAM, "alpha": ALPHA, "temperature": TAU, "marginal_weight": 1.0}
    return OPS.gd_gradient(s.z, s.W, s.labels, **options)[2]


ITERATIONS = 150


def ours_loop(s: State) -> Tensor:
    W, probs, log_probs, q = s.W.clone(), *(torch.empty_like(s.probs) for _ in range(3))
    for _ in range(ITERATIONS):
        OPS.distance_softmax.out(s.z, W, TAU, probs=probs, log_probs=log_probs)
        OPS.q_update.out(log_probs, s.labels, ALPHA, BETA, 1.0, out=q)
        OPS.w_update.out(s.z, W, probs, q, s.labels, LAM, ALPHA, BETA, out=W)
    return W


def torch_loop(s: State) -> Tensor:
    c_s, c_q = LAM / (BETA + ALPHA), s.support / (s.z.shape[1] - s.support)
    y_z, W = s.y.mT @ s.z[:, : s.support], s.W
    for _ in range(ITERATIONS):
        W = plain.adm_step(W, s.z, y_z, s.y.sum(1), s.support, c_s, c_q)
    return W


def compare(
    name: str, ours: Call, theirs: Call, multiply_adds: float, moved: float, candidate: str = ""
) -> Comparison:
    def check(who: str, result: Any, state: State) -> None:
        torch.testing.assert_close(result, theirs(state), atol=1e-4, rtol=1e-3)

    return Comparison(
        name,
        make,
        {candidate or f"tim_ext::{name}": Candidate(ours, multiply_adds, moved), "torch": Candidate(theirs)},
        check,
        reference="torch",
        tasks=SHAPE.tasks,
        threads=THREADS,
        quick=True,
        seconds=2.0,
        devices=("cpu", "cuda"),
    )


PRODUCT = SHAPE.tasks * SHAPE.samples * SHAPE.dim * SHAPE.ways  # multiply-adds
FEATURES, SMALL = SHAPE.tasks * SHAPE.samples * SHAPE.dim * 4, SHAPE.tasks * SHAPE.samples * SHAPE.ways * 4
COMPARISONS = [
    compare(
        "distance_softmax", lambda s: OPS.distance_softmax(s.z, s.W, TAU), torch_softmax, PRODUCT, FEATURES
    ),
    compare(
        "q_update", lambda s: OPS.q_update(s.log_probs, s.labels, ALPHA, BETA, 1.0), torch_q, 0, 2 * SMALL
    ),
    compare(
        "w_update",
        lambda s: OPS.w_update(s.z, s.W, s.probs, s.q, s.labels, LAM, ALPHA, BETA),
        torch_w,
        PRODUCT,
        FEATURES,
    ),
    compare("gd_gradient", ours_gradient, torch_gradient, 2 * PRODUCT, FEATURES),
    compare(
        "loop",
        ours_loop,
        torch_loop,
        2 * ITERATIONS * PRODUCT,
        2 * ITERATIONS * FEATURES,
        candidate=f"{ITERATIONS} iterations of these",
    ),
]


@suite("steps", COMPARISONS)
def test_steps(run, comparison, candidate, device):
    run(comparison, candidate, device)
