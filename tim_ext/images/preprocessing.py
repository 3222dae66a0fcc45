"""From images to the tensors an encoder takes: resize, centre crop, normalisation.

Resizing and cropping along one axis is a matrix of weights [size, length], so a batch of images is resized by
two batched products, out = Y x X^T. Output pixel i looks at the input around c_i = first + (i + 1/2) scale,

    weight_ij  proportional to  max(0, 1 - |j + 1/2 - c_i| / support)
    support = max(scale, 1) with anti-aliasing, 1 without

over the input pixels j of the crop. That is bilinear interpolation as torch and Pillow do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError

NORMALIZATION = {  # mean and standard deviation of each channel: of ImageNet's images, and for drawings
    3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    1: ((0.5,), (0.5,)),
}
LUMA = 0.299, 0.587, 0.114


@dataclass(frozen=True)
class Preprocessing:
    """What is done to every image, in training and in use; it is stored with the weights.

    Resizing keeps the aspect ratio: the shorter side gets `resize` pixels, then the centre is cut out.
    """

    size: int = 84
    resize: int = 84  # >= size
    antialias: bool = True
    mean: tuple[float, ...] = NORMALIZATION[3][0]  # of each channel: there is one, or three
    std: tuple[float, ...] = NORMALIZATION[3][1]

    def __post_init__(self) -> None:
        if self.resize < self.size:
            raise UserError(f"--resize: expected at least the image size {self.size}, got {self.resize}")

    @property
    def channels(self) -> int:
        return len(self.mean)

    @staticmethod
    def from_description(description: dict[str, Any]) -> Preprocessing:
        """From what `asdict` gave, perhaps by way of JSON."""
        mean, std = tuple(description["mean"]), tuple(description["std"])
        return Preprocessing(description["size"], description["resize"], description["antialias"], mean, std)


@dataclass(frozen=True)
class PillowPreprocessing(Preprocessing):
    """Resized by Pillow, to 8 bits, with its filter of that number: bicubic is 3. So CLIP was trained, and
    nothing is done before to make large images cheaper."""

    resample: int = 3
    squash: bool = False  # both sides get `resize` pixels, whatever the image's aspect ratio


def resize_by_pillow(image: Any, how: PillowPreprocessing) -> Any:
    """A Pillow image of size x size; where its margins cannot be equal, the one below or right is larger."""
    short = min(image.size)
    sides = [how.resize * (short if how.squash else side) // short for side in image.size]
    image = image.resize(sides, how.resample)
    left, top = ((side - how.size) // 2 for side in sides)
    return image.crop((left, top, left + how.size, top + how.size))


def to_tensor(images: NDArray[np.uint8], channels: int) -> Tensor:
    """[B, H, W] or [B, H, W, 3] of 0 .. 255 -> [B, channels, H, W] of 0 .. 1."""
    tensor = torch.from_numpy(np.ascontiguousarray(images)).to(torch.float32) / 255
    tensor = tensor[:, None] if tensor.dim() == 3 else tensor.permute(0, 3, 1, 2)
    if tensor.shape[1] == 3 and channels == 1:
        return gray(tensor)
    return tensor.expand(-1, channels, -1, -1)


def gray(images: Tensor) -> Tensor:
    return (images * images.new_tensor(LUMA)[:, None, None]).sum(dim=1, keepdim=True)


def resampling_matrix(
    first: Tensor,  # [B]  where the output begins, in input pixels
    scale: Tensor,  # [B]  input pixels of one output pixel
    low: Tensor,  # [B]  the input pixels low .. high - 1 count
    high: Tensor,  # [B]
    length: int,
    size: int,
    antialias: bool,
) -> Tensor:
    """[B, size, length]: the weights of the input pixels in each output pixel; in float64, then float32."""
    center = first[:, None] + (torch.arange(size, dtype=torch.float64) + 0.5) * scale[:, None]  # [B, size]
    pixel = torch.arange(length, dtype=torch.float64)
    support = scale.clamp(min=1.0) if antialias else torch.ones_like(scale)
    weights = 1 - (pixel + 0.5 - center[..., None]).abs() / support[:, None, None]
    inside = (pixel >= low[:, None]) & (pixel < high[:, None])  # [B, length]
    weights = weights.clamp(min=0) * inside[:, None]
    return (weights / weights.sum(dim=-1, keepdim=True)).to(torch.float32)


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[B, C, H, W] with rows [B, S, H] and columns [B, S, W] -> [B, C, S, S]."""
    batch, channels, height, width = images.shape
    narrow = images.reshape(batch, channels * height, width) @ columns.mT  # [B, C H, S]
    return rows[:, None] @ narrow.view(batch, channels, height, -1)


def center_crop(images: Tensor, how: Preprocessing) -> Tensor:
    """Resizes the shorter side to `resize` and cuts out the centre: [B, C, H, W] -> [B, C, size, size]."""
    height, width = images.shape[-2:]
    short = min(height, width)

    def matrix(length: int) -> Tensor:
        resized = how.resize * length // short
        offset = round((resized - how.size) / 2)
        scale = torch.tensor([length / resized], dtype=torch.float64)
        low, high = torch.tensor([[0.0], [length]], dtype=torch.float64)
        return resampling_matrix(offset * scale, scale, low, high, length, how.size, how.antialias)

    return resample(images, matrix(height), matrix(width))


def normalize(images: Tensor, how: Preprocessing) -> Tensor:
    mean, std = (images.new_tensor(values)[:, None, None] for values in (how.mean, how.std))
    return (images - mean) / std
