"""The table of an evaluation: text, CSV and JSON."""

from __future__ import annotations

import csv
import json
import os

import pytest
import torch
from torch import Tensor

import tim_ext
from tim_ext import tasks


def test_one_task_has_no_interval(pool):
    result = tim_ext.evaluate(*pool, shots=1, tasks=1)
    assert [row.accuracy_ci95 for row in result.rows] == [None, None]
    assert result.rows[1].difference_ci95 is None
    assert "+-" not in result.table()


def test_saved(pool, tmp_path):
    hyper = {"tim-adm": {"class_prior": torch.full((5,), 0.2)}}
    result = tim_ext.evaluate(*pool, hyper=hyper, tasks=20, seed=7)
    result.save(tmp_path / "a.csv", tmp_path / "a.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.json"]
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [row.accuracy for row in result.rows]
    assert rows[0]["difference"] == ""
    assert float(rows[1]["difference"]) == result.rows[1].difference

    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved == result.describe()
    assert saved["versions"]["tim_ext"] == tim_ext.__version__
    assert saved["versions"]["torch"] == torch.__version__
    assert saved["threads"] == torch.get_num_threads()
    assert saved["interrupted"] is False
    assert saved["data"]["samples"] == 480


def test_the_json_is_enough_to_repeat_it(pool, tmp_path):
    features, labels = pool
    sampler = tasks.dirichlet(labels, ways=4, queries=21, concentration=0.7, seed=9)
    result = tim_ext.evaluate(
        features,
        labels,
        sampler=sampler,
        methods=["a=tim-adm", "bd-cspn"],
        hyper={"a": {"alpha": 0.3}},
        tasks=25,
    )
    result.save(tmp_path / "a.csv", tmp_path / "a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    (setting,) = saved["settings"]
    kind = setting["sampler"].pop("kind")
    again = tim_ext.evaluate(
        features,
        labels,
        sampler={setting["name"]: getattr(tasks, kind)(labels, **setting["sampler"])},
        methods=[f"{label}={entry['method']}" for label, entry in setting["methods"].items()],
        hyper={label: entry["hyper_parameters"] for label, entry in setting["methods"].items()},
        tasks=saved["tasks"],
    )
    for one, other in zip(result.rows, again.rows, strict=True):
        assert (one.method, one.accuracy, one.difference) == (other.method, other.accuracy, other.difference)
    assert again.describe()["data"] == saved["data"]


def test_the_hash_is_of_the_data(pool):
    features, labels = pool

    def hashed(features: Tensor, labels: Tensor) -> str:
        return tim_ext.evaluate(features, labels, shots=1, tasks=1).describe()["data"]["sha256"]

    assert hashed(features, labels) == hashed(features.clone(), labels.clone())
    assert (
        len({hashed(features, labels), hashed(features, labels.flip(0)), hashed(features + 1e-6, labels)})
        == 3
    )


def test_a_failed_save_leaves_the_old_file(pool, tmp_path, monkeypatch):
    result = tim_ext.evaluate(*pool, tasks=2)
    (tmp_path / "a.csv").write_text("old")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        result.save(tmp_path / "a.csv", tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "old"


def test_table(pool):
    result = tim_ext.evaluate(*pool, methods=["prototype", "long name=tim-adm"], tasks=20)
    first, second = result.table().split("\n\n")
    heading, names, *lines = first.splitlines()
    assert heading == "5-way 1-shot, 20 tasks"
    assert second.startswith("5-way 5-shot, 20 tasks\n")
    assert names.split("  ")[0] == "method"
    assert "difference to prototype" in names
    assert len({len(line) for line in (names, *lines)}) == 1
    row = result.rows[1]
    assert f"{row.accuracy:.2f} +- {row.accuracy_ci95:.2f}" in lines[1]
    assert f"{row.difference:+.2f} +- {row.difference_ci95:.2f}" in lines[1]
