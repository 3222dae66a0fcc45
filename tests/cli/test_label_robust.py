"""`tim-ext label --method robust`, the default: all rows compared with each other, in one process or more."""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task
from helpers.train_runs import start_together

import tim_ext
from tim_ext.cli import label as cli_label
from tim_ext.cli.main import main
from tim_ext.distributed import labelling, smoothing

TASK = make_task(5, [3] * 4, 200, d=24, noise=1.0)
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def arguments(tmp_path) -> list[str]:
    np.save(tmp_path / "pool.npy", TASK.features.numpy())
    labels = TASK.labels.tolist()
    lines = [f"{row},{NAMES[label]}\n" for row, label in enumerate(labels) if label >= 0]
    (tmp_path / "support.csv").write_text("".join(lines))
    files = [str(tmp_path / "pool.npy"), "--support", str(tmp_path / "support.csv")]
    return ["label", *files, "--out", str(tmp_path / "out.csv"), "--set", "smoothing=0.4"]


def assert_labels_of_the_solver(out: Path) -> None:
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    outputs = ("predictions", "confidence")
    found = tim_ext.robust(TASK.features, TASK.labels, smoothing=0.4, outputs=outputs)
    queries = [row for row, label in enumerate(TASK.labels.tolist()) if label < 0]
    assert [rows[row]["label"] for row in queries] == [NAMES[found.predictions[row]] for row in queries]
    got = [float(rows[row]["confidence"]) for row in queries]
    np.testing.assert_allclose(got, found.confidence[queries], atol=1e-6)


def test_labels_are_those_of_the_solver(arguments, tmp_path):
    assert main(arguments) == 0
    assert_labels_of_the_solver(tmp_path / "out.csv")


@pytest.fixture
def dominated(tmp_path) -> list[str]:
    """One class has nearly all rows."""
    kept = (TASK.labels >= 0) | (TASK.truth == 2) | (torch.arange(len(TASK.labels)) % 12 == 0)
    np.save(tmp_path / "pool.npy", TASK.features[kept].numpy())
    labels = TASK.labels[kept].tolist()
    lines = [f"{row},{NAMES[label]}\n" for row, label in enumerate(labels) if label >= 0]
    (tmp_path / "support.csv").write_text("".join(lines))
    files = [str(tmp_path / "pool.npy"), "--support", str(tmp_path / "support.csv")]
    return ["label", *files, "--out", str(tmp_path / "out.npz")]


def test_proportions_are_compared_with_the_nearest_prototype(dominated, tmp_path, capsys):
    """By count: what adm makes equal, and the nearest prototype and robust do not."""
    assert main([*dominated, "--method", "adm", "--iterations", "0"]) == 0
    assert "proportions differ" not in capsys.readouterr().out
    nearest = np.bincount(np.load(tmp_path / "out.npz")["labels"])
    assert main(dominated) == 0
    assert "proportions differ" not in capsys.readouterr().out
    assert main([*dominated, "--method", "adm"]) == 0
    found = np.bincount(np.load(tmp_path / "out.npz")["labels"])
    moved, total = abs(found - nearest).sum() // 2, found.sum()
    _, _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith(f"by {moved} of {total} rows ({moved / total:.0%}):")
    assert f"most left 'c' ({nearest[2]} -> {found[2]}); look at them, or give --method robust, or" in second
    assert main([*dominated, "--method", "adm", "--class-prior", "a=1", "b=1", "c=1", "d=1"]) == 0
    assert capsys.readouterr().out.splitlines()[3].endswith("; look at them")


def without_the_solver(monkeypatch):
    """Of tasks in memory: calling it fails."""
    preset = labelling.PRESETS["robust"]._replace(solve=None)
    monkeypatch.setitem(labelling.PRESETS, "robust", preset)


@pytest.mark.parametrize("fits_twice", [True, False])
def test_rows_are_named_and_no_confidence_of_no_row(arguments, tmp_path, monkeypatch, capsys, fits_twice):
    if not fits_twice:
        without_the_solver(monkeypatch)
        monkeypatch.setattr(labelling, "available_memory", lambda: 0)
    features = TASK.features.numpy().copy()
    features[7, 2] = np.nan
    np.save(tmp_path / "pool.npy", features)
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith("got NaN or Inf in row 7\n")
    np.save(tmp_path / "pool.npy", TASK.features[TASK.labels >= 0].numpy())
    (tmp_path / "support.csv").write_text("".join(f"{row},{NAMES[row % 4]}\n" for row in range(12)))
    assert main(arguments) == 0
    assert "confidence" not in capsys.readouterr().out


def test_a_pool_that_memory_holds_once(arguments, tmp_path, monkeypatch, capsys):
    """Not twice, as the solver of tasks in memory needs it; and one that it does not hold."""
    memory = 500_000  # bytes; 212 rows of 24 numbers and 4 probabilities, twice, are 94,976
    without_the_solver(monkeypatch)
    monkeypatch.setattr(labelling, "available_memory", lambda: 90_000)
    monkeypatch.setattr("tim_ext.files.memory.available_memory", lambda: memory)
    assert main(arguments) == 0
    assert_labels_of_the_solver(tmp_path / "out.csv")
    memory = 200_000
    assert main(arguments) == 2
    text = (
        "--method: expected adm, gd or alpha-tim for this pool, got robust, "
        "which holds it in memory: expected at most"
    )
    assert text in capsys.readouterr().err


def test_what_it_cannot_compare_is_refused(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smoothing, "MOST_COMPARED", 211)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "tim-ext label: smoothing: expected at most 211 samples, each of which is compared"
    )
    assert said.endswith("smoothing=0 has no limit (tim-ext label: --method adm)\n")
    assert not (tmp_path / "out.csv").exists()


def in_part(results: Any, arguments: list[str], interrupted: bool) -> None:
    """In one of the processes: exit code and errors. Ctrl-C in the second while neighbours are looked for."""

    @contextmanager
    def bar_of(total, processes):
        def show(what: str, rows: int) -> None:
            if interrupted and what == "neighbours" and processes.rank == 1:
                os.kill(os.getpid(), signal.SIGINT)

        yield show

    cli_label.bar_of = bar_of
    with redirect_stderr(io.StringIO()) as said:
        code = main(arguments)
    results.put((code, said.getvalue()))


def test_two_processes_name_the_row(arguments, tmp_path):
    features = TASK.features.numpy().copy()
    features[150, 2] = np.nan
    np.save(tmp_path / "pool.npy", features)
    results, processes = start_together(in_part, 2, arguments, False)
    codes, said = zip(*[results.get(timeout=100) for _ in processes], strict=True)
    assert codes == (2, 2)
    assert "".join(said).endswith("got NaN or Inf in row 150\n")  # the first process says it


@pytest.mark.parametrize("interrupted", [False, True])
def test_two_processes(arguments, tmp_path, interrupted):
    results, processes = start_together(in_part, 2, arguments, interrupted)
    told = [results.get(timeout=100) for _ in processes]
    assert [code for code, _ in told] == [130 if interrupted else 0] * 2, told
    if interrupted:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["pool.npy", "support.csv"]
    else:
        assert_labels_of_the_solver(tmp_path / "out.csv")
