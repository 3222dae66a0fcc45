"""The methods by name: their grids, and what the page says of them."""

from __future__ import annotations

import re

import pytest
from helpers.paths import DOCS

from tim_ext.evaluation.methods import METHODS, Method
from tim_ext.solver.renames import renamed


def test_grids_begin_with_the_defaults():
    for method in METHODS.values():
        defaults = method.complete({})
        assert {name: values[0] for name, values in method.grid.items()} == {
            name: defaults[name] for name in method.grid
        }
        for values in method.grid.values():
            assert len(set(values)) == len(values) > 1


def test_the_page_has_every_method_and_its_grid():
    lines = [line for line in (DOCS / "evaluation.md").read_text().splitlines() if line.startswith("| `")]
    for name, method in METHODS.items():
        (line,) = (line for line in lines if f"`{name}`" in line.split("|")[1])
        grid = line.split("|")[3]
        assert re.findall(r"`(\w+)`", grid) == list(method.grid), name
        for parameter, values in method.grid.items():
            listed = re.search(rf"`{parameter}` ([^;]+)", grid)[1]
            assert len(listed.split(",")) == len(values), name
            shown = {float(text) for text in re.findall(r"[\d.]+", listed)}
            assert shown == {value for value in values if value is not None}, name


def test_the_former_name_of_a_hyper_parameter():
    @renamed(solver="form")
    def solve(features, labels, *, form="auto"):
        raise NotImplementedError

    method = Method("tim", solve)
    for refuse in (lambda: method.complete({"solver": "dual"}), lambda: method.parse("solver", "dual")):
        with pytest.raises(ValueError, match="tim: expected form, the new name of solver, got 'solver'"):
            refuse()
