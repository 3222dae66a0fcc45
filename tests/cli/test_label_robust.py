"""`tim-ext label --method robust`, the default: one process, all rows compared with each other."""

from __future__ import annotations

import csv

import numpy as np
import pytest
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
