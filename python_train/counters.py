"""Random numbers that are functions of counters.

Every random decision of a training run is a function of (seed, stream, round, index), so nothing has to be
remembered to go on after a crash, and neither the number of processes nor the order of reading matters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # 32-bit words, in 64 bits so that products fit

# what the random numbers are for: no two uses share a stream
ORDER, AUGMENTATION, CLASS_SPLIT, STEP = range(4)

MASK = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Philox-4x32-10 (Salmon et al. 2011): four random words for each counter of four, element by element."""
    c0, c1, c2, c3 = counter
    for r in range(ROUNDS):
        k0, k1 = (np.uint64((key[i] + r * WEYL[i]) & 0xFFFFFFFF) for i in (0, 1))
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> HALF) ^ c1 ^ k0,
            product1 & MASK,
            (product0 >> HALF) ^ c3 ^ k1,
            product0 & MASK,
        )
    return c0, c1, c2, c3


def words(seed: int, stream: int, turn: int, index: NDArray[np.int64], count: int) -> Words:
    """[B, count] random 32-bit words: row b depends on seed, stream, turn and index[b], all >= 0, alone."""
    blocks = -(-count // 4)
    block, number = np.meshgrid(np.arange(blocks, dtype=np.uint64), index.astype(np.uint64))  # [B, blocks]
    shape = np.ones_like(block)
    counter = (number & MASK, shape * np.uint64(turn), block, shape * np.uint64(stream))
    key = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    return np.stack(philox(counter, key), axis=-1).reshape(len(index), 4 * blocks)[:, :count]


def uniforms(seed: int, stream: int, turn: int, index: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """[B, count] uniform numbers in the open interval (0, 1)."""
    return (words(seed, stream, turn, index, count).astype(np.float64) + 0.5) / 2.0**32


def permutation(seed: int, stream: int, turn: int, size: int) -> NDArray[np.int64]:
    """A random order of 0 .. size - 1."""
    high, low = words(seed, stream, turn, np.arange(size), 2).T
    return np.argsort(high << HALF | low, kind="stable")


def number(seed: int, stream: int, turn: int, index: int) -> int:
    """One random integer below 2^63, for a generator that is seeded by an integer."""
    high, low = words(seed, stream, turn, np.array([index]), 2)[0]
    return (int(high) << 32 | int(low)) >> 1
