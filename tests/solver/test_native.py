"""Loading the native libraries, and what is said when they cannot be loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.forked import run_script
from helpers.make_tasks import make_task

import tim_ext
from tim_ext.solver import native

BUILD = "pip install ."
SOLVE = "import tim_ext; tim_ext.adm([[[1.0, 0.0], [0.0, 1.0]]], [[0, 1]])"
REFERENCE = "import tim_ext.reference as r; print(r.adm([[[1.0, 0.0], [0.0, 1.0]]], [[0, 1]]).predictions)"


@pytest.fixture
def bare_package(tmp_path: Path) -> Path:
    """A copy of the package without its libraries."""
    source = Path(tim_ext.__file__).parent
    shutil.copytree(
        source, tmp_path / "tim_ext", ignore=shutil.ignore_patterns("_C.*", "_cuda.*", "__pycache__")
    )
    return tmp_path


def test_a_missing_library_names_the_command_that_builds_it(bare_package, run_python):
    ended = run_python("-c", SOLVE, where=bare_package)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ImportError: the native library tim_ext/_C is missing; build it with ")
    assert BUILD in last


def test_the_reference_needs_no_library(bare_package, run_python):
    ended = run_python("-c", REFERENCE, where=bare_package)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "[tensor([0, 1])]\n"


def test_info_reports_a_missing_library(bare_package, run_python):
    ended = run_python("-m", "tim_ext", "info", where=bare_package)
    assert ended.returncode == 1
    assert ended.stderr == ""
    assert "native library  not usable: the native library tim_ext/_C is missing" in ended.stdout


def test_a_broken_library_says_so(bare_package, run_python):
    (bare_package / "tim_ext" / "_C.abi3.so").write_bytes(b"not a library")
    ended = run_python("-c", SOLVE, where=bare_package)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ImportError: the native library ")
    assert f"does not load in torch {torch.__version__}" in last
    assert BUILD in last


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0+cpu"])
def test_an_old_torch_is_named(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert native.load_library("_C") == f"tim_ext needs torch >= 2.10, found {version}"


def test_a_failure_is_raised_by_the_solver(monkeypatch):
    monkeypatch.setattr(native, "cpu_failure", "the sentence")
    task = make_task(0)
    for solve in (tim_ext.adm, tim_ext.gd):
        with pytest.raises(ImportError, match=r"^the sentence$"):
            solve(task.features, task.labels)


def test_cuda_features_without_cuda_kernels(monkeypatch):
    monkeypatch.setattr(native, "cuda_failure", "the native library tim_ext/_cuda is missing")
    with pytest.raises(
        ImportError, match="features are on cuda:0, but the native library tim_ext/_cuda is missing"
    ):
        native.require(torch.device("cuda:0"))


def test_a_device_without_kernels_is_refused():
    with pytest.raises(ValueError, match="features: expected device cpu or cuda, got xpu:0"):
        native.require(torch.device("xpu:0"))


CAPABILITY = """
import sys, torch, tim_ext
print(torch.ops.tim_ext.cpu_capability())
features, labels = torch.load(sys.argv[1])
probs = [tim_ext.adm(features, labels, form=form).probs for form in ("dual", "primal")]
probs += [tim_ext.gd(features, labels, entropy_order=order, iterations=200).probs for order in (1.0, 2.0)]
torch.save(probs, sys.argv[2])
"""


@pytest.mark.parametrize("capability", ["baseline", "avx2"])
def test_a_lower_capability_agrees(capability, tmp_path):
    order = ["neon", "baseline", "avx2", "avx512"]
    if order.index(torch.ops.tim_ext.cpu_capability()) < order.index(capability):
        pytest.skip(f"this CPU has no {capability}")
    task = make_task(0, shots=(1, 2, 3, 1, 2, 3, 1), queries=50, d=45)
    torch.save((task.features, task.labels), tmp_path / "task")
    files = [str(tmp_path / "task"), str(tmp_path / "result")]
    ended = run_script(CAPABILITY, *files, TIM_EXT_CPU_CAPABILITY=capability)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == capability
    dual, primal, shannon, tsallis = torch.load(tmp_path / "result")
    for form, probs in (("dual", dual), ("primal", primal)):
        expected = tim_ext.adm(task.features, task.labels, form=form).probs
        torch.testing.assert_close(probs, expected, rtol=0, atol=1e-9)
    for order, probs in ((1.0, shannon), (2.0, tsallis)):
        expected = tim_ext.gd(task.features, task.labels, entropy_order=order, iterations=200).probs
        torch.testing.assert_close(probs, expected, rtol=0, atol=1e-8)
