"""The labelled rows of a pool, and proportions, from CSV files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tim_ext.files.label_files import read_proportions, read_support


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        "row,label\n3,b\n0,a\n5,b\n",
        "3,b\n0,a\n5,b",
        " 3 , b \n\n0,a\n,\n5,b\n\n",
        "row,label\r\n3,b\r\n0,a\r\n5,b\r\n",
        b"\xef\xbb\xbfRow,Label\n3,b\n0,a\n5,b\n",
        'note,label,row\nx,b,3\n,a,0\n"y,\nz",b,5\n',
        '3,"b"\n+0,a\n05,b\n',
    ],
)
def test_ways_to_write_the_labelled_rows(tmp_path, content):
    support = read_support(write(tmp_path / "a.csv", content), 6)
    assert support.rows.tolist() == [3, 0, 5]
    assert support.labels.tolist() == [1, 0, 1]
    assert support.class_names == ["a", "b"]


def test_order_of_classes(tmp_path):
    assert read_support(write(tmp_path / "a.csv", "0,10\n1,9\n2,-1\n"), 6).class_names == ["-1", "9", "10"]
    assert read_support(write(tmp_path / "a.csv", "0,10\n1,9\n2,x\n"), 6).class_names == ["10", "9", "x"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ": expected one labelled row or more, got none"),
        ("row,label\n", ": expected one labelled row or more, got none"),
        ("0,a\n1,b\n0,b\n", ", line 3: expected every row once, got row 0 again, after line 1"),
        ("0,a\n6,b\n", ", line 2: expected a row of the pool, 0 to 5, got 6"),
        ("0,a\n-1,b\n", ", line 2: expected a row of the pool, 0 to 5, got -1"),
        ("0,a\n1.0,b\n", ", line 2: expected a row number, got '1.0'"),
        ("id,name\n0,a\n", ", line 1: expected a row number, or a first line row,label, got 'id'"),
        ("row,label\n\n0,\n", ", line 3: expected a label of row 0, got none"),
        ("0\n1\n", ", line 1: expected two values row,label, got 1 in '0'"),
        ("row;label\n0;a\n", ", line 1: expected two values row,label, got 1 in 'row;label'"),
        ("0,a,x\n", ", line 1: expected two values row,label, got 3 in '0,a,x'"),
        ("0,a\n1,b,c\n", ", line 2: expected 2 values separated by commas, got 3"),
        (b"row,label\n0,a\n1,\xff\n", ", line 3: expected UTF-8, got the byte 0xff"),
        ("row,label\n0,a".encode("utf-16"), ", line 1: expected UTF-8, got the byte 0xff"),
        ("0,a\n1,b\0\n", ", line 2: expected "),
        ('0,a\n1,"b\n', ", line 2: expected CSV, got unexpected end of data"),
        ("99999999999999999999,a\n", ", line 1: expected a row number, .*got '99999999999999999999'"),
    ],
)
def test_refused_labelled_rows(tmp_path, content, message):
    path = write(tmp_path / "a.csv", content)
    pattern = message if ".*" in message else re.escape(message)
    with pytest.raises(ValueError, match=rf"\A{re.escape(str(path))}{pattern}[^\n]*\Z"):
        read_support(path, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,0.5\n", ": expected a share of every class, got none of 'b'"),
        ("a,0.5\nb,0.2\nc,0.3\n", ", line 3: expected a class out of 'a', 'b', got 'c'"),
        ("a,0.5\nb,0.2\na,0.3\n", ", line 3: expected every class once, got 'a' again"),
        ("a,half\nb,0.2\n", ", line 1: expected a share > 0 of 'a', got 'half'"),
    ],
)
def test_refused_proportions(tmp_path, content, message):
    path = write(tmp_path / "a.csv", content)
    with pytest.raises(ValueError, match=rf"\A{re.escape(f'{path}{message}')}\Z"):
        read_proportions(path, ["a", "b"])
    assert read_proportions(write(path, "b,0.2\na,0.8\n"), ["a", "b"]) == [0.8, 0.2]
