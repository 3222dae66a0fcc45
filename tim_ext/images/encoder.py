"""Conv-4, the small encoder of the few-shot literature, and the weights of one that was trained on `glyphs`.

    encoder = tim_ext.images.encoder.glyph_encoder()
    features = tim_ext.images.encoder.extract(encoder, tim_ext.images.glyphs.load("novel").images)  # [M, 256]

The weights lie in tim_ext/data; glyph_encoder.json beside them has the command that made them, its log, and
the accuracies they reach. docs/demo.md tells more.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from ..errors import require
from ..solver.params import check_count

CELLS = 2  # the last map is averaged to CELLS x CELLS cells
MEAN, STD = 0.5, 0.5  # images of 0 .. 1 become (x - MEAN) / STD, in training as well
WEIGHTS = Path(__file__).parents[1] / "data" / "glyph_encoder.safetensors"
PREFIX = "encoder."  # of the names of the weights, as in every checkpoint of python_train


class Conv4(nn.Module):
    """Four times a 3x3 convolution, batch norm, ReLU and 2x2 max-pool, for images of 16 pixels and more.

    The last map (2 x 2 cells for images of 32 pixels, 5 x 5 for 84) is averaged to 2 x 2 cells: there are
    4 * channels features, whatever the size of the images.
    """

    def __init__(self, channels: int = 64, in_channels: int = 1) -> None:
        super().__init__()
        channels = check_count("channels", channels, at_least=1)
        in_channels = check_count("in_channels", in_channels, at_least=1)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
            for inputs, outputs in pairwise([in_channels, *[channels] * 4])
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(4))
        self.dim = CELLS**2 * channels

    def forward_features(self, images: Tensor) -> Tensor:
        """[B, in_channels, H, W] -> [B, dim]"""
        x = images.to(memory_format=torch.channels_last)  # nearly twice as fast on a CPU
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(F.max_pool2d(norm(convolution(x)), 2))  # ReLU and max commute: fewer pixels this way
        return F.adaptive_avg_pool2d(x, CELLS).flatten(1)

    forward = forward_features


def glyph_encoder(weights: str | os.PathLike[str] = WEIGHTS) -> Conv4:
    """The shipped encoder, trained on glyphs: 64 channels, images of 32 x 32 pixels, 256 features."""
    tensors = require("safetensors.torch", "demo").load_file(weights)
    encoder = Conv4()
    encoder.load_state_dict({name.removeprefix(PREFIX): value for name, value in tensors.items()})
    return encoder.eval()


def extract(encoder: Conv4, images: Any, *, batch_size: int = 256) -> Tensor:
    """Features [M, dim], float32 on the CPU, of gray images [M, H, W], uint8 with bright ink."""
    images = torch.as_tensor(images)
    if images.dtype != torch.uint8:
        raise TypeError(f"images: expected uint8, got {str(images.dtype).removeprefix('torch.')}")
    if images.dim() != 3 or 0 in images.shape:
        raise ValueError(f"images: expected shape [M, H, W], none of them 0, got {list(images.shape)}")
    batch_size = check_count("batch_size", batch_size, at_least=1)
    device = next(encoder.parameters()).device
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            pixels = ((batch[:, None].to(device) / 255 - MEAN) / STD for batch in images.split(batch_size))
            return torch.cat([encoder.forward_features(batch).cpu() for batch in pixels])
    finally:
        encoder.train(training)
