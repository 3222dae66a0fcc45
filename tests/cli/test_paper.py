"""`tim-ext paper`: the tables from files of features, and what the command refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.feature_files import write_clusters

from tim_ext import evaluate
from tim_ext.cli import paper as command
from tim_ext.cli.main import main
from tim_ext.evaluation import paper
from tim_ext.evaluation.paper_tables import (
    DASH,
    TABLES,
)

QUICK = ["tim-gd.iterations=3", "tim-adm.iterations=5", "baseline.iterations=2", "baseline++.iterations=2"]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clusters(tmp_path_factory.mktemp("features"))


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    options = parser.parse_args(["paper", *arguments])
    options.command = ["tim-ext", "paper", *arguments]
    return int(options.run(options))


def test_settings_that_the_features_do_not_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ten.npz"
    labels = np.arange(250) % 10
    np.savez(path, features=np.random.default_rng(0).normal(size=(250, 8)), labels=labels)
    assert run(f"ten={path}", "--tables", "ways", "--tasks", "2", "--set", *QUICK) == 0
    text = capsys.readouterr().out
    assert "ten, 20-way 1-shot: not measured (ways: expected at most 10" in text
    (line,) = (line for line in text.splitlines() if line.startswith("TIM-ADM"))
    *_, ten_1, ten_5, twenty_1, twenty_5 = line.split()
    assert twenty_1 == twenty_5 == DASH
    assert min(float(ten_1), float(ten_5)) > 0


def test_datasets_of_the_paper_must_allow_their_tables(tmp_path: Path) -> None:
    path = tmp_path / "ten.npz"
    np.savez(path, features=np.ones((250, 8)), labels=np.arange(250) % 10)
    with pytest.raises(ValueError, match="mini, 20-way 1-shot: ways: expected at most 10"):
        run(f"mini={path}", "--tables", "ways", "--tasks", "2", "--set", *QUICK)


def test_without_features_the_published_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    text = capsys.readouterr().out
    for table in TABLES:
        assert table.title in text
    assert "here:" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("TIM-ADM") and "1.2e-01" in line)
    assert line.split() == ["TIM-ADM", "{W}", "yes", "1.2e-01", "-"]
    assert max(map(len, text.splitlines())) < 180
    assert text.isascii()


def test_a_file_is_measured_in_all_tables(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "paper.json"
    assert run(str(features), "--tasks", "2", "--set", *QUICK, "--out", str(out)) == 0
    text = capsys.readouterr().out
    assert text.count("here: 2 tasks") == len(TABLES)
    assert "small: SimpleShot with L2N" in text
    assert f"not with the hyper-parameters of the paper: {', '.join(QUICK)}" in text
    report = json.loads(out.read_text())
    assert [table["name"] for table in report["tables"]] == [table.name for table in TABLES]
    (line,) = (
        line
        for line in report["tables"][0]["lines"]
        if line["heads"]["Method"] == "TIM-GD" and line["heads"]["Backbone"] == "own"
    )
    assert [cell["measured"] is None for cell in line["cells"]] == 6 * [True] + 2 * [False]
    assert all(cell["published"] is None for cell in line["cells"])
    settings = {setting["name"] for evaluation in report["evaluations"] for setting in evaluation["settings"]}
    assert settings == {
        "5-way 1-shot",
        "5-way 5-shot",
        "10-way 1-shot",
        "10-way 5-shot",
        "20-way 1-shot",
        "20-way 5-shot",
        "random tasks",
    }
    (gd,) = {
        evaluation["settings"][0]["methods"]["tim-gd"]["hyper_parameters"]["iterations"]
        for evaluation in report["evaluations"]
    }
    assert gd == 3
    assert report["command"][:2] == ["tim-ext", "paper"]


def test_base_mean(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean = tmp_path / "mean.npy"
    np.save(mean, np.full(16, 0.5, dtype=np.float32))
    arguments = [f"mini-cub={features}", "--tables", "domain-shift", "--tasks", "20", "--set", *QUICK]
    shown = []
    for option in ([], ["--base-mean", f"mini-cub={mean}"]):
        assert run(*arguments, *option) == 0
        text = capsys.readouterr().out
        assert ("L2N" in text) == (not option)
        (line,) = (line for line in text.splitlines() if line.startswith("SimpleShot"))
        shown.append(line)
    assert shown[0] != shown[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["mini={file}", "mini={file}"],
            "FEATURES: expected each dataset and backbone once, got mini:ResNet-18",
        ),
        (["a:x={file}", "a:y={file}"], "FEATURES: expected each dataset and backbone once, got a twice"),
        (
            ["mini={file}", "--base-mean", "cub={file}"],
            "--base-mean: expected a dataset of FEATURES .mini., got",
        ),
        (["mini={file}", "--hierarchy", "{file}"], "--hierarchy: expected DATASET=FILE, got"),
        (["mini={file}", "--set", "protonet.x=1"], "--set: expected a method out of simpleshot, baseline"),
        (["mini={file}", "--tasks", "0"], "--tasks: expected an integer >= 1, got 0"),
        (["mini={file}", "--threads", "0"], "--threads: expected an integer >= 1, got 0"),
        (
            ["mini={file}", "--set", "tim-adm.beta=-1", "--tables", "ways"],
            "beta: expected a finite number > 0",
        ),
    ],
)
def test_bad_input(features: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(*(argument.format(file=features) for argument in arguments))


def test_bad_input_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "mini=nowhere.npz"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tim-ext paper: ")
    assert captured.err.count("\n") == 1
    assert "nowhere.npz" in captured.err


def test_ctrl_c_keeps_what_is_done(
    features: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def stop(*arguments: Any, **options: Any) -> Any:
        calls.append(options["sampler"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments, **options)

    monkeypatch.setattr(paper, "evaluate", stop)
    assert run(f"mini={features}", "--tables", "ways", "--tasks", "2", "--set", *QUICK) == 130
    captured = capsys.readouterr()
    assert "interrupted, the tables hold what was done" in captured.err
    (line,) = (line for line in captured.out.splitlines() if line.startswith("TIM-ADM"))
    assert line.split()[2] != DASH  # 10-way 1-shot
    assert line.split()[4::2] == 3 * [DASH]
    calls[:] = [{}]  # at once, with nothing to show
    with pytest.raises(KeyboardInterrupt):
        run(f"mini={features}", "--tables", "ways", "--tasks", "2")
