"""The encoders: sizes as published, gradients, names."""

from __future__ import annotations

import pytest
import torch
from helpers.paths import ROOT
from torch import nn

from python_train.network import Network, count_parameters
from tim_ext.errors import UserError
from tim_ext.images.networks import ENCODERS, Headless, feature_size, features_of, make_encoder

assert ROOT  # train_runs makes python_train importable

# name: parameters and feature size. ResNet-18 has 11.69 M with the ImageNet head of 0.513 M and a 7x7 stem of
# 9408, here a 3x3 stem of 1728; WRN-28-10 has 36.5 M on CIFAR.
PUBLISHED = {
    "conv4": (3 * 64 * 9 + 3 * 64 * 64 * 9 + 4 * 128, 256),  # means over 2 x 2 cells
    "resnet18": (11_689_512 - 513_000 - 9_408 + 1_728, 512),
    "wrn28_10": (36_479_194 - 6_410, 640),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_feature_sizes_as_published(name):
    encoder = make_encoder(name)
    assert (count_parameters(encoder), feature_size(encoder)) == PUBLISHED[name]


def forward_and_backward(name: str, batch: int) -> None:
    encoder = make_encoder(name)
    network = Network(encoder, num_classes=7)
    images = torch.randn(batch, 3, 84, 84, generator=torch.Generator().manual_seed(0))
    features = features_of(encoder, images)
    assert features.shape == (batch, feature_size(encoder))
    loss = nn.functional.cross_entropy(network(images), torch.arange(batch) % 7)
    loss.backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("name", ["conv4", "resnet10", "resnet18"])
def test_forward_and_backward_at_84_pixels(name):
    forward_and_backward(name, batch=2)


@pytest.mark.slow
def test_forward_and_backward_of_wrn_at_84_pixels():
    forward_and_backward("wrn28_10", batch=2)


def test_the_map_of_resnet18_at_84_pixels_is_11_by_11():
    """A stem of stride 1, no max-pool, three halvings: 84 -> 42 -> 21 -> 11."""
    encoder = make_encoder("resnet18", width=4)
    shapes = []
    encoder.blocks.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    features_of(encoder, torch.zeros(1, 3, 84, 84))
    assert shapes == [(1, 32, 11, 11)]


def test_resnet18_is_torchvisions_but_for_the_stem():
    models = pytest.importorskip("torchvision").models
    theirs = models.resnet18()
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = theirs.fc = nn.Identity()
    ours = make_encoder("resnet18")
    state = dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True))
    ours.load_state_dict(state)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(features_of(ours.eval(), images), theirs.eval()(images), rtol=1e-4, atol=1e-4)


def test_width_and_channels():
    assert feature_size(make_encoder("resnet18", width=16)) == 128
    assert feature_size(make_encoder("wrn28_10", width=16)) == 64
    for name in ENCODERS:
        encoder = make_encoder(name, in_channels=1, width=4).eval()
        assert features_of(encoder, torch.zeros(2, 1, 32, 32)).shape == (2, feature_size(encoder))


def test_features_do_not_depend_on_the_batch():
    encoder = make_encoder("resnet10", width=4).eval()
    images = torch.randn(5, 3, 40, 40)
    torch.testing.assert_close(features_of(encoder, images)[3:4], features_of(encoder, images[3:4]))


def test_the_same_seed_makes_the_same_weights():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(make_encoder("resnet18", width=8).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(
    ("name", "dim"),
    [("resnet18", 512), ("mobilenet_v3_small", 1024), ("efficientnet_b0", 1280), ("convnext_tiny", 768)],
)
def test_torchvision_networks(name, dim):
    pytest.importorskip("torchvision")
    encoder = make_encoder(f"torchvision:{name}").eval()
    assert isinstance(encoder, Headless)
    assert feature_size(encoder) == dim
    with torch.inference_mode():
        assert features_of(encoder, torch.zeros(1, 3, 64, 64)).shape == (1, dim)


def test_timm_networks():
    pytest.importorskip("timm")
    encoder = make_encoder("timm:resnet10t", in_channels=1).eval()
    with torch.inference_mode():
        assert features_of(encoder, torch.zeros(1, 1, 64, 64)).shape == (1, 512)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet19", {}, "--model: expected one of conv4, resnet10, resnet18, wrn28_10, timm:NAME, "),
        ("timm:", {}, "--model: expected one of"),
        ("resnet18", {"width": 0}, "--width: expected a number of channels >= 1, got 0"),
        ("resnet18", {"pretrained": True}, "--pretrained: expected a network of timm or torchvision"),
        ("timm:resnet18", {"width": 3}, "--width: expected one of conv4, "),
    ],
)
def test_unknown_names_and_options(name, options, message):
    with pytest.raises(UserError) as refused:
        make_encoder(name, **options)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "channels", "reason"),
    [
        ("nothing", 3, "Unknown model nothing"),
        ("squeezenet1_0", 3, "last layer"),
        ("resnet18", 1, "3 channels"),
    ],
)
def test_torchvision_networks_that_cannot_be_had(name, channels, reason):
    pytest.importorskip("torchvision")
    with pytest.raises(UserError, match=f"torchvision cannot make '{name}' .*{reason}"):
        make_encoder(f"torchvision:{name}", in_channels=channels)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match=r"timm is not installed: pip install timm$"):
        make_encoder("timm:resnet18")
