"""Random few-shot tasks for measurements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tasks:
    features: Tensor  # [T, N, d]
    labels: Tensor  # [T, N]  support samples first, -1 for queries
    truth: Tensor  # [T, N]
    support: int

    def one(self) -> tuple[Tensor, Tensor]:
        """The first task, [N, d] and [N]."""
        return self.features[0], self.labels[0]

    def accuracy(self, predictions: Tensor) -> float:
        """Of the queries; predictions [T, N], or [T, Q]."""
        queries = self.truth[:, self.support :]
        return float((predictions[:, -queries.shape[1] :] == queries).double().mean())


@dataclass(frozen=True)
class Shape:
    tasks: int = 1
    ways: int = 5
    shots: int = 5
    queries: int = 15  # per class
    dim: int = 640

    @property
    def samples(self) -> int:
        return self.ways * (self.shots + self.queries)

    @property
    def support(self) -> int:
        return self.ways * self.shots

    def __str__(self) -> str:
        many = "1 task" if self.tasks == 1 else f"{self.tasks:,} tasks"
        return f"{many}, {self.ways}-way {self.shots}-shot, d = {self.dim}"

    def adm_multiply_adds(self, iterations: int = 150) -> float:
        """What the dual form is charged with: half a Gram matrix and one N x N x K product per iteration."""
        n = self.samples
        return self.tasks * (n**2 * self.dim / 2 + iterations * n**2 * self.ways)

    def gd_multiply_adds(self, iterations: int = 1000) -> float:
        """Two N x d x K products per iteration."""
        return self.tasks * iterations * 2 * self.samples * self.dim * self.ways

    def bytes(self, size: int = 4) -> float:
        """Features in, labels in; probabilities, predictions and weights out."""
        return self.tasks * (
            self.samples * (self.dim * size + 8 + self.ways * size + 8) + self.ways * self.dim * size
        )

    def make(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tasks:
        """Noisy clusters."""
        generator = torch.Generator().manual_seed(0)
        classes = torch.arange(self.samples) % self.ways
        centres = 0.3 * torch.randn(self.tasks, self.ways, self.dim, generator=generator)
        features = torch.randn(self.tasks, self.samples, self.dim, generator=generator)
        features += centres[:, classes]
        labels = torch.where(torch.arange(self.samples) < self.support, classes, -1)
        lead = (self.tasks, self.samples)
        return Tasks(
            features.to(device, dtype),
            labels.expand(lead).contiguous().to(device),
            classes.expand(lead).contiguous().to(device),
            self.support,
        )
