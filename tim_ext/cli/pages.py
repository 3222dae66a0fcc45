"""Parts of a self-contained HTML report: one file with its images inside, no script, for any browser.

    results = pages.section("Results", pages.table("Accuracies", header, rows))
    html = pages.page("A title", "An introduction.", results)

Text is escaped here; what comes from one of these functions is HTML.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from ..solver.inputs import QUERY

STYLE = """
:root { color-scheme: light; --ink: #1d2733; --soft: #5d6b7a; --line: #dfe5ec; --paper: #f5f7fa;
        --gained: #0072b2; --lost: #d55e00; --wrong: #8a6d00; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 20px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 20px 0 8px; }
section { background: white; border: 1px solid var(--line); border-radius: 10px; padding: 20px 24px;
          margin-top: 20px; overflow-x: auto; }
p { margin: 8px 0; max-width: 78ch; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(540px, 1fr)); gap: 12px 40px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 15px; align-self: start; }
caption { text-align: left; font-weight: 600; padding: 6px 0; }
th, td { padding: 5px 0 5px 14px; text-align: right; white-space: nowrap;
         border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--soft); font-weight: 500; font-size: 14px; }
tr.best td { font-weight: 650; }
figure { margin: 12px 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption, .note { color: var(--soft); font-size: 14px; }
.task { margin: 14px 0 22px; }
.row { display: flex; gap: 3px; margin-bottom: 3px; }
.cell { width: 48px; text-align: center; font-size: 11px; line-height: 15px; height: 67px; color: var(--soft);
        border-radius: 4px; border: 2px solid transparent; }
.cell img { width: 44px; height: 44px; display: block; image-rendering: auto; border-radius: 2px; }
.support { background: var(--ink); color: white; margin-right: 10px; }
.gained { border-color: var(--gained); background: var(--gained); color: white; }
.lost { border-color: var(--lost); background: var(--lost); color: white; }
.wrong { border-color: var(--wrong); background: var(--wrong); color: white; }
.key { display: inline-block; border-radius: 4px; padding: 0 7px; font-size: 12px; color: white; }
.key.support { margin-right: 0; }
"""


def page(title: str, introduction: str, *sections: str, style: str = "") -> str:
    """`style`: CSS of its own, besides STYLE."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{paragraph(introduction)}\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(heading)}</h2>\n" + "\n".join(parts) + "\n</section>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> str:
    """`best`: the row to stand out."""
    lines = [f"<caption>{escape(caption)}</caption>", _row("th", header)]
    lines += [_row("td", row, "best" if number == best else "") for number, row in enumerate(rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _row(tag: str, cells: Sequence[str], kind: str = "") -> str:
    inside = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f'<tr class="{kind}">{inside}</tr>' if kind else f"<tr>{inside}</tr>"


def side_by_side(*parts: str) -> str:
    """As many in a row as the window has room for."""
    return '<div class="pair">\n' + "\n".join(parts) + "\n</div>"


def figure(png: bytes, caption: str) -> str:
    text = escape(caption)
    return f'<figure><img src="{data_uri(png)}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def data_uri(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64," + base64.b64encode(content).decode("ascii")


def gray_png(image: NDArray[np.uint8]) -> bytes:
    """A PNG file of gray values [H, W]."""
    height, width = image.shape
    lines = np.concatenate(
        [np.zeros((height, 1), np.uint8), image], axis=1
    )  # each begins with its filter: none

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits, gray, no interlacing
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)), chunk(b"IEND", b""))
    )


def contact_sheet(images: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Images [M, H, W] side by side, row after row; the last row is filled up with black."""
    count, height, width = images.shape
    rows = -(-count // columns)
    full = np.zeros((rows * columns, height, width), np.uint8)
    full[:count] = images
    grid: NDArray[np.uint8] = full.reshape(rows, columns, height, width).transpose(0, 2, 1, 3)
    return grid.reshape(rows * height, columns * width)


@dataclass(frozen=True, eq=False)
class Example:
    """A task with the predictions of two methods: the one to compare with, and the one to show."""

    images: NDArray[np.uint8]  # [N, H, W]  ink bright
    labels: NDArray[np.int64]  # [N]  class of a support sample, -1 for a query
    truth: NDArray[np.int64]  # [N]
    class_names: Sequence[str]  # [K]
    predictions: Mapping[str, NDArray[np.int64]]  # two, by the name of the method: [N]


KINDS = {  # (first method right, second method right): (CSS class, mark, meaning)
    (True, True): ("", "", "both right"),
    (False, True): ("gained", "✓", "only {second} right"),
    (True, False): ("lost", "✗", "only {first} right"),
    (False, False): ("wrong", "✗", "both wrong"),
}


def example_legend(first: str, second: str) -> str:
    keys = [("support", "A", "labelled")]
    keys += [
        (kind, f"{mark} A", meaning.format(first=first, second=second))
        for kind, mark, meaning in KINDS.values()
        if kind
    ]
    shown = (
        f'<span class="key {kind}">{escape(text)}</span> {escape(meaning)}' for kind, text, meaning in keys
    )
    end = "Below an image that was taken for another class: that class (A). No frame: both right."
    return f'<p class="note">{" &emsp; ".join(shown)}<br>{end}</p>'


def example(heading: str, task: Example) -> str:
    """The samples of a task, one line for each class: support first, then the queries, wrong ones marked."""
    (first, before), (second, after) = task.predictions.items()
    queries = task.labels == QUERY
    scores = [
        f"{name} {100 * np.mean((found == task.truth)[queries]):.0f} %"
        for name, found in task.predictions.items()
    ]
    lines = []
    for k, name in enumerate(task.class_names):
        cells = []
        for i in np.flatnonzero(task.labels == k):
            cells.append(_cell(task.images[i], "support", name[:1], f"labelled {name}"))
        for i in np.flatnonzero(queries & (task.truth == k)):
            right = bool(before[i] == k), bool(after[i] == k)
            kind, mark, _ = KINDS[right]
            chosen = [task.class_names[found[i]] for found in (before, after)]
            text = "" if all(right) else f"{mark} {chosen[0 if right[1] else 1][:1]}"
            hint = f"{name}; {first}: {chosen[0]}; {second}: {chosen[1]}"
            cells.append(_cell(task.images[i], kind, text, hint))
        lines.append(f'<div class="row">{"".join(cells)}</div>')
    title = escape(f"{heading}: {', '.join(scores)}")
    return f'<div class="task"><h3>{title}</h3>\n' + "\n".join(lines) + "\n</div>"


def _cell(image: NDArray[np.uint8], kind: str, text: str, hint: str) -> str:
    picture = f'<img src="{data_uri(gray_png(255 - image))}" alt="">'  # dark ink on white paper
    return f'<div class="cell {kind}" title="{escape(hint)}">{picture}{escape(text)}</div>'
