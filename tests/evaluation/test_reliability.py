"""Bins and the calibration error, against counting by hand, and what a method says on tasks."""

from __future__ import annotations

import pytest
import torch
from helpers.make_tasks import make_task

import tim_ext
from tim_ext import tasks
from tim_ext.evaluation.reliability import measure, reliability


def test_bins_of_equal_width():
    sure = torch.tensor([0.05, 0.15, 0.1, 0.95, 1.0, 0.92])
    right = torch.tensor([False, True, False, True, True, False])
    found = reliability(sure, right, bins=10)
    torch.testing.assert_close(found.sure, torch.tensor([0.05, 0.125, 2.87 / 3]).double())
    torch.testing.assert_close(found.right, torch.tensor([0, 0.5, 2 / 3]).double())
    torch.testing.assert_close(found.size, torch.tensor([1, 2, 3]).double() / 6)
    assert found.error == pytest.approx(100 * (0.05 + 0.75 + 0.87) / 6)


def test_bins_of_equal_mass():
    sure = torch.tensor([0.91, 0.92, 0.93, 0.94, 0.95, 0.96])
    right = torch.tensor([True, True, False, True, True, True])
    found = reliability(sure, right, equal_mass=True, bins=3)
    torch.testing.assert_close(found.sure, torch.tensor([0.915, 0.935, 0.955]).double())
    torch.testing.assert_close(found.right, torch.tensor([1, 0.5, 1]).double())
    assert found.error == pytest.approx(100 * (0.085 + 0.435 + 0.045) / 3)


def test_what_is_right_as_often_as_it_says_has_no_error():
    draw = torch.Generator().manual_seed(0)
    sure = torch.rand(200_000, generator=draw)
    right = torch.rand(200_000, generator=draw) < sure
    assert reliability(sure, right).error < 0.7
    assert reliability(sure, right, equal_mass=True).error < 0.7
    assert reliability(1 - sure, right).error > 40


def test_a_method_on_tasks():
    made = make_task(0, [40] * 6, 0, d=16, noise=2.0)
    labels = made.labels
    drawn = tasks.balanced(labels, ways=4, shots=2, queries=10)[0:6]
    found = measure(made.features, drawn, tim_ext.adm)
    result = tim_ext.adm(
        made.features, drawn.labels, index=drawn.index, outputs=("probs", "predictions", "confidence")
    )
    query = drawn.labels == -1
    right = (result.predictions == drawn.truth)[query]
    for kind, sure in (
        ("largest probability", result.probs.amax(dim=-1)),
        ("calibrated confidence", result.confidence),
    ):
        assert found[kind].error == pytest.approx(reliability(sure[query], right).error)
