"""The parts of the self-test that are right or wrong: each yields what it found, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..errors import one_line
from ..solver.result import History, Result
from .cases import LAYOUTS, ROUNDING, Call, Case, Layout, Solve, Step
from .compare import largest_error, same_bits
from .device import Device, invoke

BATCH = LAYOUTS[2]  # all tasks of one shape
SETTLED, REPEATED = 5, 20  # calls until the allocator has what it needs, and calls after which it has no more


@dataclass(frozen=True)
class Finding:
    part: str
    name: str
    variant: str = ""  # type and layout of the features
    state: str = "passed"  # or failed, or skipped
    error: float | None = None  # the largest, and what is allowed
    allowed: float | None = None
    message: str = ""


class LostDeviceError(RuntimeError):
    """The device does not answer any more."""


def in_float64(call: Call) -> Call:
    def widened(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    arguments, options = tree_map_only(Tensor, widened, (call.arguments, call.options))
    return Call(call.function, arguments, options)


def check_kernels(device: Device, cases: Sequence[Case], part: str = "kernels") -> Iterator[Finding]:
    """Every case in all its types and layouts, against the CPU in float64."""
    for case in cases:
        for dtype in case.dtypes:
            for layout in case.layouts:
                about = Finding(part, case.name, variant(dtype, layout))
                yield guarded(_compared, device, about, case, dtype, layout)


def _compared(device: Device, about: Finding, case: Case, dtype: torch.dtype, layout: Layout) -> Finding:
    call = case.call(layout, dtype)
    found = device.run(call)
    error, where = largest_error(found, invoke(in_float64(call)))
    allowed = ROUNDING[dtype]
    state = "passed" if error <= allowed else "failed"
    message = "" if state == "passed" else f"differs from the CPU in {where}"
    return replace(about, state=state, error=error, allowed=allowed, message=message)


def check_determinism(device: Device, cases: Sequence[Case]) -> Iterator[Finding]:
    """Twice the same bits; and a task alone has those that it has in its batch."""
    for case in cases:
        for dtype in case.dtypes:
            if dtype not in (torch.float32, torch.float64):
                continue
            about = Finding("determinism", case.name, variant(dtype, case.layouts[0]))
            yield guarded(_repeated, device, about, case, dtype)


def _repeated(device: Device, about: Finding, case: Case, dtype: torch.dtype) -> Finding:
    call = case.call(case.layouts[0], dtype)
    first = device.run(call)
    if not same_bits(first, device.run(call)):
        return failed(about, "the same call gives other bits")
    if isinstance(case, Step):
        return about
    tasks = len(call.arguments[0])
    for t in range(tasks if tasks > 1 else 0):
        if not same_bits(task_of(first, t), task_of(device.run(alone(call, t)), 0)):
            return failed(about, f"task {t} has other bits alone than in its batch")
    if case.large:  # as many of it as keep every processor busy: none gets a team
        many = device.run(_with_lists(call, lambda tasks: tasks * device.processors))
        if not same_bits(task_of(first, 0), task_of(many, 0)):
            return failed(about, "a team of blocks gives other bits than a single block")
    return about


def check_graphs(device: Device, cases: Sequence[Case]) -> Iterator[Finding]:
    """A recorded graph, replayed twice with other values, has the bits of the calls themselves."""
    for case in cases:
        if isinstance(case, Solve) and (case.given or case.solver == "robust" or case.large):
            continue  # what is given is checked, and robust looks for square roots, by waiting for the device
        for dtype in case.dtypes[:2]:
            about = Finding("graphs", case.name, variant(dtype, BATCH))
            yield guarded(_replayed, device, about, case, dtype)


def _replayed(device: Device, about: Finding, case: Case, dtype: torch.dtype) -> Finding:
    call = without_waiting(case, case.call(BATCH, dtype))
    replay = device.record(call)
    other = Call(call.function, (call.arguments[0].flip(-1), *call.arguments[1:]), call.options)
    for values in (other, call):
        if not same_bits(replay(values), device.run(values)):
            return failed(about, "the replayed graph gives other bits than the call")
    return about


def check_streams(device: Device, cases: Sequence[Case]) -> Iterator[Finding]:
    """On a new stream, with inputs that are ready late: what runs elsewhere does not see them."""
    for case in cases:
        about = Finding("streams", case.name, variant(torch.float32, BATCH))
        if torch.float32 in case.dtypes and not case.large:
            yield guarded(_late, device, about, case)


def _late(device: Device, about: Finding, case: Case) -> Finding:
    call = without_waiting(case, case.call(BATCH, torch.float32))
    if same_bits(device.run_on_a_new_stream(call), device.run(call)):
        return about
    return failed(about, "other bits than on the default stream")


def check_devices(device: Device, cases: Sequence[Case]) -> Iterator[Finding]:
    """Every other device, while the current one stays what it is."""
    others = device.others()
    if not others:
        yield Finding("devices", "another device", state="skipped", message="there is one device")
    for other in others:
        for finding in check_kernels(other, [case for case in cases if not case.large], "devices"):
            yield replace(finding, variant=f"{other.where}, {finding.variant}")


def check_memory(device: Device, cases: Sequence[Case]) -> Iterator[Finding]:
    """Memory in use does not grow from call to call."""
    for case in cases:
        about = Finding("memory", case.name, variant(case.dtypes[0], case.layouts[0]))
        if not case.large:
            yield guarded(_grown, device, about, case)


def _grown(device: Device, about: Finding, case: Case) -> Finding:
    call, used = case.call(case.layouts[0], case.dtypes[0]), []
    for count in (SETTLED, REPEATED):
        for _ in range(count):
            device.run(call)
        used.append(device.allocated())
    if used[1] <= used[0]:
        return about
    return failed(about, f"{used[1] - used[0]:,} bytes more are in use after {REPEATED} further calls")


def guarded(check: Callable[..., Finding], device: Device, about: Finding, *of: Any) -> Finding:
    """What a call raises is a finding too: a report that names it is what the self-test is for."""
    try:
        return check(device, about, *of)
    except (
        AttributeError,
        ArithmeticError,
        ImportError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        found = failed(about, f"{type(error).__name__}: {one_line(error)}")
    if not device.answers():
        raise LostDeviceError(f"{about.part}, {about.name}, {about.variant}: {found.message}")
    return found


def failed(about: Finding, message: str) -> Finding:
    return replace(about, state="failed", message=message)


def variant(dtype: torch.dtype, layout: Layout) -> str:
    return f"{str(dtype).removeprefix('torch.')}, {layout.name}"


def without_waiting(case: Case, call: Call) -> Call:
    """With the number of classes, for which the host would wait."""
    if isinstance(case, Step):
        return call
    return replace(call, options={**call.options, "num_classes": len(case.shapes[0].shots)})


def alone(call: Call, t: int) -> Call:
    """Task t of lists of tasks."""
    return _with_lists(call, lambda tasks: tasks[t : t + 1])


def _with_lists(call: Call, change: Callable[[list[Any]], list[Any]]) -> Call:
    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, list) else value

    options = {name: changed(value) for name, value in call.options.items()}
    return Call(call.function, tuple(map(changed, call.arguments)), options)


def task_of(result: Any, t: int) -> Any:
    """Task t of a result of lists."""
    if isinstance(result, (Result, History)):
        return type(result)(**{name: task_of(item, t) for name, item in vars(result).items()})
    return None if result is None else result[t]
