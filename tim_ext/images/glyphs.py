"""`glyphs`: images of characters for few-shot learning, made from the fonts inside matplotlib, no download.

    base = tim_ext.images.glyphs.load("base")              # train an encoder on these classes
    novel = tim_ext.images.glyphs.load("novel")            # and test it on these: no class in common
    digits = tim_ext.images.glyphs.load("digits")          # or on real handwriting (scikit-learn's digits)
    novel.images, novel.labels, novel.class_names   # [M, 32, 32] uint8, ink bright; [M]; one name per class

A class is a set of characters that look alike (Latin A, Greek Alpha, Cyrillic A; C and c), found by comparing
their drawn shapes. An image is one of its characters in one of 22 faces, randomly warped, blurred and noised.
The first call builds the images of all splits in some seconds; later calls read them from the user's cache
folder, where what is stored is checked against its hash and built again if it is damaged.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ..errors import require
from ..files.atomic import open_draft
from ..solver.params import check_count
from . import outlines
from .outlines import Integers, Outlines

SPLITS = ("base", "validation", "novel", "digits")
SIDE = 32  # of an image, in pixels


@dataclass(frozen=True, eq=False)
class GlyphSet:
    images: NDArray[np.uint8]  # [M, SIDE, SIDE]  0 paper, 255 ink
    labels: Integers  # [M]  ascending
    class_names: list[str]  # all characters of the class

    def __len__(self) -> int:
        return len(self.images)

    def sha256(self) -> str:
        digest = hashlib.sha256(repr((self.images.shape, self.class_names)).encode())
        digest.update(np.ascontiguousarray(self.images).data)
        digest.update(self.labels.astype("<i8").data)
        return digest.hexdigest()


def load(split: str, *, seed: int = 0, root: str | os.PathLike[str] | None = None) -> GlyphSet:
    """The images of a split.

    Args:
        split: "base", "validation", "novel" (no class in common), or "digits" (1797, handwritten).
        seed: another one draws other images of the same classes; "digits" are always the same.
        root: folder of the cache; by default `tim_ext` in $XDG_CACHE_HOME or in ~/.cache.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(map(repr, SPLITS))}, got {split!r}")
    seed = check_count("seed", seed, at_least=0)
    if split == "digits":
        return _digits()
    folder = cache_folder() if root is None else Path(root)
    key = _key(seed)
    files = {name: folder / f"glyphs-{name}-{key}.npz" for name in SHARES}
    stored = _read(files[split])
    if stored is not None:
        return stored
    built = _build(seed)
    for name, file in files.items():
        _write(file, built[name])
    return built[split]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tim_ext"


# Classes ------------------------------------------------------------------------------------------

CATEGORIES = (
    "Lu",
    "Ll",
    "Lo",
    "Nd",
    "Sc",
    "Sm",
)  # letters, decimal digits, currency and mathematical symbols
FEWEST_OUTLINES = 4  # of a class: with fewer it would be nearly the same image again and again
SHARES = {"base": 0.64, "validation": 0.16, "novel": 0.2}  # of the classes

# Two outlines of a face are alike if, both stretched to a box of BOX pixels, the ink of each lies within NEAR
# pixels of the other's ink, up to MISSED of it, if the same holds for the paper, and if their aspect ratios
# differ by a factor below ASPECT. Two characters are alike if they are in ALIKE of the faces that have both.
BOX, NEAR, MISSED, ASPECT, ALIKE = 40, 2.5, 0.02, 1.4, 0.5
FRAME = 48  # side of the picture that the box lies in
CELL = 3  # divides FRAME
PAIRS = 4096  # compared at a time, to bound memory


@dataclass(frozen=True, eq=False)
class Classes:
    outlines: Outlines
    names: list[str]  # the characters of each class
    members: list[Integers]  # the outlines of each class
    splits: dict[str, Integers]  # the classes of each split


def find_classes() -> Classes:
    found = outlines.read_outlines(wanted)
    codes, own = np.unique(found.char, return_inverse=True)  # own [G]: number of the character
    groups = _groups(_look_alikes(found, own, len(codes)))
    members = [np.flatnonzero(np.isin(own, group)) for group in groups]
    members = [rows for rows in members if len(rows) >= FEWEST_OUTLINES]
    names = ["".join(map(chr, np.unique(found.char[rows]))) for rows in members]
    return Classes(found, names, members, _split(names))


def wanted(character: str) -> bool:
    """Of the right kind, and not composed of others (as an accented letter is)."""
    return unicodedata.category(character) in CATEGORIES and not unicodedata.decomposition(character)


def _split(names: list[str]) -> dict[str, Integers]:
    """At random, whatever the seed of the images. Digits are novel: an encoder has seen none in training."""
    digit = np.array([any(character in "0123456789" for character in name) for name in names])
    others = np.random.default_rng(0).permutation(np.flatnonzero(~digit))
    base, validation = (round(SHARES[split] * len(names)) for split in ("base", "validation"))
    parts = np.split(others, [base, base + validation])
    parts[2] = np.concatenate([parts[2], np.flatnonzero(digit)])
    return {split: np.sort(part) for split, part in zip(SHARES, parts, strict=True)}


def _look_alikes(found: Outlines, own: Integers, count: int) -> NDArray[np.float32]:
    """In which share of the faces that have both two characters look alike: [C, C], 0 if no face has both."""
    ink = torch.from_numpy(outlines.draw(found, FRAME, BOX, stretch=True) > 127)
    low, high = outlines.boxes(found)
    aspect = torch.from_numpy(np.log((high - low)[:, 0] / (high - low)[:, 1]))
    alike, has = np.zeros((count, count), np.float32), np.zeros((count, len(outlines.FACES)), np.float32)
    for face in range(len(outlines.FACES)):
        rows = np.flatnonzero(found.face == face)
        first, second = _alike(ink[rows], aspect[rows]).nonzero().numpy().T
        alike[own[rows][first], own[rows][second]] += 1  # a face has a character once
        has[own[rows], face] = 1
    return np.asarray(alike / np.maximum(has @ has.T, 1), np.float32)


def _alike(ink: Tensor, aspect: Tensor) -> Tensor:
    """[n, n] for the stretched outlines [n, FRAME, FRAME] of one face."""
    allowed = MISSED * ink.sum((1, 2))
    shapes = [(part, ~_dilate(part)) for part in (ink, ~ink)]
    possible = (aspect[:, None] - aspect).abs() < np.log(ASPECT)
    for part, far in shapes:  # a lower bound, counted in cells that are far throughout, leaves few pairs
        missed = _cells(part) @ (_cells(far) == CELL**2).float().T
        possible &= missed <= allowed[:, None]
    alike = torch.eye(len(ink), dtype=torch.bool)
    for pairs in (possible & possible.T).triu(1).nonzero().split(PAIRS):
        i, j = pairs.T
        alike[i, j] = torch.stack(
            [
                (part[a] & far[b]).sum((1, 2)) <= allowed[a]
                for part, far in shapes
                for a, b in ((i, j), (j, i))
            ]
        ).all(0)
    return alike | alike.T


def _dilate(shape: Tensor) -> Tensor:
    """All pixels [n, FRAME, FRAME] within NEAR of a pixel of the shape."""
    reach = int(NEAR)
    padded, near = F.pad(shape, [reach] * 4), torch.zeros_like(shape)
    for y in range(-reach, reach + 1):
        for x in range(-reach, reach + 1):
            if x**2 + y**2 <= NEAR**2:
                near |= padded[:, reach + y :, reach + x :][:, :FRAME, :FRAME]
    return near


def _cells(shape: Tensor) -> Tensor:
    """The number of pixels of the shape in every cell of CELL x CELL: [n, cells]."""
    return (F.avg_pool2d(shape.float(), CELL) * CELL**2).round().flatten(1)


def _groups(alike: NDArray[np.float32]) -> list[list[int]]:
    """Characters that make a class: merged while the mean over the pairs of two groups is at least ALIKE.

    Where characters of two groups still look alike, the smaller group loses them: two classes never do.
    """
    groups: list[list[int]] = []
    for component in _components(alike >= ALIKE):
        parts = [[c] for c in component]
        sums = alike[np.ix_(component, component)].astype(float)
        np.fill_diagonal(sums, 0)
        while len(parts) > 1:
            sizes = np.array(list(map(len, parts)))
            means = sums / (sizes[:, None] * sizes)
            i, j = sorted(map(int, np.unravel_index(means.argmax(), means.shape)))
            if means[i, j] < ALIKE:
                break
            parts[i] += parts.pop(j)
            sums[i] += sums[j]
            sums[:, i] += sums[:, j]
            sums[i, i] = 0
            sums = np.delete(np.delete(sums, j, 0), j, 1)
        kept: list[int] = []
        for part in sorted(parts, key=len, reverse=True):
            distinct = [c for c in part if not (alike[c, kept] >= ALIKE).any()]
            kept += distinct
            groups += [distinct] if distinct else []
    return groups


def _components(linked: NDArray[np.bool_]) -> Iterator[list[int]]:
    """Of the graph with the edges `linked` [C, C], each sorted."""
    left = set(range(len(linked)))
    while left:
        component: set[int] = set()
        new = {min(left)}
        while new:
            component |= new
            new = set(map(int, np.flatnonzero(linked[list(new)].any(0)))) - component
        left -= component
        yield sorted(component)


# Images -------------------------------------------------------------------------------------------

PER_CLASS = {"base": 40, "validation": 20, "novel": 30}  # images
PICTURE, EXTENT = 48, 33  # side of the pictures that images are sampled from, of characters in them; pixels
BATCH = 1024  # images distorted at a time, to bound memory

# Every image draws its own, uniformly:
ROTATION = 25.0  # degrees, to both sides, as all where no range is given
SHEAR = 0.35  # tangent of the angle
SCALE = 0.3  # log of the factor, x and y on their own
SHIFT = 3.0  # pixels
BLUR = 0.3, 1.2  # standard deviation of the filter, pixels
INK = 0.4, 1.0  # brightness
NOISE = 0.0, 0.2  # standard deviation, white is 1
# and a smooth warp: the displacement is a cubic spline through KNOTS x KNOTS random vectors
WARP = 2.5  # standard deviation of the knots, pixels
KNOTS = 7


def _build(seed: int) -> dict[str, GlyphSet]:
    classes = find_classes()
    pictures = torch.from_numpy(outlines.draw(classes.outlines, PICTURE, EXTENT))
    return {split: _draw_split(classes, pictures, split, seed) for split in SHARES}


def _draw_split(classes: Classes, pictures: Tensor, split: str, seed: int) -> GlyphSet:
    random = np.random.default_rng((seed, SPLITS.index(split)))
    chosen, count = classes.splits[split], PER_CLASS[split]
    rows = np.concatenate([random.choice(classes.members[c], count) for c in chosen])
    images = [_distort(pictures[part], random) for part in torch.split(torch.from_numpy(rows), BATCH)]
    labels = np.repeat(np.arange(len(chosen)), count)
    return GlyphSet(torch.cat(images).numpy(), labels, [classes.names[c] for c in chosen])


def _distort(pictures: Tensor, random: np.random.Generator) -> Tensor:
    """Images [B, SIDE, SIDE] from pictures [B, PICTURE, PICTURE], both uint8."""
    count = len(pictures)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.from_numpy(random.uniform(low, high, (count, *shape)).astype(np.float32))

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal((count, *shape), np.float32))

    pixel = 2 / SIDE  # in the coordinates of the grid, -1 to 1 across the image
    angle, shear = uniform(-ROTATION, ROTATION) * (np.pi / 180), uniform(-SHEAR, SHEAR)
    cos, sin = torch.cos(angle), torch.sin(angle)
    turn = torch.stack([cos, -sin, sin, cos], 1).view(count, 2, 2)
    slant = torch.eye(2).repeat(count, 1, 1)
    slant[:, 0, 1] = shear
    linear = torch.exp(uniform(-SCALE, SCALE, 2, 1)) * (turn @ slant)
    shift = uniform(-SHIFT, SHIFT, 2, 1) * pixel
    grid = F.affine_grid(torch.cat([linear, shift], 2), [count, 1, SIDE, SIDE], align_corners=False)
    spline = _spline_basis()
    warp = spline @ (WARP * pixel * normal(2, KNOTS, KNOTS)) @ spline.T  # [B, 2, SIDE, SIDE]
    sampled = F.grid_sample(
        pictures[:, None].float() / 255, grid + warp.permute(0, 2, 3, 1), align_corners=False
    )
    inked = _blur(sampled[:, 0], uniform(*BLUR)) * uniform(*INK, 1, 1)
    noised = inked + uniform(*NOISE, 1, 1) * normal(SIDE, SIDE)
    return (255 * noised.clamp(0, 1)).round().to(torch.uint8)


def _spline_basis() -> Tensor:
    """[SIDE, KNOTS]: the cubic B-splines of equidistant knots, at the centres of the pixels."""
    centres = (torch.arange(SIDE) + 0.5) / SIDE * (KNOTS - 3) + 1
    distance = (centres[:, None] - torch.arange(KNOTS)).abs()
    inner = 2 / 3 - distance**2 + distance**3 / 2
    return torch.where(distance < 1, inner, (2 - distance).clamp(min=0) ** 3 / 6)


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """A Gaussian filter of width sigma [B] for each image [B, SIDE, SIDE]; paper outside."""
    reach = 3
    weights = torch.exp(-(torch.arange(-reach, reach + 1) ** 2) / (2 * sigma[:, None] ** 2))
    weights = (weights / weights.sum(1, keepdim=True))[:, :, None, None]  # [B, taps, 1, 1]
    for axis, padding in ((1, (0, 0, reach, reach)), (2, (reach, reach, 0, 0))):
        padded = F.pad(images, padding)
        images = torch.zeros_like(images)
        for tap in range(2 * reach + 1):
            images += weights[:, tap] * padded.narrow(axis, tap, SIDE)
    return images


def _digits() -> GlyphSet:
    """scikit-learn's digits, 8 x 8 pixels, enlarged to the size that characters have in glyphs."""
    data = require("sklearn.datasets", "demo").load_digits()
    order = np.argsort(data.target, kind="stable")
    small = torch.from_numpy(data.images[order] / data.images.max()).float()
    enlarged = F.interpolate(small[:, None], scale_factor=3, mode="bicubic", align_corners=False)[:, 0]
    margin = (SIDE - enlarged.shape[1]) // 2
    images = (255 * F.pad(enlarged, [margin] * 4).clamp(0, 1)).round().to(torch.uint8)
    return GlyphSet(images.numpy(), data.target[order].astype(np.int64), [str(d) for d in range(10)])


# Cache --------------------------------------------------------------------------------------------


def _key(seed: int) -> str:
    """Of all that the images depend on: the fonts, this code, the seed."""
    digest = hashlib.sha256(f"{outlines.fonts_sha256()} {seed}".encode())
    for file in (__file__, outlines.__file__):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:16]


def _read(file: Path) -> GlyphSet | None:
    """None if there is no such file, or if it is damaged."""
    if not file.exists():
        return None
    try:
        with np.load(file) as stored:
            found = GlyphSet(stored["images"], stored["labels"], stored["class_names"].tolist())
            if str(stored["sha256"]) == found.sha256():
                return found
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        pass
    warnings.warn(f"{file}: damaged, and built again", stacklevel=3)
    return None


def _write(file: Path, glyphs: GlyphSet) -> None:
    with open_draft(file) as stream:
        np.savez(
            stream,
            images=glyphs.images,
            labels=glyphs.labels,
            class_names=np.array(glyphs.class_names),
            sha256=np.array(glyphs.sha256()),
        )
