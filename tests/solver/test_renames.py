"""Arguments under their old names: refused with the new one, and nothing else changes."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from helpers.make_tasks import make_task

import tim_ext
from tim_ext import reference
from tim_ext.solver.renames import renamed

TASK = make_task(0)


@pytest.mark.parametrize("adm", [tim_ext.adm, reference.adm])
def test_adm_says_that_its_form_was_called_solver(adm):
    with pytest.raises(TypeError, match=r"^solver: expected its new name, form='dual', got solver='dual'$"):
        adm(TASK.features, TASK.labels, solver="dual")
    assert "solver" not in inspect.signature(adm).parameters


@renamed(old="new")
def double(x: Any, *, new: int = 2) -> Any:
    """x * new"""
    return x * new


def test_the_function_stays_what_it_is():
    assert str(inspect.signature(double)) == "(x: 'Any', *, new: 'int' = 2) -> 'Any'"
    assert (double.__name__, double.__doc__) == ("double", "x * new")
    assert (double(3), double(3, new=4)) == (6, 12)
    assert pickle.loads(pickle.dumps(tim_ext.adm)) is tim_ext.adm


def test_a_name_that_never_was_is_python_s_to_refuse():
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        double(3, other=1)


def test_in_a_compiled_function():
    compiled = torch.compile(lambda x: double(x, new=3), fullgraph=True, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
