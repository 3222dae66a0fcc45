"""How calls run on a GPU, with a torch.cuda that only keeps book: tensors stay on the CPU."""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tim_ext
from tim_ext.selftest import device as module
from tim_ext.selftest.cases import Call, cases, shifted
from tim_ext.selftest.compare import same_bits
from tim_ext.selftest.device import Gpu, driver_version, invoke

CASE = next(case for case in cases() if case.name == "adm dual, class prior")


class Cuda:
    """What `Gpu` uses of torch.cuda. `log`: what was entered, recorded and waited for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failure: RuntimeError | None = None
        self.on_replay: Any = None
        self.clock = 0

    def get_device_properties(self, where: torch.device) -> SimpleNamespace:
        return SimpleNamespace(name="a GPU", multi_processor_count=3, major=8, minor=6, total_memory=3 << 30)

    def device_count(self) -> int:
        return 3

    def memory_allocated(self, where: torch.device) -> int:
        return 512

    def synchronize(self, where: torch.device) -> None:
        self.log.append("synchronize")
        if self.failure:
            raise self.failure

    @contextmanager
    def entered(self, what: str):
        self.log.append(what)
        yield
        self.log.append(f"end of {what}")

    def device(self, where: torch.device):
        return self.entered("device")

    def stream(self, stream: Any):
        return self.entered("stream")

    def graph(self, graph: Any):
        return self.entered("graph")

    def Stream(self, where: torch.device) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: self.log.append("wait"))

    def current_stream(self) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: self.log.append("wait"))

    def CUDAGraph(self) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: self.on_replay())

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        """A second passes from each event to the next."""
        event = SimpleNamespace(synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self._tick())
        event.elapsed_time = lambda stop: 1000.0 * (stop.at - event.at)
        return event

    def _tick(self) -> int:
        self.clock += 1
        return self.clock


@pytest.fixture
def cuda(monkeypatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setattr(module, "cuda", fake)
    monkeypatch.setattr(module, "BUSY", 2)
    return fake


@pytest.fixture
def gpu(cuda) -> Gpu:
    gpu = Gpu(1)
    assert gpu.where == torch.device("cuda", 1)
    gpu.where = torch.device("cpu", 0)  # not equal to the device of tensors: they are copied
    return gpu


def test_tensors_keep_their_distance_from_an_aligned_address(gpu) -> None:
    call = CASE.call(CASE.layouts[2], torch.float32)
    placed = gpu.placed(call)
    assert call.arguments[0].storage_offset() == 1
    assert placed.arguments[0].data_ptr() != call.arguments[0].data_ptr()
    assert placed.arguments[0].data_ptr() % 16 == 4
    assert torch.equal(placed.arguments[0], call.arguments[0])
    assert placed.options["class_prior"] is call.options["class_prior"]
    assert same_bits(gpu.run(call), invoke(call))


def test_on_a_stream_inputs_come_late_and_on_that_stream(gpu, cuda) -> None:
    seen: list[Tensor] = []

    def double(x: Tensor, *, more: list[Tensor]) -> Tensor:
        seen.append(x)
        assert cuda.log[-1] == "stream"
        return 2 * x + more[0]

    call = Call(double, (torch.ones(3),), {"more": [torch.full((3,), 5.0)]})
    assert torch.equal(gpu.run_on_a_new_stream(call), torch.full((3,), 7.0))
    assert seen[0].data_ptr() != call.arguments[0].data_ptr()
    assert cuda.log == ["synchronize", "device", "stream", "end of stream", "end of device"]


def test_a_graph_is_replayed_with_new_values_in_the_same_place(gpu, cuda) -> None:
    out, seen, recorded = torch.empty(3), [], []

    def double(x: Tensor) -> Tensor:
        seen.append(x)
        recorded.append("graph" in cuda.log and "end of graph" not in cuda.log)
        return torch.mul(x, 2, out=out)

    replay = gpu.record(Call(double, (torch.ones(3),)))
    assert recorded == [False] * module.WARM_UP + [True]
    cuda.on_replay = lambda: torch.mul(seen[-1], 2, out=out)
    assert torch.equal(replay(Call(double, (torch.full((3,), 4.0),))), torch.full((3,), 8.0))
    assert torch.equal(replay(Call(double, (torch.full((3,), 5.0),))), torch.full((3,), 10.0))
    assert len(recorded) == module.WARM_UP + 1


def test_what_it_says_of_itself(gpu, cuda) -> None:
    assert gpu.about()["CUDA device"] == "cpu:0, a GPU"
    assert gpu.about()["capability"] == "8.6, 3 multiprocessors"
    assert gpu.about()["device memory"] == "3.0 GiB"
    assert gpu.seconds(Call(torch.add, (torch.ones(1), 1))) == 1.0
    assert gpu.allocated() == 512
    assert [other.where.index for other in gpu.others()] == [1, 2]  # as its own is 0 here
    assert gpu.answers()
    cuda.failure = RuntimeError("an illegal memory access was encountered")
    assert not gpu.answers()


def test_results_come_back_whole() -> None:
    features, labels = torch.eye(4), torch.tensor([0, 1, -1, -1])
    result = tim_ext.adm(features, labels, history=True)
    assert same_bits(module.to_host(result), result)
    assert module.to_host((features, [labels]))[1][0] is labels


def test_shifted() -> None:
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(shifted(x, 3), x)
    assert shifted(x, 3).storage_offset() == 3
    assert shifted(x, 3).is_contiguous()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 580.65.06; echo 580.65.06", "580.65.06"),
        ("exit 9", "unknown, CalledProcessError of nvidia-smi"),
        (None, "unknown, nvidia-smi is not on PATH"),
    ],
)
def test_the_driver(monkeypatch, tmp_path, script, said) -> None:
    if script is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + (os.pathsep + os.environ["PATH"] if script else ""))
    assert driver_version() == said
