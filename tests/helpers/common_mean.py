"""Tasks whose samples share a large common part, as features of CLIP, DINO and sentence encoders do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class CommonMeanTask:
    features: Tensor  # [N, d] float32
    labels: Tensor  # [N]  class of a support sample, -1 for a query
    options: dict[str, Any] = field(default_factory=dict)


def clusters(
    seed: int,
    *,
    classes: int = 5,
    shots: int = 5,
    queries: int = 15,
    dim: int = 512,
    spread: float,
    noise: float = 1.0,
    norm: float = 1.0,
    **options: Any,
) -> CommonMeanTask:
    """Clusters around a vector u: z = norm (u + spread (mean_k + noise e)), u, mean_k and e of length 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, dim, generator=generator, dtype=torch.float64) / math.sqrt(dim)

    common = torch.nn.functional.normalize(normal(1))
    truth = torch.arange(classes).repeat_interleave(shots + queries)
    z = norm * (common + spread * (normal(classes)[truth] + noise * normal(len(truth))))
    is_support = torch.arange(shots + queries).repeat(classes) < shots
    return CommonMeanTask(z.float(), torch.where(is_support, truth, -1), options)


def random_task(seed: int) -> CommonMeanTask:
    """Spread 1e-3 .. 1, norms 0.1 .. 200 with and without `normalize`, temperatures 1 .. 1000, K 2 .. 60."""
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> float:
        return torch.rand((), generator=generator).item()

    def pick(*choices: int) -> int:
        return choices[int(uniform() * len(choices))]

    classes, shots = pick(2, 3, 5, 5, 10, 20, 40, 60), 1 + int(uniform() * 5)
    queries = 1 + int(uniform() * 15)
    most = max(300 // classes, 2)  # samples of a class
    shots = min(shots, most - 1)
    return clusters(
        seed,
        classes=classes,
        shots=shots,
        queries=min(queries, most - shots),
        dim=pick(16, 64, 128, 512),
        spread=10 ** (-3 * uniform()),
        norm=10 ** (-1 + uniform() * math.log10(2000)),
        noise=0.3 + uniform(),
        temperature=10 ** (3 * uniform()),
        normalize=uniform() < 0.5,
    )
