"""The worked examples run and show what the documents say they show."""

from __future__ import annotations

import importlib.util
import json
import re
import sys

import numpy as np
import pytest
import torch
from helpers.make_tasks import class_means
from helpers.paths import ROOT

from tim_ext.examples import digits


def test_digits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["digits", "--draws", "3"])
    digits.main()
    printed = capsys.readouterr().out
    assert "3 draws, 5 labels per class, 1747 unlabelled images" in printed
    prototype, tim = (float(percent) for percent in re.findall(r"([\d.]+) % right", printed))
    assert tim > prototype + 3


@pytest.mark.parametrize(
    "page",
    [
        "docs/gd.md",
        "docs/robust.md",
        "docs/outliers.md",
        "docs/samples.md",
        "docs/confidence.md",
        pytest.param("docs/estimator.md", marks=pytest.mark.slow),
        "docs/scale.md",
        "docs/steps.md",
        "README.md",
    ],
)
def test_the_python_of_a_page_runs(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if page == "docs/gd.md":
        assert names["loss"].item() < -1.5  # log 5 is 1.609


def benchmark(name: str):
    """benchmarks/NAME.py; it lies outside the package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_times_of_a_self_test_are_set_beside_the_predictions(run_python, tmp_path) -> None:
    report = tmp_path / "report.json"
    five = {"name": "adm", "shape": "5-way 5-shot", "tasks": 2160, "seconds": 3.6e-6}
    report.write_text(json.dumps({"versions": {"CUDA device": "cuda:0, a GPU"}, "times": [five]}))
    rows = run_python("-m", "benchmarks.gpu", "--report", str(report), where=ROOT).stdout.splitlines()
    assert rows[0].endswith("| cuda:0, a GPU (measured) |")
    assert {row.split(" | ")[-1] for row in rows if "| TIM-ADM | 5-way 5-shot |" in row} == {"3.6 us |"}
    assert all(row.endswith("|  |") for row in rows[2:12] if "TIM-ADM | 5-way 5-shot |" not in row)


def real_features():
    return benchmark("real_features")


def test_foreign(tmp_path, capsys, monkeypatch) -> None:
    files = []
    for name, d in (("a", 16), ("b", 16), ("c", 24)):
        classes = torch.arange(8 * 25) % 8
        noise = torch.randn(len(classes), d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
        features = class_means(8, d, torch.Generator().manual_seed(ord(name)))[classes] + 0.25 * noise
        np.savez(tmp_path / f"{name}.npz", features=features.numpy(), labels=classes.numpy())
        files.append(f"{name}={tmp_path}/{name}.npz")
    monkeypatch.setattr(sys, "argv", ["foreign", *files, "--tasks", "2", "--ways", "3"])
    benchmark("foreign").main()
    printed = capsys.readouterr().out
    aurocs = re.findall(
        r"^\| ([abc]) \| other (classes|set) \| [15] \|.* ([\d.]+) \| [+-]", printed, re.MULTILINE
    )
    assert [row[:2] for row in aurocs[::2]] == [
        ("a", "classes"), ("a", "set"), ("b", "classes"), ("b", "set"), ("c", "classes"),
    ]  # fmt: skip
    assert min(float(row[2]) for row in aurocs) > 70
    assert len(re.findall(r"^\| `(adm|robust)` \| (equal|Dirichlet) \| [15] \|", printed, re.MULTILINE)) == 8
    assert "\n| c | 24 | " in printed


def test_real_features(tmp_path, capsys, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(8 * 25) % 8
    noise = torch.randn(len(classes), 16, generator=generator, dtype=torch.float64)
    features = class_means(8, 16, generator)[classes] + 0.25 * noise
    np.savez(tmp_path / "some.npz", features=features.half().numpy(), labels=classes.short().numpy())
    options = ["--tasks", "6", "--iterations", "50", "--reference", "2"]
    monkeypatch.setattr(sys, "argv", ["real_features", str(tmp_path / "some.npz"), *options])
    real_features().main()
    printed = capsys.readouterr().out
    assert "some.npz: 200 samples, 8 classes, d = 16" in printed
    assert len(re.findall(r"5-way [15]-shot, 15 queries per class, 6 tasks", printed)) == 2
    for name in ("nearest prototype", "TIM-ADM", "TIM-GD", "reference, 2 tasks"):
        assert len(re.findall(rf"{name} +[\d.]+ % \+- [\d.]+", printed)) == 2
    assert printed.count("0.000 points from the reference") == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not there: give the path of an .npz file"),
        ({"x": np.zeros(3)}, "expected the keys features and labels, got x"),
        (
            {"features": np.zeros((9, 2)), "labels": np.zeros(9)},
            "expected 5 classes of 16 samples or more, got 0",
        ),
    ],
)
def test_real_features_says_what_is_missing(tmp_path, monkeypatch, content, message) -> None:
    if content is not None:
        np.savez(tmp_path / "some.npz", **content)
    monkeypatch.setattr(sys, "argv", ["real_features", str(tmp_path / "some.npz")])
    with pytest.raises(SystemExit, match=re.escape(message)):
        real_features().main()
