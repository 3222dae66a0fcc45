"""What the self-test makes of devices that do something wrong."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import selftest_devices as devices
from helpers.backends import Backend, needs_emulation
from helpers.selftest_devices import Emulation

from tim_ext.selftest.cases import SOLVERS, cases
from tim_ext.selftest.report import PARTS, TIMES, as_text, run
from tim_ext.selftest.sanitizer import FOUND, TOOLS, find_sanitizer
from tim_ext.selftest.timing import Shape, loads

CPU = Backend()
FEW = [case for case in cases() if case.name in ("adm dual, half steps", "adm primal", "w_update, 70 x 5")]
SMOOTHED = [case for case in cases() if case.name == "adm primal, smoothing"]
TINY = [
    replace(
        load,
        shape=Shape("tiny", 2, 20, 6),
        waves=1,
        options=load.options | ({"iterations": 2} if load.solver in SOLVERS else {}),
    )
    for load in loads()
]
WITHOUT_SANITIZER = [part for part in PARTS if part != "sanitizer"]


@needs_emulation
def test_all_parts_on_the_emulation():
    said: list[str] = []
    device = Emulation(more=[Emulation()])
    report = run(device, WITHOUT_SANITIZER, of=FEW, measured=TINY, say=said.append)
    assert report.passed, report.failed
    assert [f.part for f in report.findings if f.state != "passed"] == []
    assert {f.part for f in report.findings} == {*WITHOUT_SANITIZER}
    assert said == [f"{part} ..." for part in WITHOUT_SANITIZER]
    assert [time.name for time in report.times] == [load.name for load in TINY]
    assert all(time.seconds == 0.5 / 4 for time in report.times)
    text = as_text(report)
    assert text.endswith("passed")
    assert "125000.00       4  adm, smoothing=0.6, iterations=2, tiny" in text
    assert json.loads(json.dumps(report.as_data(), allow_nan=False))["passed"] is True


def test_a_wrong_kernel_is_named_with_its_error():
    report = run(devices.WrongSmoothing(CPU), ["kernels"], of=[*FEW, *SMOOTHED])
    assert not report.passed
    assert {f.name for f in report.failed} == {"adm primal, smoothing"}
    assert len(report.failed) == len(SMOOTHED[0].dtypes) * len(SMOOTHED[0].layouts)
    for finding in report.failed:
        assert finding.error == pytest.approx(1e-3, rel=0.05)
        assert finding.allowed == (1e-10 if finding.variant.startswith("float64") else 2e-5)
    text = as_text(report)
    first = next(line for line in text.splitlines() if line.startswith("failed: "))
    assert first.startswith("failed: kernels, adm primal, smoothing, ")
    assert "error 1.0e-03, allowed" in first
    assert text.endswith("FAILED")


@pytest.mark.parametrize(
    ("device", "part", "message"),
    [
        (devices.Unsteady(CPU), "determinism", "the same call gives other bits"),
        (devices.WrongFromBatches(CPU), "determinism", "task 0 has other bits alone than in its batch"),
        (devices.Stale(CPU), "graphs", "the replayed graph gives other bits than the call"),
        (devices.Early(CPU), "streams", "other bits than on the default stream"),
        (Emulation(CPU, more=[devices.Wrong(CPU)]), "devices", "differs from the CPU in "),
        (devices.Leaking(CPU), "memory", "512 bytes more are in use after 20 further calls"),
        (devices.Refusing(CPU), "kernels", "RuntimeError: CUDA error: no kernel image is available"),
        (devices.Refusing(CPU), TIMES, "OutOfMemoryError: there is less"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_part_finds_what_is_wrong(device, part, message):
    report = run(device, [part], of=FEW, measured=TINY)
    assert report.failed
    assert {finding.part for finding in report.failed} == {part}
    assert all(finding.message.startswith(message) for finding in report.failed)
    assert run(Emulation(CPU, more=[Emulation(CPU)]), [part], of=FEW, measured=TINY).passed


def test_teams_are_held_against_single_blocks():
    class Other(devices.Wrong):
        def hit(self, call):
            return len(call.arguments[0]) == self.processors

    large = [case for case in cases() if case.name == "adm dual, smoothing, a team of blocks"]
    report = run(Other(CPU, processors=3), ["determinism"], of=large)
    assert {finding.message for finding in report.failed} == {
        "a team of blocks gives other bits than a single block"
    }


def test_without_another_device_that_part_is_skipped_in_sight():
    report = run(Emulation(CPU), ["devices"], of=FEW)
    assert report.passed
    assert "skipped: devices, another device: there is one device" in as_text(report)


def test_a_lost_device_ends_the_test():
    report = run(devices.Lost(CPU), of=FEW)
    assert not report.passed
    assert [finding.state for finding in report.findings] == ["passed"] * 2
    assert "does not answer any more" in as_text(report)
    third = "kernels, adm dual, half steps, float64, unaligned: RuntimeError: CUDA error: an illegal memory"
    assert report.as_data()["lost"].startswith(third)


def test_shapes_that_differ_are_no_number_in_json():
    class Short(Emulation):
        def run(self, call):
            result = super().run(call)
            return result[..., :-1] if isinstance(result, torch.Tensor) else result

    report = run(Short(CPU), ["kernels"], of=FEW)
    assert {finding.name for finding in report.failed} == {"w_update, 70 x 5"}
    errors = {row["error"] for row in report.as_data()["findings"] if row["state"] == "failed"}
    assert errors == {"inf"}


# compute-sanitizer ---------------------------------------------------------------------------------


def make_sanitizer(folder: Path, script: str) -> Path:
    program = folder / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("script", "state", "message"),
    [
        ("exit 0", "passed", ""),
        (f"echo Invalid __global__ read; exit {FOUND}", "failed", "found an error:\nInvalid __global__ read"),
        ("echo no device >&2; exit 2", "failed", "ended with exit code 2:\nno device"),
    ],
)
def test_what_the_sanitizer_finds(tmp_path, monkeypatch, script, state, message):
    make_sanitizer(tmp_path, f'echo "$@" >> {tmp_path}/arguments\n{script}')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    report = run(Emulation(CPU), ["sanitizer"], of=FEW)
    assert [(f.name, f.state) for f in report.findings] == [(tool, state) for tool in TOOLS]
    assert all(message in finding.message for finding in report.findings)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert [line.split()[1] for line in arguments] == list(TOOLS)
    assert all("-m tim_ext gpu-selftest --parts kernels --quick" in line for line in arguments)


def test_the_sanitizer_is_found_in_the_toolkit_or_skipped_in_sight(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    program = make_sanitizer(tmp_path / "bin", "exit 0")
    assert find_sanitizer({"PATH": "", "CUDA_HOME": str(tmp_path)}) == str(program)
    assert find_sanitizer({"PATH": str(tmp_path / "bin")}) == str(program)
    assert find_sanitizer({"PATH": str(tmp_path)}) is None
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = run(Emulation(CPU), ["sanitizer"], of=FEW)
    assert report.passed
    assert {finding.state for finding in report.findings} == {"skipped"}
    assert "skipped: sanitizer, memcheck: compute-sanitizer is neither on PATH nor in CUDA_HOME" in as_text(
        report
    )
