"""Batches of images, read and transformed in this process or in workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from tim_ext.images.preprocessing import Preprocessing, center_crop, normalize, to_tensor

from . import augmentation, counters
from .augmentation import Augmentation
from .datasets import Dataset
from .errors import UserError

Ints = NDArray[np.int64]


class Batch(NamedTuple):
    """Which images, and the counters of their random changes."""

    rows: Ints  # [B]
    turn: int = 0
    counters: Ints | None = None  # [B]


class Images(TorchDataset[tuple[Tensor, Tensor] | UserError]):
    """From batches of rows to images [B, C, size, size] and labels [B], ready for an encoder."""

    def __init__(
        self, dataset: Dataset, how: Preprocessing, change: Augmentation | None = None, seed: int = 0
    ) -> None:
        self.dataset, self.how, self.change, self.seed = dataset, how, change, seed

    def __getitem__(self, batch: Batch) -> tuple[Tensor, Tensor] | UserError:
        """An error is returned, not raised: torch would wrap one that a worker raises in its traceback."""
        try:
            labels = torch.from_numpy(self.dataset.labels[batch.rows])
            return self._images(batch), labels
        except UserError as error:
            return error

    def _images(self, batch: Batch) -> Tensor:
        how, change = self.how, self.change
        random = None
        if change is not None:
            assert batch.counters is not None
            numbers = counters.uniforms(
                self.seed, counters.AUGMENTATION, batch.turn, batch.counters, augmentation.UNIFORMS
            )
            random = torch.from_numpy(numbers)
        if isinstance(self.dataset.images, np.ndarray):
            images = self._cropped(self.dataset.images[batch.rows], random)
        else:
            parts = []
            for b, row in enumerate(batch.rows.tolist()):
                image = self.dataset.read(row, how.channels)[None]
                parts.append(self._cropped(image, None if random is None else random[b : b + 1]))
            images = torch.cat(parts) if parts else torch.empty(0, how.channels, how.size, how.size)
        if change is not None and change.jitter:
            assert random is not None
            images = augmentation.jitter_colors(images, change.jitter, random)
        return normalize(images, how).contiguous()

    def _cropped(self, images: NDArray[np.uint8], random: Tensor | None) -> Tensor:
        tensor = to_tensor(images, self.how.channels)
        if random is None or self.change is None:
            return center_crop(tensor, self.how)
        return augmentation.random_crop(tensor, self.how, self.change, random)


def load(
    images: Images, batches: Iterable[Batch], workers: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches in order, on the device."""
    loader = DataLoader(
        images,
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),
    )
    for loaded in loader:
        if isinstance(loaded, UserError):
            raise loaded
        pixels, labels = loaded
        yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def default_workers(dataset: Dataset, cores: int) -> int:
    """None for arrays, whose batches are made at once; images from files are decoded in parallel."""
    return 0 if isinstance(dataset.images, np.ndarray) else min(cores, 8)
