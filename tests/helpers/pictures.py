"""Image files, whole and damaged."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")


def png_header(width, height):
    def chunk(kind, content):
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def damaged(folder):
    """Files that are no images, and a part of what is said of each."""
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(stream, "JPEG")
    contents = {
        "empty.jpg": (b"", "it is empty"),
        "text.jpg": (b"not an image", "its format is unknown"),
        "cut.jpg": (stream.getvalue()[:900], "truncated"),
        "start.png": (png_header(4, 4)[:20], "not a readable image"),
        "bomb.png": (png_header(60_000, 60_000), "decompression bomb"),
        "large.png": (png_header(12_000, 9_000), "it has 108,000,000 pixels, more than 89,478,485"),
        "script.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "its format is unknown"),
        "phone.heic": (b"\0\0\0\x18ftypheic" + b"\0" * 40, "its format is unknown"),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    (folder / "broken.png").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.png")
    reasons = {name: reason for name, (_, reason) in contents.items()}
    return reasons | {"broken.png": "the image is missing", "pipe.png": "not a file"}
