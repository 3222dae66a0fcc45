"""`tim-ext predict`: from folders of images to a CSV file and a page."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import os
import re
import shlex
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.drawings import CLASSES, Image, draw, read_csv, run_predict, write_folders
from helpers.html import Page
from helpers.paths import DOCS
from helpers.pictures import damaged

import tim_ext
from tim_ext.cli import predict
from tim_ext.cli.main import main
from tim_ext.images import encoder, extraction, glyphs, labelling, networks
from tim_ext.images.networks import features_of, load_encoder
from tim_ext.images.preprocessing import center_crop, normalize, to_tensor

for needed in ("safetensors", "tqdm"):
    pytest.importorskip(needed)


@pytest.fixture
def folders(tmp_path):
    return write_folders(tmp_path)


def refused(capsys, folders, *more, **options):
    assert run_predict(folders, *more, **options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tim-ext predict: ")
    assert err.count("\n") == 1
    return err.removeprefix("tim-ext predict: ").rstrip()


# The main job -------------------------------------------------------------------------------------


def test_images_get_their_classes(folders, capsys):
    assert run_predict(folders) == 0
    rows = read_csv(folders)
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    assert len(rows) == 15
    for row in rows:
        assert row["class"][0] == Path(row["path"]).name[0]
        assert row["second_class"] in CLASSES
        assert row["second_class"] != row["class"]
        assert 1 >= float(row["confidence"]) >= float(row["second_confidence"]) >= 0
    assert read_csv(folders, "skipped.csv") == []
    assert sorted(os.listdir(folders / "out")) == ["contact_sheet.html", "predictions.csv", "skipped.csv"]
    out, err = capsys.readouterr()
    assert err == ""  # no bar where there is no terminal
    assert re.search(r"^rings +2 +5 +\d+\.\d % +\d+\.\d %$", out, re.MULTILINE)
    assert out.endswith(f"open {folders / 'out' / 'contact_sheet.html'} in a browser\n")


def by_hand(folders):
    """Features of the labelled images and of the others, one image at a time, and the labels."""
    network, how, _ = load_encoder(encoder.WEIGHTS)
    labelled = sorted((folders / "support").rglob("*.png"))
    others = sorted((folders / "query").rglob("*.png"))
    features = []
    for path in (*labelled, *others):
        pixels = center_crop(to_tensor(np.array(Image.open(path))[None], how.channels), how)
        with torch.no_grad():
            features.append(features_of(network.eval(), normalize(pixels, how)))
    labels = [CLASSES.index(path.parent.name) for path in labelled] + [-1] * len(others)
    return torch.cat(features), torch.tensor(labels)


@pytest.mark.parametrize(
    ("more", "solver", "hyper"),
    [
        ([], tim_ext.robust, {}),
        (["--set", "temperature=5", "smoothing=0.3"], tim_ext.robust, {"temperature": 5.0, "smoothing": 0.3}),
        (["--method", "adm", "--set", "marginal_weight=auto"], tim_ext.adm, {"marginal_weight": "auto"}),
        (["--method", "alpha-tim", "--set", "iterations=9"], tim_ext.baselines.alpha_tim, {"iterations": 9}),
        (["--method", "gd", "--set", "lr=1e-3"], tim_ext.gd, {"lr": 1e-3}),
        (
            ["--class-prior", "zigzag=1", "rings=6", "stripes=3"],
            tim_ext.robust,
            {"class_prior": [0.6, 0.3, 0.1]},
        ),
    ],
)
def test_confidences_are_those_of_the_solver(folders, more, solver, hyper):
    features, labels = by_hand(folders)
    found = solver(features, labels, outputs=("probs", "confidence"), **hyper)
    expected, sure = found.probs[labels < 0], found.confidence[labels < 0]
    assert run_predict(folders, *more, "--batch-size", 4, "--workers", 3) == 0
    rows = read_csv(folders)
    top, classes = expected.topk(2)
    assert [row["class"] for row in rows] == [CLASSES[k] for k in classes[:, 0]]
    assert [row["second_class"] for row in rows] == [CLASSES[k] for k in classes[:, 1]]
    got = np.array([[float(row["confidence"]), float(row["second_confidence"])] for row in rows])
    np.testing.assert_allclose(got[:, 0], sure.numpy(), atol=1e-3)
    rest = (1 - sure) * top[:, 1] / (1 - top[:, 0]).clamp(min=1e-9)
    assert ((got[:, 1] <= got[:, 0]) & (got.sum(axis=1) <= 1 + 1e-6)).all()
    plain = (top[:, 0] < 0.999).numpy()  # or 1 - p is rounding
    np.testing.assert_allclose(got[plain, 1], torch.minimum(rest, sure).numpy()[plain], atol=1e-2)


def test_the_same_files_every_time_however_they_are_read(folders):
    contents = []
    for more in ([], ["--workers", 1], ["--workers", 5]):
        assert run_predict(folders, *more) == 0
        contents.append([path.read_bytes() for path in sorted((folders / "out").iterdir())])
    assert contents[0] == contents[1] == contents[2]


def test_a_checkpoint_from_its_file(folders):
    assert run_predict(folders, out="a") == 0
    assert run_predict(folders, encoder=encoder.WEIGHTS, out="b") == 0
    assert read_csv(folders, out="a") == read_csv(folders, out="b")


def test_size(folders):
    assert run_predict(folders, out="a") == 0
    assert run_predict(folders, "--size", 40, out="b") == 0
    assert read_csv(folders, out="a") != read_csv(folders, out="b")
    assert "images of 40 x 40 pixels" in (folders / "b" / "contact_sheet.html").read_text()


# Odd files ----------------------------------------------------------------------------------------


def test_unreadable_images_are_listed_and_skipped(folders, capsys):
    (folders / "query" / "bad").mkdir()
    reasons = damaged(folders / "query" / "bad")
    (folders / "support" / "rings" / "r9.png").write_text("no image")
    assert run_predict(folders) == 0
    assert len(read_csv(folders)) == 15
    skipped = {Path(row["path"]).name: row["reason"] for row in read_csv(folders, "skipped.csv")}
    assert skipped.keys() == {"r9.png", *reasons}
    assert all(reason in skipped[name] for name, reason in reasons.items())
    out, err = capsys.readouterr()
    assert "skipped, as they cannot be read: 11 images" in out
    assert f"{folders / 'support' / 'rings' / 'r9.png'}: not a readable image" in out
    assert f"and 1 more: {folders / 'out' / 'skipped.csv'}" in out
    assert err == ""
    page = (folders / "out" / "contact_sheet.html").read_text(encoding="utf-8")
    assert "11 images could not be read: skipped.csv lists them." in page


def test_odd_names(folders):
    image = (folders / "query" / "day0" / "r2.png").read_bytes()
    names = [b"caf\xe9.png", b'new\nline, "quoted".png', b"<b>&amp;.png", "日本.png".encode(), b" .png"]
    for name in names:
        Path(os.fsdecode(os.fsencode(folders / "query") + b"/" + name)).write_bytes(image)
    (folders / "query" / "deep" / "er").mkdir(parents=True)
    (folders / "query" / "deep" / "er" / "r2.png").write_bytes(image)  # the same name again
    (folders / "query" / "link.png").symlink_to(folders / "query" / "day0" / "r2.png")
    (folders / "query" / "again").symlink_to(folders / "query")
    (folders / "support" / "rings").rename(os.fsdecode(os.fsencode(folders / "support") + b"/ring\xff<s>"))
    assert run_predict(folders) == 0
    rows = {row["path"]: row["class"] for row in read_csv(folders)}
    expected = {"caf\\xe9.png", 'new\nline, "quoted".png', "<b>&amp;.png", "日本.png", " .png"}
    expected |= {"deep/er/r2.png", "day0/r2.png", "link.png"}
    assert len(rows) == 15 + 7
    assert {rows[path] for path in expected} == {"ring\\xff<s>"}
    page = Page((folders / "out" / "contact_sheet.html").read_text(encoding="utf-8"))
    assert "ring\\xff<s>: 12 images" in page.texts
    assert {title.rpartition(" (")[0] for title in page.titles} >= expected


def test_a_terminal_that_cannot_print_a_name(folders, monkeypatch):
    (folders / "support" / "rings").rename(folders / "support" / "環")
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding="ascii"))
    assert run_predict(folders) == 0
    sys.stdout.flush()
    assert b"\\u74b0" in stream.getvalue()


def test_labelled_images_within_the_query_folder_are_not_labelled_again(folders):
    (folders / "support").rename(folders / "query" / "known")
    given = ["--support", folders / "query" / "known", "--query", folders / "query", "--out", folders / "out"]
    assert main(["predict", *map(str, given), "--encoder", "glyphs"]) == 0
    assert len(read_csv(folders)) == 15


# What is refused ----------------------------------------------------------------------------------


def test_folders_that_will_not_do(folders, capsys):
    support, query = folders / "support", folders / "query"
    (folders / "empty").mkdir()
    (folders / "single" / "cat").mkdir(parents=True)
    (support / "rings" / "junk").mkdir()

    def message(support, query):
        given = ["--support", support, "--query", query, "--out", folders / "out", "--encoder", "glyphs"]
        assert main(["predict", *map(str, given)]) == 2
        return capsys.readouterr().err.strip()

    start = "tim-ext predict: "
    where = "one for each class"
    assert (
        message(folders / "no", query)
        == f"{start}--support: expected a folder, got {folders / 'no'}, which is not one"
    )
    assert message(support, folders / "no").startswith(f"{start}--query: expected a folder, got ")
    assert message(folders / "empty", query).endswith(f"in {folders / 'empty'}, {where}, got none")
    assert message(folders / "single", query).endswith(f"in {folders / 'single'}, {where}, got one, 'cat'")
    assert message(support, folders / "empty").endswith(f"expected images in {folders / 'empty'}, got none")
    assert message(support, support).startswith(f"{start}--query: expected a folder outside --support, got ")
    assert message(support, support / "rings").startswith(
        f"{start}--query: expected a folder outside --support"
    )
    (support / "ants").mkdir()
    (support / "bees").mkdir()
    (support / "bees" / "notes.txt").touch()
    assert (
        message(support, query)
        == f"{start}--support: expected images of every class, got none of 'ants', 'bees'"
    )
    assert not (folders / "out").exists()


def test_a_class_that_loses_all_its_images_is_named(folders, capsys):
    for path in (folders / "support" / "stripes").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    error = refused(capsys, folders)
    assert error.startswith("--support: none of the images of 'stripes' can be read; ")
    assert f"{folders / 'support' / 'stripes' / 's0.png'}: not a readable image (" in error
    assert list((folders / "out").iterdir()) == []


def test_no_readable_query(folders, capsys):
    for path in (folders / "query").rglob("*.png"):
        path.write_bytes(b"")
    error = refused(capsys, folders)
    assert error.startswith("--query: none of the 15 images can be read; ")
    assert error.endswith("r2.png: not a readable image (it is empty)")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "temperature"], "--set: expected NAME=VALUE, got 'temperature'"),
        (["--set", "temperature=hot"], "robust.temperature: expected a number, got 'hot'"),
        (["--set", "temperature=-1"], "temperature: expected a finite number > 0, got -1.0"),
        (["--set", "lr=1"], "--set: expected a hyper-parameter out of normalize, lam, "),
        (
            ["--method", "adm", "--set", "solver=dual"],
            "--set: expected form, the new name of solver, got 'solver'",
        ),
        (["--set", "class_prior=oracle"], "--set: expected --class-prior instead of class_prior, got "),
        (
            ["--class-prior", "rings=1"],
            "--class-prior: expected a share of every class, got none of 'stripes'",
        ),
        (
            ["--class-prior", "cat=1"],
            "--class-prior: expected a class out of 'rings', 'stripes', 'zigzag', got",
        ),
        (["--class-prior", "rings=0"], "--class-prior: expected a share > 0 of 'rings', got '0'"),
        (
            ["--class-prior", "rings"],
            "--class-prior: expected a CSV file or NAME=SHARE of every class, got 'rings'",
        ),
        (["--limit", "-1"], "--limit: expected an integer >= 0, got -1"),
        (["--batch-size", "0"], "--batch-size: expected an integer >= 1, got 0"),
        (["--workers", "0"], "--workers: expected an integer >= 1, got 0"),
        (["--size", "0"], "--size: expected an integer >= 1, got 0"),
        (["--size", "2"], "--encoder: glyphs fails on images of 2 x 2 pixels ("),
        (["--device", "fish"], "--device: expected cpu or a device of this machine, got 'fish'"),
    ],
)
def test_options_that_are_refused(folders, capsys, more, message):
    assert refused(capsys, folders, *more).startswith(message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet18",
            "--encoder: expected efficientnet-lite0, glyphs, timm:NAME, torchvision:NAME, the file of",
        ),
        ("torchvision:", "--encoder: expected efficientnet-lite0, glyphs, "),
        ("{here}", "--encoder: expected efficientnet-lite0, glyphs, "),
        ("{here}/query/day0/r2.png", "{here}/query/day0/r2.png: damaged, or not a .safetensors file ("),
    ],
)
def test_encoders_that_are_refused(folders, capsys, name, message):
    assert refused(capsys, folders, encoder=name.format(here=folders)).startswith(
        message.format(here=folders)
    )


def test_a_download_that_fails_is_a_sentence(folders, capsys, monkeypatch):
    def fail(name, **options):
        raise ConnectionError(f"no network\nfor {name}")

    timm = types.ModuleType("timm")
    timm.create_model = fail
    monkeypatch.setitem(sys.modules, "timm", timm)
    error = refused(capsys, folders, encoder="timm:vit")
    assert error == "--encoder: timm cannot make 'vit' (no network for vit)"


@pytest.mark.parametrize(
    ("module", "encoder", "missing", "what"),
    [
        ("PIL", "glyphs", "PIL", "'tim_ext[predict]'"),
        ("tqdm", "glyphs", "tqdm", "'tim_ext[predict]'"),
        ("efficientnet_lite_pytorch", networks.LITE, "efficientnet_lite_pytorch", "'tim_ext[predict]'"),
        ("timm", "timm:resnet18", "timm", "timm"),
    ],
)
def test_packages_that_are_missing(folders, capsys, monkeypatch, module, encoder, missing, what):
    monkeypatch.setitem(sys.modules, module, None)
    if module == "PIL":
        monkeypatch.delitem(sys.modules, "PIL.Image")
    error = refused(capsys, folders, encoder=encoder)
    assert re.fullmatch(rf"{missing}(\.Image)? is not installed: pip install {re.escape(what)}", error)


# Stopping, and memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["reading", "solving", "writing"])
def test_ctrl_c_leaves_no_part_of_a_file(folders, capsys, monkeypatch, moment):
    assert run_predict(folders) == 0
    before = {path.name: path.read_bytes() for path in (folders / "out").iterdir()}
    (folders / "query" / "day0" / "r2.png").unlink()

    def interrupt(*inputs, **options):
        raise KeyboardInterrupt

    target = {
        "reading": (extraction, "center_crop"),
        "solving": (labelling, "solve"),
        "writing": (os, "replace"),
    }
    monkeypatch.setattr(*target[moment], interrupt)
    assert run_predict(folders) == 130
    assert "tim-ext predict: interrupted" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (folders / "out").iterdir()} == before


# EfficientNet-Lite0 -------------------------------------------------------------------------------


def test_the_measurement(tmp_path, monkeypatch, capsys):
    path = PAGE.parents[1] / "benchmarks" / "predict_images.py"
    spec = importlib.util.spec_from_file_location("predict_images", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = np.stack([draw(kind, seed) for kind in CLASSES for seed in range(9)])
    np.savez(tmp_path / "some.npz", images=drawn, labels=np.repeat(np.arange(3), 9))
    sizes = ["--encoder", "glyphs", "--per-class", "8", "--ways", "3", "--queries", "6", "--draws", "2"]
    monkeypatch.setattr(sys, "argv", ["predict_images", str(tmp_path / "some.npz"), *sizes])
    module.main()
    printed = capsys.readouterr().out
    assert "3 classes, 6 images of each to label, 2 draws" in printed
    assert len(re.findall(r"^[15] labelled, .* 100\.0 % right \(from", printed, re.MULTILINE)) == 8


# The documents ------------------------------------------------------------------------------------

PAGE = DOCS / "predict.md"


def test_the_commands_of_the_page_and_of_the_help_exist():
    parser = argparse.ArgumentParser()
    predict.add_command(parser.add_subparsers())
    commands = re.findall(r"^ *tim-ext (predict .*)$", PAGE.read_text() + predict.EXAMPLES, re.MULTILINE)
    assert len(commands) == 10
    for command in commands:
        parser.parse_args(shlex.split(command))


def test_the_example_of_the_page(tmp_path, monkeypatch):
    """With other drawings in the place of glyphs, which take seconds to build."""
    drawn = types.SimpleNamespace(
        images=np.stack([draw(kind, seed) for kind in CLASSES * 2 for seed in range(4)]),
        labels=np.repeat(np.arange(6), 4),
        class_names=list("ABCDEF"),
    )
    monkeypatch.setattr(glyphs, "load", {"novel": drawn}.__getitem__)
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [command] = re.findall(r"^tim-ext (predict .* scans .*)$", PAGE.read_text(), re.MULTILINE)
    exec(compile(code, str(PAGE), "exec"), {})
    assert main(shlex.split(command)) == 0
    assert len(os.listdir("labelled")) == 5
    with Path("predictions/predictions.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(os.listdir("scans")) == 5 * 3
