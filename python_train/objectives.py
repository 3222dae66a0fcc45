"""The losses of training, as sums over samples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The sum over the samples, and how many of them are right."""
    loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    return loss, (logits.argmax(dim=1) == labels).sum()


def prototypical(
    features: Tensor, ways: int, shots: int, queries: int, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Prototypical Networks (Snell et al. 2017), episode by episode:

        w_k = mean of the support features of class k,   p_k = softmax_k(-||z - w_k||^2)

    features [E N, d]: of each episode the support, then the queries, both class by class. Returns the cross
    entropy summed over the queries, and how many of them are right.
    """
    episodes = features.view(-1, ways * (shots + queries), features.shape[1])  # [E, N, d]
    support, query = torch.split(episodes, [ways * shots, ways * queries], dim=1)
    prototypes = support.reshape(len(episodes), ways, shots, -1).mean(dim=2)  # [E, K, d]
    logits = -(query[:, :, None] - prototypes[:, None]).square().sum(dim=-1)  # [E, Q, K]
    truth = torch.arange(ways, device=features.device).repeat_interleave(queries).repeat(len(episodes))
    return cross_entropy(logits.flatten(0, 1), truth, label_smoothing)
