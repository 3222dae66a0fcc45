"""tim_ext.finetune lowers the loss of TIM, by the steps of Adam on encoder and classifier."""
# ruff: noqa: E501

from __future__ import annotations

import copy
import doctest
import inspect
import re

import pytest
import torch
from helpers.encoders import IMAGES, LABELS, Everything, make_encoder
from torch import Tensor, nn

import tim_ext
from tim_ext import reference

# The loss ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("batch_size", [None, 10])
def test_the_loss_improves_on_every_task(norm, dropout, batch_size):
    encoder = make_encoder(norm=norm, dropout=dropout)
    before = Everything(encoder)
    result = tim_ext.finetune(encoder, IMAGES, LABELS, batch_size=batch_size)
    before.assert_unchanged()
    assert result.history.loss.shape == (3, 26)
    assert result.history.loss.isfinite().all()
    assert (result.history.loss[:, -1] < result.history.loss[:, 0]).all()
    assert result.probs.shape == (3, 28, 4)
    assert result.predictions.shape == (3, 28)
    assert result.weights.shape == (3, 4, 16)
    assert result.iterations.tolist() == [25, 25, 25]
    torch.testing.assert_close(result.probs.sum(dim=-1), torch.ones(3, 28))
    assert torch.equal(result.predictions, result.probs.argmax(dim=-1))


def test_one_step_is_that_of_adam_on_the_loss_of_the_whole_task():
    """phi, W and the loss after two steps, by hand."""
    encoder = make_encoder(dropout=0.0)
    result = tim_ext.finetune(encoder, IMAGES[0], LABELS[0], iterations=2, lr=1e-2, alpha=0.3, lam=0.5)
    twin = copy.deepcopy(encoder).train()
    support, query = LABELS[0] >= 0, LABELS[0] == -1
    y = reference.one_hot_rows(LABELS[0], 4).float()

    def log_p_and_loss(w):
        log_p = reference.log_distance_softmax(nn.functional.normalize(twin(IMAGES[0])), w, 15.0)
        cross_entropy, marginal, conditional = reference.loss_terms(log_p, y, support, query)
        return log_p, 0.5 * cross_entropy - marginal + 0.3 * conditional

    w = reference.prototypes(nn.functional.normalize(twin(IMAGES[0])).detach(), y).requires_grad_()
    adam = torch.optim.Adam([*twin.parameters(), w], lr=1e-2)
    for step in range(2):
        _, loss = log_p_and_loss(w)
        torch.testing.assert_close(result.history.loss[step], loss.detach(), rtol=0, atol=1e-4)
        adam.zero_grad()
        loss.backward()
        adam.step()
    log_p, loss = log_p_and_loss(w)
    torch.testing.assert_close(result.history.loss[2], loss.detach(), rtol=0, atol=1e-4)
    torch.testing.assert_close(result.probs, log_p.detach().exp(), rtol=0, atol=1e-3)
    torch.testing.assert_close(result.weights, w.detach(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("batch_size", [1, 5, 9, 27, 28, 100])
def test_mini_batches_change_nothing_without_batch_norm(batch_size):
    encoder, images = make_encoder(norm=False, dropout=0.0).double(), IMAGES.double()
    options = {"iterations": 8, "lr": 1e-3, "eps": 1e-6}
    whole = tim_ext.finetune(encoder, images, LABELS, **options)
    parts = tim_ext.finetune(encoder, images, LABELS, **options, batch_size=batch_size)
    torch.testing.assert_close(parts.probs, whole.probs, rtol=0, atol=1e-8)
    torch.testing.assert_close(parts.weights, whole.weights, rtol=0, atol=1e-8)
    torch.testing.assert_close(parts.history.loss, whole.history.loss, rtol=0, atol=1e-8)


def test_dropout_is_the_same_in_both_passes_over_a_mini_batch():
    """Else the gradient would be that of other features than the loss was taken at."""

    class Recorder(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(128, 6)
            self.dropped: list[tuple[bool, bool, Tensor]] = []

        def forward(self, images):
            x = nn.functional.dropout(images.flatten(1), 0.5, self.training)
            self.dropped.append((self.training, torch.is_grad_enabled(), x))
            return self.linear(x)

    encoder = Recorder()
    tim_ext.finetune(encoder, IMAGES[0], LABELS[0], iterations=2, batch_size=10)
    without = [x for training, graph, x in encoder.dropped if training and not graph]
    again = [x for training, graph, x in encoder.dropped if training and graph]
    assert len(without) == len(again) == 6
    assert all(map(torch.equal, without, again))
    assert not torch.equal(without[0], without[3])  # but another in another step
    assert {len(x) for x in without} == {9, 10}
    calm = [x for training, _, x in encoder.dropped if not training]
    assert len(calm) == 6  # before the first step and after the last one
    assert all((x != 0).double().mean() > 0.99 for x in calm)


@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_task_does_not_depend_on_its_batch(batch_size):
    encoder = make_encoder()

    def run(images, labels):
        torch.manual_seed(5)
        return tim_ext.finetune(encoder, images, labels, iterations=4, lr=1e-3, batch_size=batch_size)

    together = run(IMAGES, LABELS)
    for t in range(3):
        alone = run(IMAGES[t], LABELS[t])
        assert torch.equal(together.probs[t], alone.probs)
        assert torch.equal(together.weights[t], alone.weights)
        assert torch.equal(together.history.loss[t], alone.history.loss)


def test_padding_is_never_looked_at():
    encoder = make_encoder(dropout=0.0)
    bare = tim_ext.finetune(encoder, IMAGES[0], LABELS[0], iterations=3)
    images = torch.cat([IMAGES[0], torch.full((2, 2, 8, 8), torch.nan)])
    labels = torch.cat([LABELS[0], torch.tensor([-100, -100])])
    padded = tim_ext.finetune(encoder, images, labels, iterations=3)
    assert torch.equal(padded.probs[:28], bare.probs)
    assert (padded.probs[28:] == 0).all()
    assert padded.predictions[28:].tolist() == [-100, -100]


def test_no_iteration_gives_the_prototypes():
    encoder = make_encoder(norm=False)
    result = tim_ext.finetune(encoder, IMAGES, LABELS, iterations=0)
    with torch.no_grad():
        features = encoder.eval()(IMAGES.flatten(0, 1)).unflatten(0, (3, 28))
    expected = reference.adm(features, LABELS, iterations=0)
    torch.testing.assert_close(result.probs, expected.probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(result.weights, expected.weights, rtol=0, atol=1e-5)
    assert result.history.loss.shape == (3, 1)


def test_no_query_gives_the_prototypes():
    encoder = make_encoder()
    result = tim_ext.finetune(encoder, IMAGES[0, :8], LABELS[0, :8])
    assert result.iterations == 0
    assert torch.equal(result.history.loss.isnan(), torch.arange(26) > 0)
    assert result.history.marginal_entropy[0] == result.history.conditional_entropy[0] == 0


@pytest.mark.parametrize(
    ("options", "falls"),
    [
        ({"lam": 1.0, "alpha": 1.0, "marginal_weight": 0.0}, "conditional_entropy"),  # Dhillon et al.
        ({"lam": 1.0, "alpha": 0.0, "marginal_weight": 0.0}, "cross_entropy"),
        ({"lam": 0.0, "alpha": 1.0, "marginal_weight": 0.0}, "conditional_entropy"),
        ({"entropy_order": 2.0}, "loss"),
        ({"class_prior": [0.1, 0.2, 0.3, 0.4]}, "loss"),
        ({"temperature": 5.0, "normalize": False}, "loss"),
    ],
    ids=str,
)
def test_terms_of_the_loss_can_be_chosen(options, falls):
    encoder = make_encoder()
    history = tim_ext.finetune(encoder, IMAGES, LABELS, lr=1e-3, iterations=10, **options).history
    terms = getattr(history, falls)
    assert (terms[:, -1] < terms[:, 0]).all()
    loss = (
        options.get("lam", 0.1) * history.cross_entropy
        - options.get("marginal_weight", 1.0) * history.marginal_entropy
        + options.get("alpha", 0.1) * history.conditional_entropy
    )
    torch.testing.assert_close(history.loss, loss)


def test_fixed_parameters_stay_fixed():
    encoder = make_encoder(norm=False, dropout=0.0)
    free = tim_ext.finetune(encoder, IMAGES[0], LABELS[0], lr=1e-2)
    for parameter in encoder.body.parameters():
        parameter.requires_grad_(False)
    head = tim_ext.finetune(encoder, IMAGES[0], LABELS[0], lr=1e-2)
    assert not torch.equal(free.probs, head.probs)
    with torch.no_grad():
        features = encoder.body(IMAGES[0])
    only = copy.deepcopy(encoder.head)
    expected = tim_ext.finetune(only, features, LABELS[0], lr=1e-2)
    torch.testing.assert_close(head.probs, expected.probs, rtol=0, atol=1e-3)


# Bad input -----------------------------------------------------------------------------------------


class Odd(nn.Linear):
    """A layer whose output is changed by a function."""

    def __init__(self, change):
        super().__init__(128, 4)
        self.change = change

    def forward(self, images):
        return self.change(super().forward(images.flatten(1)))


def lin() -> nn.Linear:
    return nn.Linear(128, 4)


X, Y = IMAGES[0].flatten(1), LABELS[0]
REFUSALS = [
    ((None, X, Y), {}, TypeError, "encoder: expected a torch.nn.Module, got NoneType"),
    ((lin().requires_grad_(False), X, Y), {}, ValueError, "encoder: expected a parameter that requires a gradient, got none"),
    ((nn.ReLU(), X, Y), {}, ValueError, "encoder: expected a parameter that requires a gradient, got none"),
    ((nn.LazyLinear(4), X, Y), {}, ValueError, "encoder: expected parameters with data, got a lazy module that never ran"),
    ((Odd(lambda z: z[0]), X, Y), {}, ValueError, "encoder: expected features [28, d] of a floating type, got torch.float32 [4]"),
    ((Odd(lambda z: z[1:]), X, Y), {}, ValueError, "encoder: expected features [28, d] of a floating type, got torch.float32 [27, 4]"),
    ((Odd(lambda z: z.long()), X, Y), {}, ValueError, "encoder: expected features [28, d] of a floating type, got torch.int64 [28, 4]"),
    ((Odd(lambda z: (z,)), X, Y), {}, ValueError, "encoder: expected features [28, d] of a floating type, got tuple"),
    ((Odd(lambda z: z.detach()), X, Y), {}, ValueError, "encoder: expected features with a gradient, got features detached from it"),
    ((Odd(lambda z: z.detach()), X, Y), {"batch_size": 10}, ValueError, "encoder: expected features with a gradient, got features detached from it"),
    ((lin(), X.index_fill(0, torch.tensor([3]), torch.nan), Y), {}, ValueError, "encoder: expected finite features, got NaN or Inf at sample 3"),
    ((lin(), torch.stack([X, X.index_fill(0, torch.tensor([5]), torch.inf)]), LABELS[:2]), {}, ValueError, "encoder: expected finite features, got NaN or Inf at sample 5 in task 1"),
    ((lin(), X, Y), {"lr": 1e36, "iterations": 3}, ValueError, "iterations with lr=1e+36"),
    ((lin(), "images", Y), {}, TypeError, "images: expected a tensor or array, got str"),
    ((lin(), X.to("meta"), Y), {}, ValueError, "images: expected a tensor with data, got one on device meta"),
    ((lin(), X, Y.to("meta")), {}, ValueError, "labels: expected a tensor with data, got one on device meta"),
    ((lin(), X[:5], Y), {}, ValueError, "images: expected shape [28, ...] to match labels, got [5, 128]"),
    ((lin(), X, LABELS), {}, ValueError, "images: expected shape [3, 28, ...] to match labels, got [28, 128]"),
    ((lin(), X, Y[0]), {}, ValueError, "labels: expected shape [N] or [T, N], neither of them 0, got []"),
    ((lin(), X[:0], Y[:0]), {}, ValueError, "labels: expected shape [N] or [T, N], neither of them 0, got [0]"),
    ((lin(), X, Y.float()), {}, TypeError, "labels: expected integers (int64 to int8, or uint8), got float32"),
    ((lin(), X, Y - 2), {}, ValueError, "labels: expected a class 0 to 1, -1 for a query or -100 for padding, got -2 at sample 0"),
    ((lin(), X, Y), {"num_classes": 5}, ValueError, "labels: expected support of each class 0 to 4, got none of class 4"),
    ((lin(), X, Y * 0 - 1), {}, ValueError, "labels: expected support samples (labels >= 0), got none"),
    ((lin(), X, Y), {"class_prior": [0.5, 0.5]}, ValueError, "class_prior: expected shape [4], one proportion for each class, got [2]"),
    ((lin(), X, Y), {"batch_size": 0}, ValueError, "batch_size: expected an integer >= 1, got 0"),
    ((lin(), X, Y), {"batch_size": 2.5}, TypeError, "batch_size: expected an integer, got float 2.5"),
    ((lin(), X, Y), {"lr": -1.0}, ValueError, "lr: expected a finite number >= 0, got -1.0"),
    ((lin(), X, Y), {"iterations": -1}, ValueError, "iterations: expected an integer >= 0, got -1"),
    ((lin(), X, Y), {"outputs": "probs"}, TypeError, "got str 'probs'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "error", "message"), REFUSALS)
def test_refuses(arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        tim_ext.finetune(*arguments, **options)


@pytest.mark.parametrize("outputs", [(), ("predictions",), ("weights", "probs")])
def test_outputs_not_asked_for_are_none(outputs):
    result = tim_ext.finetune(lin(), X, Y, iterations=1, outputs=outputs)
    for name in ("probs", "predictions", "weights"):
        assert (getattr(result, name) is not None) == (name in outputs)


def test_defaults_are_those_of_the_paper():
    defaults = {k: v.default for k, v in inspect.signature(tim_ext.finetune).parameters.items()}
    assert defaults.items() >= {"iterations": 25, "lr": 5e-5, "lam": 0.1, "alpha": 0.1}.items()
    assert defaults.items() >= {"marginal_weight": 1.0, "temperature": 15.0, "batch_size": None}.items()


def test_docstring_example():
    torch.manual_seed(0)
    for example in doctest.DocTestFinder().find(tim_ext.finetune, globs={}):
        assert len(example.examples) > 0
        assert doctest.DocTestRunner().run(example).failed == 0
