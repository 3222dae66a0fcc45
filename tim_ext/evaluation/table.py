"""The table of an evaluation: its rows, as text, CSV and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from torch import Tensor

from ..files.atomic import write_atomically
from ..files.cells import as_csv
from .statistics import mean_and_ci95


@dataclass(frozen=True)
class Row:
    """One line of the table. Accuracies are percent of the queries of a task, averaged over the tasks."""

    setting: str
    method: str
    accuracy: float
    accuracy_ci95: float | None  # half the width of the interval; None for a single task
    difference: float | None  # to the first method on the same tasks, in points; None for the first itself
    difference_ci95: float | None
    seconds_per_task: float
    tasks: int
    tasks_asked: int  # more than were done if Ctrl-C came first


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `tim_ext.evaluate` returns."""

    accuracies: dict[str, dict[str, Tensor]]  # setting -> method -> [tasks], percent, float64
    seconds: dict[str, dict[str, float]]  # setting -> method -> time in the method, all tasks together
    interrupted: bool  # by Ctrl-C: fewer tasks than asked for, the same ones for all methods of a setting
    description: dict[str, Any] = field(repr=False)  # see describe()

    @cached_property
    def rows(self) -> list[Row]:
        return [
            self._row(setting, method) for setting in self.accuracies for method in self.accuracies[setting]
        ]

    def _row(self, setting: str, method: str) -> Row:
        values, first = self.accuracies[setting][method], next(iter(self.accuracies[setting].values()))
        accuracy, accuracy_ci95 = mean_and_ci95(values)
        difference, difference_ci95 = (None, None) if values is first else mean_and_ci95(values - first)
        return Row(
            setting=setting,
            method=method,
            accuracy=accuracy,
            accuracy_ci95=accuracy_ci95,
            difference=difference,
            difference_ci95=difference_ci95,
            seconds_per_task=self.seconds[setting][method] / len(values),
            tasks=len(values),
            tasks_asked=self.description["tasks"],
        )

    def describe(self) -> dict[str, Any]:
        """Results and everything needed to repeat them, ready for JSON."""
        return {
            **self.description,
            "interrupted": self.interrupted,
            "rows": [asdict(row) for row in self.rows],
        }

    def table(self, *, times: bool = True) -> str:
        return "\n\n".join(
            "\n".join(_table(setting, [row for row in self.rows if row.setting == setting], times))
            for setting in self.accuracies
        )

    def save(
        self,
        csv_path: str | os.PathLike[str],
        json_path: str | os.PathLike[str],
        *,
        times: bool = True,
        spreadsheet_safe: bool = False,
    ) -> None:
        """Writes the rows, and `describe()`. Each file is complete or not there at all. Without `times`, the
        CSV depends on nothing but data, tasks and methods; `spreadsheet_safe`: names in it are never
        formulas."""
        columns = [column.name for column in fields(Row) if times or column.name != "seconds_per_task"]
        rows = [[getattr(row, name) for name in columns] for row in self.rows]
        write_atomically(csv_path, as_csv([columns, *rows], spreadsheet_safe=spreadsheet_safe))
        write_atomically(json_path, json.dumps(self.describe(), indent=2, allow_nan=False) + "\n")


def _table(setting: str, rows: Sequence[Row], times: bool) -> Iterator[str]:
    done, asked = rows[0].tasks, rows[0].tasks_asked
    yield f"{setting}, {done}{f' of {asked}' if done < asked else ''} tasks"
    cells = [["method", "accuracy %", f"difference to {rows[0].method}", *["ms per task"] * times]]
    for row in rows:
        accuracy = _with_interval(f"{row.accuracy:.2f}", row.accuracy_ci95)
        paired = (
            "" if row.difference is None else _with_interval(f"{row.difference:+.2f}", row.difference_ci95)
        )
        cells.append([row.method, accuracy, paired, *[f"{1000 * row.seconds_per_task:.3g}"] * times])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for method, *numbers in cells:
        aligned = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join([method.ljust(widths[0]), *aligned])


def _with_interval(number: str, ci95: float | None) -> str:
    return number if ci95 is None else f"{number} +- {ci95:.2f}"
