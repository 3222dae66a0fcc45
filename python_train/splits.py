"""Which files are in a split: the split files in circulation, folders of classes, Meta-Dataset's JSON.

A split file is found by its name (train.csv, base.json, ...) and read by its content:

    CSV    a file name and its class on each line, with or without a header that names the columns
    JSON   {"label_names": .., "image_names": .., "image_labels": ..}       images of one split
           {"class_names": .., "class_roots": ..}                           folders of the classes of a split
           {"train": [class, ..], "valid": [..], "test": [..]}              classes of every split
    text   one class on each line
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tim_ext.images.reading import SUFFIXES as IMAGES
from tim_ext.images.reading import class_folders, find_images

from . import counters
from .errors import UserError, one_line

NAMES = {
    "train": ("train", "base"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "novel"),
}  # of the splits, in files
SUFFIXES = (".csv", ".json", ".txt")
IMAGE_FOLDERS = ("images", "data", "", "CUB_200_2011/images")  # below the root, the first that fits
FILE_COLUMNS, CLASS_COLUMNS = ("filename", "image_name", "image", "file"), ("label", "class_name", "class")


class Sample(NamedTuple):
    path: Path
    label: str  # the name of its class
    turns: int = 0  # quarter turns


class Selection(NamedTuple):
    samples: list[Sample]
    hierarchy: dict[str, list[str]] | None = None
    superclasses: dict[str, list[str]] | None = None


def sorted_names(names: Iterable[str]) -> list[str]:
    """Numbers by their value."""
    names = list(names)
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)


# Files and folders --------------------------------------------------------------------------------


def from_class_folders(folders: Mapping[str, Path]) -> list[Sample]:
    return [Sample(path, label) for label, folder in folders.items() for path in find_images(folder)]


def find_class(roots: Sequence[Path], name: str) -> Path | None:
    """The folder of a class below one of the roots.

    A class may be written otherwise than its folder: "F-16A/B" for F-16A_B, "Tengwar-character01" for
    Tengwar/character01, 7 or "007.Parakeet" for 00007.
    """
    spellings = [name, name.replace("/", "_"), name.replace("/", "-"), "/".join(name.rsplit("-", 1))]
    for root in roots:
        for spelling in spellings:
            if (root / spelling).is_dir():
                return root / spelling
    digits = name.split(".")[0]
    if digits.isdecimal():
        for root in roots:
            for folder in class_folders(root) if root.is_dir() else ():
                if folder.name.isdecimal() and int(folder.name) == int(digits):
                    return folder
    return None


def from_classes(root: Path, names: Sequence[str], listing: Path, roots: Sequence[Path] = ()) -> list[Sample]:
    """The images of the named classes, each in a folder of its own."""
    roots = roots or [root / folder for folder in IMAGE_FOLDERS]
    folders = {name: find_class(roots, name) for name in names}
    missing = [name for name, folder in folders.items() if folder is None]
    if missing:
        places = ", ".join(str(place) for place in roots)
        raise UserError(
            f"{listing}: {len(missing)} of {len(names)} classes have no folder, the first is {missing[0]!r}; "
            f"looked in {places}"
        )
    return from_class_folders({name: folder for name, folder in folders.items() if folder is not None})


# Split files --------------------------------------------------------------------------------------


def standard(root: Path, split: str, splits: Path | None) -> Selection | None:
    """By a split file in `splits` or below the root, or by the folders train/, val/ and test/ of the root."""
    if splits is not None and splits.is_file():
        return Selection(read_split_file(splits, root, split))
    folders = [splits] if splits else [root / name for name in ("", "split", "splits", "splits/bertinetto")]
    for folder in folders:
        for name in NAMES[split]:
            for suffix in SUFFIXES:
                if (folder / (name + suffix)).is_file():
                    return Selection(read_split_file(folder / (name + suffix), root, split))
        if (folder / "splits.json").is_file():
            return Selection(read_split_file(folder / "splits.json", root, split))
    for name in NAMES[split]:
        if splits is None and (root / name).is_dir():
            return Selection(from_class_folders({path.name: path for path in class_folders(root / name)}))
    return None


def read_split_file(file: Path, root: Path, split: str) -> list[Sample]:
    if file.suffix == ".csv":
        return _from_table(file, root, split)
    if file.suffix == ".txt":
        return from_classes(root, _lines(file), file)
    content = read_json(file)
    if {"label_names", "image_names", "image_labels"} <= content.keys():
        return _from_image_list(file, root, content)
    if {"class_names", "class_roots"} <= content.keys():
        return _from_class_roots(file, root, content)
    return from_classes(root, classes_of_split(file, content, split), file)


def classes_of_split(file: Path, content: dict[str, Any], split: str) -> list[str]:
    """From {"train": [class, ..], "valid": [..], "test": [..]}."""
    found: dict[str, str] = {}
    chosen: list[str] | None = None
    for key, names in NAMES.items():
        written = next((name for name in names if name in content), None)
        if written is None:
            continue
        classes = [str(name) for name in content[written]]
        for name in classes:
            if found.setdefault(name, written) != written:
                raise UserError(
                    f"{file}: expected each class in one split, got {name!r} in {found[name]} and {written}"
                )
        if key == split:
            chosen = classes
    if not chosen:
        raise UserError(
            f"{file}: expected a list of classes under {' or '.join(map(repr, NAMES[split]))}, "
            f"got {', '.join(map(repr, content)) or 'nothing'}"
        )
    return chosen


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not a readable JSON file ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: expected a JSON object, got a {type(content).__name__}")
    return content


def _lines(file: Path) -> list[str]:
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not a readable list of classes ({one_line(error)})") from error


def _from_table(file: Path, root: Path, split: str) -> list[Sample]:
    rows = [row for row in csv.reader(_lines(file)) if row]
    if not rows or len(rows[0]) < 2:
        got = ",".join(rows[0]) if rows else "none"
        raise UserError(f"{file}: expected lines of a file name and a class, got {got}")
    header = [column.strip().lower() for column in rows[0]]
    where, what = 0, 1
    if not any(column.endswith(IMAGES) for column in header):  # no file name in it: it names the columns
        rows = rows[1:]
        try:
            where = next(header.index(name) for name in FILE_COLUMNS if name in header)
            what = next(header.index(name) for name in CLASS_COLUMNS if name in header)
        except StopIteration:
            expected = f"the columns {FILE_COLUMNS[0]} and {CLASS_COLUMNS[0]}"
            raise UserError(f"{file}: expected {expected}, got {', '.join(header)}") from None
    short = next((number for number, row in enumerate(rows) if len(row) <= max(where, what)), None)
    if short is not None:
        got = ",".join(rows[short])
        raise UserError(f"{file}: expected a file name and a class on each line, got {got!r}")
    return _locate(file, root, split, [(row[where].strip(), row[what].strip()) for row in rows])


def _locate(file: Path, root: Path, split: str, listed: list[tuple[str, str]]) -> list[Sample]:
    """The place of the first image tells the place of all."""
    if not listed:
        return []
    places = [*IMAGE_FOLDERS, *NAMES[split]]
    patterns = [f"{place}/{{name}}" for place in places] + [f"{place}/{{label}}/{{name}}" for place in places]
    patterns = [pattern.lstrip("/") for pattern in patterns]
    name, label = listed[0]
    for pattern in patterns:
        if (root / pattern.format(name=name, label=label)).is_file():
            break
    else:
        raise UserError(f"{file}: its first image, {name!r}, is not in {root} (as {', '.join(patterns)})")
    samples = [Sample(root / pattern.format(name=name, label=label), label) for name, label in listed]
    return _check_files(file, samples)


def _check_files(file: Path, samples: list[Sample]) -> list[Sample]:
    missing = [sample.path for sample in samples if not sample.path.is_file()]
    if missing:
        raise UserError(
            f"{file}: {len(missing)} of {len(samples)} images are missing, the first is {missing[0]}"
        )
    return samples


def _from_image_list(file: Path, root: Path, content: dict[str, Any]) -> list[Sample]:
    names, images, labels = (content[key] for key in ("label_names", "image_names", "image_labels"))
    if len(images) != len(labels):
        raise UserError(
            f"{file}: expected as many image_labels as image_names, {len(images)}, got {len(labels)}"
        )
    if not images:
        return []
    place = _rebase(file, root, images[0], Path.is_file)
    samples = [
        Sample(place(image), str(names[label]) if label < len(names) else str(label))
        for image, label in zip(images, labels, strict=True)
    ]
    return _check_files(file, samples)


def _from_class_roots(file: Path, root: Path, content: dict[str, Any]) -> list[Sample]:
    names, folders = content["class_names"], content["class_roots"]
    if len(names) != len(folders):
        raise UserError(
            f"{file}: expected as many class_roots as class_names, {len(names)}, got {len(folders)}"
        )
    if not names:
        return []
    place = _rebase(file, root, folders[0], Path.is_dir)
    return from_class_folders({str(name): place(folder) for name, folder in zip(names, folders, strict=True)})


def _rebase(file: Path, root: Path, example: str, exists: Any) -> Any:
    """Paths written on another machine: as many of their last parts as are found below the root."""
    parts = PurePosixPath(example).parts
    for kept in range(len(parts), 0, -1):
        for folder in IMAGE_FOLDERS:
            base = root / folder
            if exists(base.joinpath(*parts[-kept:])):
                return lambda path: base.joinpath(*PurePosixPath(path).parts[-kept:])
    raise UserError(f"{file}: its first entry, {example!r}, is not below {root}")


# Datasets with rules of their own -----------------------------------------------------------------


def cub(root: Path, split: str, splits: Path | None) -> Selection | None:
    """By split files; else the 200 classes in order are dealt to train, val, train, test, and so on."""
    selection = standard(root, split, splits)
    if selection is not None or splits is not None:
        return selection
    for folder in (root / "images", root / "CUB_200_2011" / "images"):
        if folder.is_dir():
            wanted = {"train": (0, 2), "val": (1,), "test": (3,)}[split]
            chosen = [path for i, path in enumerate(class_folders(folder)) if i % 4 in wanted]
            return Selection(from_class_folders({path.name: path for path in chosen}))
    return None


def omniglot(root: Path, split: str, splits: Path | None) -> Selection | None:
    """By Vinyals' lists of rotated characters; else by alphabets, as in Meta-Dataset.

    Then test is images_evaluation, val the five alphabets of images_background with the fewest characters,
    and train its other alphabets.
    """
    for folder in [splits] if splits else [root / "splits" / "vinyals", root / "splits"]:
        if folder.is_file() or (folder / f"{split}.txt").is_file():
            return _rotated_characters(root, folder if folder.is_file() else folder / f"{split}.txt")
    parts = {"train": "images_background", "val": "images_background", "test": "images_evaluation"}
    if splits is not None or not (root / parts[split]).is_dir():
        return None
    alphabets = {folder.name: class_folders(folder) for folder in class_folders(root / parts[split])}
    if split != "test":
        small = sorted(alphabets, key=lambda name: (len(alphabets[name]), name))[:5]
        alphabets = {name: part for name, part in alphabets.items() if (name in small) == (split == "val")}
    folders = {f"{name}/{path.name}": path for name, part in alphabets.items() for path in part}
    superclasses = {name: [f"{name}/{path.name}" for path in part] for name, part in alphabets.items()}
    return Selection(from_class_folders(folders), superclasses=superclasses)


def _rotated_characters(root: Path, file: Path) -> Selection:
    """Lines such as Angelic/character01/rot090: each angle of a character is a class."""
    roots = [root / folder for folder in ("data", "images_background", "images_evaluation", "")]
    samples: list[Sample] = []
    superclasses: dict[str, list[str]] = {}
    for line in _lines(file):
        character, _, angle = line.rpartition("/rot")
        folder = find_class(roots, character)
        if folder is None or not angle.isdecimal() or int(angle) % 90:
            raise UserError(
                f"{file}: expected lines such as Angelic/character01/rot090, and the character's folder in "
                f"one of {', '.join(map(str, roots))}, got {line!r}"
            )
        samples += [Sample(path, line, int(angle) // 90 % 4) for path in find_images(folder)]
        superclasses.setdefault(character.split("/")[0], []).append(line)
    return Selection(samples, superclasses=superclasses)


def by_ratio(root: Path, split: str, ratio: Sequence[float], seed: int) -> Selection:
    """The folders of the root are the classes, dealt at random."""
    if len(ratio) != 3 or min(ratio) < 0 or abs(sum(ratio) - 1) > 1e-6:
        got = " ".join(map(str, ratio))
        raise UserError(f"--split-ratio: expected three shares >= 0 of sum 1, got {got}")
    classes = class_folders(root)
    order = counters.permutation(seed, counters.CLASS_SPLIT, 0, len(classes))
    ends = [round(share * len(classes)) for share in accumulate(ratio)]
    start, end = dict(zip(NAMES, pairwise([0, *ends]), strict=True))[split]
    chosen = sorted(classes[i] for i in order[start:end])
    return Selection(from_class_folders({path.name: path for path in chosen}))


# Meta-Dataset -------------------------------------------------------------------------------------


def meta_dataset(root: Path, split: str, splits: Path | None, source: str) -> Selection | None:
    """By SOURCE_splits.json or by SOURCE_dataset_spec.json, which may hold a hierarchy of the classes."""
    file = splits if splits is not None and splits.is_file() else None
    for folder in () if file else [splits] if splits else (root, root / source, root / "splits"):
        for name in (f"{source}_dataset_spec.json", "dataset_spec.json", f"{source}_splits.json"):
            if file is None and (folder / name).is_file():
                file = folder / name
    if file is None or not (root / source).is_dir():
        return None
    content = read_json(file)
    inside = ("", "images", "images_background", "images_evaluation")
    roots = [root / source / folder for folder in inside if (root / source / folder).is_dir()]
    hierarchy = superclasses = None
    try:
        if "split_subgraphs" in content:
            hierarchy = _subgraph(content, split)
            below = {child for children in hierarchy.values() for child in children}
            classes = sorted(below - hierarchy.keys())
        elif "superclasses_per_split" in content:
            superclasses = _superclasses(content, split)
            classes = [name for members in superclasses.values() for name in members]
        elif "classes_per_split" in content:
            numbers = _ranges(content["classes_per_split"])[split]
            classes = [str(content["class_names"][str(k)]) for k in numbers]
        else:
            classes = classes_of_split(file, content, split)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file}: not a split or specification of Meta-Dataset ({type(error).__name__} {one_line(error)})"
        ) from error
    if not classes:
        raise UserError(f"{file}: {source} has no classes in the split {split!r}")
    return Selection(from_classes(root, classes, file, roots), hierarchy, superclasses)


def _ranges(counts: Mapping[str, int]) -> dict[str, range]:
    """Classes are numbered through TRAIN, VALID and TEST."""
    ends = accumulate((counts[name] for name in ("TRAIN", "VALID", "TEST")), initial=0)
    return {split: range(*bounds) for split, bounds in zip(NAMES, pairwise(ends), strict=True)}


def _superclasses(content: dict[str, Any], split: str) -> dict[str, list[str]]:
    sizes = content["classes_per_superclass"]
    starts = list(accumulate((sizes[str(s)] for s in range(len(sizes))), initial=0))
    return {
        str(content["superclass_names"][str(s)]): [
            str(content["class_names"][str(k)]) for k in range(starts[s], starts[s + 1])
        ]
        for s in _ranges(content["superclasses_per_split"])[split]
    }


def _subgraph(content: dict[str, Any], split: str) -> dict[str, list[str]]:
    """{node: its children} of the nodes that have any."""
    part = {"train": "TRAIN", "val": "VALID", "test": "TEST"}[split]
    nodes: Iterator[dict[str, Any]] = iter(content["split_subgraphs"][part])
    return {node["wn_id"]: list(node["children_ids"]) for node in nodes if node["children_ids"]}
