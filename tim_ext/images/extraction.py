"""From image files to features, and to small pictures for a page.

Images are read in threads and encoded in batches; of each, its features and a small picture (on the disk) are
kept.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UserError, one_line, require
from ..solver.params import check_count
from .networks import feature_size, features_of, open_encoder
from .preprocessing import (
    PillowPreprocessing,
    Preprocessing,
    center_crop,
    normalize,
    resize_by_pillow,
    to_tensor,
)
from .reading import ImageError, cut_ends, open_image

PICTURE = 112  # pixels of the longer side of a picture
QUALITY = 80  # of its JPEG
BATCH_SIZE = 16


class Encoded(NamedTuple):
    """What is kept of the images that could be read."""

    paths: list[Path]  # M
    features: Tensor  # [M, d]
    pictures: list[Callable[[], bytes]]  # M


@dataclass(frozen=True, eq=False)
class Extractor:
    """A network, how its images are prepared, and how many are read and encoded at a time."""

    network: nn.Module
    how: Preprocessing
    name: str  # of the network, for messages
    batch_size: int = BATCH_SIZE
    workers: int = 1  # threads

    @property
    def dim(self) -> int:
        return feature_size(self.network)

    def __call__(self, paths: Sequence[Path], spool: BinaryIO) -> tuple[Encoded, list[ImageError]]:
        """Features and pictures in the order of the paths, and what could not be read.

        Of the images themselves, only a batch and those that wait for it are in memory.
        """
        if not paths:  # no bar then
            return Encoded([], torch.empty(0, self.dim), []), []
        kept, parts, pictures = [], [], []
        skipped = []
        batch: list[Tensor] = []
        tqdm = require("tqdm", "predict").tqdm
        with (
            tqdm(total=len(paths), unit="image", disable=None) as bar,
            closing(_read(paths, self.how, self.workers)) as images,
        ):
            for path, image in zip(paths, images, strict=True):
                bar.update()
                if isinstance(image, ImageError):
                    skipped.append(image)
                    continue
                kept.append(path)
                pictures.append(_store(spool, image.picture))
                batch.append(image.pixels)
                if len(batch) == self.batch_size:
                    parts.append(self._encode(batch))
                    batch.clear()
            if batch:
                parts.append(self._encode(batch))
        features = torch.cat(parts) if parts else torch.empty(0, self.dim)
        return Encoded(kept, features, pictures), skipped

    def _encode(self, batch: Sequence[Tensor]) -> Tensor:
        """[B, d] of images [1, C, size, size]."""
        device = next(self.network.parameters()).device
        pixels = normalize(torch.cat(list(batch)).to(device), self.how)
        try:
            with torch.inference_mode():
                features = features_of(self.network, pixels.to(memory_format=torch.channels_last))
                return features.cpu().clone()
        except Exception as error:  # networks of other libraries raise all kinds
            size = " x ".join(map(str, pixels.shape[-2:]))
            raise UserError(
                f"--encoder: {self.name} fails on images of {size} pixels ({one_line(error)})"
            ) from error


def open_extractor(
    name: str,
    *,
    size: int | None = None,
    device: str | None = None,
    batch_size: int = BATCH_SIZE,
    workers: int = 1,
) -> Extractor:
    """The encoder of that name, with images of `size` pixels in place of its own, on a device."""
    network, how = open_encoder(name)
    if size is not None:
        size = check_count("--size", size, at_least=1)
        how = replace(how, size=size, resize=round(size * how.resize / how.size))
    network = network.to(device_of(device)).eval()
    network = cast(Any, network).to(memory_format=torch.channels_last)  # torch types it for tensors alone
    return Extractor(network, how, name, batch_size, workers)


def device_of(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # torch raises all kinds
        raise UserError(f"--device: expected cpu or a device of this machine, got {name!r}") from error
    return device


class Image(NamedTuple):
    pixels: Tensor  # [1, C, size, size] of 0 .. 1
    picture: bytes  # a JPEG file


def _read(
    paths: Sequence[Path], how: Preprocessing, workers: int
) -> Generator[Image | ImageError, None, None]:
    """In order; no more than four images for each thread wait to be used.

    The threads are many already: torch uses no more of its own in them. A thread has its own number, but what
    it sets is also that of threads to come.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(threads)  # of this one, which may not have had its own yet
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[Image | ImageError]] = deque()
    try:
        for path in paths:
            waiting.append(pool.submit(_read_one, path, how))
            if len(waiting) == 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C nothing new is begun
        torch.set_num_threads(threads)


def _read_one(path: Path, how: Preprocessing) -> Image | ImageError:
    try:
        by_pillow = isinstance(how, PillowPreprocessing)  # of the image as it is, to the last bit
        shortest = None if by_pillow or not how.antialias else how.resize
        image = open_image(path, how.channels, shortest=shortest)
    except ImageError as error:
        return ImageError(error.path, error.reason)  # a new one: a traceback would keep what was decoded
    if isinstance(how, PillowPreprocessing):
        image = image if how.squash else cut_ends(image)
        pixels = to_tensor(np.array(resize_by_pillow(image, how))[None], how.channels)
    else:
        pixels = center_crop(to_tensor(np.array(image)[None], how.channels), how)
    image.thumbnail((PICTURE, PICTURE))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY)
    return Image(pixels, stream.getvalue())


def _store(spool: BinaryIO, content: bytes) -> Callable[[], bytes]:
    """Appends to the file; what is returned reads it again."""
    start = spool.seek(0, os.SEEK_END)
    length = spool.write(content)

    def read() -> bytes:  # it must not hold the content
        spool.seek(start)
        return spool.read(length)

    return read
