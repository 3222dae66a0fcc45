"""Extraction: the features are the encoder's, and never stale."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.paths import ROOT
from helpers.train_runs import arguments, write_arrays

import tim_ext
from python_train import extract, train
from python_train.datasets import open_dataset
from tim_ext.files.features import load_features
from tim_ext.files.tensors import read_tensors, write_tensors
from tim_ext.images.networks import features_of, load_encoder
from tim_ext.images.preprocessing import center_crop, normalize, to_tensor


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    assert train.main(arguments(data, out, length=["--epochs", "2", "--batch-size", "40"])) == 0
    return out


def options(data, run, *more: str) -> list[str]:
    given = ["--dataset", "npz", "--data-root", str(data), "--checkpoint", str(run / "best.safetensors")]
    return [*given, "--device", "cpu", *more]


def test_features_are_those_of_the_encoder(data, run, tmp_path, capsys):
    out = tmp_path / "test.safetensors"
    assert extract.main(options(data, run, "--out", str(out), "--batch-size", "50")) == 0
    assert capsys.readouterr().out == f"120 features of 32 values: {out}\n"
    dataset = open_dataset("npz", data, "test")
    encoder, how, _ = load_encoder(run / "best.safetensors")
    with torch.inference_mode():
        pixels = normalize(center_crop(to_tensor(dataset.images, 3), how), how)
        expected = features_of(encoder.eval(), pixels)
    loaded = load_features(out)
    torch.testing.assert_close(loaded.features, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(loaded.labels, torch.from_numpy(dataset.labels))
    description = json.loads(out.with_suffix(".json").read_text())
    assert description["class_names"] == dataset.class_names
    assert description["dataset_sha256"] == dataset.content_hash
    assert (description["images"], description["dim"], description["split"]) == (120, 32, "test")


def test_from_training_to_accuracies(data, run):
    """Train, extract, evaluate: the features of new classes are of use."""
    assert extract.main(options(data, run, "--split", "test")) == 0
    loaded = load_features(run / "features" / "npz_test.safetensors")
    found = tim_ext.tasks.balanced(loaded.labels, ways=5, shots=1, queries=10)[0:100]
    result = tim_ext.adm(loaded.features, found.labels, index=found.index, outputs=("predictions",))
    right = (result.predictions == found.truth)[found.labels < 0]
    assert right.float().mean() > 0.5  # by chance: 0.2


# What makes features anew -------------------------------------------------------------------------


@pytest.fixture
def own(data, run, tmp_path):
    """A copy of data and weights, to be changed."""
    for path in data.glob("*.npz"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "best.safetensors").write_bytes((run / "best.safetensors").read_bytes())
    return tmp_path


def is_made(own, capsys, *more: str) -> bool:
    out = own / "features" / "npz_test.safetensors"
    assert extract.main(options(own, own, *more)) == 0
    said = capsys.readouterr().out
    assert said in (f"up to date: {out}\n", f"120 features of 32 values: {out}\n")
    return not said.startswith("up to date")


def test_features_are_kept_while_nothing_changes(own, capsys):
    assert is_made(own, capsys)
    out = own / "features" / "npz_test.safetensors"
    before = out.stat().st_mtime_ns
    assert not is_made(own, capsys)
    assert not is_made(own, capsys, "--batch-size", "7", "--workers", "1")
    assert not is_made(own, capsys, "--size", "16")
    (own / "test.npz").rename(own / "novel.npz")
    assert not is_made(own, capsys)
    assert out.stat().st_mtime_ns == before


def change_an_image(own) -> list[str]:
    with np.load(own / "test.npz") as content:
        images, labels = content["images"], content["labels"]
    images[5, 0, 0, 0] ^= 1
    np.savez(own / "test.npz", images=images, labels=labels)
    return []


def change_a_label(own) -> list[str]:
    with np.load(own / "test.npz") as content:
        images, labels = content["images"], content["labels"]
    labels[0] = (labels[0] + 1) % 6
    np.savez(own / "test.npz", images=images, labels=labels)
    return []


def change_a_weight(own) -> list[str]:
    tensors, description = read_tensors(own / "best.safetensors")
    tensors["encoder.convolutions.0.weight"][0, 0, 0, 0] += 1e-3
    write_tensors(own / "best.safetensors", tensors, description)
    return []


def damage_the_features(own) -> list[str]:
    out = own / "features" / "npz_test.safetensors"
    out.write_bytes(out.read_bytes()[:-1])
    return []


def remove_the_features(own) -> list[str]:
    (own / "features" / "npz_test.safetensors").unlink()
    return []


@pytest.mark.parametrize(
    "change",
    [
        change_an_image,
        change_a_label,
        change_a_weight,
        damage_the_features,
        remove_the_features,
        lambda own: ["--no-antialias"],
        lambda own: ["--size", "20"],
        lambda own: ["--resize", "18"],
        lambda own: ["--dtype", "float16"],
        lambda own: ["--amp", "bfloat16"],
    ],
)
def test_any_change_makes_them_anew(own, capsys, change):
    assert is_made(own, capsys)
    assert not is_made(own, capsys)
    more = change(own)
    assert is_made(own, capsys, *more)
    assert not is_made(own, capsys, *more)


def test_the_order_of_the_files_does_not_matter(tmp_path, run):
    """Extraction of files gives what extraction of the same pixels in an array gives."""
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    labels = np.repeat([0, 1], 4)
    for i, pixels in enumerate(images):
        folder = tmp_path / "files" / "test" / f"c{labels[i]}"
        folder.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays" / "test.npz", images=images, labels=labels)
    found = {}
    for name, dataset in (("files", "imagefolder"), ("arrays", "npz")):
        given = [
            "--dataset",
            dataset,
            "--data-root",
            str(tmp_path / name),
            "--device",
            "cpu",
            "--workers",
            "0",
        ]
        given += [
            "--checkpoint",
            str(run / "best.safetensors"),
            "--out",
            str(tmp_path / f"{name}.safetensors"),
        ]
        assert extract.main(given) == 0
        found[name] = read_tensors(tmp_path / f"{name}.safetensors")[0]["features"]
    torch.testing.assert_close(found["files"], found["arrays"], rtol=1e-4, atol=1e-5)


def test_groups_of_classes_are_written_for_evaluate(tmp_path, run):
    pillow = pytest.importorskip("PIL.Image")
    for alphabet, characters in (("A", 6), ("B", 5)):
        for k in range(characters):
            folder = tmp_path / "images_evaluation" / alphabet / f"character{k}"
            folder.mkdir(parents=True)
            for i in range(4):
                pillow.new("L", (20, 20), 40 * i).save(folder / f"{i}.png")
    given = ["--dataset", "omniglot", "--data-root", str(tmp_path), "--device", "cpu", "--workers", "0"]
    given += ["--checkpoint", str(run / "best.safetensors"), "--out", str(tmp_path / "o.safetensors")]
    assert extract.main(given) == 0
    groups = json.loads((tmp_path / "o.superclasses.json").read_text())
    assert groups == {"A": [0, 1, 2, 3, 4, 5], "B": [6, 7, 8, 9, 10]}
    loaded = load_features(tmp_path / "o.safetensors")
    sampler = tim_ext.tasks.meta_dataset(loaded.labels, superclasses=groups)
    assert {len(ways) for ways in sampler[0:50].classes} == {5, 6}


def test_float16(data, run, tmp_path):
    outs = [tmp_path / f"{dtype}.safetensors" for dtype in extract.DTYPES]
    for dtype, out in zip(extract.DTYPES, outs, strict=True):
        assert extract.main(options(data, run, "--dtype", dtype, "--out", str(out))) == 0
    full, half = (read_tensors(out)[0]["features"] for out in outs)
    assert half.dtype == torch.float16
    assert torch.equal(full.half(), half)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--split", "novel"], "--split: expected one of train, val, test, got 'novel'"),
        (["--out", "features.npz"], "--out: expected a file that ends with .safetensors, got features.npz"),
        (["--resize", "3"], "--resize: expected at least the image size 16, got 3"),
        (["--checkpoint", "nowhere.safetensors"], "nowhere.safetensors: no such file"),
    ],
)
def test_refusals(data, run, capsys, more, message):
    assert extract.main(options(data, run, *more)) == 2
    assert capsys.readouterr().err == f"extract: {message}\n"


def test_other_files_than_checkpoints(data, run, tmp_path, capsys):
    assert extract.main(options(data, run, "--out", str(tmp_path / "best.safetensors"))) == 0
    assert extract.main(options(data, tmp_path)) == 2  # features, not a checkpoint
    assert "best.safetensors: not a checkpoint: its description has no 'model'" in capsys.readouterr().err
    tensors, description = read_tensors(run / "best.safetensors")
    del tensors["encoder.norms.0.bias"]
    write_tensors(tmp_path / "best.safetensors", tensors, description)
    assert extract.main(options(data, tmp_path)) == 2
    error = capsys.readouterr().err
    assert "best.safetensors: the weights are not those of this network (" in error
    assert error.count("\n") == 1


def test_a_damaged_checkpoint(data, run, tmp_path, capsys):
    whole = (run / "best.safetensors").read_bytes()
    (tmp_path / "best.safetensors").write_bytes(whole[:1000])
    assert extract.main(options(data, tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"extract: {tmp_path / 'best.safetensors'}: damaged")
    assert error.count("\n") == 1


def test_only_networks_with_published_weights_by_name(data, tmp_path, capsys):
    given = ["--dataset", "npz", "--data-root", str(data), "--model", "resnet18", "--device", "cpu"]
    assert extract.main([*given, "--out", str(tmp_path / "a.safetensors")]) == 2
    assert (
        "--model: expected efficientnet-lite0, timm:NAME or torchvision:NAME, got 'resnet18'"
        in capsys.readouterr().err
    )
    assert extract.main(given) == 2
    assert "--out: expected the file to write with --model, got none" in capsys.readouterr().err


def test_one_encoder_is_asked_for(data, capsys):
    with pytest.raises(SystemExit) as ended:
        extract.main(["--dataset", "npz", "--data-root", str(data)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


# The commands -------------------------------------------------------------------------------------


def test_the_commands_of_the_page_are_understood():
    """docs/training.md: every option that it shows is one."""
    page = (ROOT / "docs/training.md").read_text()
    commands = re.findall(
        r"^(?:python|torchrun) .*?-m python_train\.(train|extract) (.*)$", page, re.MULTILINE
    )
    assert len(commands) > 10
    for name, given in commands:
        {"train": train, "extract": extract}[name].make_parser().parse_args(given.split())
    for option in re.findall(r"`(--[a-z-]+)", page):
        parsers = (train.make_parser(), extract.make_parser())
        assert any(option in parser.format_help() for parser in parsers) or option.startswith("--nproc"), (
            option
        )


@pytest.mark.slow
def test_train_extract_evaluate_on_glyphs(tmp_path):
    """The sequence of commands as a user types it, in small."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    data = f"--dataset glyphs --data-root {tmp_path / 'cache'}"
    length = (
        "--model conv4 --width 16 --iterations 60 --batch-size 64 --lr 0.02 --val-tasks 50 --no-tensorboard"
    )
    commands = [
        f"python_train.train {data} {length} --no-tensorboard --out {tmp_path / 'run'}",
        f"python_train.extract {data} --split digits --checkpoint {tmp_path / 'run' / 'best.safetensors'}",
        f"tim_ext evaluate {tmp_path / 'run' / 'features' / 'glyphs_digits.safetensors'} --tasks 100",
    ]
    for command in commands:
        ended = subprocess.run(
            [sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
    accuracies = re.findall(r"^(prototype|tim-adm) +([\d.]+)", ended.stdout, re.MULTILINE)
    assert [name for name, _ in accuracies] == ["prototype", "tim-adm"] * 2
    assert min(float(accuracy) for _, accuracy in accuracies) > 30  # by chance: 20
