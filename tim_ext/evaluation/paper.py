"""The tables of the paper in their own layout, published numbers beside measured ones.

Measured is what needs no more than the features of a frozen encoder; every other cell stays a dash. The
published numbers are in `paper_tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .. import tasks as samplers
from ..files.features import Features
from ..tasks import Sampler
from .compare import evaluate
from .paper_tables import (
    BACKBONE_LINES,
    DASH,
    DATASETS,
    METHODS,
    QUERIES,
    RANDOM,
    RANDOM_TASKS,
    TASKS,
    Column,
    Line,
    Run,
    Setting,
    Table,
)
from .table import Evaluation, Row

GAP = "  "  # between columns
Cell = tuple[str, int]  # text, and how many columns it spans

# Features, and what they measure ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Source:
    """Features of a dataset under a backbone."""

    dataset: str
    backbone: str
    data: Features
    base_mean: Tensor | None = None
    groups: Mapping[str, Any] = field(default_factory=dict)  # hierarchy or superclasses, for Meta-Dataset

    @property
    def own(self) -> bool:
        return self.dataset not in DATASETS

    def fits(self, table: Table, line: Line, column: Column) -> bool:
        """Whether it can measure this cell."""
        if line.run is None or column.dataset != self.dataset:
            return False
        return self.backbone == line.backbone or (self.own and not table.names_backbones)

    def sampler(self, setting: Setting, seed: int) -> Sampler:
        labels, names = self.data.labels, self.data.class_names
        if isinstance(setting, str):
            return samplers.meta_dataset(labels, class_names=names, seed=seed, **self.groups)
        ways, shots = setting
        return samplers.balanced(labels, ways=ways, shots=shots, queries=QUERIES, seed=seed)


@dataclass(frozen=True)
class Results:
    """What was measured, and why some was not."""

    rows: dict[tuple[Source, Setting, Run], Row]
    evaluations: list[tuple[Source, Evaluation]]
    notes: list[str]
    interrupted: bool = False

    def find(self, table: Table, line: Line, column: Column) -> Row | None:
        for (source, setting, run), row in self.rows.items():
            if setting == column.setting and run == line.run and source.fits(table, line, column):
                return row
        return None


def measure(
    tables: Sequence[Table],
    sources: Sequence[Source],
    *,
    tasks: int | None = None,
    seed: int = 0,
    hyper: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = False,
) -> Results:
    """Runs what the tables need of each source and setting, once: one call to `tim_ext.evaluate` for each.

    `tasks` is that of the paper by default. `hyper` holds hyper-parameters by method, for all its lines.
    """
    results = Results({}, [], [])
    for (source, setting), runs in _plan(tables, sources).items():
        try:
            sampler = source.sampler(setting, seed)
        except ValueError as error:
            if not source.own or any(source.groups.values()):
                raise ValueError(f"{source.dataset}, {_setting_name(setting)}: {error}") from None
            # not every dataset allows every table
            results.notes.append(f"{source.dataset}, {_setting_name(setting)}: not measured ({error})")
            continue
        labels = {_label(run): run for run in runs}
        given = {
            label: {**(hyper or {}).get(method, {}), **dict(own)} for label, (method, own) in labels.items()
        }
        try:
            evaluation = evaluate(
                source.data.features,
                source.data.labels,
                methods=[f"{label}={method}" for label, (method, _) in labels.items()],
                sampler={_setting_name(setting): sampler},
                tasks=tasks or (RANDOM_TASKS if setting == RANDOM else TASKS),
                hyper=given,
                base_mean=source.base_mean,
                progress=progress,
            )
        except KeyboardInterrupt:
            if not results.rows:
                raise
            return replace(results, interrupted=True)
        results.evaluations.append((source, evaluation))
        if source.base_mean is None and any(method == "simpleshot" for method, _ in labels.values()):
            note = f"{source.dataset}: SimpleShot with L2N; with --base-mean it is CL2N, as in the paper"
            results.notes.extend([note] if note not in results.notes else [])
        results.rows.update({(source, setting, labels[row.method]): row for row in evaluation.rows})
        if evaluation.interrupted:
            return replace(results, interrupted=True)
    return results


def _plan(
    tables: Sequence[Table], sources: Sequence[Source]
) -> dict[tuple[Source, Setting], dict[Run, None]]:
    """The runs of each source and setting, without repetition and in order."""
    plan: dict[tuple[Source, Setting], dict[Run, None]] = {}
    for source in sources:
        for table in tables:
            for column in table.columns:
                for line in filter(None, table.lines):
                    if line.run is not None and source.fits(table, line, column):
                        plan.setdefault((source, column.setting), {})[line.run] = None
    return plan


def _label(run: Run) -> str:
    method, hyper = run
    return " ".join([method, *(f"{name}:{value:g}" for name, value in hyper)])


def _setting_name(setting: Setting) -> str:
    return setting if isinstance(setting, str) else f"{setting[0]}-way {setting[1]}-shot"


def extend(table: Table, sources: Iterable[Source]) -> Table:
    """The table with columns for datasets, and lines for backbones, that are not in the paper."""
    columns, lines = list(table.columns), list(table.lines)
    first = table.columns[0].dataset
    for source in sources:
        if source.own:
            columns += [
                _own_column(column, source.dataset) for column in table.columns if column.dataset == first
            ]
    for source in sources if table.names_backbones else ():
        if any(column.dataset == source.dataset for column in columns):
            there = {(line.run, line.backbone) for line in lines if line is not None}
            new = (
                Line((name, transductive, source.backbone), (), (METHODS[name], ()), source.backbone)
                for name, transductive in BACKBONE_LINES.items()
            )
            added = [line for line in new if (line.run, line.backbone) not in there]
            lines += [None, *added] if added else []
    dashes = (DASH,) * len(columns)
    lines = [line and replace(line, published=(line.published + dashes)[: len(columns)]) for line in lines]
    return replace(table, columns=tuple(columns), lines=tuple(lines))


def _own_column(column: Column, dataset: str) -> Column:
    if column.setting == RANDOM:
        return replace(column, name=dataset, dataset=dataset, own=True)
    ways = f", {column.group}" if column.group.endswith("-way") else ""
    return replace(column, group=dataset + ways, dataset=dataset, own=True)


# Printing -----------------------------------------------------------------------------------------


def render(table: Table, results: Results) -> str:
    """The table as text: in each column the number of the paper, if there is one, and the one measured."""
    heads: list[Cell] = [(head, 1) for head in table.heads]
    blanks: list[Cell] = [("", 1)] * len(heads)
    widths = [1 if column.own else 2 for column in table.columns]
    groups = _join((column.group, width) for column, width in zip(table.columns, widths, strict=True))
    names = [(column.name, width) for column, width in zip(table.columns, widths, strict=True)]
    kinds = [(text, 1) for width in widths for text in ("paper", "here")[-width:]]
    rows: list[list[Cell] | None] = [[*blanks, *groups]] if any(group for group, _ in groups) else []
    rows += [[*blanks, *names], [*heads, *kinds], None]
    for line in table.lines:
        if line is None:
            rows.append(None)
        else:
            cells = [
                (text, 1)
                for column, published, width in zip(table.columns, line.published, widths, strict=True)
                for text in (published, _show(table, _value(table, line, column, results)))[-width:]
            ]
            rows.append([*((head, 1) for head in line.heads), *cells])
    return "\n".join([table.title, *_format(rows, len(heads)), *_notes(table, results)])


def _value(table: Table, line: Line, column: Column, results: Results) -> float | None:
    """What was measured for a cell: percent, or seconds."""
    if column.dataset:
        row = results.find(table, line, column)
        return None if row is None else row.accuracy if table.measure == "accuracy" else row.seconds_per_task
    found = [results.find(table, line, other) for other in table.columns if other.dataset and not other.own]
    accuracies = [row.accuracy for row in found if row is not None]
    return sum(accuracies) / len(found) if len(accuracies) == len(found) else None  # a mean of all or none


def _show(table: Table, value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:.1f}" if table.measure == "accuracy" else f"{value:.1e}"


def _notes(table: Table, results: Results) -> Iterator[str]:
    used = [
        row
        for line in filter(None, table.lines)
        for column in table.columns
        if (row := results.find(table, line, column)) is not None
    ]
    if not used:
        return
    counts = sorted({row.tasks for row in used})
    tasks = f"{counts[0]} tasks" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} tasks"
    if table.measure == "seconds":
        threads = torch.get_num_threads()
        yield f"paper: on a GTX 1080 Ti; here: {tasks}, many at a time, torch threads: {threads}"
    else:
        widest = max((row.accuracy_ci95 or 0.0 for row in used), default=0.0)
        yield f"here: {tasks}, 95 % confidence intervals of at most +- {widest:.1f}"


def _join(cells: Iterable[Cell]) -> list[Cell]:
    """Neighbours of the same text become one."""
    joined: list[Cell] = []
    for text, span in cells:
        if joined and joined[-1][0] == text:
            joined[-1] = text, joined[-1][1] + span
        else:
            joined.append((text, span))
    return joined


def _format(rows: Sequence[Sequence[Cell] | None], heads: int) -> Iterator[str]:
    """The rows as lines, with the first `heads` columns to the left. None is a rule."""
    widths = [0] * max(sum(span for _, span in row) for row in rows if row is not None)
    placed = [(text, span, start) for row in filter(None, rows) for text, span, start in _place(row)]
    placed.sort(key=lambda cell: cell[1])  # narrow ones first: what wide ones lack goes to their first column
    for text, span, start in placed:
        widths[start] += max(len(text) - _width(widths, start, span), 0)
    for row in rows:
        if row is None:
            yield "-" * _width(widths, 0, len(widths))
        else:
            cells = []
            for text, span, start in _place(row):
                align = str.ljust if start < heads else str.center if span > 1 else str.rjust
                cells.append(align(text, _width(widths, start, span)))
            yield GAP.join(cells).rstrip()


def _place(row: Sequence[Cell]) -> Iterator[tuple[str, int, int]]:
    """Text, columns it spans, and the first of them."""
    start = 0
    for text, span in row:
        yield text, span, start
        start += span


def _width(widths: Sequence[int], start: int, span: int) -> int:
    return sum(widths[start : start + span]) + len(GAP) * (span - 1)


def describe(tables: Sequence[Table], results: Results) -> dict[str, Any]:
    """All cells and everything needed to repeat them, ready for JSON."""
    return {
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "measure": table.measure,
                "lines": [
                    {
                        "heads": dict(zip(table.heads, line.heads, strict=True)),
                        "cells": [
                            {
                                "group": column.group,
                                "column": column.name,
                                "published": None if published == DASH else float(published),
                                "measured": _value(table, line, column, results),
                            }
                            for column, published in zip(table.columns, line.published, strict=True)
                        ],
                    }
                    for line in filter(None, table.lines)
                ],
            }
            for table in tables
        ],
        "evaluations": [
            {
                "dataset": source.dataset,
                "backbone": source.backbone,
                "path": source.data.path,
                **evaluation.describe(),
            }
            for source, evaluation in results.evaluations
        ],
        "notes": results.notes,
    }
