"""Files are whole or not there."""

from __future__ import annotations

import os

import pytest

from tim_ext.files import atomic
from tim_ext.files.atomic import open_draft, remove_leftovers, write_atomically


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_content(tmp_path, monkeypatch, call):
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def fail(*inputs):
        raise OSError("the disk is full")

    monkeypatch.setattr(atomic.os, call, fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_umask_is_respected(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_leftovers_are_removed(tmp_path):
    for name in ("last.safetensors", ".last.safetensors.x1.tmp", ".hidden", "a.tmp"):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "a.tmp", "last.safetensors"]


def test_text_and_streams(tmp_path):
    path = tmp_path / "deep" / "a"
    write_atomically(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    with open_draft(path) as file:
        file.write(b"one, ")
        file.write(b"two")
        assert path.read_bytes() == "é\n".encode()  # not before it is complete
    assert path.read_bytes() == b"one, two"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_stream_that_ends_early_leaves_nothing(tmp_path, error):
    def half() -> None:
        with open_draft(tmp_path / "a") as file:
            file.write(b"half of it")
            raise error

    with pytest.raises(error):
        half()
    assert os.listdir(tmp_path) == []


def test_text_that_has_no_bytes(tmp_path):
    write_atomically(tmp_path / "a", "first")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a", "\ud800")
    assert (tmp_path / "a").read_text() == "first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied", "the draft")

    monkeypatch.setattr(atomic.tempfile, "mkstemp", refuse)
    with pytest.raises(PermissionError) as refused:
        write_atomically(tmp_path / "a", b"")
    assert refused.value.filename == str(tmp_path / "a")
