"""Image files: which there are below a folder, and the pixels of one.

What Pillow reads of the formats below is read, whatever its kind of pixels: gray, colour, palette, CMYK, 16
bits; turned upright by its EXIF orientation; transparency over white; of several frames, the first.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, one_line, require

# by the end of a file's name; not every one can be read by every Pillow, but then it is reported
SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".jp2", ".avif", ".heic", ".heif"),
)
# no other is tried, whatever a file is called: Pillow hands some, such as EPS, to other programs
FORMATS = ("JPEG", "MPO", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
LARGEST = 89_478_485  # pixels to decode; above it, Pillow too suspects a decompression bomb
LARGE = 2**24  # pixels; larger ones are decoded one at a time: threads would add up their memory
LONGEST = 4  # times the shorter side: what lies further out is cut off where only the centre is asked for
WHITE = 255, 255, 255, 255
ORIENTATION = 0x0112  # EXIF
TURNS = {  # by EXIF orientation: Pillow's Transpose that makes the image upright
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

_one_large = threading.Lock()


class ImageError(UserError):
    """An image that cannot be had, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def shown(path: str | Path) -> str:
    """A name as text: bytes that are not UTF-8 as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def find_images(folder: Path, *, without: Collection[Path] = ()) -> list[Path]:
    """All image files below a folder, in the order of their names.

    Links are followed, but no folder is entered twice. What begins with a dot is left out, as are the folders
    `without`.
    """
    found = []
    entered = {_identity(path) for path in without if path.exists()}
    for where, folders, files in os.walk(folder, onerror=_fail, followlinks=True):
        if _identity(Path(where)) in entered:
            folders.clear()
            continue
        entered.add(_identity(Path(where)))
        folders[:] = sorted(name for name in folders if name[0] != ".")
        found += [Path(where, name) for name in files if name.lower().endswith(SUFFIXES) and name[0] != "."]
    return sorted(found)


def class_folders(folder: Path) -> list[Path]:
    """The folders in a folder, in the order of their names; what begins with a dot is left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _fail(error: OSError) -> None:
    raise error  # os.walk would leave out the folder


def read_image(path: Path, channels: int) -> NDArray[np.uint8]:
    """[H, W] for one channel, [H, W, 3] for three."""
    return np.array(open_image(path, channels))


def open_image(path: Path, channels: int, *, shortest: int | None = None) -> Any:
    """A Pillow image of mode L (one channel) or RGB (three).

    With `shortest`, only the centre counts, and the shorter side is to be resized to this many pixels: a
    larger image is first reduced, by means over blocks of pixels, to at least twice as many, which costs less
    time and memory than to resize it at once, and moves nothing by more than half a pixel; the ends of a very
    long one are cut off.
    """
    pillow = require("PIL.Image", "train")
    try:
        _check_file(path)
        # not by its name: Pillow would map an uncompressed TIFF into memory, and garbles it if it is turned
        with path.open("rb") as file, pillow.open(file, formats=_formats(pillow)) as image:
            if shortest is not None:
                width, height = (max(1, side * 2 * shortest // min(image.size)) for side in image.size)
                image.draft(None, (width, height))  # a JPEG can be decoded at 1/2, 1/4, 1/8
            pixels = image.width * image.height
            if pixels > LARGEST:
                raise ValueError(f"it has {pixels:,} pixels, more than {LARGEST:,}")
            if pixels <= LARGE:
                return _decode(pillow, image, channels, shortest)
            with _one_large:
                return _decode(pillow, image, channels, shortest)
    except FileNotFoundError:
        raise ImageError(path, "the image is missing") from None
    except pillow.UnidentifiedImageError as error:
        raise ImageError(path, "not a readable image (its format is unknown)") from error
    except Exception as error:  # Pillow's decoders raise all kinds
        raise ImageError(path, f"not a readable image ({one_line(error)})") from error


def _check_file(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # to read a pipe would wait for ever
        raise ValueError("not a file")
    if not status.st_size:
        raise ValueError("it is empty")


def _formats(pillow: Any) -> list[str]:
    pillow.init()
    return [name for name in FORMATS if name in pillow.OPEN]


def _decode(pillow: Any, image: Any, channels: int, shortest: int | None) -> Any:
    image.load()
    turn = TURNS.get(_orientation(image))  # now: the decoder may have turned the image already
    image = _plain(pillow, image).convert("RGB" if channels == 3 else "L")
    if shortest is not None:
        image = cut_ends(image)
        factor = min(image.size) // (2 * shortest)
        image = image.reduce(factor) if factor > 1 else image
    return image if turn is None else image.transpose(pillow.Transpose[turn])


def _orientation(image: Any) -> Any:
    try:
        return image.getexif().get(ORIENTATION)
    except Exception:  # damaged EXIF: the image itself may be whole
        return None


def _plain(pillow: Any, image: Any) -> Any:
    """Of 8 bits, without transparency."""
    if image.mode.startswith("I"):  # 16 bits
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"expected pixels of 0 .. 65535, got {values.min()} .. {values.max()}")
        return pillow.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        values = np.asarray(image)
        if not (values.min() >= 0 and values.max() <= 1):  # NaN is refused
            raise ValueError(f"expected pixels of 0 .. 1, got {values.min()} .. {values.max()}")
        return pillow.fromarray(np.rint(255 * values).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", image.size, WHITE), image)
    return image


def cut_ends(image: Any) -> Any:
    """The centre, at most LONGEST times as long as wide."""
    longest = LONGEST * min(image.size)
    left, top = (max(0, side - longest) // 2 for side in image.size)
    if not left and not top:
        return image
    return image.crop((left, top, image.width - left, image.height - top))
