"""What the weights of a run depend on, and the batches that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from torch import Tensor

from tim_ext import tasks
from tim_ext.images.preprocessing import Preprocessing

from . import counters
from .augmentation import Augmentation
from .datasets import Dataset
from .distributed import World
from .errors import UserError
from .loading import Batch


@dataclass(frozen=True)
class Recipe:
    """All that the weights depend on: a checkpoint of another recipe cannot be continued."""

    dataset: str
    images: str  # hash of the list of training images
    val_images: str | None  # and of those that choose the best weights
    model: str
    width: int | None
    preprocessing: Preprocessing
    augmentation: Augmentation
    steps: int
    batch_size: int  # of all processes together
    lr: float
    momentum: float
    weight_decay: float
    label_smoothing: float
    episodes: int  # of a step; 0: batches of images of all classes
    ways: int
    shots: int
    queries: int
    validate_every: int
    val_tasks: int
    val_ways: int
    val_shots: int
    val_queries: int
    amp: str
    seed: int

    def lr_at(self, step: int) -> float:
        """Divided by 10 at 1/2 and again at 3/4 of the steps."""
        divisions = int(2 * step >= self.steps) + int(4 * step >= 3 * self.steps)
        return self.lr / (1, 10, 100)[divisions]


def batches(recipe: Recipe, dataset: Dataset, world: World, first: int) -> Iterator[Batch]:
    """This process's part of the batch of each step, from step `first` on."""
    if recipe.episodes:
        return _episodes(recipe, dataset, world, first)
    return _shuffled(recipe, len(dataset), world, first)


def _shuffled(recipe: Recipe, size: int, world: World, first: int) -> Iterator[Batch]:
    """An epoch is a random order of the images, cut into batches; a remainder is left out."""
    part = world.part(recipe.batch_size)
    order, current = np.empty(0, dtype=np.int64), -1
    for step in range(first, recipe.steps):
        epoch, position = divmod(step, size // recipe.batch_size)
        if epoch != current:
            order, current = counters.permutation(recipe.seed, counters.ORDER, epoch, size), epoch
        rows = order[position * recipe.batch_size :][: recipe.batch_size][part]
        yield Batch(rows, epoch, rows)


def _episodes(recipe: Recipe, dataset: Dataset, world: World, first: int) -> Iterator[Batch]:
    """The episodes of a step one after the other, of each the support, then the queries, class by class."""
    sampler = few_shot_sampler(dataset, recipe.ways, recipe.shots, recipe.queries, recipe.seed)
    part = world.part(recipe.batch_size)
    for step in range(first, recipe.steps):
        drawn = sampler[step * recipe.episodes : (step + 1) * recipe.episodes]
        rows = cast(Tensor, drawn.index).reshape(-1).numpy()
        yield Batch(rows[part], step, np.arange(len(rows))[part])


def few_shot_sampler(dataset: Dataset, ways: int, shots: int, queries: int, seed: int) -> tasks.Sampler:
    try:
        return tasks.balanced(dataset.labels, ways=ways, shots=shots, queries=queries, seed=seed)
    except ValueError as error:
        raise UserError(f"tasks of {dataset.name}, split {dataset.split!r}: {error}") from error
