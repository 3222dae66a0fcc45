"""No command writes over what it reads, or formulas into a spreadsheet unless they are wanted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.feature_files import write_clusters

from tim_ext.cli.main import main


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(folder: Path, capsys, *arguments: object) -> str:
    """The line it refuses with; everything in the folder is as it was."""
    before = contents(folder)
    assert main(list(map(str, arguments))) == 2
    assert contents(folder) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.rstrip().removeprefix(f"tim-ext {arguments[0]}: ")


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_clusters(tmp_path)


def test_label(pool: Path, tmp_path: Path, capsys) -> None:
    support, prior = tmp_path / "support.csv", tmp_path / "prior.csv"
    support.write_text("".join(f"{row},{row}\n" for row in range(21)))
    prior.write_text("".join(f"{row},1\n" for row in range(21)))
    given = ["label", pool, "--support", support, "--class-prior", prior, "--out"]
    link = tmp_path / "link.csv"
    link.symlink_to("support.csv")
    for out, name in ((pool, "POOL"), (support, "--support"), (link, "--support"), (prior, "--class-prior")):
        text = f"--out: expected a file that is not read, got {out}, "
        assert refused(tmp_path, capsys, *given, out).startswith(text)
        assert refused(tmp_path, capsys, *given, out).endswith(name)
    assert refused(tmp_path, capsys, *given, tmp_path / "support.csv" / "a.csv").startswith(
        "--out: expected a"
    )


def test_label_writes_through_a_link(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "support.csv").write_text("".join(f"{row},{row}\n" for row in range(21)))
    (tmp_path / "store").mkdir()
    link = tmp_path / "latest.csv"
    link.symlink_to(Path("store", "run.csv"))
    given = ["label", str(pool), "--support", str(tmp_path / "support.csv"), "--iterations", "1"]
    assert main([*given, "--out", str(link)]) == 0
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["run.csv"]
    assert len(link.read_text().splitlines()) == 526


def test_evaluate(pool: Path, tmp_path: Path, capsys) -> None:
    groups = tmp_path / "evaluation.json"  # a result of another run, say
    groups.write_text(json.dumps({"all": list(range(21))}))
    given = ["evaluate", pool, "--meta-dataset", "--tasks", 2]
    message = refused(tmp_path, capsys, *given, "--superclasses", groups, "--out", tmp_path)
    assert message.endswith(f"got {groups}, the same file as --superclasses")
    (tmp_path / "accuracy.png").symlink_to(pool)
    pytest.importorskip("matplotlib")
    message = refused(tmp_path, capsys, *given, "--plots", tmp_path)
    file = tmp_path / "accuracy.png"
    assert message == f"--plots: expected a file that is not read, got {file}, the same file as FEATURES"
    assert refused(tmp_path, capsys, *given, "--out", pool).startswith("--out: expected a folder, got ")


def test_paper(pool: Path, tmp_path: Path, capsys) -> None:
    tree, mean = tmp_path / "tree.json", tmp_path / "mean.npy"
    tree.write_text(json.dumps({"all": list(range(21))}))
    np.save(mean, np.zeros(16))
    given = ["paper", f"own={pool}", "--hierarchy", f"own={tree}", "--base-mean", f"own={mean}", "--out"]
    for out, name in ((pool, "FEATURES"), (tree, "--hierarchy"), (mean, "--base-mean")):
        assert refused(tmp_path, capsys, *given, out).endswith(f"got {out}, a file of {name}")
    assert (
        refused(tmp_path, capsys, *given, tmp_path) == f"--out: expected a file, got the directory {tmp_path}"
    )


def test_predict(tmp_path: Path, capsys) -> None:
    pytest.importorskip("PIL.Image")
    pytest.importorskip("safetensors")
    from helpers.drawings import write_folders

    write_folders(tmp_path)
    support, query = tmp_path / "support", tmp_path / "query"
    given = ["predict", "--support", support, "--query", query, "--encoder", "glyphs", "--out"]
    for out, name in ((support, "--support"), (query, "--query")):
        text = f"--out: expected a folder that is not read, got {out}, which is {name}"
        assert refused(tmp_path, capsys, *given, out) == text
    text = f"--out: expected a folder outside --support, got {support / 'new'} in {support}"
    assert refused(tmp_path, capsys, *given, support / "new") == text
    out = tmp_path / "out"
    out.mkdir()
    (out / "skipped.csv").symlink_to(sorted(query.rglob("*.png"))[3])
    assert refused(tmp_path, capsys, *given, out).endswith(f"got {out / 'skipped.csv'}, a file of --query")
    (out / "skipped.csv").unlink()
    (out / "predictions.csv").mkdir()
    text = f"--out: expected a file, got the directory {out / 'predictions.csv'}"
    assert refused(tmp_path, capsys, *given, out) == text


def test_demo(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "report.html").mkdir()
    text = f"--out: expected a file, got the directory {tmp_path / 'report.html'}"
    assert refused(tmp_path, capsys, "demo", "--out", tmp_path) == text
    (tmp_path / "file").write_text("")
    text = f"--out: expected a folder, got {tmp_path / 'file'}, which is none"
    assert refused(tmp_path, capsys, "demo", "--out", tmp_path / "file") == text


def test_training_and_extraction(tmp_path: Path, capsys) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("tqdm")
    from helpers.train_runs import arguments, write_arrays

    from python_train import extract, train

    data = write_arrays(tmp_path / "data")
    (tmp_path / "link").symlink_to(data)
    assert train.main(arguments(data, tmp_path / "link")) == 2
    text = (
        f"train: --out: expected a folder that is not read, got {tmp_path / 'link'}, which is --data-root\n"
    )
    assert capsys.readouterr().err == text
    checkpoint = tmp_path / "best.safetensors"
    checkpoint.write_bytes(b"weeks of work")
    given = ["--dataset", "npz", "--data-root", str(data), "--checkpoint", str(checkpoint)]
    assert extract.main([*given, "--out", str(checkpoint)]) == 2
    text = (
        f"extract: --out: expected a file that is not read, got {checkpoint}, the same file as --checkpoint\n"
    )
    assert capsys.readouterr().err == text
    assert checkpoint.read_bytes() == b"weeks of work"


# Cells that a spreadsheet would run ---------------------------------------------------------------


def cells_of(path: Path, column: str) -> set[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row[column] for row in csv.DictReader(file)}


def test_labels_in_a_spreadsheet(pool: Path, tmp_path: Path) -> None:
    """As they were given, unless it is asked for."""
    names = ["=1+1", "@a", "-3", "b=c"]
    (tmp_path / "support.csv").write_text("".join(f"{row},{name}\n" for row, name in enumerate(names)))
    given = ["label", str(pool), "--support", str(tmp_path / "support.csv"), "--iterations", "1", "--out"]
    assert main([*given, str(tmp_path / "out.csv")]) == 0
    assert cells_of(tmp_path / "out.csv", "label") == set(names)
    assert main([*given, str(tmp_path / "safe.csv"), "--spreadsheet-safe"]) == 0
    assert cells_of(tmp_path / "safe.csv", "label") == {"'=1+1", "'@a", "'-3", "b=c"}


def test_names_of_methods_in_a_spreadsheet(pool: Path, tmp_path: Path) -> None:
    given = ["evaluate", str(pool), "--methods", "@a=prototype", "b=tim-adm", "--tasks", "3", "--shots", "1"]
    for options, names in (([], {"@a", "b"}), (["--spreadsheet-safe"], {"'@a", "b"})):
        assert main([*given, "--out", str(tmp_path), *options]) == 0
        assert cells_of(tmp_path / "evaluation.csv", "method") == names
        assert not any(cell.startswith("'") for cell in cells_of(tmp_path / "evaluation.csv", "difference"))


def test_names_of_images_in_a_spreadsheet(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    pytest.importorskip("safetensors")
    from helpers.drawings import run_predict, write_folders

    write_folders(tmp_path)
    (tmp_path / "support" / "rings").rename(tmp_path / "support" / "=rings")
    (tmp_path / "query" / "day0").rename(tmp_path / "query" / "+day0")
    assert run_predict(tmp_path) == 0
    assert {"=rings", "stripes", "zigzag"} == cells_of(tmp_path / "out" / "predictions.csv", "class")
    assert run_predict(tmp_path, "--spreadsheet-safe") == 0
    assert {"'=rings", "stripes", "zigzag"} == cells_of(tmp_path / "out" / "predictions.csv", "class")
    starts = {path[:5] for path in cells_of(tmp_path / "out" / "predictions.csv", "path")}
    assert starts == {"'+day", "day1/"}
