"""The accuracy of an encoder on few-shot tasks of classes it was not trained on."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

from torch import Tensor, nn

import tim_ext
from tim_ext.evaluation.statistics import mean_and_ci95

from .datasets import Dataset
from .distributed import World
from .embedding import embed
from .errors import UserError, one_line
from .loading import Images
from .recipe import Recipe, few_shot_sampler


class Accuracy(NamedTuple):
    mean: float  # over the tasks
    ci95: float  # half the width of its 95 % confidence interval


class Validation:
    def __init__(self, recipe: Recipe, dataset: Dataset, workers: int) -> None:
        sampler = few_shot_sampler(
            dataset, recipe.val_ways, recipe.val_shots, recipe.val_queries, recipe.seed
        )
        self.tasks = sampler[0 : recipe.val_tasks]
        self.images = Images(dataset, recipe.preprocessing)
        self.recipe, self.workers = recipe, workers

    def __call__(self, encoder: nn.Module, world: World) -> Accuracy | None:
        """Of the nearest prototype; known to the first process alone."""
        index, labels, truth = (
            cast(Tensor, part) for part in (self.tasks.index, self.tasks.labels, self.tasks.truth)
        )
        rows, places = index.unique(return_inverse=True)  # type: ignore[no-untyped-call]  # only these are needed
        features = embed(
            encoder,
            self.images,
            rows.numpy(),
            world,
            batch_size=self.recipe.batch_size,
            workers=self.workers,
            amp=self.recipe.amp,
        )
        if not world.is_first:
            return None
        try:
            result = tim_ext.adm(features, labels, index=places, iterations=0, outputs=("predictions",))
        except ValueError as error:
            raise UserError(f"training diverged: validation is not possible ({one_line(error)})") from error
        queries = labels < 0
        right = (cast(Tensor, result.predictions) == truth) & queries
        accuracy = right.sum(dim=1).double() / queries.sum(dim=1)  # [T]
        mean, ci95 = mean_and_ci95(accuracy)
        return Accuracy(mean, math.nan if ci95 is None else ci95)
