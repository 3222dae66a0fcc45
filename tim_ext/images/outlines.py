"""Outlines of the fonts that ship inside matplotlib, as pictures: font -> edges -> coverage of each pixel.

Only the curves of the font files are used, no hinting, so the pictures do not depend on the version of
FreeType. Everything is vectorised over glyphs: the 20,000 outlines of `tim_ext.images.glyphs` take seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, require

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STYLES = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
TEX_FACES = ("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10", "cmmi10")  # Unicode for letters and digits only
FACES = (*(family + style for family, styles in STYLES.items() for style in styles), *TEX_FACES)

MOVE, LINE, CURVE, CLOSE = 1, 2, 3, 79  # codes of a matplotlib path; a curve is a control point and an end
STEPS = 4  # straight edges per curve: the error is below 0.1 pixel at the sizes drawn here
CHUNK = 2000  # glyphs drawn at a time, to bound memory


@dataclass(frozen=True, eq=False)
class Outlines:
    """The edges of many glyphs, in font units; x to the right, y up."""

    face: Integers  # [G]  number of the face in FACES
    char: Integers  # [G]  code point
    edges: Floats  # [E, 4]  from (x0, y0) to (x1, y1), glyph after glyph
    owner: Integers  # [E]  number of the glyph, ascending

    def __len__(self) -> int:
        return len(self.face)


def font_files() -> list[Path]:
    """Their files. The font of one face came with matplotlib 3.11, which needs Python 3.11."""
    matplotlib = require("matplotlib", "demo")
    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    files = [folder / f"{face}.ttf" for face in FACES]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        found = f"matplotlib {matplotlib.__version__} without {', '.join(missing)}"
        raise UserError(f"glyphs: expected the fonts of matplotlib >= 3.11 (Python >= 3.11), got {found}")
    return files


def fonts_sha256() -> str:
    """Of the font files: what is drawn depends on nothing else outside this package."""
    digest = hashlib.sha256()
    for file in font_files():
        digest.update(file.read_bytes())
    return digest.hexdigest()


def read_outlines(wanted: Callable[[str], bool]) -> Outlines:
    """The outlines of all characters that are `wanted`, in every face that has them."""
    ft2font = require("matplotlib.ft2font", "demo")
    face, char, paths = [], [], []
    for number, file in enumerate(font_files()):
        font = ft2font.FT2Font(str(file))
        for code, glyph in sorted(font.get_charmap().items()):
            letter = chr(code)
            if FACES[number] in TEX_FACES and not (letter.isascii() and letter.isalnum()):
                continue
            if wanted(letter):
                font.load_glyph(glyph, flags=ft2font.LoadFlags.NO_SCALE)
                path = font.get_path()
                if len(path[1]):  # some characters are blank
                    face.append(number)
                    char.append(code)
                    paths.append(path)
    edges, owner = _edges(paths)
    return Outlines(np.array(face), np.array(char), edges, owner)


def _edges(paths: list[tuple[Any, Any]]) -> tuple[Floats, Integers]:
    """Straight edges [E, 4] of all paths (points [P, 2], codes [P]) and the number of the path of each."""
    points = np.concatenate([points for points, _ in paths]).astype(float)
    codes = np.concatenate([codes for _, codes in paths])
    owner = np.repeat(np.arange(len(paths)), [len(codes) for _, codes in paths])
    assert np.isin(codes, (MOVE, LINE, CURVE, CLOSE)).all(), "cubic curves do not occur in TrueType fonts"
    here = np.arange(len(codes))
    start = np.maximum.accumulate(np.where(codes == MOVE, here, 0))  # of the contour
    in_run = here - np.maximum.accumulate(
        np.where(codes != CURVE, here, -1)
    )  # 1, 2, 3, ... in a run of CURVE
    (line,), (close,) = np.nonzero(codes == LINE), np.nonzero(codes == CLOSE)
    (control,) = np.nonzero((codes == CURVE) & (in_run % 2 == 1))

    t = np.linspace(0, 1, STEPS + 1)[:, None, None]
    a, b, c = points[control - 1], points[control], points[control + 1]
    curve = (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c  # [STEPS + 1, curves, 2]
    pieces = [
        (points[line - 1], points[line], owner[line]),
        (points[close - 1], points[start[close]], owner[close]),
        *((curve[step], curve[step + 1], owner[control]) for step in range(STEPS)),
    ]
    begin, end, own = (np.concatenate(part) for part in zip(*pieces, strict=True))
    order = np.argsort(own, kind="stable")
    return np.concatenate([begin, end], 1)[order], own[order]


def draw(outlines: Outlines, side: int, extent: float, *, stretch: bool = False) -> NDArray[np.uint8]:
    """Pictures [G, side, side] (ink 255) with the middle of the bounding box in the middle of the picture.

    The longer side of the box is made `extent` pixels long; with `stretch`, both sides are.
    """
    count = len(outlines)
    low, high = boxes(outlines)
    size = high - low if stretch else (high - low).max(1, keepdims=True)
    middle, scale = (low + high) / 2, extent / np.broadcast_to(size, low.shape) * (1, -1)  # y down
    own = outlines.owner[:, None]
    ends = outlines.edges.reshape(-1, 2, 2)
    edges = ((ends - middle[own]) * scale[own] + side / 2).reshape(-1, 4)
    images = np.empty((count, side, side), np.uint8)
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        part = slice(*np.searchsorted(outlines.owner, (begin, end)))
        covered = coverage(edges[part], outlines.owner[part] - begin, end - begin, side)
        images[begin:end] = np.rint(255 * covered)
    return images


def boxes(outlines: Outlines) -> tuple[Floats, Floats]:
    """The lower left and the upper right corners of the bounding boxes, each [G, 2]."""
    first = np.searchsorted(outlines.owner, np.arange(len(outlines)))
    ends = outlines.edges.reshape(-1, 2, 2)
    return np.minimum.reduceat(ends.min(1), first), np.maximum.reduceat(ends.max(1), first)


def coverage(edges: Floats, owner: Integers, count: int, side: int) -> Floats:
    """The share [count, side, side] of each pixel that lies inside the closed polygons of its picture.

    An edge that descends by dy within pixel column c, at mean distance m from the left of that column, covers
    dy (1 - m) of pixel c and dy of every pixel to the right in its row: so add dy (1 - m) at c and dy m at
    c + 1, then sum up along the row. Edges are cut at rows, then at columns. Inside is where the sum is not 0
    (overlapping contours wind twice).
    """
    edges, owner = (
        edges[edges[:, 1] != edges[:, 3]],
        owner[edges[:, 1] != edges[:, 3]],
    )  # level ones add nothing
    x0, y0, x1, y1 = edges.T
    top, bottom = np.minimum(y0, y1), np.maximum(y0, y1)
    first = np.floor(top).astype(np.int64)
    edge, row = _ranges(first, np.ceil(bottom).astype(np.int64) - first)
    upper, lower = np.maximum(top[edge], row), np.minimum(bottom[edge], row + 1)
    slope = ((x1 - x0) / (y1 - y0))[edge]
    xu = x0[edge] + (upper - y0[edge]) * slope
    xl = x0[edge] + (lower - y0[edge]) * slope
    dy = np.where(y1 > y0, 1, -1)[edge] * (lower - upper)

    left, right = np.minimum(xu, xl), np.maximum(xu, xl)
    first = np.floor(left).astype(np.int64)
    piece, column = _ranges(first, np.maximum(np.ceil(right).astype(np.int64) - first, 1))
    width = (right - left)[piece]
    begin, end = np.maximum(left[piece], column), np.minimum(right[piece], column + 1)
    share = np.divide(end - begin, width, out=np.ones_like(width), where=width > 0)
    dy = dy[piece] * share
    middle = (begin + end) / 2 - column
    at = (owner[edge][piece] * side + row[piece]) * (side + 1) + column  # one spare column for c + 1
    total = count * side * (side + 1) + 1
    sums = np.bincount(at, dy * (1 - middle), total) + np.bincount(at + 1, dy * middle, total)
    inside: Floats = sums[:-1].reshape(count, side, side + 1).cumsum(2)[:, :, :side]
    return np.minimum(np.abs(inside), 1.0)


def _ranges(first: Integers, length: Integers) -> tuple[Integers, Integers]:
    """The ranges first[i], ..., first[i] + length[i] - 1 one after another: (i of each element, element)."""
    own = np.repeat(np.arange(len(length)), length)
    within = np.arange(len(own)) - np.repeat(np.cumsum(length) - length, length)
    return own, first[own] + within
