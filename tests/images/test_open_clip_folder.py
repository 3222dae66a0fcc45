"""Encoders of open_clip from folders."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tim_ext.errors import UserError
from tim_ext.images.extraction import open_extractor
from tim_ext.images.image_text import class_vectors
from tim_ext.images.networks import open_encoder

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("tqdm")

MODEL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
}
IMAGES = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "interpolation": "bicubic"}


def write_config(folder: Path, **changed) -> None:
    about = {"model_cfg": MODEL, "preprocess_cfg": {**IMAGES, "resize_mode": "shortest", **changed}}
    (folder / "open_clip_config.json").write_text(json.dumps(about))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        open_encoder(str(folder))
    return str(refused.value).replace(str(folder), "HERE")


@pytest.fixture
def folder(tmp_path) -> Path:
    open_clip = pytest.importorskip(
        "open_clip", reason="needs open_clip and its torchvision: pip install 'tim_ext[open-clip]'"
    )
    torch.manual_seed(0)
    model = open_clip.model.CLIP(**MODEL)
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, tmp_path / "open_clip_model.safetensors")
    write_config(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", ["shortest", "squash"])
def test_features_of_the_library(folder, mode):
    import open_clip

    write_config(folder, resize_mode=mode)
    (folder / "config.json").write_text('{"architecture": "of timm"}')
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 58, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    image = Image.fromarray(pixels)
    if mode == "squash":
        image = image.resize((32, 32), Image.Resampling.BICUBIC)
    else:
        image = image.resize((46, 32), Image.Resampling.BICUBIC).crop((7, 0, 39, 32))
    mean, std = (torch.tensor(IMAGES[key])[:, None, None] for key in ("mean", "std"))
    ready = (torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std
    extract = open_extractor(str(folder), device="cpu")
    with tempfile.TemporaryFile() as spool, torch.no_grad():
        got = extract([folder / "image.png"], spool)[0].features
        torch.testing.assert_close(got, model.encode_image(ready[None]), rtol=0, atol=1e-5)
        texts = model.encode_text(open_clip.tokenize(["a cat", "a dog"]))
        expected = texts / texts.norm(dim=1, keepdim=True)
        got = class_vectors(extract.network, "", ["cat", "dog"], ["a {}"])
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_what_is_refused(folder):
    encoder = open_encoder(str(folder))[0]
    class_vectors(encoder, "", ["cat " * 74], ["{}"])  # and the two at its ends
    with pytest.raises(UserError, match="names that make texts of less than 77 tokens, got 'cat cat "):
        class_vectors(encoder, "", ["cat", "cat " * 76], ["{}"])
    write_config(folder, resize_mode="longest")
    start = "--encoder: open_clip cannot open HERE ("
    assert refusal(folder).startswith(f"{start}square images, shortest or squash, bicubic or bilinear, got ")
    (folder / "open_clip_config.json").write_text("{}")
    assert refusal(folder).startswith(start)


def test_what_is_refused_without_the_library(tmp_path, monkeypatch):
    write_config(tmp_path)
    expected = "--encoder: expected weights, as open_clip_model.safetensors, in HERE, got none"
    assert refusal(tmp_path) == expected
    (tmp_path / "open_clip_model.safetensors").touch()
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tim_ext\[open-clip\]'"):
        open_encoder(str(tmp_path))
