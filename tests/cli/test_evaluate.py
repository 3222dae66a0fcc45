"""`tim-ext evaluate`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tim_ext
from tim_ext import tasks
from tim_ext.cli.main import main
from tim_ext.evaluation import tuning
from tim_ext.evaluation.methods import METHODS, Method
from tim_ext.solver.result import Result

# tim-ext evaluate ---------------------------------------------------------------------------------

CLASSES, D = 12, 16


@pytest.fixture(scope="module")
def pool() -> dict[str, np.ndarray]:
    """480 samples of 12 classes that overlap."""
    rng = np.random.default_rng(0)
    labels = np.arange(40 * CLASSES) % CLASSES
    features = rng.uniform(size=(CLASSES, D))[labels] + 0.3 * rng.standard_normal((len(labels), D))
    return {"features": features.astype(np.float32), "labels": labels}


@pytest.fixture
def file(pool, tmp_path) -> str:
    np.savez(tmp_path / "pool.npz", **pool)
    return str(tmp_path / "pool.npz")


def saved(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "evaluation.json").read_text())


def test_evaluate(file, pool, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    arguments = ["evaluate", file, "--methods", "prototype", "tim-adm", "--shots", "1", "5", "--tasks", "30"]
    assert main([*arguments, "--ways", "4", "--queries", "10", "--seed", "3", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    expected = tim_ext.evaluate(**pool, ways=4, queries=10, seed=3, tasks=30)
    report = saved(out)
    for row, other in zip(report["rows"], expected.rows, strict=True):
        assert {**row, "seconds_per_task": 0} == {**asdict(other), "seconds_per_task": 0}
    with (out / "evaluation.csv").open() as lines:
        assert [float(row["accuracy"]) for row in csv.DictReader(lines)] == [
            r.accuracy for r in expected.rows
        ]
    assert report["command"][:3] == ["tim-ext", "evaluate", file]
    assert report["data"]["path"] == file
    assert report["data"]["classes"] == CLASSES
    assert report["data"]["sha256"] == expected.describe()["data"]["sha256"]
    assert "pool.npz: 480 samples of 12 classes, d = 16\n" in captured.out
    for row in expected.rows:
        assert f"{row.accuracy:.2f} +- {row.accuracy_ci95:.2f}" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("options", "make"),
    [
        (["--dirichlet", "--queries", "20"], lambda y: tasks.dirichlet(y, queries=20)),
        (
            ["--dirichlet", "0.5", "--queries", "20"],
            lambda y: tasks.dirichlet(y, queries=20, concentration=0.5),
        ),
        (
            ["--sampler", "dirichlet:0.5", "--queries", "20"],
            lambda y: tasks.dirichlet(y, queries=20, concentration=0.5),
        ),
        (["--sampler", "few-classes:3", "--ways", "6"], lambda y: tasks.few_classes(y, ways=6, present=3)),
        (["--sampler", "zipf", "--queries", "20"], lambda y: tasks.zipf(y, queries=20)),
        (
            ["--sampler", "dominant:0.7", "--queries", "20"],
            lambda y: tasks.dominant(y, queries=20, share=0.7),
        ),
        (["--sampler", "whole-pool"], lambda y: tasks.whole_pool(y)),
        (["--sampler", "meta-dataset"], lambda y: tasks.meta_dataset(y)),
        (["--present", "3", "--ways", "6"], lambda y: tasks.few_classes(y, ways=6, present=3)),
        (["--seed", "4"], lambda y: tasks.balanced(y, seed=4)),
    ],
)
def test_evaluate_on_other_tasks(file, pool, options, make, tmp_path):
    shots = [] if "meta-dataset" in options else ["--shots", "1"]
    assert main(["evaluate", file, *shots, "--tasks", "20", "--out", str(tmp_path), *options]) == 0
    expected = tim_ext.evaluate(**pool, sampler=make(pool["labels"]), tasks=20)
    assert [row["accuracy"] for row in saved(tmp_path)["rows"]] == [row.accuracy for row in expected.rows]
    assert saved(tmp_path)["settings"][0]["sampler"] == make(pool["labels"]).describe()


def test_every_kind_and_number_of_shots_makes_a_setting(file, capsys):
    kinds = ["balanced", "zipf:2", "dominant"]
    arguments = ["--shots", "1", "2", "--queries", "12", "--tasks", "2"]
    assert main(["evaluate", file, "--sampler", *kinds, *arguments]) == 0
    names = re.findall(r"^(.*), 2 tasks$", capsys.readouterr().out, flags=re.MULTILINE)
    ends = ["", ", Zipf 2", ", one class with 50 %"]
    assert names == [f"5-way {shots}-shot{end}" for end in ends for shots in (1, 2)]


@pytest.mark.parametrize("option", [None, "hierarchy", "superclasses"])
def test_evaluate_on_random_tasks(pool, option, tmp_path):
    names = [f"class {k:02}" for k in range(CLASSES)]
    np.savez(tmp_path / "pool.npz", **pool, class_names=names)
    groups = {"left": names[:6], "right": names[6:]}
    if option == "hierarchy":
        groups["root"] = ["left", "right"]
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    arguments = [
        "evaluate",
        str(tmp_path / "pool.npz"),
        "--meta-dataset",
        "--tasks",
        "20",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments + ([f"--{option}", str(tmp_path / "groups.json")] if option else [])) == 0
    given = {option: groups, "class_names": names} if option else {}
    sampler = tasks.meta_dataset(pool["labels"], **given)
    expected = tim_ext.evaluate(**pool, sampler=sampler, tasks=20)
    assert [row["accuracy"] for row in saved(tmp_path)["rows"]] == [row.accuracy for row in expected.rows]


def test_evaluate_sets_hyper_parameters(file, tmp_path):
    values = [
        "tim-adm.temperature=7.5",
        "tim-adm.iterations=20",
        "tim-adm.normalize=false",
        "tim-adm.form=primal",
        "tim-adm.class_prior=0.4,0.3,0.1,0.1,0.1",
        "mine.betas=0.8,0.99",
        "mine.class_prior=oracle",
    ]
    methods = ["--methods", "tim-adm", "mine=tim-gd"]
    options = [
        "--tasks",
        "5",
        "--shots",
        "1",
        "--set",
        *values[:3],
        "--set",
        *values[3:],
        "--out",
        str(tmp_path),
    ]
    assert main(["evaluate", file, *methods, *options]) == 0
    chosen = saved(tmp_path)["settings"][0]["methods"]
    assert chosen["mine"]["method"] == "tim-gd"
    assert chosen["mine"]["hyper_parameters"]["betas"] == [0.8, 0.99]
    assert chosen["mine"]["hyper_parameters"]["class_prior"] == "oracle"
    assert (
        chosen["tim-adm"]["hyper_parameters"].items()
        >= {
            "temperature": 7.5,
            "iterations": 20,
            "normalize": False,
            "form": "primal",
            "class_prior": [0.4, 0.3, 0.1, 0.1, 0.1],
            "alpha": 0.1,
        }.items()
    )


@pytest.mark.parametrize("kind", ["vector", "array", "features"])
def test_evaluate_with_a_base_mean(file, pool, kind, tmp_path, capsys):
    base = pool["features"][:50].astype(np.float64)
    if kind == "features":
        np.savez(tmp_path / "base.npz", features=base, labels=np.zeros(50, dtype=int))
    else:
        np.save(tmp_path / "base.npy", base.mean(axis=0) if kind == "vector" else base)
    path = tmp_path / ("base.npz" if kind == "features" else "base.npy")
    options = ["--methods", "simpleshot", "--tasks", "50", "--shots", "1", "--out", str(tmp_path)]
    assert main(["evaluate", file, "--base-mean", str(path), *options]) == 0
    assert "no --base-mean" not in capsys.readouterr().out
    expected = tim_ext.evaluate(
        **pool, base_mean=base.mean(axis=0), methods=["simpleshot"], shots=1, tasks=50
    )
    assert saved(tmp_path)["rows"][0]["accuracy"] == expected.rows[0].accuracy
    assert main(["evaluate", file, *options]) == 0
    assert "simpleshot: transform=l2, as there is no --base-mean" in capsys.readouterr().out
    assert saved(tmp_path)["rows"][0]["accuracy"] != expected.rows[0].accuracy


def test_evaluate_tunes_on_other_classes_of_the_file(file, pool, tmp_path, capsys):
    options = [
        "--tune",
        "--validation-tasks",
        "10",
        "--validation-share",
        "0.5",
        "--set",
        "tim-adm.iterations=30",
    ]
    assert main(["evaluate", file, *options, "--tasks", "10", "--seed", "2", "--out", str(tmp_path)]) == 0
    validation, test = tuning.split_classes(pool["labels"], 0.5, seed=2)
    for shots, setting in zip((1, 5), saved(tmp_path)["settings"], strict=True):
        sampler = tasks.balanced(validation, shots=shots, seed=2)
        expected = tuning.tune(
            pool["features"],
            validation,
            sampler,
            methods=["tim-adm"],
            tasks=10,
            hyper={"tim-adm": {"iterations": 30}},
        )
        found = setting["methods"]["tim-adm"]["hyper_parameters"]
        assert found.items() >= expected.hyper["tim-adm"].items()
        assert found["iterations"] == 30
        assert setting["tuning"]["trials"] == expected.trials
        assert setting["tuning"]["classes"] == sorted(set(validation.tolist()) - {-1})
    assert saved(tmp_path)["data"]["classes"] == 6
    out = capsys.readouterr().out
    assert "240 samples of 6 classes" in out
    assert f"tim-adm: temperature={found['temperature']}, alpha={found['alpha']}" in out
    sampler = tasks.balanced(test, shots=5, seed=2)
    again = tim_ext.evaluate(
        pool["features"], test, sampler=sampler, methods=["tim-adm"], hyper={"tim-adm": found}, tasks=10
    )
    assert saved(tmp_path)["rows"][3]["accuracy"] == again.rows[0].accuracy


def test_evaluate_tunes_on_another_file(file, pool, tmp_path):
    np.savez(tmp_path / "other.npz", features=pool["features"][::-1] + 0.1, labels=pool["labels"])
    options = [
        "--tune",
        "--validation",
        str(tmp_path / "other.npz"),
        "--validation-tasks",
        "5",
        "--tasks",
        "5",
    ]
    assert main(["evaluate", file, *options, "--out", str(tmp_path)]) == 0
    setting = saved(tmp_path)["settings"][0]
    assert setting["tuning"]["path"] == str(tmp_path / "other.npz")
    assert len(setting["tuning"]["trials"]["tim-adm"]) == 8
    assert saved(tmp_path)["data"]["classes"] == CLASSES


def test_evaluate_reports_what_ctrl_c_left(file, tmp_path, monkeypatch, capsys):
    calls = []

    def method(features: Any, labels: Any, *, index: Any, outputs: Any) -> Result:
        calls.append(labels)
        if len(calls) == 2 + 2:  # two settings to warm up, then the second chunk
            os.kill(os.getpid(), signal.SIGINT)
        return Result(None, torch.zeros_like(labels), None, torch.zeros(len(labels)))

    monkeypatch.setitem(METHODS, "stops", Method("stops", method))
    arguments = ["evaluate", file, "--methods", "tim-adm", "stops", "--set", "tim-adm.iterations=5"]
    assert main([*arguments, "--tasks", "1000", "--out", str(tmp_path)]) == 130
    captured = capsys.readouterr()
    assert "5-way 1-shot, 256 of 1000 tasks" in captured.out
    assert captured.err == "tim-ext evaluate: interrupted, the table holds what was done\n"
    assert saved(tmp_path)["interrupted"] is True
    assert [row["tasks"] for row in saved(tmp_path)["rows"]] == [256, 256]


def test_evaluate_interrupted_at_once(file, tmp_path, monkeypatch, capsys):
    def method(features: Any, labels: Any, *, index: Any, outputs: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setitem(METHODS, "stops", Method("stops", method))
    assert main(["evaluate", file, "--methods", "stops", "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr() == ("", "tim-ext evaluate: interrupted\n")
    assert not list((tmp_path / "out").iterdir())


def test_evaluate_draws(file, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    directory = tmp_path / "plots"
    options = ["--tasks", "5", "--shots", "1", "--ways", "2", "--set", "tim-adm.iterations=5"]
    assert main(["evaluate", file, *options, "--plots", str(directory)]) == 0
    out, files = capsys.readouterr().out, list(directory.iterdir())
    assert (directory / "accuracy.png") in files
    assert all(str(path) in out for path in files)


def test_evaluate_threads(file, set_threads):
    before = torch.get_num_threads()
    assert main(["evaluate", file, "--tasks", "2", "--threads", str(before + 1)]) == 0
    assert torch.get_num_threads() == before + 1
    set_threads(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "tim-amd"], r"methods: expected names out of prototype, .*, got 'tim-amd'"),
        (["--set", "tim-adm.tau=1"], r"tim-adm: expected hyper-parameters out of normalize, .*, got 'tau'"),
        (["--set", "tim-adm.solver=dual"], r"tim-adm: expected form, the new name of solver, got 'solver'"),
        (["--set", "tim-adm.alpha=high"], r"tim-adm.alpha: expected a number, got 'high'"),
        (["--set", "tim-adm.iterations=1.5"], r"tim-adm.iterations: expected an integer, got '1.5'"),
        (["--set", "tim-adm.normalize=1"], r"tim-adm.normalize: expected true or false, got '1'"),
        (["--set", "tim-adm.class_prior=a,b"], r"tim-adm.class_prior: expected numbers .*, got 'a,b'"),
        (
            ["--set", "tim-adm.temperature=-1"],
            r"tim-adm: temperature: expected a finite number > 0, got -1.0",
        ),
        (["--set", "tim-gd.alpha=1"], r"--set: expected a method out of prototype, tim-adm, got 'tim-gd'"),
        (["--set", "alpha=1"], r"--set: expected METHOD.NAME=VALUE, got 'alpha=1'"),
        (["--ways", "13"], r"ways: expected at most 12, .*, got 13"),
        (["--ways", "7", "--tune"], r"test classes: ways: expected at most 6, .*, got 7"),
        (
            ["--ways", "6", "--tune", "--validation-share", "0.3"],
            r"validation classes: ways: expected at most 4, .*",
        ),
        (["--queries", "40"], r"labels: class 0 has 40 samples, 1 shot \+ 40 queries need 41.*"),
        (["--shots", "0"], r"shots: expected an integer >= 1, got 0"),
        (["--shots", "5", "5"], r"shots: expected different numbers, got 5-way 5-shot twice"),
        (["--tasks", "0"], r"tasks: expected an integer >= 1, got 0"),
        (["--seed", "-1"], r"seed: expected an integer >= 0, got -1"),
        (["--threads", "0"], r"--threads: expected an integer >= 1, got 0"),
        (["--memory", "0"], r"memory: expected a number of bytes >= 1, got 0"),
        (["--present", "9"], r"present: expected at most ways=5, got 9"),
        (["--dirichlet", "0"], r"concentration: expected a finite number > 0, got 0.0"),
        (["--meta-dataset", "--ways", "5"], r"--ways: expected no such option with --meta-dataset, .*"),
        (
            ["--sampler", "whole-pool", "--queries", "5"],
            r"--queries: expected no such option with --sampler whole-pool, .*",
        ),
        (
            ["--sampler", "uniform"],
            r"--sampler: expected kinds out of balanced, .*, meta-dataset, got 'uniform'",
        ),
        (["--sampler", "zipf:steep"], r"--sampler: expected zipf:EXPONENT, a number, got 'zipf:steep'"),
        (
            ["--sampler", "few-classes"],
            r"--sampler: expected few-classes:PRESENT, an integer, got 'few-classes'",
        ),
        (["--sampler", "balanced:2"], r"--sampler: expected balanced without a number, got 'balanced:2'"),
        (["--sampler", "dominant:1.5"], r"share: expected a number from 1/ways = 0.2 to 1, got 1.5"),
        (["--hierarchy", "tree.json"], r"--hierarchy: expected --meta-dataset with it"),
        (["--meta-dataset", "--hierarchy", "none.json"], r"No such file or directory: none.json"),
        (["--meta-dataset", "--hierarchy", "{file}"], r"--hierarchy: expected JSON in .*"),
        (["--validation", "{file}"], r"--validation: expected --tune with it"),
        (["--validation-tasks", "5"], r"--validation-tasks: expected --tune with it"),
        (
            ["--tune", "--validation", "{file}"],
            r"--validation: expected other classes than in .*, got the same file",
        ),
        (
            ["--tune", "--validation", "{file}", "--validation-share", "0.5"],
            r"--validation-share: expected no such.*",
        ),
        (
            ["--tune", "--validation-share", "1"],
            r"--validation-share: expected a number between 0 and 1, got 1.0",
        ),
        (["--base-mean", "none.npy"], r"none.npy: no such file"),
        (["--base-mean", "none.npz"], r"none.npz: no such file"),
        (["--out", "{file}"], r"--out: expected a folder, got .*pool.npz, which is none"),
        (["--spreadsheet-safe"], r"--spreadsheet-safe: expected --out with it"),
        (["--features-key", "z"], r".*pool.npz: expected features under features_key='z', got the keys .*"),
    ],
)
def test_evaluate_refuses_in_one_line(file, options, message, capsys):
    options = [option.replace("{file}", file) for option in options]
    assert main(["evaluate", file, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"tim-ext evaluate: {message}\n", captured.err), captured.err


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("none.npz", None, r".*none.npz: no such file"),
        ("pool.txt", {}, r".*pool.txt: expected a file of type .*, got .txt"),
        ("pool.npz", {"labels": np.zeros(3, dtype=int)}, r".*labels.* to match features, got int64 \[3\]"),
        (
            "pool.npz",
            {"features": np.full((480, D), np.nan)},
            r".*: expected finite features, got NaN or Inf in row 0",
        ),
        ("pool.npz", {"features": np.zeros(480)}, r".*: expected shape \[M, d\].*"),
        ("pool.npz", {"features": np.zeros((480, D), dtype=int)}, r".*: expected float32, .*"),
        ("pool.npz", {"labels": np.zeros(480, dtype=int)}, r"ways: expected at most 1, .*, got 5"),
    ],
)
def test_evaluate_refuses_files_in_one_line(pool, name, change, message, tmp_path, capsys):
    if change is not None:
        with (tmp_path / name).open("wb") as file:
            np.savez(file, **{**pool, **change})
    assert main(["evaluate", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"tim-ext evaluate: {message}\n", captured.err), captured.err


def test_evaluate_refuses_a_pickle(tmp_path, capsys):
    torch.save({"features": torch.zeros(4, 2), "labels": Path("x")}, tmp_path / "pool.pt")
    assert main(["evaluate", str(tmp_path / "pool.pt")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "weights-only" in captured.err


@pytest.mark.parametrize(
    "options", [[], ["{file}", "--memory", "much"], ["{file}", "--dirichlet", "--present", "2"]]
)
def test_evaluate_refuses_options_in_one_line(file, options, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *(option.replace("{file}", file) for option in options)])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tim-ext evaluate: ")
    assert captured.err.count("\n") == 1
