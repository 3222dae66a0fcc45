"""The tables of the paper: the published numbers, and what is measured beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers.feature_files import write_clusters

from tim_ext import evaluate
from tim_ext.evaluation import paper
from tim_ext.evaluation.methods import METHODS
from tim_ext.evaluation.paper_tables import (
    ABLATION_OF_TERMS,
    DASH,
    DOMAIN_SHIFT,
    META_RESULTS,
    META_VALIDATION,
    RUN_TIMES,
    STANDARD,
    TABLES,
    WAYS,
    Line,
    Table,
)
from tim_ext.files.features import load_features


def lines_of(table: Table) -> dict[tuple[str, ...], Line]:
    return {line.heads: line for line in table.lines if line is not None}


def numbers(line: Line) -> list[float]:
    return [float(cell) for cell in line.published]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clusters(tmp_path_factory.mktemp("features"))


# The published numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_tables_are_complete(table: Table) -> None:
    for line in filter(None, table.lines):
        assert len(line.heads) == len(table.heads)
        assert len(line.published) == len(table.columns)
        assert all(cell == DASH or 0 < float(cell) < 100 for cell in line.published)


def test_sizes_are_those_of_the_paper() -> None:
    sizes = [sum(line is not None for line in table.lines) for table in TABLES]
    assert sizes == [32, 11, 8, 3 + 1, 6, 12, 4]  # and the line of this package


@pytest.mark.parametrize("table", [META_RESULTS, META_VALIDATION], ids=lambda table: table.name)
def test_means_of_meta_dataset(table: Table) -> None:
    """The last column is the mean of the others, as far as the paper rounds."""
    for heads, line in lines_of(table).items():
        if heads != ("tim_ext",):
            *others, mean = numbers(line)
            assert sum(others) / 10 == pytest.approx(mean, abs=0.051), heads


def test_tables_agree_with_each_other() -> None:
    """The paper repeats some of its numbers."""
    standard, ablation = lines_of(STANDARD), lines_of(ABLATION_OF_TERMS)
    for method in ("TIM-ADM", "TIM-GD"):
        full = ablation[method, "{W}", "CE - H(Y) + H(Y|X)"]
        assert full.published == standard[method, "yes", "ResNet-18"].published
    simpleshot = lines_of(META_RESULTS)["Ind.", "SimpleShot"]
    assert simpleshot.published == lines_of(META_VALIDATION)[("Ours",)].published


def test_some_numbers() -> None:
    standard = lines_of(STANDARD)
    assert numbers(standard["TIM-GD", "yes", "ResNet-18"]) == [73.9, 85.0, 79.9, 88.5, 82.2, 90.8]
    assert standard["BD-CSPN", "yes", "WRN28-10"].published[3] == "86.92"
    assert numbers(lines_of(DOMAIN_SHIFT)[("TIM-GD",)]) == [71.0]
    assert numbers(lines_of(WAYS)[("TIM-ADM",)]) == [56.0, 72.9, 39.5, 58.8]
    assert numbers(lines_of(RUN_TIMES)["TIM-ADM", "{W}", "yes"]) == [0.12]


def test_lines_are_measured_by_methods_that_exist() -> None:
    for table in TABLES:
        for line in filter(None, table.lines):
            if line.run is not None:
                method, hyper = line.run
                METHODS[method].complete(dict(hyper))


def test_what_trains_the_encoder_is_not_measured() -> None:
    for table in TABLES:
        for heads, line in lines_of(table).items():
            if "{phi, W}" in heads or "ProtoNet" in heads or "Ent-min" in heads:
                assert line.run is None


# What is measured ---------------------------------------------------------------------------------


def source(path: Path, dataset: str, backbone: str = "ResNet-18") -> paper.Source:
    return paper.Source(dataset, backbone, load_features(path))


def small(table: Table, *methods: str) -> Table:
    """With the lines of some methods only."""
    chosen = (line for line in table.lines if line is not None and line.heads[0] in methods)
    return Table(table.name, table.title, table.heads, table.columns, tuple(chosen), table.measure)


def test_a_cell_is_what_evaluate_says(features: Path) -> None:
    mini = source(features, "mini")
    tables = [small(STANDARD, "SimpleShot", "TIM-ADM"), small(ABLATION_OF_TERMS, "TIM-ADM")]
    results = paper.measure(tables, [mini], tasks=8, seed=3)
    ablation = {"cut=tim-adm": {"marginal_weight": 0.0}, "start=tim-adm": {"iterations": 0}, "tim-adm": {}}
    expected = evaluate(
        mini.data.features,
        mini.data.labels,
        methods=list(ablation),
        hyper={name.partition("=")[0]: hyper for name, hyper in ablation.items()},
        tasks=8,
        seed=3,
    )
    accuracy = {(row.setting, row.method): f"{row.accuracy:.1f}" for row in expected.rows}
    text = paper.render(tables[1], results).splitlines()
    measured = [line.split()[-11::2] for line in text if line.startswith("TIM-ADM")]
    ce, conditional, _, full = measured
    for cells, method in ((ce, "start"), (conditional, "cut"), (full, "tim-adm")):
        assert cells[:2] == [accuracy["5-way 1-shot", method], accuracy["5-way 5-shot", method]]
        assert cells[2:] == 4 * [DASH]  # tiered-ImageNet and CUB
    assert "here: 8 tasks" in text[-1]


def test_everything_is_measured_once(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], list[str]]] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        calls.append((list(options["sampler"]), options["methods"]))
        return evaluate(*arguments, **options)

    monkeypatch.setattr(paper, "evaluate", spy)
    own = source(features, "mine", "own")
    tables = [
        paper.extend(small(table, "SimpleShot", "TIM-ADM"), [own])
        for table in (STANDARD, DOMAIN_SHIFT, ABLATION_OF_TERMS, RUN_TIMES)
    ]
    paper.measure(tables, [own], tasks=2, hyper={"tim-adm": {"temperature": 5.0}})
    assert [settings for settings, _ in calls] == [["5-way 1-shot"], ["5-way 5-shot"]]
    for _, methods in calls:
        assert len(methods) == len(set(methods))
        # the lines of the new backbone add bd-cspn, laplacianshot and tim-gd
        assert sum(name.endswith("=simpleshot") for name in methods) == 1
        assert sum(name.endswith("=tim-adm") for name in methods) == 4  # the losses of the ablation
        assert len(methods) == 8


def test_features_fill_the_lines_of_their_backbone_only(features: Path) -> None:
    wide = source(features, "mini", "WRN28-10")
    tables = [small(STANDARD, "TIM-ADM"), small(ABLATION_OF_TERMS, "TIM-ADM"), small(RUN_TIMES, "TIM-ADM")]
    results = paper.measure(tables, [wide], tasks=2)
    narrow, matching = (line for line in tables[0].lines if line is not None)
    columns = tables[0].columns
    assert [results.find(tables[0], narrow, column) for column in columns] == [None] * 6
    found = [results.find(tables[0], matching, column) is not None for column in columns]
    assert found == [True, True, False, False, False, False]
    assert "here:" not in paper.render(tables[1], results)  # of ResNet-18
    assert "here: 2 tasks" in paper.render(tables[2], results)


def test_other_datasets_and_backbones_get_columns_and_lines(features: Path) -> None:
    own, other = source(features, "mine", "ViT"), source(features, "cub", "ViT")
    table = paper.extend(STANDARD, [own, other])
    assert [(column.group, column.name) for column in table.columns[6:]] == [
        ("mine", "1-shot"),
        ("mine", "5-shot"),
    ]
    added = [line.heads for line in table.lines[len(STANDARD.lines) :] if line is not None]
    assert [heads[0] for heads in added] == ["SimpleShot", "BD-CSPN", "LaplacianShot", "TIM-ADM", "TIM-GD"]
    assert {heads[2] for heads in added} == {"ViT"}  # once, although two sources have it
    assert all(len(line.published) == 8 for line in table.lines if line is not None)
    assert [c.group for c in paper.extend(WAYS, [own]).columns[4:]] == 2 * ["mine, 10-way"] + 2 * [
        "mine, 20-way"
    ]
    assert paper.extend(META_RESULTS, [own]).columns[-1].name == "mine"
    assert paper.extend(STANDARD, []) == STANDARD


def test_the_mean_of_meta_dataset_is_of_all_or_none(features: Path) -> None:
    table = small(META_VALIDATION, "tim_ext")
    names = [column.dataset for column in table.columns if column.dataset]
    all_ten = paper.measure([table], [source(features, name) for name in names], tasks=2)
    cells = paper.render(table, all_ten).splitlines()[4].split()[2::2]  # what is measured
    assert len(cells) == 11
    assert float(cells[10]) == pytest.approx(sum(map(float, cells[:10])) / 10, abs=0.1)
    nine = paper.measure([table], [source(features, name) for name in names[1:]], tasks=2)
    cells = paper.render(table, nine).splitlines()[4].split()[2::2]
    assert cells[0] == cells[10] == DASH
    assert DASH not in cells[1:10]


# The command --------------------------------------------------------------------------------------


def test_numbers_stand_under_their_heads() -> None:
    lines = paper.render(STANDARD, paper.Results({}, [], [])).splitlines()
    kinds, body = lines[3], [line for line in lines[5:] if not line.startswith("---")]
    ends = [place + len(word) for word in ("paper", "here") for place in _places(kinds, word)]
    for line in body:
        assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for end in ends)


def _places(line: str, word: str) -> list[int]:
    return [place for place in range(len(line)) if line.startswith(word, place)]


@pytest.mark.skipif(
    "TIM_EXT_DATA" not in os.environ, reason="TIM_EXT_DATA, the folder of real features, is not set"
)
def test_real_features() -> None:
    """The order of the losses in the ablation, on features that are not those of the paper."""
    path = Path(os.environ["TIM_EXT_DATA"]) / "cifarfs_test_features.npz"
    own = source(path, "cifarfs", "own")
    table = paper.extend(small(ABLATION_OF_TERMS, "TIM-ADM"), [own])
    results = paper.measure([table], [own], tasks=300)
    accuracy = {line.heads[2]: results.find(table, line, table.columns[6]) for line in table.lines if line}
    ce, conditional, marginal, full = (row.accuracy for row in accuracy.values() if row is not None)
    assert conditional < ce < marginal < full
