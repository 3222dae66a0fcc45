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
import csv
import io
import os
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import UserError, one_line, require
from ..evaluation.methods import METHODS
from ..files.tensors import write_atomically
from ..images.networks import GLYPHS, LIBRARIES, LITE, feature_size, features_of, open_encoder
from ..images.preprocessing import Preprocessing, center_crop, normalize, to_tensor
from ..images.reading import ImageError, class_folders, find_images, open_image
from ..solver.inputs import QUERY
from ..solver.params import check_count
from ..version import __version__
from . import contact_sheet
from .contact_sheet import Group, Photo

SOLVERS = {"adm": "tim-adm", "gd": "tim-gd"}
OUT = Path("predictions")
PICTURE = 112  # pixels of the longer side of a picture on the contact sheet
QUALITY = 80  # of its JPEG
LIMIT = 2000  # pictures on the sheet
BATCH_SIZE = 16
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
    add.set_defaults(run=predict)
    add.add_argument("--support", type=Path, required=True, metavar="DIR", help="labelled: DIR/CLASS/images")
    add.add_argument("--query", type=Path, required=True, metavar="DIR", help="images to label, at any depth")
    add.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"of the results ({OUT})")
    names = [GLYPHS, *(f"{library}:NAME" for library in LIBRARIES)]
    add.add_argument(
        "--encoder",
        default=LITE,
        metavar="NAME",
        help=f"{', '.join(names)}, or the file of a checkpoint of python_train ({LITE})",
    )
    add.add_argument("--size", type=int, metavar="PX", help="of the images, if not the encoder's")
    add.add_argument("--solver", choices=SOLVERS, default="adm", help="of TIM (adm)")
    add.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="a hyper-parameter of the solver, for example temperature=10",
    )
    add.add_argument(
        "--class-prior",
        nargs="+",
        metavar="CLASS=SHARE",
        help="proportions of the classes among the images to label, or counts (equal)",
    )
    add.add_argument(
        "--limit", type=int, default=LIMIT, metavar="N", help=f"pictures on the contact sheet ({LIMIT})"
    )
    add.add_argument("--batch-size", type=int, default=BATCH_SIZE, metavar="N", help=f"({BATCH_SIZE})")
    add.add_argument(
        "--workers", type=int, metavar="N", help="threads that read images (one per core, at most 8)"
    )
    add.add_argument("--device", help="of the encoder: cpu, cuda, cuda:1 (cuda where there is one)")


def predict(options: argparse.Namespace) -> int:
    for module in ("PIL.Image", "safetensors", "tqdm"):
        require(module, "predict")
    limit = check_count("--limit", options.limit, at_least=0)
    batch_size = check_count("--batch-size", options.batch_size, at_least=1)
    workers = min(os.cpu_count() or 1, 8) if options.workers is None else options.workers
    workers = check_count("--workers", workers, at_least=1)
    hyper = parse_hyper(options.solver, options.set)
    two = torch.eye(2)
    solve(options.solver, two, torch.arange(2), two, hyper)  # a bad value fails now, and not after the work
    classes, queries = find(options.support, options.query)
    if options.class_prior is not None:
        hyper["class_prior"] = parse_prior(options.class_prior, list(classes))
    options.out.mkdir(parents=True, exist_ok=True)  # the same for a bad path
    encoder, how = open_encoder(options.encoder)
    if options.size is not None:
        size = check_count("--size", options.size, at_least=1)
        how = replace(how, size=size, resize=round(size * how.resize / how.size))
    encoder = encoder.to(device_of(options.device)).to(memory_format=torch.channels_last).eval()
    encode = partial(features, encoder, how, options.encoder, batch_size, workers)

    with tempfile.TemporaryFile() as spool, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # of odd files, which are read or listed
        known, known_skipped = encode([path for paths in classes.values() for path in paths], spool)
        labels = number_classes(classes, known, known_skipped)
        found, found_skipped = encode(queries, spool)
        if not found.paths:
            raise UserError(f"--query: none of the {len(queries):,} images can be read; {found_skipped[0]}")
        probs = solve(options.solver, known.features, labels, found.features, hyper)
        names = list(classes)
        photos = [
            Photo(relative(path, options.query), picture, names[k], p, names[second], p_second)
            for path, picture, (k, p, second, p_second) in zip(
                found.paths, found.pictures, best_two(probs), strict=True
            )
        ]
        groups = make_groups(names, known, labels, photos, options.support)
        skipped = [*known_skipped, *found_skipped]
        notes = describe(options, how, feature_size(encoder), skipped, hyper)
        page = contact_sheet.page(groups, introduction(groups), notes, limit)
    write(options.out, photos, skipped, page)
    report(groups, skipped, options.out)
    return 0


# What there is ------------------------------------------------------------------------------------


def find(support: Path, query: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """The labelled images of each class, and the images to label."""
    for option, folder in (("--support", support), ("--query", query)):
        if not folder.is_dir():
            raise UserError(f"{option}: expected a folder, got {shown(folder)}, which is not one")
    if support.resolve() in (query.resolve(), *query.resolve().parents):
        raise UserError(
            f"--query: expected a folder outside --support, got {shown(query)} in {shown(support)}"
        )
    classes = {shown(folder.name): find_images(folder) for folder in class_folders(support)}
    expected = f"--support: expected two folders or more in {shown(support)}, one for each class"
    if len(classes) < 2:
        got = f"one, {next(iter(classes))!r}" if classes else "none"
        raise UserError(f"{expected}, got {got}")
    empty = [name for name, paths in classes.items() if not paths]
    if empty:
        raise UserError(f"--support: expected images of every class, got none of {listed(empty)}")
    queries = find_images(query, without=[support])
    if not queries:
        raise UserError(f"--query: expected images in {shown(query)}, got none")
    return classes, queries


def number_classes(
    classes: Mapping[str, Sequence[Path]], known: Encoded, skipped: Sequence[ImageError]
) -> Tensor:
    """[S]: the class of each labelled image that could be read; every class must have one."""
    number = {path: k for k, paths in enumerate(classes.values()) for path in paths}
    labels = torch.tensor([number[path] for path in known.paths], dtype=torch.int64)
    have = set(labels.tolist())
    lost = [name for k, name in enumerate(classes) if k not in have]
    if lost:
        first = next(error for error in skipped if number[error.path] not in have)
        raise UserError(f"--support: none of the images of {listed(lost)} can be read; {first}")
    return labels


def shown(path: str | Path) -> str:
    """A name as text: bytes that are not UTF-8 as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def listed(names: Sequence[str]) -> str:
    more = len(names) - SAID
    return ", ".join(map(repr, names[:SAID])) + (f" and {more} more" if more > 0 else "")


def device_of(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # torch raises all kinds
        raise UserError(f"--device: expected cpu or a device of this machine, got {name!r}") from error
    return device


# From images to features --------------------------------------------------------------------------


class Encoded(NamedTuple):
    """What is kept of the images that could be read."""

    paths: list[Path]  # M
    features: Tensor  # [M, d]
    pictures: list[Callable[[], bytes]]  # M


def features(
    encoder: nn.Module,
    how: Preprocessing,
    name: str,
    batch_size: int,
    workers: int,
    paths: Sequence[Path],
    spool: BinaryIO,
) -> tuple[Encoded, list[ImageError]]:
    """Features and pictures in the order of the paths, and what could not be read.

    Of the images themselves, only a batch and those that wait for it are in memory.
    """
    kept, parts, pictures = [], [], []
    skipped = []
    batch: list[Tensor] = []
    device = next(encoder.parameters()).device

    def flush() -> None:
        if batch:
            pixels = normalize(torch.cat(batch).to(device), how)
            parts.append(_encode(encoder, pixels.to(memory_format=torch.channels_last), name))
            batch.clear()

    tqdm = require("tqdm", "predict").tqdm
    with (
        tqdm(total=len(paths), unit="image", disable=None) as bar,
        closing(_read(paths, how, workers)) as images,
    ):
        for path, image in zip(paths, images, strict=True):
            bar.update()
            if isinstance(image, ImageError):
                skipped.append(image)
                continue
            kept.append(path)
            pictures.append(_store(spool, image.picture))
            batch.append(image.pixels)
            if len(batch) == batch_size:
                flush()
        flush()
    encoded = torch.cat(parts) if parts else torch.empty(0, feature_size(encoder))
    return Encoded(kept, encoded, pictures), skipped


def _encode(encoder: nn.Module, pixels: Tensor, name: str) -> Tensor:
    try:
        with torch.inference_mode():
            return features_of(encoder, pixels).cpu().clone()
    except Exception as error:  # networks of other libraries raise all kinds
        size = " x ".join(map(str, pixels.shape[-2:]))
        raise UserError(f"--encoder: {name} fails on images of {size} pixels ({one_line(error)})") from error


class Image(NamedTuple):
    pixels: Tensor  # [1, C, size, size] of 0 .. 1
    picture: bytes  # a JPEG file


def _read(
    paths: Sequence[Path], how: Preprocessing, workers: int
) -> Generator[Image | ImageError, None, None]:
    """In order; no more than four images for each thread wait to be used.

    The threads are many already: torch uses no more of its own in them. A thread has its own number, but what
    it sets is also that of threads to come.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(threads)  # of this one, which may not have had its own yet
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[Image | ImageError]] = deque()
    try:
        for path in paths:
            waiting.append(pool.submit(_read_one, path, how))
            if len(waiting) == 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C nothing new is begun
        torch.set_num_threads(threads)


def _read_one(path: Path, how: Preprocessing) -> Image | ImageError:
    try:
        image = open_image(path, how.channels, shortest=how.resize if how.antialias else None)
    except ImageError as error:
        return ImageError(error.path, error.reason)  # a new one: a traceback would keep what was decoded
    pixels = center_crop(to_tensor(np.array(image)[None], how.channels), how)
    image.thumbnail((PICTURE, PICTURE))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY)
    return Image(pixels, stream.getvalue())


def _store(spool: BinaryIO, content: bytes) -> Callable[[], bytes]:
    """Appends to the file; what is returned reads it again."""
    start = spool.seek(0, os.SEEK_END)
    length = spool.write(content)

    def read() -> bytes:  # it must not hold the content
        spool.seek(start)
        return spool.read(length)

    return read


# From features to classes -------------------------------------------------------------------------


def parse_hyper(solver: str, assignments: Sequence[str]) -> dict[str, Any]:
    method = METHODS[SOLVERS[solver]]
    hyper = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise UserError(f"--set: expected NAME=VALUE, got {text!r}")
        if name == "class_prior":
            raise UserError("--set: expected --class-prior CLASS=SHARE instead of class_prior")
        hyper[name] = method.parse(name, value, "--set")
    return hyper


def parse_prior(assignments: Sequence[str], classes: Sequence[str]) -> list[float]:
    """Shares of sum 1, in the order of the classes."""
    given: dict[str, float] = {}
    for text in assignments:
        name, equals, value = text.rpartition("=")
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if not equals or not 0 < share < float("inf"):
            raise UserError(f"--class-prior: expected CLASS=SHARE with a share > 0, got {text!r}")
        if name not in classes:
            raise UserError(f"--class-prior: expected a class out of {listed(classes)}, got {name!r}")
        given[name] = share
    missing = [name for name in classes if name not in given]
    if missing:
        raise UserError(f"--class-prior: expected a share of every class, got none of {listed(missing)}")
    total = sum(given.values())
    return [given[name] / total for name in classes]


def solve(
    solver: str, known: Tensor, labels: Tensor, found: Tensor, hyper: Mapping[str, Any]
) -> NDArray[np.float64]:
    """[Q, K]: the probabilities of the images to label."""
    queries = labels.new_full((len(found),), QUERY)
    result = METHODS[SOLVERS[solver]].function(
        torch.cat([known, found]), torch.cat([labels, queries]), outputs=("probs",), **hyper
    )
    assert isinstance(result.probs, Tensor)
    return result.probs[len(labels) :].numpy().astype(np.float64)


def best_two(probs: NDArray[np.float64]) -> Iterator[tuple[int, float, int, float]]:
    """For each image: the most probable class, its probability; the class that comes second, and its."""
    order = np.argsort(-probs, axis=1, kind="stable")
    for row, (first, second) in zip(probs.tolist(), order[:, :2].tolist(), strict=True):
        yield first, row[first], second, row[second]


# What is written ----------------------------------------------------------------------------------


def make_groups(
    names: Sequence[str], known: Encoded, labels: Tensor, photos: Sequence[Photo], support: Path
) -> list[Group]:
    groups = {name: Group(name, [], []) for name in names}
    for path, picture, label in zip(known.paths, known.pictures, labels.tolist(), strict=True):
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
    options: argparse.Namespace,
    how: Preprocessing,
    dim: int,
    skipped: Sequence[ImageError],
    hyper: Mapping[str, Any],
) -> list[str]:
    changed = ", ".join(f"{name}={value}" for name, value in hyper.items()) or "all as in the paper"
    proportions = (
        "TIM was told the proportions of the classes."
        if "class_prior" in hyper
        else "TIM prefers classes of about equal size; --class-prior tells it of others."
    )
    notes = [
        f"Encoder: {shown(options.encoder)}, {dim} features of images of {how.size} x {how.size} pixels. "
        f"Solver: TIM-{options.solver.upper()}; hyper-parameters: {changed}. tim_ext {__version__}.",
        f"A confidence is the probability that TIM gives to the class. {proportions}",
    ]
    if skipped:
        notes.append(f"{len(skipped):,} images could not be read: skipped.csv lists them.")
    return notes


def write(out: Path, photos: Sequence[Photo], skipped: Sequence[ImageError], page: str) -> None:
    predictions = [COLUMNS]
    for photo in photos:
        first, second = f"{photo.confidence:.6f}", f"{photo.second_confidence:.6f}"
        predictions.append((photo.path, photo.name, first, photo.second, second))
    reasons = [("path", "reason"), *((shown(error.path), error.reason) for error in skipped)]
    for name, text in (
        ("predictions.csv", as_csv(predictions)),
        ("skipped.csv", as_csv(reasons)),
        ("contact_sheet.html", page),
    ):
        write_atomically(out / name, text.encode("utf-8", "backslashreplace"))


def as_csv(rows: Sequence[Sequence[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def report(groups: Sequence[Group], skipped: Sequence[ImageError], out: Path) -> None:
    width = max(len("class"), *(len(group.name) for group in groups))
    lines = [f"{'class':<{width}}  labelled   found  mean confidence"]
    for group in groups:
        mean = group.mean_confidence
        text = "" if mean is None else f"{100 * mean:.1f} %"
        lines.append(f"{group.name:<{width}}  {len(group.known):>8}  {len(group.found):>6}  {text:>15}")
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
