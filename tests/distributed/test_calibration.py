"""The confidences of a labelled pool: rows, the sample, and the map from largest probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task

import tim_ext
from tim_ext.distributed import calibration
from tim_ext.distributed.calibration import Calibration, calibrate, monotone
from tim_ext.evaluation.reliability import reliability
from tim_ext.files.label_files import Support
from tim_ext.files.predictions import RECORD
from tim_ext.solver import confidence

NAMES = ["a", "b", "c", "d"]


def pool(shots: int, queries: int, noise: float, seed: int = 0) -> tuple[Any, Support, Any, Any]:
    """Task, support, result of `adm`, and its records of all rows."""
    task = make_task(seed, [shots] * 4, queries, d=32, noise=noise)
    rows = (task.labels >= 0).nonzero()[:, 0].flip(0)  # in any order
    support = Support(rows, task.labels[rows], NAMES)
    result = tim_ext.adm(task.features, task.labels, outputs=("probs", "predictions", "confidence"))
    records = np.empty(len(task.labels), RECORD)
    records["label"] = result.predictions
    records["confidence"] = result.probs.amax(dim=1)
    return task, support, result, records


@pytest.mark.parametrize("shots", [1, 3])
def test_of_a_small_pool_each_row_has_its_own(shots):
    task, support, result, records = pool(shots, 60, 1.5)
    found = calibrate(task.features, support, lambda rows: records[rows])
    expected = torch.where(task.labels >= 0, 1.0, result.confidence)
    for start, stop in ((0, len(records)), (5, 17), (30, 31)):
        got = found(start, records[start:stop])
        np.testing.assert_allclose(got["confidence"], expected[start:stop], atol=1e-6)
        assert np.array_equal(got["label"], records["label"][start:stop])


@pytest.mark.parametrize("shots", [1, 3])
def test_of_a_large_pool_rows_have_that_of_their_probability(shots, monkeypatch):
    monkeypatch.setattr(confidence, "MOST_QUERIES", 300)
    task, support, result, records = pool(shots, 2000, 2.5)
    asked = []

    def of(rows: Any) -> Any:
        asked.append(rows)
        return records[rows]

    found = calibrate(task.features, support, of)(0, records)
    (rows,) = asked
    assert len(rows) == 300
    assert (np.diff(rows) > 0).all()
    assert (task.labels[rows] == -1).all()
    queries = (task.labels == -1).numpy()
    assert (found["confidence"][~queries] == 1).all()
    sure, largest = found["confidence"][queries], records["confidence"][queries]
    assert (np.diff(sure[np.argsort(largest, kind="stable")]) >= -1e-7).all()  # monotone
    right = (result.predictions == task.truth)[queries]
    before = reliability(torch.from_numpy(largest), right).error
    after = reliability(torch.from_numpy(sure), right).error
    assert before > 10
    assert after < before / 2, (before, after)


def test_it_is_the_same_every_time_and_for_every_block(monkeypatch):
    monkeypatch.setattr(confidence, "MOST_QUERIES", 50)
    monkeypatch.setattr(confidence, "MOST_OF_A_CLASS", 5)
    task, support, _, records = pool(2, 400, 1.5)
    one, other = (calibrate(task.features, support, lambda rows: records[rows]) for _ in range(2))
    whole = one(0, records)
    parts = [other(start, records[start : start + 60]) for start in range(0, len(records), 60)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert one.rows is None


def test_very_many_labelled_rows_are_sampled_too(monkeypatch):
    monkeypatch.setattr(calibration, "MOST_LABELLED", 12)
    task, support, _, records = pool(10, 60, 1.0)
    sizes = []
    judge = calibration.confidences

    def recorded(batch: Any, *more: Any) -> Any:
        sizes.append(torch.bincount(batch.labels[batch.labels >= 0]).tolist())
        return judge(batch, *more)

    monkeypatch.setattr(calibration, "confidences", recorded)
    found = calibrate(task.features, support, lambda rows: records[rows])(0, records)
    assert sizes == [[3] * 4]
    assert (found["confidence"][task.labels >= 0] == 1).all()
    assert np.isfinite(found["confidence"]).all()


def test_a_pool_that_is_labelled_all_over():
    task, support, _, records = pool(3, 0, 1.0)
    found = calibrate(task.features, support, lambda rows: records[rows])(0, records)
    assert (found["confidence"] == 1).all()


def test_class_vectors_alone():
    task, _, _, records = pool(1, 80, 1.0)
    vectors = torch.stack([task.features[task.truth == k].mean(dim=0) for k in range(4)])
    nothing = torch.empty(0, dtype=torch.int64)
    records["label"] = task.truth
    given: dict[str, Any] = {"class_vectors": vectors, "class_prior": [0.25] * 4}
    found = calibrate(task.features, Support(nothing, nothing, NAMES), lambda rows: records[rows], **given)
    good = found(0, records)["confidence"]
    assert good.mean() > 0.6
    records["label"] = (task.truth + 1) % 4
    found = calibrate(task.features, Support(nothing, nothing, NAMES), lambda rows: records[rows], **given)
    assert found(0, records)["confidence"].mean() < 0.3


def test_the_nearest_monotone_function():
    p = np.array([0.9, 0.1, 0.5, 0.5, 0.7, 0.6])
    c = np.array([0.8, 0.2, 0.4, 0.6, 0.3, 0.9])
    x, y = monotone(p, c)
    np.testing.assert_allclose(x, [0.1, 0.5, 0.65, 0.9])
    np.testing.assert_allclose(y, [0.2, 0.5, 0.6, 0.8])
    isotonic = pytest.importorskip("sklearn.isotonic").IsotonicRegression()
    draw = np.random.default_rng(0)
    p, c = draw.random(200), draw.random(200)
    fitted = isotonic.fit(p, c).predict(p)
    x, y = monotone(p, c)
    np.testing.assert_allclose(np.unique(fitted.round(9)), np.unique(y.round(9)))


def test_between_the_means_there_are_straight_lines():
    map_ = Calibration(3, np.array([1]), None, np.array([0.2, 0.6]), np.array([0.1, 0.9]))
    records = np.array([(0, 0.0), (1, 0.4), (2, 0.4), (0, 1.0)], RECORD)
    np.testing.assert_allclose(map_(0, records)["confidence"], [0.1, 1, 0.5, 0.9], atol=1e-6)
    np.testing.assert_allclose(map_(7, records)["confidence"], [0.1, 0.5, 0.5, 0.9], atol=1e-6)
    assert records["confidence"][1] == np.float32(0.4)  # the draft's own
