"""Every case of the self-test on the emulated GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.backends import Backend, Emulated, needs_emulation
from helpers.selftest_devices import Emulation

from tim_ext.selftest.cases import LAYOUTS, Solve, cases
from tim_ext.selftest.checks import check_determinism, check_kernels
from tim_ext.selftest.device import Gpu
from tim_ext.selftest.report import CHECKS, run

SMALL = {case.name: case for case in cases(quick=True)}
LARGE = {case.name: case for case in cases() if case.large}


def assert_passed(findings) -> None:
    found = list(findings)
    assert found
    assert [finding for finding in found if finding.state != "passed"] == []


@needs_emulation
@pytest.mark.parametrize("name", SMALL)
def test_small_tasks(name):
    case = SMALL[name]
    found = list(check_kernels(Emulation(), [case]))
    assert len(found) == len(case.dtypes) * len(case.layouts)
    assert_passed(found)
    assert_passed(check_determinism(Emulation(), [case]))


@needs_emulation
@pytest.mark.parametrize("name", LARGE)
def test_large_tasks(name):
    """Also with other tasks, where each has one block."""
    case = replace(LARGE[name], dtypes=(torch.float32,), layouts=LAYOUTS[:1])
    device = Emulation(Emulated(processors=3), processors=3)
    assert_passed(check_kernels(device, [case]))
    assert_passed(check_determinism(device, [case]))


@needs_emulation
def test_unaligned_inputs_are_read_as_such():
    """The checked build looks at every address."""
    device = Emulation(Emulated(variant="checked"))
    unaligned = [
        replace(case, layouts=tuple(layout for layout in case.layouts if layout.before))
        for case in SMALL.values()
    ]
    assert_passed(check_kernels(device, unaligned))


def test_the_cpu_is_right_in_float32_too():
    """No case is too hard for its type."""
    assert_passed(check_kernels(Emulation(Backend()), cases()))


def test_names_tell_cases_apart():
    assert len({case.name for case in cases()}) == len(cases())
    for case in cases():
        names = [layout.name for layout in case.layouts]
        assert len(set(names)) == len(names)


def test_every_layout_is_what_it_says():
    """Odd rows; rows of a pool in another order; a first element that no vector load can start with."""
    case = next(case for case in SMALL.values() if isinstance(case, Solve))
    for dtype in case.dtypes:
        odd, pool, unaligned = (case.call(layout, dtype) for layout in LAYOUTS)
        assert odd.arguments[0][0].shape[1] % 2 == 1
        assert pool.options["index"][0][0] == len(pool.arguments[0]) - 1
        assert unaligned.arguments[0].data_ptr() % 16 == dtype.itemsize
        assert unaligned.arguments[0].shape[2] % 8 == 0


@pytest.mark.gpu
def test_on_a_gpu():
    report = run(Gpu(torch.cuda.current_device()), [part for part in CHECKS if part != "sanitizer"])
    assert report.passed, report.failed
