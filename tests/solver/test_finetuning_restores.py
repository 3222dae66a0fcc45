"""tim_ext.finetune gives the encoder back as it was, whatever happens."""

from __future__ import annotations

import _thread
import warnings

import pytest
import torch
from helpers.encoders import IMAGES, LABELS, Encoder, Everything, make_encoder, make_unusual
from torch import Tensor, nn

import tim_ext
from tim_ext import reference


@pytest.mark.parametrize("batch_size", [None, 10])
def test_everything_is_restored(batch_size):
    encoder = make_encoder()
    before = make_unusual(encoder)
    tim_ext.finetune(encoder, IMAGES, LABELS, iterations=3, lr=1e-2, batch_size=batch_size)
    before.assert_unchanged()


@pytest.mark.parametrize("batch_size", [None, 10])
@pytest.mark.parametrize("call", [1, 2, 5, 9])
def test_everything_is_restored_after_an_exception(batch_size, call):
    encoder = make_encoder()
    encoder.fail_at = 1 + call  # make_unusual makes one call
    before = make_unusual(encoder)
    with pytest.raises(RuntimeError, match="in the middle"):
        tim_ext.finetune(encoder, IMAGES, LABELS, iterations=3, lr=1e-2, batch_size=batch_size)
    before.assert_unchanged()


@pytest.mark.parametrize("call", [2, 5])
def test_everything_is_restored_after_ctrl_c(call, monkeypatch):
    encoder = make_encoder()
    encoder.fail_at = 1 + call
    monkeypatch.setattr(encoder, "fail", _thread.interrupt_main)  # a real one: it may arrive anywhere
    before = make_unusual(encoder)
    with pytest.raises(KeyboardInterrupt):
        tim_ext.finetune(encoder, IMAGES, LABELS, iterations=300)
    before.assert_unchanged()


def test_ctrl_c_while_restoring_does_not_stop_it(monkeypatch):
    encoder = make_encoder()
    encoder.fail_at = 4
    before = make_unusual(encoder)
    copies = []

    def copy_(self, value):
        copies.append(1)
        if len(copies) in (3, 9):
            raise KeyboardInterrupt
        return original(self, value)

    original = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", copy_)
    with pytest.raises(KeyboardInterrupt):
        tim_ext.finetune(encoder, IMAGES, LABELS, iterations=3)
    monkeypatch.undo()
    assert len(copies) > 9
    before.assert_unchanged()


def test_a_frozen_batch_norm_stays_frozen():
    """An encoder whose train() keeps its batch-norm in evaluation mode is taken at its word."""

    class Frozen(Encoder):
        def train(self, mode=True):
            super().train(mode)
            self.body[1].eval()
            return self

    torch.manual_seed(0)
    encoder = Frozen(dropout=0.0)
    encoder.body[1].running_mean.fill_(0.5)
    result = tim_ext.finetune(encoder, IMAGES[0], LABELS[0], iterations=0)
    with torch.no_grad():
        expected = reference.adm(encoder.eval()(IMAGES[0]), LABELS[0], iterations=0)
    torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=1e-5)


def test_modes_of_the_caller_do_not_matter():
    encoder = make_encoder(dropout=0.0)
    expected = tim_ext.finetune(encoder, IMAGES[0], LABELS[0], iterations=3)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = tim_ext.finetune(encoder, IMAGES[0] + 0, LABELS[0] + 0, iterations=3)
            assert torch.equal(result.probs, expected.probs)
    with torch.autocast("cpu", torch.bfloat16):
        result = tim_ext.finetune(encoder, IMAGES[0], LABELS[0], iterations=3)
    assert result.probs.dtype == result.weights.dtype == torch.float32
    torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=0.05)
    assert not torch.equal(result.probs, expected.probs)


def test_other_kinds_of_encoders():
    """An embedding of integers, a transformer with an expanded buffer, tied weights, torch.compile."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.first = nn.Linear(8, 8)
            self.second = nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.register_buffer("scale", torch.ones(1).expand(8))

        def forward(self, sentences):
            return self.second(self.first(self.layer(self.words(sentences)).mean(dim=1) * self.scale))

    torch.manual_seed(0)
    sentences = torch.randint(0, 50, (2, 28, 5))
    for encoder in (Words(), torch.compile(Words(), backend="eager")):
        before = Everything(encoder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on nested tensors
            result = tim_ext.finetune(encoder, sentences, LABELS[:2], iterations=5, lr=1e-3, batch_size=16)
        before.assert_unchanged()
        assert (result.history.loss[:, -1] < result.history.loss[:, 0]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types(dtype):
    encoder = make_encoder(dropout=0.0).to(dtype)
    result = tim_ext.finetune(encoder, IMAGES.to(dtype), LABELS, iterations=3, batch_size=10)
    assert result.probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert result.history.loss.isfinite().all()
