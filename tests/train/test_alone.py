"""Two trainings in one folder: the second is refused, and a killed one is no obstacle."""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.train_runs import arguments, start, start_together, write_arrays

from python_train import train
from tim_ext.files.tensors import read_tensors

LENGTH = ["--iterations", "6", "--batch-size", "40"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("data"))


def pause_at_step(number: int, folder: Path, options: list[str]) -> None:
    """A training that stops before this step, after a checkpoint, until the file `go` is there."""
    step = train.Run.step

    def pause(self, *inputs):
        if self.progress.step == number:
            (folder / "paused").write_text(str(os.getpid()))
            while not (folder / "go").exists():
                time.sleep(0.01)
        step(self, *inputs)

    train.Run.step = pause
    # workers as the command has them: forked, they end when they miss their parent; a server would keep them
    multiprocessing.set_start_method("fork", force=True)
    sys.exit(train.main(options))


def start_paused(number: int, folder: Path, options: list[str]):
    """The process, once it has paused."""
    process = multiprocessing.get_context("forkserver").Process(
        target=pause_at_step, args=(number, folder, options)
    )
    process.start()
    while process.is_alive() and not (folder / "paused").exists():
        time.sleep(0.01)
    assert process.is_alive()
    return process


def train_in_part(results: Any, options: list[str]) -> None:
    said = io.StringIO()
    with redirect_stderr(said):
        code = train.main(options)
    results.put((code, said.getvalue()))


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_second_training_in_the_folder_is_refused(data, tmp_path, size):
    """By all of its processes; it removes no draft of the first and changes no file."""
    out = tmp_path / "out"
    options = arguments(data, out, "--checkpoint-every", "1", length=LENGTH)
    first = start_paused(3, tmp_path, options)
    (out / ".last.safetensors.draft.tmp").touch()
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    results, processes = start_together(train_in_part, size, options)
    refusal = (
        f"train: --out: expected an output that no other run is writing, got {out}, which "
        f"process {first.pid} on {socket.gethostname()} is writing\n"
    )
    assert [results.get(timeout=100) for _ in processes] == [(2, refusal)] * size
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    (tmp_path / "go").touch()
    first.join()
    assert first.exitcode == 0
    assert read_tensors(out / "last.safetensors")[1]["progress"]["counts"]["step"] == 6
    assert not (out / ".lock").exists()


def is_running(process: int) -> bool:
    """Whether it is there, and not only its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_a_training_that_was_killed_is_no_obstacle(data, tmp_path, workers):
    """Nor are its workers, which were forked and live on for a while. Drafts that it left are removed."""
    out = tmp_path / "out"
    options = arguments(data, out, "--checkpoint-every", "1", "--workers", workers, length=LENGTH)
    killed = start_paused(3, tmp_path, options)
    (out / ".last.safetensors.draft.tmp").touch()
    killed.kill()
    while is_running(killed.pid):  # not join: that waits for the workers, too
        time.sleep(0.01)
    assert (out / ".lock").exists()
    again = start(options)
    again.join()
    assert again.exitcode == 0
    assert read_tensors(out / "last.safetensors")[1]["progress"]["counts"]["step"] == 6
    assert not list(out.glob(".*"))
