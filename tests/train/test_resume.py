"""A run that is killed and started again ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.paths import ROOT
from helpers.train_runs import arguments, start, write_arrays

from python_train import train
from tim_ext.files.tensors import read_tensors
from tim_ext.images import networks

KILLED = -signal.SIGKILL
TIMES = ("seconds", "images_per_second")
STEP = train.Run.step


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    process = start(arguments(data, out))
    process.join()
    assert process.exitcode == 0
    return out


def assert_same_run(out: Path, expected: Path) -> None:
    for name in ("last.safetensors", "best.safetensors"):
        tensors, description = read_tensors(out / name)
        wanted, wanted_description = read_tensors(expected / name)
        assert tensors.keys() == wanted.keys()
        for key, tensor in wanted.items():
            assert torch.equal(tensors[key], tensor), f"{name}: {key}"
        assert without_times(description) == without_times(wanted_description)
    assert any(key.startswith("momentum.") for key in read_tensors(out / "last.safetensors")[0])
    assert read_log(out) == read_log(expected)


def without_times(description: dict) -> dict:
    """Progress and the scale of mixed precision among it."""
    progress = description.get("progress", {"counts": {}, "rows": []})
    counts = progress["counts"] | {"seconds": 0}
    rows = [{name: row[name] for name in row if name not in TIMES} for row in progress["rows"]]
    return description | {"progress": progress | {"counts": counts, "rows": rows}}


def interrupt_at(monkeypatch, number: int) -> None:
    """Ctrl-C before this step."""

    def interrupted(self, *inputs):
        if self.progress.step == number:
            raise KeyboardInterrupt
        STEP(self, *inputs)

    monkeypatch.setattr(train.Run, "step", interrupted)


def read_log(out: Path) -> list[dict[str, str]]:
    with open(out / "log.csv", newline="") as file:
        return [{key: row[key] for key in row if key not in TIMES} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_sigkill_at_random_moments(data, uninterrupted, tmp_path):
    """Ten kills: some before the first checkpoint, some at a random moment after a new one."""
    out, moments = tmp_path / "out", random.Random(0)
    last = out / "last.safetensors"
    steps = set()
    for attempt in range(10):
        before = last.stat().st_ino if last.exists() else None
        process = start(arguments(data, out, "--checkpoint-every", "1"))
        while attempt % 3 and process.is_alive() and (not last.exists() or last.stat().st_ino == before):
            process.join(timeout=0.001)  # until a checkpoint is written
        process.join(timeout=moments.uniform(0, 0.03))
        process.kill()
        process.join()
        assert process.exitcode == KILLED
        if last.exists():
            steps.add(read_tensors(last)[1]["progress"]["counts"]["step"])
    assert len(steps) > 5
    assert max(steps) < 24
    process = start(arguments(data, out, "--checkpoint-every", "1"))
    process.join()
    assert process.exitcode == 0
    assert_same_run(out, uninterrupted)
    assert not list(out.glob(".*.tmp"))


@pytest.mark.parametrize("call", ["replace", pytest.param("fsync", marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_writing(data, uninterrupted, tmp_path, call):
    """At every 5th call by which a file is written, until there is none left."""
    out = tmp_path / "out"
    kills = 0
    for number in range(1, 200, 5):
        process = start(arguments(data, out, "--checkpoint-every", "2"), KILL_AT=f"{call} {number}")
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == KILLED
        kills += 1
    assert kills >= 3
    assert_same_run(out, uninterrupted)


def test_ctrl_c_changes_nothing(data, uninterrupted, tmp_path, monkeypatch):
    """Ctrl-C: exit code 130, and it goes on in this process as it does in another."""
    out = tmp_path / "out"
    interrupt_at(monkeypatch, 7)
    assert train.main(arguments(data, out)) == 130
    interrupt_at(monkeypatch, -1)
    assert train.main(arguments(data, out)) == 0
    assert_same_run(out, uninterrupted)
    assert train.main(arguments(data, out)) == 0  # finished: nothing to do


def test_a_checkpoint_within_an_epoch_holds_the_sums_of_the_log(data, tmp_path, uninterrupted, monkeypatch):
    out = tmp_path / "out"
    interrupt_at(monkeypatch, 5)
    assert train.main(arguments(data, out, "--checkpoint-every", "1")) == 130
    assert read_tensors(out / "last.safetensors")[1]["progress"]["counts"]["seen"] == 80
    interrupt_at(monkeypatch, -1)
    assert train.main(arguments(data, out)) == 0
    assert_same_run(out, uninterrupted)


@pytest.mark.parametrize(
    "length",
    [
        ["--episodic", "--iterations", "9", "--ways", "3", "--shots", "2", "--queries", "3"],
        ["--iterations", "8", "--batch-size", "40", "--validate-every", "3", "--amp", "bfloat16"],
        ["--epochs", "3", "--batch-size", "40", "--amp", "float16"],
        ["--epochs", "3", "--batch-size", "40", "--workers", "2"],
    ],
    ids=["episodic", "iterations-bfloat16", "float16", "workers"],
)
def test_other_modes_resume_exactly(data, tmp_path, monkeypatch, length):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train.main(arguments(data, whole, length=length)) == 0
    interrupt_at(monkeypatch, 4)
    assert train.main(arguments(data, parts, "--checkpoint-every", "1", length=length)) == 130
    interrupt_at(monkeypatch, -1)
    assert train.main(arguments(data, parts, length=length)) == 0
    assert_same_run(parts, whole)


def test_dropout_resumes_exactly(data, tmp_path, monkeypatch):
    """Random numbers of the network itself follow from the step."""

    class Dropping(nn.Sequential):
        dim = 10
        forward_features = nn.Sequential.forward

    def make(width, in_channels):
        return Dropping(nn.Flatten(), nn.Linear(16 * 16 * in_channels, 10), nn.ReLU(), nn.Dropout(0.5))

    monkeypatch.setitem(networks.ENCODERS, "dropping", (make, 1))
    length = ["--model", "dropping", "--iterations", "6", "--batch-size", "40", "--lr", "0.01"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train.main(arguments(data, whole, length=length)) == 0
    torch.rand(1000)  # whatever happened before
    interrupt_at(monkeypatch, 4)
    assert train.main(arguments(data, parts, "--checkpoint-every", "1", length=length)) == 130
    interrupt_at(monkeypatch, -1)
    assert train.main(arguments(data, parts, length=length)) == 0
    assert_same_run(parts, whole)


@pytest.mark.slow
def test_the_command_itself(data, uninterrupted, tmp_path):
    """`python -m python_train.train` as a user runs it, killed while it works."""
    out, moments = tmp_path / "out", random.Random(1)
    command = [sys.executable, "-m", "python_train.train", *arguments(data, out, "--checkpoint-every", "1")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    last = out / "last.safetensors"
    for _ in range(5):
        before = last.stat().st_ino if last.exists() else None
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        while process.poll() is None and (not last.exists() or last.stat().st_ino == before):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(0, 0.03))
        process.kill()
        assert process.wait() == KILLED
    assert subprocess.run(command, cwd=ROOT, env=environment).returncode == 0
    assert_same_run(out, uninterrupted)
