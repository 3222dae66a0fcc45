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


def batch(
    flags: int, columns: int, offsets: list[int], classes: list[int], labels: list[int], rows: list[int]
) -> bytes:
    head = bytes([len(classes), len(labels), columns - 1, flags])
    values = b"".join(map(number, (*offsets, *classes, *labels, *rows)))
    features = struct.pack(">64f", *(0.5 + 0.1 * (i * 7 % 11) for i in range(64)))
    return head + values + (b"\x07" if rows else b"") + features


LABELS = [0, 1, QUERY, PADDING, 0, QUERY, 1, QUERY]
ROWS = [0, 1, 2, 3, 4, 5, 6, 0]
SEEDS = [
    *(batch(flags, 4, [0, 4, 8], [2, 2], LABELS, []) for flags in (0, 2, 4)),
    *(batch(flags, 4, [0, 4, 8], [2, 2], LABELS, ROWS) for flags in (1, 3, 5)),
    batch(0, 1, [0, 0], [1], [], []),
    batch(0, 2, [0, 2**62, -(2**63), -(2**62), 8], [1] * 4, LABELS, []),
    batch(2, 2, [0, 4, 4, 8], [2**62 + 1, 2**62 + 1, 2**63 - 1], LABELS, []),
    batch(1, 2, [0, 8], [2**33], LABELS, ROWS),
]


def write_seeds(folder: Path) -> None:
    for i, seed in enumerate(SEEDS):
        (folder / f"seed{i}").write_bytes(seed)
