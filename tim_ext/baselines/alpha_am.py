"""alpha-AM: the loss of alpha-TIM on similarities along a graph, which is learnt with the prototypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import pad

from ..solver.batch import Batch
from ..solver.params import GD, OUTPUTS, check_count, check_number
from ..solver.result import Result
from .finetuned_classifier import adam_step
from .pieces import PIECE_BYTES, Piece, Solution, prototypes, solve_tasks, squared_distances, support_sizes

GRAPH_BYTES = PIECE_BYTES // 8  # of one matrix [B, n, n], of which a step holds about twenty
CLOSE = 2**14  # roundings, of which a square of a distance may have lost some
TIE = 64  # roundings: a prototype comes before its only support sample, which is as near


class Published(NamedTuple):
    neighbors: int
    reach: float
    entropy_order: float


# By the least shots. The authors give 1 and 5; in between: the graph of 1 shot, the order of alpha-TIM.
PUBLISHED = {
    1.0: Published(neighbors=20, reach=0.8, entropy_order=2.0),
    2.0: Published(neighbors=20, reach=0.8, entropy_order=5.0),
    5.0: Published(neighbors=10, reach=0.9, entropy_order=5.0),
}


def alpha_am(
    features: Any,
    labels: Any,
    *,
    index: Any = None,
    num_classes: int | None = None,
    transform: str = "l2",
    base_mean: Any = None,
    neighbors: int | None = None,
    reach: float | None = None,
    entropy_order: float | None = None,
    lam: float = 1.0,
    alpha: float = 1.0,
    marginal_weight: float = 1.0,
    temperature: float = GD.temperature,
    iterations: int = GD.iterations,
    lr: float = GD.lr,
    outputs: Sequence[str] = OUTPUTS,
) -> Result:
    """alpha-AM: alpha-TIM with logits from a graph of prototypes, support and queries.

    M. Lazarou, Y. Avrithis, T. Stathaki: Adaptive manifold for imbalanced transductive few-shot learning
    (2024).

    Limits: dense matrices of the squared number of samples and a system of equations in each of 1000 steps:
    for tasks of some hundred samples.

    Args:
        features, labels, index, num_classes, outputs: as in `tim_ext.adm`.
        transform, base_mean: as in `prototype`.
        neighbors: nearest nodes that a sample is joined to. By default that of the authors for the shots of
            the task (its support samples per class, on average): 10 from 5 shots on, 20 below.
        reach: r of (I - r S)^-1, below 1. By default 0.9 from 5 shots on, 0.8 below.
        entropy_order: order of both entropies. By default 2 below 2 shots, 5 from there on.
        lam: weight of the cross entropy on the support samples.
        alpha: weight of the conditional entropy of the queries.
        marginal_weight: weight of the marginal entropy of the queries.
        temperature: tau of the logits.
        iterations, lr: as in `tim_ext.gd`.

    Returns:
        Result; its weights are the prototypes, of transformed features. The graph is not part of it.
    """
    given: dict[str, Any] = {}
    if neighbors is not None:
        given["neighbors"] = check_count("neighbors", neighbors, at_least=1)
    if reach is not None:
        given["reach"] = check_number("reach", reach)
        if given["reach"] >= 1:
            raise ValueError(f"reach: expected a number from 0 to below 1, got {given['reach']}")
    if entropy_order is not None:
        given["entropy_order"] = check_number("entropy_order", entropy_order, positive=True)
    weights = tuple(
        check_number(name, value)
        for name, value in (("lam", lam), ("alpha", alpha), ("marginal_weight", marginal_weight))
    )
    temperature = check_number("temperature", temperature, positive=True)
    iterations, lr = check_count("iterations", iterations, at_least=0), check_number("lr", lr)

    def solve(piece: Piece) -> Solution:
        settings = PUBLISHED[piece.kind]._replace(**given)
        with torch.inference_mode(False), torch.enable_grad():
            parts = [descend(part, settings, weights, temperature, iterations, lr) for part in cut(piece)]
        probs, w = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Solution(probs, w, iterations * piece.query.any(dim=1))

    task = features, labels, index, num_classes
    return solve_tasks(solve, task, transform, base_mean, outputs, kinds_of=least_shots)


def least_shots(batch: Batch) -> list[float]:
    """The key of PUBLISHED of each task."""
    sizes = zip(support_sizes(batch), batch.counts, strict=True)
    return [max(shots for shots in PUBLISHED if shots == 1 or support >= shots * k) for support, k in sizes]


def cut(piece: Piece) -> Iterator[Piece]:
    """Some of the tasks at a time; copies, as a gradient needs tensors from outside of inference mode."""
    n = piece.z.shape[1] + piece.num_classes
    size = max(1, GRAPH_BYTES // (n * n * piece.z.element_size()))
    for begin in range(0, len(piece.z), size):
        part = slice(begin, begin + size)
        yield piece._replace(z=piece.z[part].clone(), labels=piece.labels[part].clone())


def descend(
    piece: Piece,
    settings: Published,
    weights: tuple[float, ...],
    temperature: float,
    iterations: int,
    lr: float,
) -> tuple[Tensor, Tensor]:
    """Adam on prototypes, g and b: p [B, K, N] and the prototypes [B, K, d]."""
    (total, size), count = piece.labels.shape, piece.num_classes
    mean = piece.z.mean(dim=1, keepdim=True)  # distances are the same without it; float32 keeps its digits
    graph = Graph(piece, piece.z - mean, settings)
    w = prototypes(graph.z, piece.one_hot)
    g = w.new_ones(total, size, count + size)
    b = w.new_full((total, count + size, count + size), settings.reach)
    parameters = [parameter.requires_grad_() for parameter in (w, g, b)]
    moments = [(torch.zeros_like(item), torch.zeros_like(item)) for item in parameters]
    moving = piece.query.any(dim=1)
    for t in range(1, iterations + 1):
        log_p = (temperature * graph.scores(w, g, b)).log_softmax(dim=1)
        loss = information_loss(piece, log_p, weights, settings.entropy_order)
        gradients = torch.autograd.grad((loss * moving).sum(), parameters)
        with torch.no_grad():
            for parameter, gradient, moment in zip(parameters, gradients, moments, strict=True):
                adam_step(t, parameter, gradient, *moment, lr)
    with torch.no_grad():
        return (temperature * graph.scores(w, g, b)).softmax(dim=1), w + mean


class Graph:
    """Nodes: the K prototypes, then the N samples; n = K + N."""

    def __init__(self, piece: Piece, z: Tensor, settings: Published) -> None:
        (_, size), count = piece.labels.shape, piece.num_classes
        self.z, self.settings = z, settings
        exact = "donot_use_mm_for_euclid_dist"
        self.between_samples = torch.cdist(z, z, compute_mode=exact)  # [B, N, N]
        node = pad(piece.support | piece.query, (count, 0), value=True)  # [B, n]
        self.pairs = (node[:, None] & node[..., None]).to(z)  # [B, n, n]
        self.eye = torch.eye(count + size, dtype=z.dtype, device=z.device)

    def scores(self, w: Tensor, g: Tensor, b: Tensor) -> Tensor:
        """Of samples to prototypes: [B, K, N] of (I - r S)^-1.

        a_ij = exp(-g_ij ||z_i - z_j|| / std of all distances) from a sample i to its nearest j, else 0
        S    = D^-1/2 W D^-1/2,  w_ij = b_ij (a_ij + a_ji) / 2,  D_ii = sum_j w_ij
        """
        count = w.shape[1]
        to_w = distances(self.z, w)  # [B, K, N]
        top = torch.cat([distances(w, w), to_w], dim=2)
        far = torch.cat([top, torch.cat([to_w.mT, self.between_samples], dim=2)], dim=1)  # [B, n, n]
        joined = self.pairs[:, count:] * (1 - self.eye[count:])  # [B, N, n]
        a = (-g * far[:, count:] / self.deviation(far)).exp() * joined
        order = a.detach().clone()
        order[..., :count] *= 1 + TIE * torch.finfo(a.dtype).eps
        nearest = order.topk(min(self.settings.neighbors, a.shape[2]), dim=2).indices
        a = pad(a * torch.zeros_like(a).scatter_(2, nearest, 1), (0, 0, count, 0))  # [B, n, n]
        weight = b * (a + a.mT) / 2
        degree = weight.sum(dim=2)
        scale = torch.where(degree != 0, degree, 1).rsqrt()  # a prototype may be nobody's neighbour
        s = scale[..., None] * weight * scale[:, None]
        first = self.eye[:, :count].expand(len(s), -1, -1)
        columns: Tensor
        columns, _ = torch.linalg.solve_ex(self.eye - self.settings.reach * s, first)
        return columns[:, count:].mT

    def deviation(self, far: Tensor) -> Tensor:
        """Standard deviation [B, 1, 1] of the distances of all pairs of nodes; 1 if all are equal."""
        total = self.pairs.sum(dim=(1, 2), keepdim=True)
        mean = (far * self.pairs).sum(dim=(1, 2), keepdim=True) / total
        variance = ((far - mean).square() * self.pairs).sum(dim=(1, 2), keepdim=True) / (total - 1)
        return torch.where(variance != 0, variance, 1).sqrt()


def distances(z: Tensor, w: Tensor) -> Tensor:
    """||w_k - z_i|| [B, K, N]; with gradient 0 where it is 0, as for the prototype of a single sample.

    Where the squares cancel, it is the length of the difference.
    """
    squares = squared_distances(z, w)
    size = (
        vector_norm(w.detach(), dim=2)[..., None].square() + vector_norm(z.detach(), dim=2)[:, None].square()
    )
    close = squares <= CLOSE * torch.finfo(z.dtype).eps * size
    task, k, i = places = close.nonzero(as_tuple=True)
    length = vector_norm(w[task, k] - z[task, i], dim=1)
    return torch.where(close, 1, squares).sqrt().index_put(places, length)


def information_loss(piece: Piece, log_p: Tensor, weights: tuple[float, ...], order: float) -> Tensor:
    """lam CE(S) + alpha H(Y|X on Q) - m H(phat) of each task, from log p [B, K, N]: [B]"""
    lam, alpha, marginal_weight = weights
    support, query = piece.support, piece.query
    cross = -(piece.one_hot * log_p).sum(dim=(1, 2)) / support.sum(dim=1)
    total = query.sum(dim=1).clamp(min=1)
    conditional = (tsallis(log_p, order) * query).sum(dim=1) / total
    seen = query | ~query.any(dim=1, keepdim=True)  # without queries, anything that is finite
    log_sum = log_p.masked_fill(~seen[:, None], -torch.inf).logsumexp(dim=2)  # [B, K]
    marginal = tsallis(log_sum - seen.sum(dim=1, keepdim=True).log(), order)
    return lam * cross + alpha * conditional - marginal_weight * marginal


def tsallis(log_p: Tensor, order: float) -> Tensor:
    """(1 - sum_k p_k^a) / (a - 1), and Shannon's entropy for a = 1, over dimension 1"""
    if order == 1:
        return -(log_p.exp() * log_p).sum(dim=1)
    return (1 - (order * log_p).exp().sum(dim=1)) / (order - 1)
