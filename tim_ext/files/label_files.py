"""The few labelled rows of a pool, and proportions of classes, from CSV files; names from lines of text."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from ..errors import UserError, listed

WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class Support(NamedTuple):
    rows: Tensor  # [S]  int64
    labels: Tensor  # [S]  int64, numbers of classes
    class_names: list[str]  # [K]


def read_support(path: Path, total: int, known: Sequence[str] | None = None) -> Support:
    """Lines `row,label`: a row of the pool, 0 the first of `total`, and the name of its class.

    Classes are those known; or else numbered by their names in sorted order, as numbers if all of them are.
    """
    names: list[str] = []
    seen: dict[int, int] = {}  # row -> line
    for line, row_text, name in _lines(path, ("row", "label")):
        if not WHOLE.fullmatch(row_text):
            or_header = "" if seen else ", or a first line row,label"
            _refuse(path, line, f"a row number{or_header}", repr(row_text))
        row = int(row_text)
        if not 0 <= row < total:
            _refuse(path, line, f"a row of the pool, 0 to {total - 1}", str(row))
        if row in seen:
            _refuse(path, line, "every row once", f"row {row} again, after line {seen[row]}")
        if not name:
            _refuse(path, line, f"a label of row {row}", "none")
        if known is not None and name not in known:
            _refuse(path, line, f"a class out of {listed(known)}", repr(name))
        seen[row] = line
        names.append(name)
    if not names:
        raise ValueError(f"{path}: expected one labelled row or more, got none")
    class_names = sorted(set(names), key=_order(names)) if known is None else list(known)
    numbers = {name: number for number, name in enumerate(class_names)}
    return Support(torch.tensor(list(seen)), torch.tensor([numbers[name] for name in names]), class_names)


def _order(names: list[str]) -> Callable[[str], tuple[int, str]]:
    whole = all(WHOLE.fullmatch(name) for name in names)
    return lambda name: (int(name) if whole else 0, name)


def read_proportions(path: Path, class_names: Sequence[str]) -> list[float]:
    """Lines `label,proportion`, one for each class; counts do as well."""
    lines = _lines(path, ("label", "proportion"))
    shares = ((f"{path}, line {number}", name, share) for number, name, share in lines)
    return to_proportions(str(path), shares, class_names)


def to_proportions(
    source: str, shares: Iterable[tuple[str, str, str]], class_names: Sequence[str]
) -> list[float]:
    """Shares of sum 1, in the order of the classes, from (where it is written, name of a class, number)."""
    found: dict[str, float] = {}
    for where, name, text in shares:
        if name not in class_names:
            raise UserError(f"{where}: expected a class out of {listed(class_names)}, got {name!r}")
        if name in found:
            raise UserError(f"{where}: expected every class once, got {name!r} again")
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise UserError(f"{where}: expected a share > 0 of {name!r}, got {text!r}")
    missing = [name for name in class_names if name not in found]
    if missing:
        raise UserError(f"{source}: expected a share of every class, got none of {listed(missing)}")
    total = sum(found.values())
    return [found[name] / total for name in class_names]


def read_lines(path: Path) -> list[str]:
    """The lines that are not empty, without the spaces around them."""
    lines = [line.strip() for line in _read(path).splitlines()]
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            _refuse(path, number, "text", "a NUL character")
    return [line for line in lines if line]


def _lines(path: Path, columns: tuple[str, str]) -> Iterator[tuple[int, str, str]]:
    """Number of the line and two cells, of every line that is not empty.

    A first line that names both columns says where they are, and other columns are then left alone. Without
    one there are the two.
    """
    reader = csv.reader(io.StringIO(_read(path), newline=""), strict=True)
    places: tuple[int, int] | None = None
    width = 0
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not width:
                names, width = [cell.lower() for cell in cells], len(cells)
                if all(name in names for name in columns):
                    places = names.index(columns[0]), names.index(columns[1])
                    continue
                if width != 2:
                    text = ",".join(cells)
                    _refuse(
                        path, reader.line_num, f"two values {','.join(columns)}", f"{width} in {text[:60]!r}"
                    )
            if len(cells) != width:
                _refuse(path, reader.line_num, f"{width} values separated by commas", str(len(cells)))
            if "\0" in "".join(cells):
                _refuse(path, reader.line_num, "text", "a NUL character")
            first, second = places or (0, 1)
            yield reader.line_num, cells[first], cells[second]
    except csv.Error as error:
        _refuse(path, reader.line_num, "CSV", str(error))


def _read(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        _refuse(path, line, "UTF-8", f"the byte 0x{error.object[error.start]:02x}")


def _refuse(path: Path, line: int, expected: str, got: str) -> NoReturn:
    raise ValueError(f"{path}, line {line}: expected {expected}, got {got}")
