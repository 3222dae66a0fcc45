"""One run at a time for one output, however the one before it ended."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tim_ext.errors import UserError
from tim_ext.files import lock
from tim_ext.files.lock import only_run


def hold(out: Path, kind: str, held: Connection) -> None:
    """Until the other end of `held` is closed."""
    with only_run("--out", out):
        child = os.fork() if kind == "with a child" else None
        if child == 0:
            held.poll(None)  # outlives its parent
            os._exit(0)
        held.send(child)
        held.poll(None)


@contextmanager
def another_process(out: Path, kind: str = "alone"):
    """A process that holds the lock of `out` until the connection is closed."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(out, kind, there))
    process.start()
    there.close()
    here.recv()
    yield process, here
    here.close()
    process.join()


def assert_refused(out: Path, process: int) -> None:
    expected = (
        f"--out: expected an output that no other run is writing, got {out}, which "
        f"process {process} on {socket.gethostname()} is writing"
    )
    with pytest.raises(UserError, match=f"^{re.escape(expected)}$"), only_run("--out", out):
        pass


@pytest.mark.parametrize("kind", ["file", "new file", "folder"])
def test_a_second_process_is_refused_and_told_of_the_first(tmp_path, kind):
    out = tmp_path / "out.csv"
    if kind != "new file":
        out.mkdir() if kind == "folder" else out.write_text("old")
    before = sorted(tmp_path.rglob("*"))
    with another_process(out) as (first, held):
        for _ in range(2):  # a refusal leaves the lock where it is
            assert_refused(out, first.pid)
        held.close()
        first.join()
        assert first.exitcode == 0
    assert sorted(tmp_path.rglob("*")) == before
    with only_run("--out", out):
        pass
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["alone", "with a child"])
def test_sigkill_ends_the_lock(tmp_path, kind):
    """Also where a child that was forked lives on, as the workers of a loader do for a while."""
    out = tmp_path / "out.csv"
    with another_process(out, kind) as (first, _):
        first.kill()
        first.join()
        assert [path.name for path in tmp_path.iterdir()] == [".out.csv.lock"]
        with only_run("--out", out):
            assert_refused(out, os.getpid())  # and no word of the one before
    assert not list(tmp_path.iterdir())


def test_links_and_other_names_of_one_output(tmp_path):
    (tmp_path / "there").mkdir()
    out, link = tmp_path / "there" / "out.csv", tmp_path / "link.csv"
    link.symlink_to(out)
    with only_run("--out", link):
        assert_refused(out, os.getpid())
        assert_refused(tmp_path / "there" / ".." / "there" / "out.csv", os.getpid())
        with only_run("--out", tmp_path / "there" / "out.csv.npz"):
            pass


def test_the_lock_ends_with_the_block_whatever_ended_it(tmp_path):
    with pytest.raises(KeyboardInterrupt), only_run("--out", tmp_path / "a"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    assert not lock._held


def test_a_file_that_is_removed_between_opening_and_locking(tmp_path, monkeypatch):
    """The lock is then on a file without a name, which keeps nobody away: it is taken again."""
    path, flock, calls = tmp_path / ".a.lock", lock.fcntl.flock, []

    def remove_first(handle, how):
        calls.append(handle)
        if len(calls) <= 2:  # first gone, then another one of the same name
            path.unlink()
            if len(calls) == 2:
                path.write_text("")
        flock(handle, how)

    monkeypatch.setattr(lock.fcntl, "flock", remove_first)
    with only_run("--out", tmp_path / "a"):
        assert len(calls) == 3
        assert_refused(tmp_path / "a", os.getpid())


def test_a_folder_that_cannot_be_written_to(tmp_path):
    with pytest.raises(FileNotFoundError) as refused, only_run("--out", tmp_path / "none" / "a"):
        pass
    assert refused.value.filename == str(tmp_path / "none" / "a")


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with only_run("--out", tmp_path / "a"):
        pass
    said = capsys.readouterr().err
    assert said == (
        f"tim_ext: {tmp_path}: its file system has no locks (No locks available): "
        "nothing keeps a second run from the same output\n"
    )
    assert not list(tmp_path.iterdir())


ROUNDS = 150


def add_up(out: Path) -> None:
    """Adds 1 to the number in a file, again and again, each time alone with it; tries until it gets it."""
    left = ROUNDS
    while left:
        try:
            with only_run("--out", out):
                out.write_text(str(int(out.read_text()) + 1))
        except UserError:
            continue
        left -= 1


def test_many_take_turns(tmp_path, monkeypatch):
    """No addition is lost: nobody is there with another, though the lock file comes and goes each time. The
    kernel keeps apart who opened the file, so that threads meet there as processes do."""
    monkeypatch.setattr(lock, "SETTLE", 0.0)  # who it is does not matter
    out = tmp_path / "number"
    out.write_text("0")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_up, [out] * 4))
    assert out.read_text() == str(4 * ROUNDS)
    assert [path.name for path in tmp_path.iterdir()] == ["number"]
    assert not lock._held
