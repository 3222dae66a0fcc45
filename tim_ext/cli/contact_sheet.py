"""The page that `tim-ext predict` writes: small pictures of the images, by predicted class and confidence.

One file with the pictures inside. A browser opens some thousand of them without trouble, so there is a
limit; of a class with more images, the most and the least certain are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from . import pages

KNOWN = 8  # labelled images shown of a class
STYLE = """
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(116px, 1fr)); gap: 8px; }
.photo { margin: 0; padding: 4px; border-radius: 6px; background: var(--paper); font-size: 12px;
         line-height: 16px; color: var(--soft); min-width: 0; }
.photo img { width: 100%; height: 108px; object-fit: contain; display: block; border-radius: 3px; }
.photo b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.photo .name { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; display: block; }
.photo.known { background: var(--ink); color: white; }
.photo.unsure { background: #fbe9dc; }
.photo.unsure b { color: #a84300; }
.gap { grid-column: 1 / -1; color: var(--soft); font-size: 14px; border-top: 1px dashed var(--line);
       border-bottom: 1px dashed var(--line); padding: 6px 0; margin: 4px 0; }
a { color: var(--gained); text-decoration: none; }
"""


@dataclass(frozen=True)
class Photo:
    path: str
    picture: Callable[[], bytes]  # a JPEG file
    name: str  # its class
    confidence: float = 1.0
    second: str = ""  # the class that comes second
    second_confidence: float = 0.0

    @property
    def unsure(self) -> bool:
        """Less likely than not to be of its class."""
        return self.confidence < 0.5


@dataclass(frozen=True)
class Group:
    """A class: its labelled images, and those that were found to belong to it, the most certain first."""

    name: str
    known: list[Photo]
    found: list[Photo]

    @property
    def mean_confidence(self) -> float | None:
        return float(np.mean([photo.confidence for photo in self.found])) if self.found else None


def share(sizes: Sequence[int], limit: int) -> list[int]:
    """How many of each group are shown: as equally many as there are, `limit` in all at the most."""
    shown: NDArray[np.int64] = np.zeros(len(sizes), np.int64)
    left = limit
    for done, k in enumerate(np.argsort(sizes, kind="stable")):  # small groups leave more for the others
        shown[k] = min(sizes[k], left // (len(sizes) - done))
        left -= shown[k]
    return [int(count) for count in shown]


def page(groups: Sequence[Group], introduction: str, notes: Sequence[str], limit: int) -> str:
    """`limit`: of the pictures of images that were not labelled, and also of those that were."""
    shown = share([len(group.found) for group in groups], limit)
    known = min(KNOWN, limit // len(groups))
    total = sum(len(group.found) for group in groups)
    said = [introduction]
    if sum(shown) < total:
        said.append(
            f"This page shows {sum(shown):,} of the {total:,} images: of every class with many, the most and "
            "the least certain. predictions.csv has them all."
        )
    sections = [_group(k, *pair, known) for k, pair in enumerate(zip(groups, shown, strict=True))]
    how = pages.section("How it was made", *map(pages.paragraph, notes))
    return pages.page(
        f"{total:,} images in {len(groups)} classes", " ".join(said), _table(groups, total), *sections, how,
        style=STYLE,
    )  # fmt: skip


def _table(groups: Sequence[Group], total: int) -> str:
    head = "".join(f"<th>{text}</th>" for text in ("class", "labelled", "found", "share", "mean confidence"))
    rows = []
    for k, group in enumerate(groups):
        mean = group.mean_confidence
        cells = [f"{len(group.known):,}", f"{len(group.found):,}"]
        cells += [f"{100 * len(group.found) / total:.1f} %", "" if mean is None else f"{100 * mean:.1f} %"]
        link = f'<td><a href="#class{k}">{escape(group.name)}</a></td>'
        rows.append(f"<tr>{link}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<section>\n<table>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>\n</section>"


def _group(k: int, group: Group, shown: int, known: int) -> str:
    first = -(-shown // 2)
    hidden = len(group.found) - shown
    cells = [_photo(photo, "known", f"labelled {group.name}") for photo in group.known[:known]]
    if hidden:
        cells += map(_found, group.found[:first])
        cells.append(f'<div class="gap">{hidden:,} more, of a confidence between these two groups</div>')
        cells += map(_found, group.found[len(group.found) - (shown - first) :])
    else:
        cells += map(_found, group.found)
    heading = f"{escape(group.name)}: {len(group.found):,} images"
    return (
        f'<section id="class{k}">\n<h2>{heading}</h2>\n<div class="sheet">\n'
        + "\n".join(cells)
        + "\n</div>\n</section>"
    )


def _found(photo: Photo) -> str:
    hint = f"{photo.confidence:.1%}; {photo.second}: {photo.second_confidence:.1%}"
    text = f"<b>{100 * photo.confidence:.0f} %</b>"
    if photo.unsure:
        text += f" or {escape(photo.second)}"
    return _photo(photo, "unsure" if photo.unsure else "", hint, text)


def _photo(photo: Photo, kind: str, hint: str, text: str = "labelled") -> str:
    source = pages.data_uri(photo.picture(), "jpeg")
    title, name = escape(f"{photo.path} ({hint})"), escape(photo.path.rpartition("/")[2])
    return (
        f'<figure class="photo {kind}" title="{title}"><img src="{source}" alt="{name}">'
        f'<span class="name">{text}</span><span class="name">{name}</span></figure>'
    )
