"""Labels of rows by the weights of a solved task."""

from __future__ import annotations

import pytest
import torch
from helpers.ranks import BF16, F16, F32, F64, SMALL, TASK, mixed_task

import tim_ext
from tim_ext import distributed


@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16])
def test_classify_gives_the_probabilities_of_the_solution(dtype, tmp_path):
    features, labels = mixed_task(dtype, **SMALL | {"padding": 0})
    result = tim_ext.adm(features, labels, form="primal")
    got = distributed.classify(features, result.weights, outputs=("probs", "predictions", "confidences"))
    torch.testing.assert_close(got.probs, result.probs, rtol=0, atol=1e-12 if dtype == F64 else 1e-6)
    assert torch.equal(got.predictions, result.predictions)
    assert torch.equal(got.confidences, got.probs.max(dim=1).values)
    some = distributed.classify(features[100:200], result.weights)
    assert some.probs is None
    assert torch.equal(some.predictions, got.predictions[100:200])
    assert len(distributed.classify(features[:0], result.weights).predictions) == 0


def test_classify_refuses():
    with pytest.raises(
        ValueError, match=r"weights: expected shape \[K, 10\] to match features, got \[3, 9\]"
    ):
        distributed.classify(TASK.features, torch.zeros(3, 9))
    with pytest.raises(ValueError, match="features: expected finite values, got NaN or Inf at sample 2"):
        distributed.classify(
            TASK.features.clone().index_fill_(0, torch.tensor(2), torch.inf), torch.zeros(3, 10)
        )
    with pytest.raises(ValueError, match="outputs: expected a tuple of names out of 'probs'"):
        distributed.classify(TASK.features, torch.zeros(3, 10), outputs=("weights",))
