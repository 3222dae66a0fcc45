"""`tim-ext predict`: labels a folder of images from a few labelled ones per class, or from class names.

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

import numpy as np
import torch

from ..errors import UserError, one_line, require
from ..evaluation.methods import Method
from ..files.atomic import write_atomically
from ..files.cells import as_csv
from ..files.outputs import check_outside, output_folder
from ..files.predictions import NONE_OF_THESE
from ..images.extraction import BATCH_SIZE, Extractor, open_extractor
from ..images.image_text import class_vectors
from ..images.labelling import (
    Labelled,
    best_two,
    find_classes_and_queries,
    label_images,
    solve,
)
from ..images.networks import GLYPHS, LIBRARIES, LITE
from ..images.reading import ImageError, shown
from ..solver.outliers import FOREIGN
from ..solver.params import check_count
from ..solver.presets import PRESETS
from ..version import __version__
from . import contact_sheet
from .class_names import add_class_names, as_sentence, describe_names, files_of_names, read_class_names
from .contact_sheet import Group, Photo
from .none_of_these import add_none_of_these, check_names, describe_foreign
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
  tim-ext predict --class-names cat dog "red fox" --query photos --encoder clip-vit-base-patch32
"""


def add_command(commands: Any) -> None:
    add = commands.add_parser(
        "predict",
        help="label a folder of images from a few labelled ones per class, or from class names",
        description=__doc__.split(": ", 1)[1],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.set_defaults(run=run)
    add.add_argument("--support", type=Path, metavar="DIR", help="labelled: DIR/CLASS/images")
    add_class_names(add)
    add.add_argument("--query", type=Path, required=True, metavar="DIR", help="images to label, at any depth")
    add.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"of the results ({OUT})")
    add_spreadsheet_safe(add)
    names = [GLYPHS, *(f"{library}:NAME" for library in LIBRARIES)]
    add.add_argument(
        "--encoder",
        default=LITE,
        metavar="NAME",
        help=f"{', '.join(names)}, the file of a checkpoint of python_train, or the folder of a CLIP or "
        f"SigLIP model of transformers, which --class-names needs ({LITE})",
    )
    add.add_argument("--size", type=int, metavar="PX", help="of the images, if not the encoder's")
    add_method(add)
    add.add_argument("--solver", action=Renamed, new="--method")
    add_set(add, "a hyper-parameter of the method, for example temperature=10")
    add_class_prior(add, "among the images to label")
    add_none_of_these(add)
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
    # a bad value fails now, and not after the work
    solve(options.method, two, torch.arange(2), two, hyper, judged=False)
    names = read_class_names(options)
    if names is None and options.support is None:
        raise UserError("--support: expected labelled images, or --class-names, got neither")
    classes, queries = find_classes_and_queries(
        options.support, options.query, None if names is None else names.texts
    )
    check_names(options, list(classes))
    prior = read_class_prior(options, list(classes))
    if prior is not None:
        hyper["class_prior"] = prior
    check_output(options, classes, queries)  # the same for a bad path
    extract = open_extractor(
        options.encoder, size=options.size, device=options.device, batch_size=batch_size, workers=workers
    )
    vectors = None
    if names is not None:
        texts = [names.text(name) for name in classes]
        vectors = class_vectors(extract.network, options.encoder, texts, names.prompts)
    with tempfile.TemporaryFile() as spool:
        apart = options.none_of_these is not None
        labelled = label_images(classes, queries, extract, options.method, hyper, spool, vectors, apart)
        photos = make_photos(labelled, options.query, options.none_of_these)
        groups = make_groups(labelled, photos, options.support, apart)
        said = describe_names(names, labelled, options.encoder)
        if labelled.known.paths:  # names alone are less sure of it
            foreign = int((labelled.outlier >= FOREIGN).sum())
            said += describe_foreign(options, foreign, len(photos), "images")
        notes = [*describe(options, extract, labelled.skipped, hyper), *map(as_sentence, said)]
        page = contact_sheet.page(groups, introduction(groups, names is not None), notes, limit)
    write(options, photos, labelled.skipped, page)
    report(options, groups, labelled, said)
    return 0


# What is written ----------------------------------------------------------------------------------


def check_output(
    options: argparse.Namespace, classes: Mapping[str, Sequence[Path]], queries: Sequence[Path]
) -> None:
    """--out may lie in --query, as no image is written there; in --support it would become a class."""
    known = [path for paths in classes.values() for path in paths]
    inputs = {
        "--support": known if options.support is None else [options.support, *known],
        "--query": [options.query, *queries],
        "--class-prior": options.class_prior,
        "--encoder": options.encoder if Path(options.encoder).exists() else None,
        "--class-names": files_of_names(options),
    }
    if options.support is not None:
        check_outside("--out", options.out, "--support", options.support)
    output_folder("--out", options.out, FILES, inputs)


def make_photos(labelled: Labelled, folder: Path, threshold: float | None) -> list[Photo]:
    """Of an image that is of none of the classes, its outlier score is the confidence, and its class comes
    second."""
    names, found = labelled.names, labelled.found
    photos = []
    sure = best_two(labelled.probs, labelled.confidence)
    for path, picture, outlier, (k, p, second, p_second) in zip(
        found.paths, found.pictures, labelled.outlier.tolist(), sure, strict=True
    ):
        classes = (names[k], p, names[second], p_second)
        if threshold is not None and outlier >= threshold:
            classes = (NONE_OF_THESE, outlier, names[k], p)
        photos.append(Photo(relative(path, folder), picture, *classes))
    return photos


def make_groups(
    labelled: Labelled, photos: Sequence[Photo], support: Path | None, apart: bool
) -> list[Group]:
    names, known = labelled.names, labelled.known
    groups = {name: Group(name, [], []) for name in [*names, *[NONE_OF_THESE] * apart]}
    for path, picture, label in zip(known.paths, known.pictures, labelled.labels.tolist(), strict=True):
        assert support is not None
        groups[names[label]].known.append(Photo(relative(path, support), picture, names[label]))
    for photo in sorted(photos, key=lambda photo: -photo.confidence):  # stable: by path where equal
        groups[photo.name].found.append(photo)
    return list(groups.values())


def relative(path: Path, folder: Path) -> str:
    return shown(path.relative_to(folder))


def introduction(groups: Sequence[Group], named: bool) -> str:
    labelled = sum(len(group.known) for group in groups)
    sources = ["the names of the classes"] if named else []
    sources += [f"{labelled:,} labelled images (dark frames)"] if labelled else []
    return (
        f"TIM labelled them from {' and '.join(sources)}. Each class has its images, "
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
    if options.none_of_these is not None:
        proportions += (
            f" Images with an outlier score of {options.none_of_these:g} or more are of {NONE_OF_THESE}; "
            "the score is their confidence."
        )
    notes = [
        f"Encoder: {shown(options.encoder)}, {extract.dim} features of images of {size} x {size} pixels. "
        f"Method: {PRESETS[options.method].title}; hyper-parameters: {changed}. tim_ext {__version__}.",
        "A confidence is the probability that the class is right, estimated from the images themselves "
        f"(docs/confidence.md). {proportions}",
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


def report(
    options: argparse.Namespace,
    groups: Sequence[Group],
    labelled: Labelled,
    said: Sequence[str],
) -> None:
    out = options.out
    skipped = labelled.skipped
    width = max(len("class"), *(len(group.name) for group in groups))
    lines = [*said, ""] if said else []
    lines.append(f"{'class':<{width}}  labelled   found   share  mean confidence")
    of_none = labelled.outlier >= (np.inf if options.none_of_these is None else options.none_of_these)
    shares = [*labelled.proportions(of_none).tolist(), float(of_none.mean())][: len(groups)]
    for group, share in zip(groups, shares, strict=True):
        mean = group.mean_confidence
        text = "" if mean is None else f"{100 * mean:.1f} %"
        numbers = f"{len(group.known):>8}  {len(group.found):>6}  {100 * share:>4.1f} %"
        lines.append(f"{group.name:<{width}}  {numbers}  {text:>15}")
    counts = [len(group.found) for group in groups[: len(labelled.names)]]
    nearest = np.bincount(labelled.nearest[~of_none], minlength=len(counts)).tolist()
    how = {"what": "images", "method": options.method, "told": options.class_prior is not None}
    differ = compare_with_nearest(labelled.names, counts, nearest, **how)
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
