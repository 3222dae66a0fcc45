"""How far apart two results are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import tim_ext
from tim_ext.selftest.compare import largest_error, same_bits

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("found", "truth", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([0.25, 0.5], [0.0, 0.5], 0.25),
        ([100.0, 1.0], [200.0, 1.0], 0.5),
        ([NAN, 1.0], [NAN, 1.0], 0),
        ([NAN, 1.0], [1.0, 1.0], INF),
        ([1.0, 1.0], [NAN, 1.0], INF),
        ([-INF, 1.0], [-INF, 1.0], 0),
        ([-INF, 1.0], [INF, 1.0], INF),
        ([1.0], [1.0, 1.0], INF),
        ([], [], 0),
    ],
)
def test_the_largest_error(found, truth, error):
    assert largest_error(torch.tensor(found), torch.tensor(truth, dtype=torch.float64))[0] == error


def solved() -> tim_ext.Result:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    return tim_ext.adm(features, torch.tensor([0, 1, -1, -1, -100]), history=True)


def test_a_prediction_may_be_any_of_equally_likely_classes():
    truth = solved()
    tie = replace(truth, probs=torch.tensor([[1, 0], [0, 1], [0.9, 0.1], [0.5, 0.5], [0, 0]]))
    for row, error in ((3, 0), (2, 0.8)):
        other = tie.predictions.clone()
        other[row] = 1 - other[row]
        assert largest_error(replace(tie, predictions=other), tie)[0] == pytest.approx(error)
    padded = truth.predictions.clone()
    padded[4] = 0
    assert largest_error(replace(truth, predictions=padded), truth) == (INF, "predictions")


def test_everything_in_a_result_is_compared():
    truth = solved()
    for name in ("probs", "weights", "proportions", "marginal_weight"):
        error, where = largest_error(replace(truth, **{name: getattr(truth, name) + 0.5}), truth)
        assert (error, where) == (pytest.approx(0.5), name)
    assert largest_error(replace(truth, iterations=truth.iterations + 1), truth) == (INF, "iterations")
    history = replace(truth.history, loss=truth.history.loss + 0.25)
    assert largest_error(replace(truth, history=history), truth) == (pytest.approx(0.25), "loss")
    assert largest_error(replace(truth, weights=None), truth)[0] == INF


def test_same_bits():
    truth = solved()
    assert same_bits(truth, solved())
    assert same_bits(torch.tensor([NAN]), torch.tensor([NAN]))
    assert not same_bits(torch.tensor([1.0]), torch.tensor([1.0 + 1e-7]))
    assert not same_bits(truth, replace(truth, history=None))
    assert not same_bits(torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64))
