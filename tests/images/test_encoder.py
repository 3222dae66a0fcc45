"""Conv-4, and the encoder that ships with the package."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
import torch
from helpers.glyph_sets import use_few_images
from helpers.paths import ROOT
from torch import nn

import tim_ext
from tim_ext.images import encoder, glyphs
from tim_ext.images.encoder import Conv4, extract, glyph_encoder
from tim_ext.images.networks import load_encoder

pytest.importorskip("safetensors")
assert ROOT  # train_runs makes python_train importable

RECORD = json.loads(encoder.WEIGHTS.with_suffix(".json").read_text())
# 5-way 1-shot accuracies that two epochs of the recipe reach (an encoder without training: 32, 34, 68, 72),
# and how far another machine or another number of threads may be from them
TWO_EPOCHS = {"novel": {"prototype": 68.8, "tim-adm": 76.7}, "digits": {"prototype": 79.7, "tim-adm": 88.7}}
TWO_EPOCHS_TOLERANCE = 5.0


def images(count=10, side=32):
    return np.random.default_rng(0).integers(0, 256, (count, side, side), np.uint8)


def plain(network):
    """The same layers in the order they are published in: convolution, batch norm, ReLU, max-pool."""
    layers = []
    for convolution, norm in zip(network.convolutions, network.norms, strict=True):
        layers += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("channels", "in_channels", "side"), [(64, 1, 32), (8, 3, 84), (8, 1, 28)])
@pytest.mark.parametrize("training", [True, False])
def test_conv4_is_four_blocks_and_a_mean_over_four_cells(channels, in_channels, side, training):
    torch.manual_seed(0)
    network = Conv4(channels, in_channels).double().train(training)
    for norm in network.norms:
        nn.init.uniform_(norm.weight, -1, 1)  # of both signs
        nn.init.uniform_(norm.running_var, 0.5, 2)
    x = torch.rand(3, in_channels, side, side, dtype=torch.float64)
    got = network.forward_features(x)
    last = plain(network)(x)
    cells = last.shape[-1]
    rows = [slice(i * cells // 2, -(-(i + 1) * cells // 2)) for i in range(2)]  # halves, the middle in both
    expected = torch.stack([last[:, :, y, x].mean((2, 3)) for y in rows for x in rows], 2).flatten(1)
    assert got.shape == (3, network.dim) == (3, 4 * channels)
    torch.testing.assert_close(got, expected)


def test_conv4_has_the_published_number_of_weights():
    """113,088 for colour images, but the biases before a batch norm, which do nothing, are left out."""
    assert sum(parameter.numel() for parameter in Conv4(64, 3).parameters()) == 113_088 - 4 * 64


@pytest.mark.parametrize("name", ["channels", "in_channels"])
def test_conv4_refuses_nothing_as_channels(name):
    with pytest.raises(ValueError, match=f"{name}: expected an integer >= 1, got 0"):
        Conv4(**{name: 0})


def test_extract_does_not_depend_on_batches_and_leaves_the_network_as_it_was():
    network = glyph_encoder().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    all_at_once, in_parts = (extract(network, images(), batch_size=size) for size in (100, 3))
    assert network.training
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert all_at_once.shape == (10, 256)
    assert all_at_once.dtype == torch.float32
    assert not all_at_once.requires_grad
    torch.testing.assert_close(all_at_once, in_parts)
    pixels = torch.from_numpy(images())[:, None].float() / 255
    with torch.no_grad():
        expected = network.eval().forward_features(2 * pixels - 1)
    torch.testing.assert_close(all_at_once, expected)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (images().astype(np.float32), TypeError, "images: expected uint8, got float32"),
        (images()[0], ValueError, r"images: expected shape \[M, H, W\], none of them 0, got \[32, 32\]"),
        (images()[:0], ValueError, r"images: expected shape .*, got \[0, 32, 32\]"),
    ],
)
def test_extract_refuses(given, error, message):
    with pytest.raises(error, match=message):
        extract(glyph_encoder(), given)


# From images to a table ---------------------------------------------------------------------------


def test_train_extract_evaluate(monkeypatch, tmp_path, capsys):
    """The three commands of docs/training.md on glyphs, on a small setting."""
    from python_train import extract, train
    from tim_ext.cli.main import main

    use_few_images(monkeypatch)
    data = ["--dataset", "glyphs", "--data-root", str(tmp_path / "cache"), "--workers", "0"]
    small = ["--model", "conv4", "--width", "16", "--iterations", "8", "--lr", "0.01", "--val-tasks", "0"]
    run, features = tmp_path / "run", tmp_path / "novel.safetensors"
    assert train.main([*data, *small, "--no-tensorboard", "--out", str(run)]) == 0
    checkpoint = ["--checkpoint", str(run / "last.safetensors"), "--out", str(features)]
    assert extract.main([*data, "--split", "test", *checkpoint]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(features), "--shots", "1", "--queries", "5", "--tasks", "100"]) == 0
    table = capsys.readouterr().out
    methods = dict(re.findall(r"^([a-z-]+)\s+([\d.]+) \+- ", table, flags=re.MULTILINE))
    assert "tim-adm" in methods
    assert all(float(accuracy) > 24 for accuracy in methods.values())  # 20 by chance


# The shipped weights ------------------------------------------------------------------------------


def test_the_shipped_files_are_small_and_belong_together():
    from python_train.recipes import glyph_encoder as recipe

    assert encoder.WEIGHTS.stat().st_size < 1_000_000
    network, how, description = load_encoder(encoder.WEIGHTS)  # checks its hash
    assert (how.mean, how.std) == ((encoder.MEAN,), (encoder.STD,))
    assert (how.size, how.channels) == (glyphs.SIDE, 1)
    for name, value in glyph_encoder().state_dict().items():
        assert torch.equal(value, network.state_dict()[name])
        assert value.isfinite().all()
    assert description["validation"] == RECORD["validation"]
    assert recipe.OPTIONS.format(epochs=recipe.EPOCHS) in RECORD["command"]
    assert description["recipe"]["steps"] == RECORD["log"][-1]["step"]


def test_features_are_reproducible():
    first, second = (extract(glyph_encoder(), images()) for _ in range(2))
    assert torch.equal(first, second)
    assert not glyph_encoder().training


@pytest.mark.parametrize("shots", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_the_accuracy_on_digits_is_the_recorded_one(shots):
    pytest.importorskip("sklearn")
    digits = glyphs.load("digits")
    features = extract(glyph_encoder(), digits.images)
    evaluation = tim_ext.evaluate(features, digits.labels, shots=shots, tasks=2000)
    recorded = RECORD["accuracy"]["digits"][f"5-way {shots}-shot"]
    for row in evaluation.rows:  # the same tasks: only rounding differs
        assert row.accuracy == pytest.approx(recorded[row.method], abs=0.3)
    assert evaluation.rows[1].difference > (5, 1)[shots == 5]


@pytest.mark.slow
def test_the_accuracy_on_glyphs_is_near_the_recorded_one(monkeypatch, tmp_path):
    """Other images of the novel classes, fewer tasks: a change of how glyphs are drawn shows."""
    use_few_images(monkeypatch)
    novel = glyphs.load("novel", root=tmp_path)
    features = extract(glyph_encoder(), novel.images)
    evaluation = tim_ext.evaluate(features, novel.labels, shots=1, queries=5, tasks=1000)
    prototype, tim = evaluation.rows
    assert prototype.accuracy == pytest.approx(
        RECORD["accuracy"]["novel"]["5-way 1-shot"]["prototype"], abs=1.5
    )
    assert tim.difference > 2


@pytest.mark.slow
@pytest.mark.skipif("TIM_EXT_RECIPE" not in os.environ, reason="four minutes on two cores: TIM_EXT_RECIPE=1")
def test_the_recipe_still_reproduces_its_accuracy(tmp_path, set_threads):
    """A third of its epochs. It is a job of its own in .github/workflows."""
    from python_train.recipes import glyph_encoder as recipe

    set_threads(2)
    assert recipe.main(["--epochs", "2", "--run", str(tmp_path / "run"), "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "glyph_encoder.json").read_text())
    for split, expected in TWO_EPOCHS.items():
        got = record["accuracy"][split]["5-way 1-shot"]
        assert got == pytest.approx(expected, abs=TWO_EPOCHS_TOLERANCE)
