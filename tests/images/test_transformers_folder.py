"""CLIP and SigLIP from folders of transformers: the library's own features, no network, and refusals."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_clip import (
    SIDE,
    Image,
    image_processor,
    pooled,
    transformers,
    write_clip,
    write_preprocessing,
    write_siglip,
)
from safetensors.torch import load_file, save_file

from tim_ext.errors import UserError
from tim_ext.images.extraction import open_extractor
from tim_ext.images.image_text import PROMPTS, class_vectors
from tim_ext.images.networks import open_encoder

pytest.importorskip("tqdm")

# margins of the centre that are equal, and that are not; larger and smaller than the images of the network
SIZES = [(32, 32), (40, 57), (33, 64), (61, 32), (90, 123), (100, 127), (20, 31), (100, 25), (300, 700)]
TEXTS = ["a photo of a red fox.", "Green", "blue sky"]


@pytest.fixture(scope="module", autouse=True)
def no_network():
    """Whatever is opened here is opened without one."""
    patch = pytest.MonkeyPatch()

    def fail(*arguments, **options):
        raise AssertionError("the network was asked for")

    patch.setattr(socket.socket, "connect", fail)
    patch.setattr(socket, "getaddrinfo", fail)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return write_clip(tmp_path_factory.mktemp("encoders") / "clip")


@pytest.fixture(scope="module")
def siglip(tmp_path_factory) -> Path:
    return write_siglip(tmp_path_factory.mktemp("encoders") / "siglip")


@pytest.fixture
def copy(clip, tmp_path) -> Path:
    """To be damaged."""
    folder = tmp_path / "clip"
    folder.mkdir()
    for path in clip.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def photograph(height: int, width: int, seed: int) -> np.ndarray:
    """Waves, edges and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 20
    waves = [np.sin(a * x + b * y + c) for a, b, c in rng.normal(0, 2, (6, 3))]
    pixels = 128 + 40 * np.tensordot(rng.normal(size=(3, 6)), waves, 1).transpose(1, 2, 0)
    pixels[: height // 3, : width // 2] += 60
    return (pixels + rng.normal(0, 10, pixels.shape)).clip(0, 255).astype(np.uint8)


def write_photographs(folder: Path, sizes) -> list[Path]:
    paths = [folder / f"{k}.png" for k in range(len(sizes))]
    for seed, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        Image.fromarray(photograph(*size, seed)).save(path)
    return paths


def ours(folder: Path, paths: list[Path]) -> torch.Tensor:
    with tempfile.TemporaryFile() as spool:
        found, skipped = open_extractor(str(folder), device="cpu", batch_size=3)(paths, spool)
    assert skipped == []
    return found.features


def theirs(kind: str, folder: Path, paths: list[Path]) -> torch.Tensor:
    model = getattr(transformers, f"{kind}Model").from_pretrained(folder).eval()
    images = [Image.open(path).convert("RGB") for path in paths]
    pixels = image_processor(kind, folder)(images, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        return pooled(model.get_image_features(pixel_values=pixels))


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_images_have_the_features_of_the_library(kind, clip, siglip, tmp_path):
    folder = clip if kind == "CLIP" else siglip
    paths = write_photographs(tmp_path, SIZES)
    got, expected = ours(folder, paths), theirs(kind, folder, paths)
    assert got.dtype == torch.float32
    assert expected.std(dim=0).min() > 0.01  # images differ
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_large_jpegs_and_very_long_images(clip, siglip, tmp_path):
    """The ends of these are cut off before, unless they count."""
    paths = [tmp_path / "large.jpg", tmp_path / "long.png", tmp_path / "other.png"]
    for path, size in zip(paths, [(600, 601), (40, 700), (300, 400)], strict=True):
        Image.fromarray(photograph(*size, 0)).save(path)
    got, expected = ours(siglip, paths), theirs("Siglip", siglip, paths)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    got, expected = ours(clip, paths), theirs("CLIP", clip, paths)
    torch.testing.assert_close(got[::2], expected[::2], rtol=0, atol=1e-5)
    assert (got[1] - expected[1]).norm() < 0.1 * (expected[1] - expected[::2]).norm(dim=1).min()


def test_texts_have_the_features_of_the_library(clip, siglip):
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    with torch.no_grad():
        expected = pooled(model.get_text_features(**tokenizer(TEXTS, padding=True, return_tensors="pt")))
        got = open_encoder(str(clip))[0].forward_texts(TEXTS)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
        assert (got[0] - got[1]).norm() > 0.1
        # SigLIP: lower case, the full length, and no mask
        model = transformers.SiglipModel.from_pretrained(siglip).eval()
        ids = torch.tensor([[2, 3, 4, 2, 5, 1, 8, 0, 0, 0, 0, 0], [6] + 11 * [0], [7, 1] + 10 * [0]])
        got = open_encoder(str(siglip))[0].forward_texts(TEXTS)
        torch.testing.assert_close(got, pooled(model.get_text_features(input_ids=ids)), rtol=0, atol=1e-5)


def test_a_class_is_the_mean_of_its_prompts_at_unit_length(clip):
    encoder = open_encoder(str(clip))[0]
    names = [f"thing {k}" for k in range(30)]  # several batches
    got = class_vectors(encoder, "clip", names)
    assert got.shape == (30, 16)
    assert len(PROMPTS) > 1
    with torch.no_grad():
        texts = encoder.forward_texts([prompt.replace("{}", names[7]) for prompt in PROMPTS])
    expected = (texts / texts.norm(dim=1, keepdim=True)).mean(dim=0)
    torch.testing.assert_close(got[7], expected, rtol=0, atol=1e-5)
    other = class_vectors(encoder, "clip", names, ["{} and {}"])
    with torch.no_grad():
        texts = encoder.forward_texts(["thing 7 and thing 7"])
    torch.testing.assert_close(other[7], texts[0] / texts.norm(), rtol=0, atol=1e-5)


def test_preprocessing_as_it_is_written_in_other_versions(copy, tmp_path):
    paths = write_photographs(tmp_path, SIZES)
    expected = ours(copy, paths)
    write_preprocessing(
        copy, size=SIDE, crop_size=SIDE, do_center_crop=None, rescale_factor=None, do_rescale=None
    )
    assert torch.equal(ours(copy, paths), expected)
    about = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").unlink()
    (copy / "processor_config.json").write_text(json.dumps({"image_processor": about}))
    assert torch.equal(ours(copy, paths), expected)
    (copy / "processor_config.json").write_text(json.dumps({"image_processor": {**about, "resample": 2}}))
    assert not torch.allclose(ours(copy, paths), expected, atol=1e-3)


def test_half_precision_is_computed_in_float32(copy, tmp_path):
    paths = write_photographs(tmp_path, SIZES[:3])
    expected = ours(copy, paths)
    weights = load_file(copy / "model.safetensors")
    save_file(
        {k: w.half() if w.is_floating_point() else w for k, w in weights.items()},
        copy / "model.safetensors",
        {"format": "pt"},
    )
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "dtype": "float16", "torch_dtype": "float16"}))
    encoder = open_encoder(str(copy))[0]
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    torch.testing.assert_close(ours(copy, paths), expected, rtol=0, atol=2e-2)


def test_weights_that_torch_wrote(copy, tmp_path):
    paths = write_photographs(tmp_path, SIZES[:3])
    expected = ours(copy, paths)
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    assert torch.equal(ours(copy, paths), expected)
    torch.save({"text_projection.weight": Harm(tmp_path / "harm")}, copy / "pytorch_model.bin")
    assert refusal(copy).startswith("--encoder: transformers cannot open HERE (")
    assert not (tmp_path / "harm").exists()


class Harm:
    """What a pickle may do to those who open it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def refusal(folder: Path, texts=("cat", "dog")) -> str:
    with pytest.raises(UserError) as refused:
        class_vectors(open_encoder(str(folder))[0], str(folder), texts)
    return str(refused.value).replace(str(folder), "HERE")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "--encoder: expected efficientnet-lite0, glyphs, timm:NAME, torchvision:NAME, "),
        ("model.safetensors", "--encoder: expected model.safetensors in HERE, got none"),
        (
            "preprocessor_config.json",
            "--encoder: expected preprocessor_config.json, how images are made ready",
        ),
    ],
)
def test_a_file_that_is_missing_is_named(copy, name, message):
    (copy / name).unlink()
    assert refusal(copy).startswith(message)


def test_a_tokenizer_that_is_missing_is_named_when_it_is_needed(copy, siglip, tmp_path):
    paths = write_photographs(tmp_path, SIZES[:2])
    (copy / "tokenizer.json").unlink(missing_ok=True)
    assert torch.isfinite(ours(copy, paths)).all()
    torch.testing.assert_close(  # the older files do as well
        class_vectors(open_encoder(str(copy))[0], "", TEXTS),
        class_vectors(open_encoder(str(write_clip(tmp_path / "other")))[0], "", TEXTS),
    )
    (copy / "merges.txt").unlink()
    expected = (
        "--encoder: expected a tokenizer, tokenizer.json, or vocab.json and merges.txt, in HERE, got none"
    )
    assert refusal(copy) == expected
    assert ours(copy, paths).shape == (2, 16)


def change_config(folder: Path, name: str = "config.json", **changed) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **changed}))


def test_models_that_are_refused(copy):
    change_config(copy, model_type="clip_vision_model")
    expected = "a model of images and texts, model_type 'clip' or 'siglip' in HERE, got 'clip_vision_model'"
    assert refusal(copy) == f"--encoder: expected {expected}"
    (copy / "config.json").write_text("{")
    assert refusal(copy).startswith("--encoder: expected JSON in config.json in HERE, got Expecting property")
    (copy / "config.json").write_text("[]")
    assert refusal(copy) == "--encoder: expected a JSON object in config.json in HERE, got list"


def test_weights_that_are_refused(copy):
    weights = load_file(copy / "model.safetensors")
    del weights["text_projection.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    assert (
        refusal(copy)
        == "--encoder: expected all weights of the model in HERE, got none for 'text_projection.weight'"
    )
    (copy / "model.safetensors").write_bytes(b"no weights")
    assert refusal(copy).startswith("--encoder: transformers cannot open HERE (")
    (copy / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refusal(copy)
    assert message.startswith("--encoder: transformers cannot open HERE (")
    assert "model-00001-of-00001.safetensors" in message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"do_normalize": False}, "do_normalize true in preprocessor_config.json in HERE, got False"),
        ({"resample": 0}, "resample out of (1, 2, 3) in preprocessor_config.json in HERE, got 0"),
        ({"resample": None}, "resample out of (1, 2, 3) in preprocessor_config.json in HERE, got None"),
        ({"image_mean": None}, "sizes, image_mean and image_std in preprocessor_config.json in HERE, got "),
        ({"image_std": "x"}, "sizes, image_mean and image_std in preprocessor_config.json in HERE, got "),
        ({"size": 1.5}, "sizes, image_mean and image_std in preprocessor_config.json in HERE, got 'float"),
        ({"image_std": [1, 0, 1]}, "square images of three channels of 0 .. 1 in "),
        ({"image_mean": [0.5]}, "square images of three channels of 0 .. 1 in "),
        ({"rescale_factor": 1}, "square images of three channels of 0 .. 1 in "),
        ({"crop_size": {"height": 32, "width": 24}}, "square images of three channels of 0 .. 1 in "),
        ({"crop_size": 64}, "square images of three channels of 0 .. 1 in "),
        ({"do_center_crop": False}, "square images of three channels of 0 .. 1 in "),
        ({"size": {"longest_edge": 32}}, "square images of three channels of 0 .. 1 in "),
    ],
)  # fmt: skip
def test_preprocessing_that_is_refused(copy, changed, message):
    about = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    write_preprocessing(copy, **{**about, **changed})
    assert refusal(copy).startswith(f"--encoder: expected {message}")


def test_texts_that_are_refused(clip, copy):
    long = "very " * 12 + "long"
    message = refusal(clip, ["cat", long])
    start = "--class-names: expected names that make texts of at most 40 tokens, got "
    assert message.startswith(start)
    assert f"in 'a photo of a {long}.'" in message
    vocabulary = json.loads((copy / "vocab.json").read_text())
    (copy / "tokenizer.json").unlink(missing_ok=True)
    (copy / "vocab.json").write_text(json.dumps({**vocabulary, **{f"new{k}": 190 + k for k in range(9)}}))
    expected = "a tokenizer of at most 190 tokens, those of the network, in HERE, got 199"
    assert refusal(copy) == f"--encoder: expected {expected}"
