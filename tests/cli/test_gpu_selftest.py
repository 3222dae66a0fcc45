"""`tim-ext gpu-selftest`: what it prints and writes, and its exit code."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import selftest_devices as devices
from helpers.backends import Backend
from helpers.selftest_devices import Emulation

import tim_ext
from tim_ext.cli import gpu_selftest
from tim_ext.cli.main import main
from tim_ext.selftest.cases import Solve, cases
from tim_ext.selftest.device import Gpu
from tim_ext.solver import native

CPU = Backend()


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for failure, reason in (
        ("torch 2.13.0 is not a CUDA build", "torch 2.13.0 is not a CUDA build"),
        (None, "torch finds no CUDA device; does nvidia-smi?"),
    ):
        monkeypatch.setattr(native, "cuda_failure", failure)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert main(["gpu-selftest"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"tim-ext gpu-selftest: expected a GPU to test, got none: {reason}\n"
    assert list(tmp_path.iterdir()) == []


def test_without_the_native_library_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(native, "cpu_failure", "it is missing")
    assert main(["gpu-selftest"]) == 2
    assert capsys.readouterr().err == "tim-ext gpu-selftest: it is missing\n"


@pytest.mark.parametrize("index", [-1, 2])
def test_a_device_that_is_not_there(monkeypatch, capsys, index):
    monkeypatch.setattr(native, "cuda_failure", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert main(["gpu-selftest", "--device", str(index)]) == 2
    assert capsys.readouterr().err == f"tim-ext gpu-selftest: --device: expected 0 to 1, got {index}\n"


def run(monkeypatch, device, *arguments: str) -> int:
    monkeypatch.setattr(gpu_selftest, "open_device", lambda index: device)
    return main(["gpu-selftest", "--quick", "--parts", "kernels", "devices", *arguments])


def test_a_report_of_what_passed(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "for" / "the issue"
    assert run(monkeypatch, Emulation(CPU), "--out", str(folder)) == 0
    captured = capsys.readouterr()
    assert captured.err == "kernels ...\ndevices ...\n"
    assert captured.out.splitlines()[-2:] == [
        "passed",
        f"report: {folder / 'report.json'}, {folder / 'report.txt'}",
    ]
    data = json.loads((folder / "report.json").read_text())
    assert data["passed"] is True
    assert data["command"][:2] == ["tim-ext", "gpu-selftest"]
    assert data["versions"]["tim_ext"] == tim_ext.__version__
    assert data["versions"]["CUDA device"] == "emulated"
    assert {row["state"] for row in data["findings"]} == {"passed", "skipped"}
    text = (folder / "report.txt").read_text()
    assert text.startswith("tim-ext gpu-selftest --quick")
    assert text.endswith("passed\n")
    assert sorted(path.name for path in folder.iterdir()) == ["report.json", "report.txt"]


def test_a_wrong_result_is_exit_code_1(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, devices.WrongSmoothing(CPU), "--out", str(tmp_path)) == 1
    assert "failed: kernels, robust, " not in capsys.readouterr().out  # it has its smoothing from the preset
    data = json.loads((tmp_path / "report.json").read_text())
    failed = [row for row in data["findings"] if row["state"] == "failed"]
    assert {row["name"] for row in failed} == {
        case.name for case in cases(quick=True) if isinstance(case, Solve) and "smoothing" in case.options
    }
    assert all(row["error"] == pytest.approx(1e-3, rel=0.05) for row in failed)
    assert (tmp_path / "report.txt").read_text().endswith("FAILED\n")


def test_no_report(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, Emulation(CPU), "--no-report") == 0
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out.endswith("passed\n")


def test_where_it_cannot_write_it_says_so_before_any_work(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert run(monkeypatch, Emulation(CPU), "--out", str(tmp_path / "file")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tim-ext gpu-selftest: --out: expected a folder")


@pytest.mark.gpu
def test_on_a_gpu(capsys, tmp_path):
    assert main(["gpu-selftest", "--parts", "kernels", "--quick", "--out", str(tmp_path)]) == 0
    assert Gpu(0).name in (tmp_path / "report.txt").read_text()
