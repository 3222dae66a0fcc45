"""Accuracies by counting, and intervals by their formula."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from helpers.evaluations import by_hand

from tim_ext import tasks
from tim_ext.evaluation.statistics import accuracies, ci95, mean_and_ci95


@pytest.mark.parametrize("kind", ["balanced", "dirichlet", "meta_dataset"])
def test_accuracies(pool, kind):
    drawn = (
        getattr(tasks, kind)(pool[1])[0:70]
        if kind != "dirichlet"
        else tasks.dirichlet(pool[1], queries=30)[0:70]
    )
    predictions = [
        torch.randint(0, len(classes), labels.shape)
        for labels, classes in zip(drawn.labels, drawn.classes, strict=True)
    ]
    batch = predictions if isinstance(drawn.labels, list) else torch.stack(predictions)
    found = accuracies(batch, drawn)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, by_hand(predictions, drawn), rtol=1e-12)


def test_intervals():
    values = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64)
    mean, half = mean_and_ci95(values)
    assert mean == 4
    spread = math.sqrt(sum((x - 4) ** 2 for x in values.tolist()) / 3)
    assert half == pytest.approx(statistics.NormalDist().inv_cdf(0.975) * spread / 2, rel=1e-12)
    assert mean_and_ci95(values[:1]) == (1, None)
    many = torch.stack([values, 10 * values], dim=1)
    torch.testing.assert_close(ci95(many), torch.tensor([half, 10 * half], dtype=torch.float64))
