"""What is done to training images at random: crops, flips, colours."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tim_ext.images.preprocessing import Preprocessing, gray, resample, resampling_matrix

UNIFORMS = 8  # random numbers of one augmentation: area, aspect, y, x, flip, brightness, contrast, colour


@dataclass(frozen=True)
class Augmentation:
    """The random changes of training images: a crop of random area and aspect ratio, colours, a flip."""

    crop_scale: float = 0.08  # smallest share of the area; the largest is 1
    aspect: float = 4 / 3  # width / height is log-uniform in 1/aspect .. aspect
    jitter: float = 0.4  # brightness, contrast and colour are scaled by 1 - jitter .. 1 + jitter
    flip: bool = True


def random_crop(images: Tensor, how: Preprocessing, change: Augmentation, random: Tensor) -> Tensor:
    """A random box of each image, resized to size x size, and perhaps flipped; random [B, UNIFORMS].

    The box has a share crop_scale .. 1 of the area and the aspect ratio 1/aspect .. aspect, cut to the image
    where it is larger, at a uniform place.
    """
    height, width = images.shape[-2:]
    share = change.crop_scale + (1 - change.crop_scale) * random[:, 0]
    aspect = ((2 * random[:, 1] - 1) * math.log(change.aspect)).exp()
    area = share * height * width

    def matrix(length: int, side: Tensor, place: Tensor) -> Tensor:
        side = side.round().clamp(1, length)
        low = (place * (length - side + 1)).floor()
        return resampling_matrix(low, side / how.size, low, low + side, length, how.size, how.antialias)

    rows = matrix(height, (area / aspect).sqrt(), random[:, 2])
    columns = matrix(width, (area * aspect).sqrt(), random[:, 3])
    if change.flip:
        columns = torch.where((random[:, 4] < 0.5)[:, None, None], columns.flip(1), columns)
    return resample(images, rows, columns)


def jitter_colors(images: Tensor, strength: float, random: Tensor) -> Tensor:
    """Brightness, contrast and colour, in this order, each by a factor of its own for each image."""
    factors = (1 + strength * (2 * random[:, 5:8] - 1)).to(images.dtype)
    factors = factors[:, :, None, None, None]  # [B, 3, 1, 1, 1]
    images = (images * factors[:, 0]).clamp(0, 1)
    lightness = gray(images) if images.shape[1] == 3 else images
    mean = lightness.mean(dim=(1, 2, 3), keepdim=True)
    images = (mean + factors[:, 1] * (images - mean)).clamp(0, 1)
    if images.shape[1] == 3:
        lightness = gray(images)
        images = (lightness + factors[:, 2] * (images - lightness)).clamp(0, 1)
    return images
