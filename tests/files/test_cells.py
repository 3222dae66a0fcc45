"""Cells of CSV files, and what a spreadsheet would run."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tim_ext.files.cells import as_cell, as_csv

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_text_is_read_back_as_it_was(rows: list[tuple[str, str]]) -> None:
    """A line of one empty cell would be an empty line: there are two."""
    assert list(csv.reader(io.StringIO(as_csv(rows), newline=""))) == [list(row) for row in rows]
    for first, second in rows:
        line = f"{as_cell(first)},{as_cell(second)}\n"
        assert list(csv.reader(io.StringIO(line, newline=""))) == [[first, second]]


@given(TEXT)
def test_a_safe_cell_is_the_text_or_an_apostrophe_and_the_text(text: str) -> None:
    ((cell, _),) = csv.reader(io.StringIO(as_csv([(text, "")], spreadsheet_safe=True), newline=""))
    assert cell in (text, f"'{text}")
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_formulas(text: str) -> None:
    assert as_csv([[text, "a=b", -1.5, None]], spreadsheet_safe=True).endswith(",a=b,-1.5,\n")
    assert as_cell(text, spreadsheet_safe=True).strip('"') == f"'{text}"
    assert as_cell(text).strip('"') == text
