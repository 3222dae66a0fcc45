"""Datasets: which images of which classes are in a split, and how one image is read.

    dataset = open_dataset("mini-imagenet", "data/mini", "train")
    dataset.images, dataset.labels, dataset.class_names

Names: those of SOURCES, and `meta-dataset:SOURCE`. A split is "train" (the base classes), "val" or "test"
(the novel classes), under whatever name the files in circulation give it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tim_ext.images.reading import read_image

from . import splits as split_files
from .augmentation import Augmentation
from .errors import UserError, one_line

PHOTOS = Augmentation()
DRAWINGS = Augmentation(crop_scale=0.5, jitter=0.0, flip=False)  # a mirrored character is another one
META_DATASET = "meta-dataset"
Ratio = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split: M images of K classes."""

    name: str
    split: str
    images: NDArray[np.uint8] | list[Path]  # [M, H, W] or [M, H, W, 3], or M files
    labels: NDArray[np.int64]  # [M]  0 .. K - 1
    class_names: list[str]  # [K]
    root: Path | None = None  # of the files
    turns: NDArray[np.int64] | None = None  # [M]  quarter turns of each file's image (Omniglot)
    hierarchy: dict[str, list[str]] | None = None  # what is below each node, down to class names (ILSVRC)
    superclasses: dict[str, list[str]] | None = None  # names of the classes of each superclass (Omniglot)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row: int, channels: int) -> NDArray[np.uint8]:
        """[H, W] or [H, W, 3]"""
        if isinstance(self.images, np.ndarray):
            pixels: NDArray[np.uint8] = self.images[row]
            return pixels
        image = read_image(self.images[row], channels)
        return image if self.turns is None else np.rot90(image, int(self.turns[row]))

    @cached_property
    def listing_hash(self) -> str:
        """Of the labels and of the names of the files, or of the pixels where they are in memory."""
        return self._hash(lambda path: b"")

    @cached_property
    def content_hash(self) -> str:
        """Of the labels and of every byte of the images."""
        return self._hash(lambda path: hashlib.sha256(_read_bytes(path)).digest())

    def _hash(self, of_file: Callable[[Path], bytes]) -> str:
        digest = hashlib.sha256(repr((self.class_names, self.hierarchy, self.superclasses)).encode())
        digest.update(self.labels.tobytes())
        if isinstance(self.images, np.ndarray):
            digest.update(repr(self.images.shape).encode())
            digest.update(np.ascontiguousarray(self.images).data)
            return digest.hexdigest()
        digest.update(b"" if self.turns is None else self.turns.tobytes())
        with ThreadPoolExecutor() as pool:
            for path, content in zip(self.images, pool.map(of_file, self.images), strict=True):
                name = path.relative_to(self.root) if self.root and path.is_relative_to(self.root) else path
                digest.update(f"{name.as_posix()}\n".encode() + content)
        return digest.hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: not a readable image ({one_line(error)})") from error


# Sources ------------------------------------------------------------------------------------------


class Request(NamedTuple):
    name: str
    root: Path | None
    split: str
    splits: Path | None
    ratio: Ratio | None
    seed: int


class Source(NamedTuple):
    layout: str  # what is expected below --data-root
    open: Callable[[Request], Dataset | None]  # None: nothing of that layout is there
    augmentation: Augmentation = PHOTOS
    size: int = 84  # of images from files, as channels
    channels: int = 3


def open_dataset(
    name: str,
    root: str | Path | None,
    split: str,
    *,
    splits: str | Path | None = None,
    ratio: Ratio | None = None,
    seed: int = 0,
) -> Dataset:
    """One split of a dataset.

    Args:
        name: one of SOURCES, or `meta-dataset:SOURCE`.
        root: the folder of the dataset; if something is missing there, the error says what is expected.
        split: "train", "val" or "test"; glyphs has "digits" as well.
        splits: where the split files are, if not below `root`: a folder of them, or one JSON file with the
            class names of each split.
        ratio: shares of the classes in train, val and test, for an imagefolder without split files.
        seed: of the random split by `ratio`.
    """
    source = find_source(name)
    known = [*split_files.NAMES, *(["digits"] if name == "glyphs" else [])]
    if split not in known:
        raise UserError(f"--split: expected one of {', '.join(known)}, got {split!r}")
    if ratio is not None and name != "imagefolder":
        raise UserError(f"--split-ratio: expected --dataset imagefolder with it, got {name}")
    request = Request(name, _path(root), split, _path(splits), ratio, seed)
    expected = f"Expected below --data-root:\n{source.layout}"
    if request.root is None and name != "glyphs":
        raise UserError(f"--data-root: expected the folder of {name}, got none.\n{expected}")
    for option, path in (("--data-root", request.root), ("--splits", request.splits)):
        if path is not None and not path.exists() and name != "glyphs":
            raise UserError(f"{option}: {path} does not exist.\n{expected}")
    dataset = source.open(request)
    if dataset is None:
        raise UserError(f"{name}: found no split {split!r} in {root}.\n{expected}")
    if not len(dataset):
        raise UserError(f"{name}: found no images of the split {split!r} in {root}.\n{expected}")
    return dataset


def find_source(name: str) -> Source:
    key, colon, part = name.partition(":")
    if key in SOURCES and bool(part) == (key == META_DATASET) and bool(colon) == bool(part):
        return SOURCES[key]
    known = ", ".join(f"{key}:SOURCE" if key == META_DATASET else key for key in SOURCES)
    raise UserError(f"--dataset: expected one of {known}, got {name!r}")


def image_form(dataset: Dataset) -> tuple[int, int]:
    """Size and channels that the images are brought to unless told otherwise; arrays keep their own."""
    if isinstance(dataset.images, np.ndarray):
        height, width = dataset.images.shape[1:3]
        return min(height, width), 1 if dataset.images.ndim == 3 else 3
    source = find_source(dataset.name)
    return source.size, source.channels


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)


def _open_files(request: Request) -> Dataset | None:
    assert request.root is not None
    root, split, splits = request.root, request.split, request.splits
    key, _, part = request.name.partition(":")
    selection: split_files.Selection | None
    if request.ratio is not None:
        selection = split_files.by_ratio(root, split, request.ratio, request.seed)
    elif key == META_DATASET:
        selection = split_files.meta_dataset(root, split, splits, part)
    else:
        read = {"cub": split_files.cub, "omniglot": split_files.omniglot}.get(key, split_files.standard)
        selection = read(root, split, splits)
    if selection is None:
        return None
    samples = selection.samples
    names = split_files.sorted_names({sample.label for sample in samples})
    number = {name: k for k, name in enumerate(names)}
    turns = np.array([sample.turns for sample in samples], dtype=np.int64)
    return Dataset(
        name=request.name,
        split=split,
        images=[sample.path for sample in samples],
        labels=np.array([number[sample.label] for sample in samples], dtype=np.int64),
        class_names=names,
        root=root,
        turns=turns if turns.any() else None,
        hierarchy=selection.hierarchy,
        superclasses=selection.superclasses,
    )


def _open_arrays(request: Request) -> Dataset | None:
    assert request.root is not None
    names = split_files.NAMES[request.split]
    files = [path for name in names for path in request.root.glob(f"*_{name}_images.npz")]
    files += [path for name in names if (path := request.root / f"{name}.npz").is_file()]
    if len(files) > 1:
        got = " and ".join(path.name for path in files)
        raise UserError(f"{request.root}: expected one file of the split {request.split!r}, got {got}")
    if not files:
        return None
    images, labels, class_names = _read_arrays(files[0])
    return Dataset(request.name, request.split, images, labels, class_names, request.root)


def _read_arrays(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], list[str]]:
    try:
        with np.load(file, allow_pickle=False) as content:
            images, labels = content["images"], content["labels"]
            names = content["class_names"].tolist() if "class_names" in content.files else None
    except Exception as error:  # zipfile, zlib and numpy raise all kinds
        raise UserError(
            f"{file}: not a readable .npz file with the arrays images and labels ({one_line(error)})"
        ) from error
    if images.ndim == 4 and images.shape[-1] == 1:
        images = images[..., 0]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        shapes = "[M, H, W] or [M, H, W, 3]"
        raise UserError(f"{file}: expected images uint8 {shapes}, got {images.dtype} {list(images.shape)}")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        got = f"{labels.dtype} {list(labels.shape)}"
        raise UserError(f"{file}: expected labels of integers [{len(images)}], got {got}")
    classes, numbers = np.unique(labels.astype(np.int64), return_inverse=True)
    if names is not None and len(classes) and not 0 <= classes[0] <= classes[-1] < len(names):
        got = f"labels from {classes[0]} to {classes[-1]}"
        raise UserError(f"{file}: expected labels 0 to {len(names) - 1}, as class_names has, got {got}")
    class_names = [str(k if names is None else names[k]) for k in classes.tolist()]
    return images, numbers.astype(np.int64), class_names


def _open_glyphs(request: Request) -> Dataset:
    from tim_ext.images import glyphs

    part = {"train": "base", "val": "validation", "test": "novel"}.get(request.split, request.split)
    loaded = glyphs.load(part, root=request.root)
    return Dataset(
        name=request.name,
        split=request.split,
        images=np.asarray(loaded.images),
        labels=np.asarray(loaded.labels, dtype=np.int64),
        class_names=list(loaded.class_names),
    )


SOURCES = {
    "mini-imagenet": Source(
        """\
  images/n0153282900000005.jpg ...    all images
  train.csv, val.csv, test.csv        lines of filename,label
or
  images/n01532829/n01532829_12.JPEG ...
  train.csv, val.csv, test.csv        with the columns class_name,image_name
or
  base.json, val.json, novel.json     with label_names, image_names, image_labels
or
  train/n01532829/*.jpg, val/..., test/...
The split files may lie elsewhere (--splits FOLDER). Pickles are not read: unpack them to images.""",
        _open_files,
    ),
    "tiered-imagenet": Source(
        """\
  train/n01532829/*.jpg, val/..., test/...
or
  data/train_0_12_15850.png ...       all images
  train.csv, val.csv, test.csv        lines of filename,label
or
  images/n01532829/*.JPEG ...
  train.json, val.json, test.json     with class_names and class_roots
The split files may lie elsewhere (--splits FOLDER). Pickles are not read: unpack them to images.""",
        _open_files,
    ),
    "cub": Source(
        """\
  CUB_200_2011/images/001.Black_footed_Albatross/*.jpg ...   as published, 200 folders
and nothing else (the usual split: 100, 50 and 50 classes in turn), or one of
  train.csv, val.csv, test.csv        lines of filename,label
  base.json, val.json, novel.json     with label_names, image_names, image_labels
  train.json, val.json, test.json     with class_names and class_roots
The split files may lie elsewhere (--splits FOLDER).""",
        _open_files,
    ),
    "cifar-fs": Source(
        """\
  data/apple/*.png ...                100 folders
  splits/bertinetto/train.txt, val.txt, test.txt             one class on each line
or
  train/apple/*.png, val/..., test/...""",
        _open_files,
        size=32,
    ),
    "omniglot": Source(
        """\
  images_background/Alphabet_of_the_Magi/character01/*.png ...
  images_evaluation/Angelic/character01/*.png ...
split by alphabets as in Meta-Dataset; or, for the split of Vinyals et al.,
  data/Angelic/character01/*.png ...  or the two folders above
  splits/vinyals/train.txt, val.txt, test.txt                lines such as Angelic/character01/rot090""",
        _open_files,
        DRAWINGS,
        size=28,
        channels=1,
    ),
    "imagefolder": Source(
        """\
  train/CLASS/*.jpg, val/CLASS/*.jpg, test/CLASS/*.jpg
or
  CLASS/*.jpg ...                     with one of
  --splits FILE.json                  {"train": ["CLASS", ...], "val": [...], "test": [...]}
  --splits FOLDER                     train.csv, val.csv, test.csv with lines of filename,label
  --split-ratio 0.64 0.16 0.2         shares of the classes in train, val and test""",
        _open_files,
    ),
    META_DATASET: Source(
        """\
  SOURCE/CLASS/*.jpg ...              for example cu_birds/190.Red_cockaded_Woodpecker/*.jpg
  SOURCE_splits.json                  {"train": ["CLASS", ...], "valid": [...], "test": [...]}
or
  SOURCE_dataset_spec.json            as converted: classes, or alphabets (omniglot), or WordNet (ilsvrc_2012)
The JSON files may lie in SOURCE/, in splits/, or elsewhere (--splits FOLDER). TFRecords are not read.""",
        _open_files,
    ),
    "npz": Source(
        """\
  train.npz, val.npz, test.npz        or NAME_train_images.npz and so on, each with the arrays
                                      images uint8 [M, H, W] or [M, H, W, 3], labels [M],
                                      and, if you like, class_names [K]""",
        _open_arrays,
    ),
    "glyphs": Source(
        "  nothing: glyphs are drawn from the fonts of matplotlib; --data-root is a folder for the cache",
        _open_glyphs,
        DRAWINGS,
    ),
}
