"""The arithmetic of the report, on numbers made up for it. No time is measured here."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import replace

import pytest

from . import analysis, jax_competitors, report
from .analysis import Change, Form, Report, Row
from .comparison import Candidate, Comparison, agree, measure

ROW = Row(
    group="adm",
    comparison="200 tasks",
    candidate="tim_ext.adm",
    device="cpu",
    reference="torch loop",
    seconds=0.04,
    ratio=60.0,
    ratio_error=0.6,
    tasks=200,
    threads=2,
    multiply_adds=2e9,
    bytes=5e7,
    share=0.5,
    headline=True,
    note="",
    x={},
    rounds=5,
)
LOOP = replace(ROW, candidate="torch loop", seconds=2.4, ratio=1.0, ratio_error=0.0, share=None)
MACHINE = {"cores": 2, "instructions": "avx2", "torch": "2.15", "tim_ext": "0.1", "cpu": {}}


def make_report(*rows: Row) -> Report:
    return Report(list(rows), MACHINE, {}, "2026-01-01T00:00:00")


def test_a_line_is_found():
    line = analysis.fit_line([1, 10, 100], [3e-4 + 2e-4 * x for x in (1, 10, 100)])
    assert line.base == pytest.approx(3e-4)
    assert line.slope == pytest.approx(2e-4)
    assert line.worst < 1e-9


def test_an_exponent_is_found():
    assert analysis.exponent([10, 20, 50], [5 * x**1.7 for x in (10, 20, 50)]) == pytest.approx(1.7)


def test_the_crossing_lies_where_both_forms_are_equal():
    places = [
        Form(n, 64, 5, 150, dual=float(n) ** 2, primal=300.0 * n, picks_dual=n < 300) for n in (100, 200, 400)
    ]
    assert analysis.crossing(places) == pytest.approx(300, rel=1e-6)
    assert analysis.crossing(places[:2]) is None


def test_the_loss_of_auto():
    good = Form(100, 64, 5, 150, dual=1.0, primal=2.0, picks_dual=True)
    assert good.loss == 0
    assert replace(good, picks_dual=False).loss == pytest.approx(1.0)
    places = [replace(good, samples=n) for n in range(100, 112)]
    assert "largest loss is 0%" in report.two_forms(places)
    bad = [*places, replace(good, samples=200, dual=2.0, primal=1.0)]
    assert "at 1 of 13 places: 100% at N = 200" in report.two_forms(bad)


@pytest.mark.parametrize(
    ("ratio", "error", "slower", "faster"),
    [
        (60.0, 0.6, False, False),
        (56.0, 0.6, False, False),  # 7 %: below what is ever called a change
        (50.0, 0.6, True, False),
        (50.0, 9.0, False, False),  # within its own noise
        (75.0, 0.6, False, True),
    ],
)
def test_a_regression_is_beyond_noise(ratio, error, slower, faster):
    new = make_report(LOOP, replace(ROW, ratio=ratio, ratio_error=error))
    (change,) = analysis.changes(make_report(LOOP, ROW), new)
    assert (change.slower, change.faster) == (slower, faster)


def test_a_busy_machine_is_no_regression():
    busy = make_report(replace(LOOP, seconds=24.0), replace(ROW, seconds=0.4))
    (change,) = analysis.changes(make_report(LOOP, ROW), busy)
    assert change.factor == 1
    assert not change.slower


def test_rivals_are_not_ours_to_watch():
    other = replace(LOOP, candidate="torch loop, Gram domain", ratio=4.0)
    slow = replace(other, ratio=1.0)
    assert [
        change.row for change in analysis.changes(make_report(LOOP, other), make_report(LOOP, slow))
    ] == []


def test_the_comparison_names_what_became_slower(tmp_path):
    change = Change(ROW, before=60.0, after=30.0, noise=0.1)
    text = report.compared([change], tmp_path / "old.json")
    assert "SLOWER" in text
    assert "-50%" in text


def test_a_file_that_is_no_report_is_refused(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"benchmarks": [{}]}))
    with pytest.raises(SystemExit, match=r"old.json: expected the JSON of an earlier report"):
        report.main(["--compare", str(path), "--out", str(tmp_path)])


def test_tables_name_the_factor():
    text = report.duel([ROW, LOOP])
    assert "| **tim_ext.adm** | 200 µs |  | 50% |" in text
    assert "| torch loop | 12 ms | 60 × |  |" in text


def test_candidates_that_disagree_are_not_timed():
    def check(name, result, data):
        assert result == data, f"got {result}"

    right, wrong = Candidate(lambda data: data), Candidate(lambda data: data + 1)
    agree(Comparison("sums", lambda device: 1, {"right": right}, check))
    comparison = Comparison("sums", lambda device: 1, {"right": right, "wrong": wrong}, check)
    with pytest.raises(AssertionError, match="sums: wrong is not timed, it disagrees: got 2"):
        measure(comparison, 0.0)


def test_every_candidate_has_a_time_in_every_turn():
    calls = {"a": Candidate(lambda data: None), "b": Candidate(lambda data: None, threads=1)}
    measured = measure(Comparison("nothing", lambda device: 1, calls, lambda *result: None), 0.0)
    assert {len(times) for times in measured.times.values()} == {5}
    assert len(measured.ratios("b")) == 5
    assert measured.ratios("a") == [1.0] * 5


def test_a_candidate_that_misses_something_is_left_out():
    there, missing = Candidate(lambda data: None), Candidate(lambda data: 1 / 0, missing="not installed")
    calls = {"a": there, "b": missing}
    measured = measure(Comparison("nothing", lambda device: 1, calls, lambda *result: None), 0.0)
    assert set(measured.times) == {"a"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors are chosen on Linux alone")
def test_jax_gets_as_many_processors_as_a_comparison_has_threads():
    before = os.sched_getaffinity(0)
    with jax_competitors.processors(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    "name", ["gpu", "label", "predict_images", "real_features", "report", "results", "scale"]
)
def test_every_script_imports(name):
    importlib.import_module(f"benchmarks.{name}")
