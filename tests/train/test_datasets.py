"""The datasets: arrays, glyphs, images and hashes, and what is said of missing ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.dataset_files import draw, pillow
from helpers.paths import ROOT

from python_train.datasets import SOURCES, Dataset, image_form, open_dataset
from python_train.errors import UserError

assert ROOT


# Arrays and glyphs --------------------------------------------------------------------------------


def save(path: Path, images, labels, **more) -> None:
    np.savez(path, images=images, labels=labels, **more)


@pytest.mark.parametrize("name", ["train.npz", "base.npz", "cifarfs_train_images.npz"])
def test_npz(tmp_path, name):
    images = np.random.default_rng(0).integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)
    save(tmp_path / name, images, np.array([4, 2, 2, 4, 4], np.int16), class_names=np.array(list("abcde")))
    np.savez(tmp_path / "cifarfs_train_features.npz", features=np.zeros(3))
    dataset = open_dataset("npz", tmp_path, "train")
    assert np.array_equal(dataset.images, images)
    assert dataset.labels.tolist() == [1, 0, 0, 1, 1]
    assert dataset.class_names == ["c", "e"]
    assert image_form(dataset) == (6, 3)


def test_npz_of_gray_images(tmp_path):
    save(tmp_path / "val.npz", np.zeros((2, 9, 9, 1), np.uint8), np.array([7, 7]))
    dataset = open_dataset("npz", tmp_path, "val")
    assert (dataset.images.shape, dataset.class_names, image_form(dataset)) == ((2, 9, 9), ["7"], (9, 1))


GRAY = np.zeros((2, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "more", "message"),
    [
        (GRAY.astype(np.float32), [0, 1], {}, r"expected images uint8 .*, got float32 \[2, 4, 4\]"),
        (np.stack([GRAY] * 2, -1), [0, 1], {}, r"expected images uint8 .*, got uint8 \[2, 4, 4, 2\]"),
        (GRAY, [0], {}, r"expected labels of integers \[2\], got int64 \[1\]"),
        (GRAY, [0.0, 1.0], {}, r"expected labels of integers \[2\], got float64 \[2\]"),
        (GRAY, [0, 2], {"class_names": ["a", "b"]}, "expected labels 0 to 1, as class_names has"),
        (np.array([object(), None]), [0, 1], {}, "not a readable .npz file with the arrays images and"),
    ],
)
def test_npz_that_is_refused(tmp_path, images, labels, more, message):
    save(tmp_path / "train.npz", images, np.array(labels), **more)
    with pytest.raises(UserError, match=rf"train\.npz: {message}"):
        open_dataset("npz", tmp_path, "train")


def test_npz_that_is_damaged(tmp_path):
    save(tmp_path / "train.npz", np.zeros((9, 30, 30), np.uint8), np.zeros(9, int))
    whole = (tmp_path / "train.npz").read_bytes()
    for content in (b"", whole[:100], whole[:-30], whole[:200] + b"x" + whole[201:]):
        (tmp_path / "train.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"train\.npz: not a readable .npz file"):
            open_dataset("npz", tmp_path, "train")


def test_npz_twice(tmp_path):
    for name in ("train.npz", "x_train_images.npz"):
        save(tmp_path / name, np.zeros((1, 4, 4), np.uint8), np.array([0]))
    with pytest.raises(UserError, match=r"expected one file .*, got x_train_images\.npz and train\.npz"):
        open_dataset("npz", tmp_path, "train")


def test_glyphs(monkeypatch):
    from tim_ext.images import glyphs

    asked = []

    def load(split, *, root=None):
        asked.append((split, root))
        return SimpleNamespace(images=GRAY, labels=np.array([0, 1]), class_names=["a", "b"])

    monkeypatch.setattr(glyphs, "load", load)
    for split in ("train", "val", "test", "digits"):
        dataset = open_dataset("glyphs", None, split)
        assert image_form(dataset) == (4, 1)
        assert dataset.class_names == ["a", "b"]
    assert [split for split, _ in asked] == ["base", "validation", "novel", "digits"]


# What is missing ----------------------------------------------------------------------------------

FILES = [name for name in SOURCES if name not in ("glyphs", "meta-dataset")]


@pytest.mark.parametrize("name", [*FILES, "meta-dataset:cu_birds"])
def test_missing_data_is_told_with_the_layout(tmp_path, name):
    layout = SOURCES[name.partition(":")[0]].layout
    for root, message in (
        (tmp_path, f"{name}: found no split 'train' in {tmp_path}."),
        (tmp_path / "no", f"--data-root: {tmp_path / 'no'} does not exist."),
        (None, f"--data-root: expected the folder of {name}, got none."),
    ):
        with pytest.raises(UserError) as refused:
            open_dataset(name, root, "train")
        assert str(refused.value) == f"{message}\nExpected below --data-root:\n{layout}"


def test_a_split_without_images(tmp_path):
    (tmp_path / "train" / "n1").mkdir(parents=True)
    with pytest.raises(UserError, match="imagefolder: found no images of the split 'train'"):
        open_dataset("imagefolder", tmp_path, "train")


@pytest.mark.parametrize("name", ["imagenet", "meta-dataset", "meta-dataset:", "cub:x", ""])
def test_unknown_names(name):
    with pytest.raises(UserError, match=r"--dataset: expected one of .*, meta-dataset:SOURCE, npz, glyphs"):
        open_dataset(name, "/", "train")


def test_unknown_splits(tmp_path):
    with pytest.raises(UserError, match="--split: expected one of train, val, test, got 'digits'"):
        open_dataset("cub", tmp_path, "digits")
    with pytest.raises(UserError, match="--split: expected one of train, val, test, digits, got 'base'"):
        open_dataset("glyphs", None, "base")


# Images -------------------------------------------------------------------------------------------


def test_images_are_read_in_the_channels_asked_for(tmp_path):
    pillow().new("RGBA", (4, 3), (255, 0, 0, 255)).save(tmp_path / "a.png")
    dataset = Dataset("imagefolder", "train", [tmp_path / "a.png"], np.zeros(1, np.int64), ["a"])
    assert dataset.read(0, 3).tolist() == [[[255, 0, 0]] * 4] * 3
    assert dataset.read(0, 1).tolist() == [[76] * 4] * 3


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_damaged_images(tmp_path, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = tmp_path / f"a.{kind}"
    pillow().fromarray(pixels).save(path)
    whole = path.read_bytes()
    dataset = Dataset("imagefolder", "train", [path], np.zeros(1, np.int64), ["a"])
    dataset.read(0, 3)
    for content in (b"", b"no image", whole[:20], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"a\.{kind}: not a readable image \(") as refused:
            dataset.read(0, 3)
        assert "\n" not in str(refused.value)
    path.unlink()
    with pytest.raises(UserError, match="the image is missing"):
        dataset.read(0, 3)


# Hashes -------------------------------------------------------------------------------------------


def test_hashes_of_files(tmp_path):
    def opened() -> Dataset:
        return open_dataset("imagefolder", tmp_path, "train")

    draw(tmp_path / "train" / "a" / "1.png", 1)
    path = draw(tmp_path / "train" / "b" / "2.png", 2)
    first = opened()
    assert (opened().content_hash, opened().listing_hash) == (first.content_hash, first.listing_hash)
    draw(path, 3)
    changed = opened()
    assert changed.listing_hash == first.listing_hash
    assert changed.content_hash != first.content_hash
    draw(path, 2)
    assert opened().content_hash == first.content_hash
    path.rename(path.with_name("3.png"))
    assert opened().listing_hash != first.listing_hash


def test_hashes_do_not_depend_on_the_place(tmp_path):
    hashes = []
    for place in ("here", "there"):
        draw(tmp_path / place / "train" / "a" / "1.png", 1)
        dataset = open_dataset("imagefolder", tmp_path / place, "train")
        hashes.append((dataset.listing_hash, dataset.content_hash))
    assert hashes[0] == hashes[1]


def test_hashes_of_arrays():
    images, labels = np.zeros((2, 3, 3), np.uint8), np.array([0, 1])
    first = Dataset("npz", "train", images, labels, ["a", "b"]).content_hash
    assert Dataset("npz", "train", images.copy(), labels, ["a", "b"]).content_hash == first
    brighter = images.copy()
    brighter[1, 2, 2] = 1
    for other in (
        (brighter, labels, ["a", "b"]),
        (images, labels[::-1].copy(), ["a", "b"]),
        (images, labels, ["a", "c"]),
    ):
        assert Dataset("npz", "train", *other).content_hash != first
