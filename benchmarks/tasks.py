"""Random few-shot tasks for measurements."""

from __future__ import annotations

import torch


def make_tasks(
    tasks: int,
    ways: int = 5,
    shots: int = 5,
    queries: int = 15,
    dim: int = 640,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [T, N, d] of noisy clusters, and labels [T, N]: support samples first, -1 for queries."""
    generator = torch.Generator().manual_seed(0)
    samples = ways * (shots + queries)
    classes = torch.arange(samples) % ways
    centres = 0.3 * torch.randn(tasks, ways, dim, generator=generator)
    features = centres[:, classes] + torch.randn(tasks, samples, dim, generator=generator)
    labels = torch.where(torch.arange(samples) < ways * shots, classes, -1)
    return features.to(dtype), labels.expand(tasks, samples).contiguous()
