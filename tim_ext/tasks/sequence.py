"""A sampler: an endless sequence of tasks.

Task t depends on the labels, the arguments and t alone: a slice is the same whatever was drawn before. Tasks
are made in blocks, all tasks of a block at once, each block from a generator of its own seeded by (seed,
number of the block).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..solver.params import check_count
from ..solver.result import ShortRepr
from .drawing import BLOCK, Compose, Ints, Pool, cut, draw


@dataclass(frozen=True, eq=False, repr=False)
class Tasks(ShortRepr):
    """T tasks: tensors [T, ..], or lists of T vectors if sizes differ. Support first, class by class."""

    index: Tensor | list[Tensor]  # [T, N]  rows of the pool
    labels: Tensor | list[Tensor]  # [T, N]  class within the task of a support sample, -1 for a query
    truth: Tensor | list[Tensor]  # [T, N]  class within the task of every sample
    classes: Tensor | list[Tensor]  # [T, K]  class k of the task is class classes[k] of the pool

    def __len__(self) -> int:
        return len(self.index)


class Sampler:
    """An endless sequence of tasks; made by the functions of samplers.py.

    `sampler[a:b]` draws the tasks a to b - 1, on the device of the labels; `describe()` says how.
    """

    def __init__(
        self,
        pool: Pool,
        compose: Compose,
        kind: str,
        settings: dict[str, Any],
        *,
        equal: bool = True,  # tasks of one size
        block: int = BLOCK,  # tasks that `compose` makes at once
    ) -> None:
        self._pool, self._compose, self._equal, self._size = pool, compose, equal, block
        self._kind, self._settings = kind, settings

    def describe(self) -> dict[str, Any]:
        """What makes the sampler again from the same labels, fit for JSON: the function and its arguments."""
        return {"kind": self._kind, **self._settings}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={_short(value)}" for name, value in self._settings.items())
        classes, rows = len(self._pool.sizes), len(self._pool.rows)
        return f"<{self._kind}({arguments}) on {rows} samples of {classes} classes>"

    def __getitem__(self, tasks: slice) -> Tasks:
        start, stop = _bounds(tasks)
        blocks = [self._block(block) for block in range(start // self._size, -(-stop // self._size))]
        sizes, ways, index, labels, truth, classes = map(np.concatenate, zip(*blocks, strict=True))
        first = start % self._size
        last = first + stop - start
        per_sample, per_class = cut(sizes, first, last), cut(ways, first, last)
        return Tasks(
            index=self._shaped(index[per_sample], sizes[first:last]),
            labels=self._shaped(labels[per_sample], sizes[first:last]),
            truth=self._shaped(truth[per_sample], sizes[first:last]),
            classes=self._shaped(self._pool.numbers[classes[per_class]], ways[first:last]),
        )

    def _block(self, block: int) -> tuple[Ints, ...]:
        seed = np.random.SeedSequence(self._settings["seed"], spawn_key=(block,))
        rng = np.random.Generator(np.random.PCG64(seed))
        return draw(rng, self._pool, self._compose(rng, self._pool.sizes))

    def _shaped(self, flat: Ints, lengths: Ints) -> Tensor | list[Tensor]:
        tensor = torch.from_numpy(np.ascontiguousarray(flat)).to(self._pool.device)
        if self._equal:
            return tensor.view(len(lengths), -1)
        return list(torch.split(tensor, lengths.tolist()))


def _bounds(tasks: Any) -> tuple[int, int]:
    if not isinstance(tasks, slice):
        raise TypeError(
            f"tasks: expected a slice such as sampler[0:100], got {type(tasks).__name__} {tasks!r}"
        )
    if tasks.step not in (None, 1):
        raise ValueError(f"tasks: expected a slice of step 1, got {tasks.step!r}")
    if tasks.stop is None:
        raise ValueError("tasks: expected a slice with an end, as there are endlessly many, got none")
    start = 0 if tasks.start is None else check_count("tasks", tasks.start, at_least=0)
    return start, check_count("tasks", tasks.stop, at_least=start + 1)


def _short(value: Any) -> str:
    return f"<{count_of(len(value), 'entry')}>" if isinstance(value, dict) else repr(value)


def count_of(number: int, noun: str) -> str:
    plural = noun.removesuffix("y") + ("ies" if noun.endswith("y") else "s")
    return f"{number} {noun if number == 1 else plural}"
