"""A small encoder with all that has a state, images for it, and whether anything of it changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """A small convolutional encoder, from [B, 2, 8, 8] to [B, 16], with all that has a state."""

    def __init__(self, norm: bool = True, dropout: float = 0.2):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 8, 3),
            nn.BatchNorm2d(8) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32, 16)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.register_buffer("empty", None)
        self.runs, self.fail_at = 0, None

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1  # changed in place
        self.seen = self.seen + images.mean(dim=(0, 2, 3))  # replaced
        self.runs += 1
        if self.runs == self.fail_at:
            self.fail()
        return self.head(self.body(images))

    def fail(self):
        raise RuntimeError("in the middle")


def make_encoder(**options) -> Encoder:
    torch.manual_seed(0)
    return Encoder(**options)


def make_images(tasks: int, queries: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    """[T, N, 2, 8, 8] noisy patterns of four classes, and labels [T, N] with two shots."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.cat([torch.arange(4).repeat(2), torch.arange(queries) % 4])
    patterns = torch.randn(tasks, 4, 2, 8, 8, generator=generator)
    images = patterns[:, truth] + 0.7 * torch.randn(tasks, len(truth), 2, 8, 8, generator=generator)
    labels = torch.where(torch.arange(len(truth)) < 8, truth, -1)
    return images, labels.repeat(tasks, 1)


IMAGES, LABELS = make_images(3)


class Everything:
    """All of a module that a caller can see, by object and by value."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.before = self.look()
        self.values = {name: tensor.clone() for name, tensor in self.tensors().items()}
        self.gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.module.named_parameters()) | dict(self.module.named_buffers())

    def look(self):
        return {
            "tensors": {name: id(tensor) for name, tensor in self.tensors().items()},
            "buffers": [list(module._buffers) for module in self.module.modules()],
            "training": {name: module.training for name, module in self.module.named_modules()},
            "requires_grad": {n: p.requires_grad for n, p in self.module.named_parameters()},
            "grad": {n: p.grad is not None and id(p.grad) for n, p in self.module.named_parameters()},
        }

    def assert_unchanged(self) -> None:
        assert self.look() == self.before
        for name, tensor in self.tensors().items():
            assert tensor.dtype == self.values[name].dtype
            assert tensor.detach().numpy().tobytes() == self.values[name].detach().numpy().tobytes(), name
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                assert torch.equal(parameter.grad, self.gradients[name])


def make_unusual(encoder: Encoder) -> Everything:
    """Flags and gradients as some training may have left them."""
    encoder.train()
    encoder.body[1].eval()
    encoder.body[0].bias.requires_grad_(False)
    encoder(IMAGES[0]).square().mean().backward()
    with torch.no_grad():
        encoder.head.bias[0] = -0.0  # equal to 0 but not the same bits
    return Everything(encoder)
