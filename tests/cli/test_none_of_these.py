"""`tim-ext label --none-of-these` and `tim-ext predict --none-of-these`: samples of none of the classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.drawings import read_csv, run_predict, write_folders

import tim_ext
from tim_ext.cli.main import main
from tim_ext.distributed.labelling import _is_whole
from tim_ext.images import labelling

NAMES = ["ant", "bee", "cow"]
SHARES = [20, 15, 15, 30]  # the last are of none
TRUTH = np.repeat([0, 1, 2, 3], SHARES)
MEANS = 2 * np.random.default_rng(0).standard_normal((4, 16))
POOL = (MEANS[TRUTH] + np.random.default_rng(1).standard_normal((80, 16))).astype(np.float32)
KNOWN = {0: "ant", 1: "ant", 20: "bee", 21: "bee", 35: "cow", 36: "cow"}
LABELS = torch.full((80,), -1)
LABELS[list(KNOWN)] = torch.tensor([0, 0, 1, 1, 2, 2])


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    np.save(tmp_path / "pool.npy", POOL)
    (tmp_path / "support.csv").write_text("".join(f"{row},{name}\n" for row, name in KNOWN.items()))
    return [
        "label",
        str(tmp_path / "pool.npy"),
        "--support",
        str(tmp_path / "support.csv"),
        "--out",
        str(tmp_path / "out.csv"),
    ]


def rows_of(files: list[str]) -> list[dict[str, str]]:
    with Path(files[5]).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("method", ["robust", "adm", "gd", "alpha-tim"])
def test_rows_of_none_get_a_label_of_their_own(files, capsys, method):
    assert main([*files, "--none-of-these", "--method", method]) == 0
    rows = rows_of(files)
    none = np.array([row["label"] == "none of these" for row in rows])
    assert none[TRUTH == 3].mean() > 0.9
    assert none[TRUTH < 3].mean() < 0.1
    for row, k in enumerate(TRUTH):
        if not none[row] and k < 3:
            assert rows[row]["label"] == NAMES[k]
    found = tim_ext.robust(POOL, LABELS, outputs=["outlier"]).outlier
    np.testing.assert_array_equal(none, (found >= 0.5).numpy())
    for row in np.flatnonzero(none):
        assert float(rows[row]["confidence"]) == pytest.approx(float(found[row]), abs=1e-6)
    out = capsys.readouterr().out
    assert f"none of these {none.sum()} ({none.mean():.1%})" in out
    assert "look as if" not in out


def test_what_is_left_is_solved_without_them(files):
    assert main([*files, "--none-of-these", "0.7"]) == 0
    asked = ["predictions", "outlier", "confidence"]
    expected = tim_ext.robust(POOL, LABELS, sample_weight="auto", outputs=asked)
    for row, (k, sure) in enumerate(zip(expected.predictions, expected.confidence, strict=True)):
        if row not in KNOWN and expected.outlier[row] < 0.7:
            assert rows_of(files)[row]["label"] == NAMES[k]
            assert float(rows_of(files)[row]["confidence"]) == pytest.approx(float(sure), abs=1e-6)


def test_npz_has_the_name(files, tmp_path):
    files[5] = str(tmp_path / "out.npz")
    assert main([*files, "--none-of-these"]) == 0
    with np.load(files[5]) as found:
        assert found["class_names"].tolist() == [*NAMES, "none of these"]
        assert (found["labels"][TRUTH == 3] == 3).mean() > 0.9


def test_without_the_option_a_line_says_so(files, capsys):
    assert main(files) == 0
    expected = tim_ext.robust(POOL, LABELS)
    assert [row["label"] for row in rows_of(files)] == [NAMES[k] for k in expected.predictions]
    out = capsys.readouterr().out
    assert "of 74 rows (" in out
    assert "look as if they were of none of the classes; --none-of-these sets them apart" in out


def test_and_not_where_all_are_of_the_classes(files, tmp_path, capsys):
    np.save(tmp_path / "pool.npy", POOL[TRUTH < 3])
    assert main(files) == 0
    assert "none of the classes" not in capsys.readouterr().out


@pytest.mark.parametrize("value", ["0", "1.5", "nan", "much"])
def test_thresholds(files, capsys, value):
    with pytest.raises(SystemExit):
        main([*files, "--none-of-these", value])
    assert f"expected a number > 0 and <= 1, got '{value}'" in capsys.readouterr().err


def test_names_that_cannot_be(files, tmp_path, capsys):
    (tmp_path / "support.csv").write_text("0,none of these\n20,bee\n")
    assert main([*files, "--none-of-these"]) == 2
    assert 'expected no class called "none of these", got one' in capsys.readouterr().err
    assert main(files) == 0  # a name like any other
    (tmp_path / "support.csv").write_text("0,ant\n")
    assert main([*files, "--none-of-these"]) == 2
    assert "--none-of-these: expected two classes or more, got one" in capsys.readouterr().err
    assert main(files) == 0


def test_several_processes_and_too_large_pools():
    from tim_ext.distributed.labelling import Job
    from tim_ext.distributed.processes import Processes
    from tim_ext.files.label_files import Support

    def job(rows: int) -> Job:
        pool = torch.zeros(1).expand(rows, 64)
        support = Support(torch.tensor([0, 1]), torch.tensor([0, 1]), ["a", "b"])
        return Job(pool, support, Path("x.csv"), "adm", {}, 0, none_of_these=0.5)

    one, two = Processes(0, 1, None), Processes(0, 2, None)
    assert _is_whole(job(100), one)
    with pytest.raises(ValueError, match="--none-of-these: expected one process, got 2"):
        _is_whole(job(100), two)
    with pytest.raises(ValueError, match=r"--none-of-these: expected at most 250,000 rows, .* got 250,001"):
        _is_whole(job(250_001), one)


# Images -------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path):
    from PIL import Image

    path = write_folders(tmp_path)
    for i in range(9):  # of no class: noise
        pixels = np.random.default_rng(i).integers(0, 255, (32, 32))
        Image.fromarray(pixels.astype(np.uint8)).save(path / "query" / "day0" / f"x{i}.png")
    return path


def test_images_of_none_are_a_group(folders, capsys, monkeypatch):
    pytest.importorskip("safetensors")
    scores = torch.linspace(0.01, 0.3, 24)
    scores[-9:] = torch.linspace(0.6, 0.9, 9)  # query/day0/x*, once sorted by path
    monkeypatch.setattr(labelling, "find_outliers", lambda known, labels, found, vectors=None: order(scores))

    def order(values):
        paths = sorted(p.relative_to(folders / "query") for p in (folders / "query").rglob("*.png"))
        foreign = [p.name.startswith("x") for p in paths]
        ranks = iter(values[:15]), iter(values[15:])
        return torch.tensor([float(next(ranks[is_foreign])) for is_foreign in foreign])

    assert run_predict(folders, out="plain") == 0
    assert "9 of 24 images (38%) look as if they were of none of the classes" in capsys.readouterr().out
    assert "none of these" not in {row["class"] for row in read_csv(folders, out="plain")}
    assert run_predict(folders, "--none-of-these") == 0
    rows = read_csv(folders)
    for row in rows:
        foreign = Path(row["path"]).name.startswith("x")
        assert (row["class"] == "none of these") == foreign
        if foreign:
            assert row["second_class"] in ("rings", "stripes", "zigzag")
            assert 0.6 <= float(row["confidence"]) <= 0.9
    out = capsys.readouterr().out
    assert "look as if" not in out
    line = next(line for line in out.splitlines() if line.startswith("none of these"))
    assert line.split()[3:6] == ["0", "9", "37.5"]
    page = (folders / "out" / "contact_sheet.html").read_text()
    assert "<h2>none of these: 9 images</h2>" in page
    assert "outlier score of 0.5 or more" in page
    assert run_predict(folders, "--none-of-these", "0.95") == 0
    assert "none of these" not in {row["class"] for row in read_csv(folders)}


def test_weights_of_images(folders, monkeypatch):
    pytest.importorskip("safetensors")
    given = []
    solve = labelling.solve
    monkeypatch.setattr(
        labelling,
        "solve",
        lambda method, known, labels, found, hyper, *more, **options: (
            given.append(hyper) or solve(method, known, labels, found, hyper, *more, **options)
        ),
    )
    assert run_predict(folders, "--none-of-these") == 0
    assert given[-1]["sample_weight"] == "auto"
    given.clear()
    assert run_predict(folders) == 0
    assert not any("sample_weight" in hyper for hyper in given)


def test_a_folder_of_that_name(folders, capsys):
    pytest.importorskip("safetensors")
    (folders / "support" / "rings").rename(folders / "support" / "none of these")
    assert run_predict(folders, "--none-of-these") == 2
    assert 'expected no class called "none of these"' in capsys.readouterr().err
    assert run_predict(folders) == 0
