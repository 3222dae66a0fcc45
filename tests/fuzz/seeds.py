"""Batches for the fuzzer to start from, in the bytes that flat_batch.cpp reads."""

from __future__ import annotations

import struct
from pathlib import Path

SMALL = 16  # a byte b < 160 is the number b - 16
QUERY, PADDING = -1, -100


def number(value: int) -> bytes:
    if -SMALL <= value < 160 - SMALL:
        return bytes([value + SMALL])
    return b"\xff" + struct.pack(">q", value)


def batch(offsets: list[int], classes: list[int], labels: list[int], rows: list[int]) -> bytes:
    head = bytes([len(classes), len(labels), 8 + bool(rows)])
    return head + b"".join(map(number, (*offsets, *classes, *labels, *rows))) + b"\x07"


LABELS = [0, 1, QUERY, PADDING, 0, QUERY, 1, QUERY]
ROWS = [0, 1, 2, 3, 4, 5, 6, 0]
SEEDS = [
    batch([0, 4, 8], [2, 2], LABELS, []),
    batch([0, 4, 8], [2, 2], LABELS, ROWS),
    batch([0, 0], [1], [], []),
    batch([0, 2**62, -(2**63), -(2**62), 8], [1] * 4, LABELS, []),
    batch([0, 4, 4, 8], [2**62 + 1, 2**62 + 1, 2**63 - 1], LABELS, []),
    batch([0, 8], [2**33], LABELS, ROWS),
]


def write_seeds(folder: Path) -> None:
    for i, seed in enumerate(SEEDS):
        (folder / f"seed{i}").write_bytes(seed)
