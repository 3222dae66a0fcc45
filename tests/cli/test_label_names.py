"""`tim-ext label --class-vectors`: a pool labelled from vectors of its classes."""
# ruff: noqa: E501

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import tim_ext
from tim_ext.cli.main import main

NAMES = ["ant", "bee", "cow"]
TRUTH = np.repeat([0, 1, 2], [40, 5, 15])
MEANS = np.random.default_rng(0).standard_normal((3, 16))
POOL = (MEANS[TRUTH] + 3 + 0.7 * np.random.default_rng(1).standard_normal((60, 16))).astype(np.float32)
VECTORS = (MEANS - 2 + 0.2 * np.random.default_rng(2).standard_normal((3, 16))).astype(np.float32)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    np.save(tmp_path / "pool.npy", POOL)
    np.savez(tmp_path / "names.npz", text=VECTORS, class_names=NAMES)
    return ["label", str(tmp_path / "pool.npy"), "--class-vectors", str(tmp_path / "names.npz")]


def labels_of(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [line["label"] for line in csv.DictReader(file)]


@pytest.mark.parametrize("method", ["robust", "adm", "gd", "alpha-tim"])
def test_without_a_labelled_row(files, tmp_path, capsys, method):
    out = tmp_path / "out.csv"
    assert main([*files, "--method", method, "--out", str(out)]) == 0
    assert "names.npz: a vector of each class; rows and vectors are taken" in capsys.readouterr().out
    if method in ("robust", "adm"):
        solve = getattr(tim_ext, method)
        expected = solve(POOL, torch.full((60,), -1), class_vectors=VECTORS).predictions
        assert labels_of(out) == [NAMES[k] for k in expected]


def test_beside_labelled_rows_and_without_names(files, tmp_path):
    np.save(tmp_path / "names.npy", VECTORS)
    files[-1] = str(tmp_path / "names.npy")
    (tmp_path / "support.csv").write_text("3,0\n41,1\n")
    assert main([*files, "--support", str(tmp_path / "support.csv"), "--out", str(tmp_path / "out.csv")]) == 0
    labels = torch.full((60,), -1)
    labels[[3, 41]] = torch.tensor([0, 1])
    expected = tim_ext.robust(POOL, labels, class_vectors=VECTORS).predictions
    expected[[3, 41]] = torch.tensor([0, 1])
    assert labels_of(tmp_path / "out.csv") == [str(int(k)) for k in expected]


def test_refusals(files, tmp_path, capsys):
    (tmp_path / "support.csv").write_text("3,dog\n")
    np.savez(tmp_path / "twice.npz", text=VECTORS, class_names=["ant", "bee", "ant"])
    np.savez(tmp_path / "more.npz", text=VECTORS, class_names=[*NAMES, "dog"])
    np.savez(tmp_path / "wide.npz", text=VECTORS[:, 1:], class_names=NAMES)
    names, out = tmp_path / "names.npz", tmp_path / "out.csv"
    for options, message in [
        (["--support", str(tmp_path / "support.csv")], "line 1: expected a class out of 'ant', 'bee', 'cow', got 'dog'"),
        (["--class-vectors", str(tmp_path / "twice.npz")], "expected every class name once, got 'ant' again"),
        (["--class-vectors", str(tmp_path / "more.npz")], "expected 3 names, one of each vector, got 4"),
        (["--class-vectors", str(tmp_path / "wide.npz")], "class_vectors: expected shape [3, 16], a row for each class, got [3, 15]"),
        (["--out", str(names)], "--out: expected a file that is not read, got"),
    ]:  # fmt: skip
        assert main([*files, "--out", str(out), *options]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()
    assert main(["label", files[1], "--out", str(out)]) == 2
    assert "--support: expected labelled rows, or --class-vectors, got neither" in capsys.readouterr().err
