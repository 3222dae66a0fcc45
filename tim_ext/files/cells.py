"""Cells of CSV files.

A spreadsheet runs a cell that begins with = + - or @ as a formula, and a name of a class or of a file may
come from anyone. `spreadsheet_safe` writes an apostrophe before such a text: it is shown and not run. It is
not the default, as the text that is then read back is not the one that was written. Numbers stay as they are.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence

# also what a spreadsheet skips, or takes for the same, before it looks
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")

END = "\r\n"  # of a line, for the writer: it quotes cells that hold one of its characters

Cell = str | float | None  # None: an empty one


def as_csv(rows: Iterable[Sequence[Cell]], *, spreadsheet_safe: bool = False) -> str:
    lines = _Lines()
    writer = csv.writer(lines, lineterminator=END)
    writer.writerows(map(_harmless, row) if spreadsheet_safe else row for row in rows)
    return "".join(f"{line.removesuffix(END)}\n" for line in lines)


class _Lines(list[str]):
    write = list.append


def as_cell(text: str, *, spreadsheet_safe: bool = False) -> str:
    """One cell, with the quotes that it needs."""
    return as_csv([[text]], spreadsheet_safe=spreadsheet_safe).removesuffix("\n")


def _harmless(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
