"""How the self-test runs a call on a device."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..solver.result import History, Result
from .cases import Call, shifted

cuda: Any = torch.cuda  # untyped in torch

ON_HOST = ("class_prior",)  # arguments that stay there
WARM_UP = 2
BUSY = 2048  # rows and columns of a matrix whose powers keep a stream busy for milliseconds


class Device(Protocol):
    """Calls have tensors of the CPU, or of `where`; results come back to the CPU."""

    @property
    def name(self) -> str: ...
    @property
    def where(self) -> torch.device: ...
    @property
    def processors(self) -> int: ...

    def about(self) -> dict[str, str]:
        """What a reader of the report wants to know."""

    def run(self, call: Call) -> Any: ...
    def run_on_a_new_stream(self, call: Call) -> Any:
        """With inputs that are ready late, on that stream."""

    def record(self, call: Call) -> Callable[[Call], Any]:
        """A graph of the call, to be replayed with the values of another one of the same shapes."""

    def seconds(self, call: Call) -> float:
        """Median of a few runs, inputs in place."""

    def allocated(self) -> int:
        """Bytes of device memory that are in use."""

    def answers(self) -> bool:
        """No after a failure from which the device does not recover, as an access out of bounds."""

    def others(self) -> Sequence[Device]: ...


def invoke(call: Call) -> Any:
    return call.function(*call.arguments, **call.options)


def to_host(value: Any) -> Any:
    """A result with its tensors on the CPU."""
    if isinstance(value, (Result, History)):
        return type(value)(**{name: to_host(item) for name, item in vars(value).items()})
    return tree_map_only(Tensor, Tensor.cpu, value)


class Gpu:
    """A device of torch.cuda. The current device stays what it is: operators go to that of their tensors."""

    def __init__(self, index: int) -> None:
        self.where = torch.device("cuda", index)
        self._properties = cuda.get_device_properties(self.where)
        self.name = str(self._properties.name)
        self.processors = int(self._properties.multi_processor_count)

    def about(self) -> dict[str, str]:
        own = self._properties
        return {
            "CUDA device": f"{self.where}, {self.name}",
            "capability": f"{own.major}.{own.minor}, {self.processors} multiprocessors",
            "device memory": f"{own.total_memory / 2**30:.1f} GiB",
            "driver": driver_version(),
        }

    def run(self, call: Call) -> Any:
        return to_host(invoke(self.placed(call)))

    def run_on_a_new_stream(self, call: Call) -> Any:
        ready = self.placed(call)
        late = tree_map_only(Tensor, torch.zeros_like, (ready.arguments, ready.options))
        cuda.synchronize(self.where)
        with cuda.device(self.where), cuda.stream(cuda.Stream(self.where)):
            busy = torch.ones(BUSY, BUSY, device=self.where)
            for _ in range(50):
                busy = busy @ busy / BUSY
            _copy((ready.arguments, ready.options), late)
            return to_host(invoke(Call(call.function, *late)))

    def record(self, call: Call) -> Callable[[Call], Any]:
        placed, graph = self.placed(call), cuda.CUDAGraph()
        with cuda.device(self.where):
            aside = cuda.Stream(self.where)
            aside.wait_stream(cuda.current_stream())
            with cuda.stream(aside):
                for _ in range(WARM_UP):
                    invoke(placed)
            cuda.current_stream().wait_stream(aside)
            with cuda.graph(graph):
                result = invoke(placed)

        def replay(other: Call) -> Any:
            new = self.placed(other)
            _copy((new.arguments, new.options), (placed.arguments, placed.options))
            with cuda.device(self.where):
                graph.replay()
            return to_host(result)

        return replay

    def seconds(self, call: Call) -> float:
        placed, times = self.placed(call), []
        with cuda.device(self.where):
            for _ in range(WARM_UP + 5):
                start, stop = (cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                invoke(placed)
                stop.record()
                stop.synchronize()
                times.append(start.elapsed_time(stop) / 1000)
        return float(statistics.median(times[WARM_UP:]))

    def allocated(self) -> int:
        cuda.synchronize(self.where)
        return int(cuda.memory_allocated(self.where))

    def answers(self) -> bool:
        try:
            cuda.synchronize(self.where)
        except RuntimeError:
            return False
        return True

    def others(self) -> list[Device]:
        return [Gpu(index) for index in range(cuda.device_count()) if index != self.where.index]

    def placed(self, call: Call) -> Call:
        """The call with its tensors on the device, each as far from an aligned address as it was."""
        stays = {name: value for name, value in call.options.items() if name in ON_HOST}
        arguments, options = tree_map_only(Tensor, self._place, (call.arguments, call.options))
        return Call(call.function, arguments, options | stays)

    def _place(self, tensor: Tensor) -> Tensor:
        if tensor.device == self.where:
            return tensor
        return shifted(tensor.to(self.where), int(tensor.storage_offset()))


def _copy(source: Any, target: Any) -> None:
    """The values of all tensors, in place."""
    kept: list[Tensor] = []
    tree_map_only(Tensor, kept.append, target)
    tree_map_only(Tensor, lambda new: kept.pop(0).copy_(new), source)


def driver_version() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown, nvidia-smi is not on PATH"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown, {type(error).__name__} of nvidia-smi"
    return ", ".join(dict.fromkeys(ended.stdout.split()))
