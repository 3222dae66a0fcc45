"""`tim-ext label --method robust`, the default: one process, all rows compared with each other."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from helpers.make_tasks import make_task
from helpers.train_runs import start_together

import tim_ext
from tim_ext.cli.main import main
from tim_ext.distributed import labelling

TASK = make_task(5, [3] * 4, 200, d=24, noise=1.0)
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def arguments(tmp_path) -> list[str]:
    np.save(tmp_path / "pool.npy", TASK.features.numpy())
    labels = TASK.labels.tolist()
    lines = [f"{row},{NAMES[label]}\n" for row, label in enumerate(labels) if label >= 0]
    (tmp_path / "support.csv").write_text("".join(lines))
    files = [str(tmp_path / "pool.npy"), "--support", str(tmp_path / "support.csv")]
    return ["label", *files, "--out", str(tmp_path / "out.csv")]


def test_labels_are_those_of_the_solver(arguments, tmp_path):
    assert main([*arguments, "--set", "smoothing=0.4"]) == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = tim_ext.robust(TASK.features, TASK.labels, smoothing=0.4)
    queries = [row for row, label in enumerate(TASK.labels.tolist()) if label < 0]
    assert [rows[row]["label"] for row in queries] == [NAMES[found.predictions[row]] for row in queries]
    got = [float(rows[row]["confidence"]) for row in queries]
    np.testing.assert_allclose(got, found.probs[queries].max(dim=1).values, atol=1e-6)


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


def test_rows_are_named_and_no_confidence_of_no_row(arguments, tmp_path, capsys):
    features = TASK.features.numpy().copy()
    features[7, 2] = np.nan
    np.save(tmp_path / "pool.npy", features)
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith("got NaN or Inf in row 7\n")
    np.save(tmp_path / "pool.npy", TASK.features[TASK.labels >= 0].numpy())
    (tmp_path / "support.csv").write_text("".join(f"{row},{NAMES[row % 4]}\n" for row in range(12)))
    assert main(arguments) == 0
    assert "confidence" not in capsys.readouterr().out


def test_what_it_cannot_compare_is_refused(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(labelling, "MOST_COMPARED", 211)
    assert main(arguments) == 2
    text = "--method: expected adm or gd for 212 rows, got robust, which compares every row with every other"
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def code_of(results, arguments) -> None:
    results.put(main(arguments))


def test_several_processes_are_refused(arguments, tmp_path):
    results, processes = start_together(code_of, 2, arguments)
    assert [results.get(timeout=100) for _ in processes] == [2, 2]
    assert not (tmp_path / "out.csv").exists()
