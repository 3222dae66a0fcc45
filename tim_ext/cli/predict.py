"""`tim-ext predict`: labels a folder of images from a few labelled ones per class.

    support/cat/1.jpg           --support: a folder for each class, named after it
    support/dog/1.jpg
    photos/any/where/2.jpg      --query: what to label, in folders or not

    predictions/predictions.csv     path, class, confidence, the class that comes second and its confidence
    predictions/contact_sheet.html  the images by class and confidence, to open in a browser
    predictions/skipped.csv         the images that cannot be read, and why

Images are read in threads and encoded in batches; of each, its features and a small picture (on the disk)
are kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import one_line, require
from ..evaluation.methods import Method
from ..files.atomic import write_atomically
from ..files.cells import as_csv
from ..files.outputs import check_outside, output_folder
from ..images.extraction import BATCH_SIZE, Extractor, open_extractor
from ..images.labelling import (
    Labelled,
    best_two,
    find_classes_and_queries,
    label_images,
    solve,
)
from ..images.networks import GLYPHS, LIBRARIES, LITE
from ..images.reading import ImageError, shown
from ..solver.params import check_count
from ..solver.presets import PRESETS
from ..version import __version__
from . import contact_sheet
from .contact_sheet import Group, Photo
from .options import (
    add_class_prior,
    add_method,
    add_set,
    add_spreadsheet_safe,
    read_class_prior,
    read_set,
)
from .parsing import Renamed
from .proportions import compare_with_nearest

OUT = Path("predictions")
FILES = "predictions.csv", "skipped.csv", "contact_sheet.html"
LIMIT = 2000  # pictures on the sheet
SAID = 10  # skipped images that the terminal names
COLUMNS = ("path", "class", "confidence", "second_class", "second_confidence")
EXAMPLES = """
examples:
  tim-ext predict --support labelled --query photos
  tim-ext predict --support labelled --query photos --encoder timm:vit_base_patch16_clip_224.openai
  tim-ext predict --support labelled --query photos --class-prior cat=0.8 dog=0.2
"""


def add_command(commands: Any) -> None:
    add = commands.add_parser(
        "predict",
        help="label a folder of images from a few labelled ones per class",
        description=__doc__.split(": ", 1)[1],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.set_defaults(run=run)
    add.add_argument("--support", type=Path, required=True, metavar="DIR", help="labelled: DIR/CLASS/images")
    add.add_argument("--query", type=Path, required=True, metavar="DIR", help="images to label, at any depth")
    add.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"of the results ({OUT})")
    add_spreadsheet_safe(add)
    names = [GLYPHS, *(f"{library}:NAME" for library in LIBRARIES)]
    add.add_argument(
        "--encoder",
        default=LITE,
        metavar="NAME",
        help=f"{', '.join(names)}, or the file of a checkpoint of python_train ({LITE})",
    )
    add.add_argument("--size", type=int, metavar="PX", help="of the images, if not the encoder's")
    add_method(add)
    add.add_argument("--solver", action=Renamed, new="--method")
    add_set(add, "a hyper-parameter of the method, for example temperature=10")
    add_class_prior(add, "among the images to label")
    add.add_argument(
        "--limit", type=int, default=LIMIT, metavar="N", help=f"pictures on the contact sheet ({LIMIT})"
    )
    add.add_argument("--batch-size", type=int, default=BATCH_SIZE, metavar="N", help=f"({BATCH_SIZE})")
    add.add_argument(
        "--workers", type=int, metavar="N", help="threads that read images (one per core, at most 8)"
    )
    add.add_argument("--device", help="of the encoder: cpu, cuda, cuda:1 (cuda where there is one)")


def run(options: argparse.Namespace) -> int:
    for module in ("PIL.Image", "safetensors", "tqdm"):
        require(module, "predict")
    limit = check_count("--limit", options.limit, at_least=0)
    batch_size = check_count("--batch-size", options.batch_size, at_least=1)
    workers = min(os.cpu_count() or 1, 8) if options.workers is None else options.workers
    workers = check_count("--workers", workers, at_least=1)
    hyper = read_set(options, Method(options.method, PRESETS[options.method].solve))
    two = torch.eye(2)
    solve(options.method, two, torch.arange(2), two, hyper)  # a bad value fails now, and not after the work
    classes, queries = find_classes_and_queries(options.support, options.query)
    prior = read_class_prior(options, list(classes))
    if prior is not None:
        hyper["class_prior"] = prior
    check_output(options, classes, queries)  # the same for a bad path
    extract = open_extractor(
        options.encoder, size=options.size, device=options.device, batch_size=batch_size, workers=workers
    )
    with tempfile.TemporaryFile() as spool:
        labelled = label_images(classes, queries, extract, options.method, hyper, spool)
        photos = make_photos(labelled, options.query)
        groups = make_groups(labelled, photos, options.support)
        notes = describe(options, extract, labelled.skipped, hyper)
        page = contact_sheet.page(groups, introduction(groups), notes, limit)
    write(options, photos, labelled.skipped, page)
    report(options, groups, labelled)
    return 0


# What is written ----------------------------------------------------------------------------------


def check_output(
    options: argparse.Namespace, classes: Mapping[str, Sequence[Path]], queries: Sequence[Path]
) -> None:
    """--out may lie in --query, as no image is written there; in --support it would become a class."""
    known = [path for paths in classes.values() for path in paths]
    inputs = {
        "--support": [options.support, *known],
        "--query": [options.query, *queries],
        "--class-prior": options.class_prior,
        "--encoder": options.encoder if Path(options.encoder).is_file() else None,
    }
    check_outside("--out", options.out, "--support", options.support)
    output_folder("--out", options.out, FILES, inputs)


def make_photos(labelled: Labelled, folder: Path) -> list[Photo]:
    names, found = labelled.names, labelled.found
    return [
        Photo(relative(path, folder), picture, names[k], p, names[second], p_second)
        for path, picture, (k, p, second, p_second) in zip(
            found.paths, found.pictures, best_two(labelled.probs), strict=True
        )
    ]


def make_groups(labelled: Labelled, photos: Sequence[Photo], support: Path) -> list[Group]:
    names, known = labelled.names, labelled.known
    groups = {name: Group(name, [], []) for name in names}
    for path, picture, label in zip(known.paths, known.pictures, labelled.labels.tolist(), strict=True):
        groups[names[label]].known.append(Photo(relative(path, support), picture, names[label]))
    for photo in sorted(photos, key=lambda photo: -photo.confidence):  # stable: by path where equal
        groups[photo.name].found.append(photo)
    return list(groups.values())


def relative(path: Path, folder: Path) -> str:
    return shown(path.relative_to(folder))


def introduction(groups: Sequence[Group]) -> str:
    labelled = sum(len(group.known) for group in groups)
    return (
        f"TIM labelled them from {labelled:,} labelled images (dark frames). Each class has its images, "
        "the most certain first; those in orange are less likely than not to belong there, and the class "
        "that comes second is named."
    )


def describe(
    options: argparse.Namespace, extract: Extractor, skipped: Sequence[ImageError], hyper: Mapping[str, Any]
) -> list[str]:
    changed = ", ".join(f"{name}={value}" for name, value in hyper.items()) or "the defaults"
    proportions = (
        "The method was told the proportions of the classes."
        if "class_prior" in hyper
        else "The proportions of the classes were found from the images."
        if options.method == "robust"
        else "This method prefers classes of about equal size; --class-prior tells it of others."
    )
    size = extract.how.size
    notes = [
        f"Encoder: {shown(options.encoder)}, {extract.dim} features of images of {size} x {size} pixels. "
        f"Method: {PRESETS[options.method].title}; hyper-parameters: {changed}. tim_ext {__version__}.",
        f"A confidence is the probability that the method gives to the class. {proportions}",
    ]
    if skipped:
        notes.append(f"{len(skipped):,} images could not be read: skipped.csv lists them.")
    return notes


def write(
    options: argparse.Namespace, photos: Sequence[Photo], skipped: Sequence[ImageError], page: str
) -> None:
    predictions = [COLUMNS]
    for photo in photos:
        first, second = f"{photo.confidence:.6f}", f"{photo.second_confidence:.6f}"
        predictions.append((photo.path, photo.name, first, photo.second, second))
    reasons = [("path", "reason"), *((shown(error.path), error.reason) for error in skipped)]
    tables = [as_csv(rows, spreadsheet_safe=options.spreadsheet_safe) for rows in (predictions, reasons)]
    for name, text in zip(FILES, (*tables, page), strict=True):
        write_atomically(options.out / name, text.encode("utf-8", "backslashreplace"))


def report(options: argparse.Namespace, groups: Sequence[Group], labelled: Labelled) -> None:
    out = options.out
    skipped = labelled.skipped
    width = max(len("class"), *(len(group.name) for group in groups))
    lines = [f"{'class':<{width}}  labelled   found   share  mean confidence"]
    for group, share in zip(groups, labelled.proportions.tolist(), strict=True):
        mean = group.mean_confidence
        text = "" if mean is None else f"{100 * mean:.1f} %"
        numbers = f"{len(group.known):>8}  {len(group.found):>6}  {100 * share:>4.1f} %"
        lines.append(f"{group.name:<{width}}  {numbers}  {text:>15}")
    counts = [len(group.found) for group in groups]
    how = {"what": "images", "method": options.method, "told": options.class_prior is not None}
    differ = compare_with_nearest(labelled.names, counts, labelled.nearest, **how)
    lines += ["", *differ] if differ else []
    if skipped:
        lines += ["", f"skipped, as they cannot be read: {len(skipped):,} images"]
        lines += [f"  {one_line(error)}" for error in skipped[:SAID]]
        if len(skipped) > SAID:
            lines.append(f"  and {len(skipped) - SAID:,} more: {shown(out / 'skipped.csv')}")
    lines += ["", f"predictions: {shown(out / 'predictions.csv')}"]
    lines.append(f"open {shown(out / 'contact_sheet.html')} in a browser")
    text = "\n".join(lines)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
