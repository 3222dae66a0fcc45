"""`tim-ext demo` from end to end on a small setting, and the parts of its report."""

from __future__ import annotations

import argparse
import base64
import io
import json
import re

import numpy as np
import pytest
from helpers.glyph_sets import use_few_images
from helpers.html import Page

from tim_ext.cli import demo
from tim_ext.cli import pages as report
from tim_ext.cli.pages import Example

for needed in ("matplotlib", "safetensors", "sklearn"):
    pytest.importorskip(needed)


def read_png(png):
    """By another decoder than the encoder under test."""
    pixels = pytest.importorskip("matplotlib.image").imread(io.BytesIO(png), format="png")
    return np.rint(255 * pixels).astype(np.uint8)


def parse(*arguments):
    parser = argparse.ArgumentParser()
    demo.add_command(parser.add_subparsers())
    return parser.parse_args(["demo", *map(str, arguments)])


@pytest.fixture
def small(monkeypatch):
    use_few_images(monkeypatch)
    monkeypatch.setattr(demo, "QUERIES", 1)
    monkeypatch.setattr(demo, "CURVES", 3)
    monkeypatch.setattr(demo, "EXAMPLES", 2)


@pytest.mark.usefixtures("small")
def test_demo(tmp_path, capsys):
    options = parse("--out", tmp_path / "out", "--cache", tmp_path / "cache", "--tasks", 60, "--gd-tasks", 7)
    assert options.run(options) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith(f"open {tmp_path / 'out' / 'report.html'} in a browser")
    files = {file.name for file in (tmp_path / "out").iterdir()}
    plots = {"convergence-unseen-glyphs.png", "convergence-handwritten-digits.png"}
    assert files == {"report.html", "results.json", *plots}

    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results) == ["unseen glyphs", "handwritten digits"]
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    for bed, (fast, slow) in results.items():
        assert {row["tasks"] for row in fast["rows"]} == {60}
        rows = fast["rows"] + [row for row in slow["rows"] if row["method"] == "TIM-GD"]
        assert len(rows) == 2 * 5
        assert {row["tasks"] for row in rows if row["method"] == "TIM-GD"} == {7}
        for row in rows:
            accuracy = f"{row['accuracy']:.2f} ± {row['accuracy_ci95']:.2f}"
            line = next(line for line in printed.splitlines() if line.startswith(row["method"]))
            assert accuracy in line  # in the table of the terminal
            assert any(cells[:2] == [row["method"], accuracy] for cells in page.rows)  # and of the report
        assert f"Convergence on {bed}" in page.texts
        # TIM-GD is compared with the prototypes of its own tasks, the first ones
        first = {row["setting"]: row for row in slow["rows"] if row["method"] == "nearest prototype"}
        for row in rows:
            if row["method"] == "TIM-GD":
                assert row["difference"] == pytest.approx(row["accuracy"] - first[row["setting"]]["accuracy"])
    assert "of 60 tasks" in printed
    assert "TIM-GD: of the first 7 of them" in printed

    assert (
        len(page.images) == 2 + 2 * 2 * 5 * 2 + 2
    )  # curves; beds x tasks x classes x (support + query); sheets
    for source in page.images:
        kind, content = source.split(",", 1)
        assert kind == "data:image/png;base64"
        read_png(base64.b64decode(content, validate=True))
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import", text)  # nothing from outside


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tasks", 1), "--tasks: expected an integer >= 2, got 1"),
        (("--gd-tasks", 0), "--gd-tasks: expected an integer >= 2, got 0"),
        (("--seed", -1), "--seed: expected an integer >= 0, got -1"),
    ],
)
def test_bad_input(tmp_path, arguments, message):
    options = parse("--out", tmp_path / "out", *arguments)
    with pytest.raises(ValueError, match=message):
        options.run(options)
    assert not (tmp_path / "out").exists()


# The parts of the report --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (32, 32), (3, 50)])
def test_gray_png(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(read_png(report.gray_png(image)), image)


def test_contact_sheet():
    images = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
    sheet = report.contact_sheet(images, columns=3)
    assert sheet.shape == (4, 9)
    np.testing.assert_array_equal(sheet[2:, 3:6], images[4])
    assert (sheet[2:, 6:] == 0).all()


def test_text_is_escaped():
    html = report.page(
        "<b>&", "a < b", report.section("x > y", report.table("<i>", ["<u>"], [["</table>"]], best=0))
    )
    page = Page(html)
    assert {"<b>&", "a < b", "x > y", "<i>", "<u>", "</table>"} <= set(page.texts)


def test_example_marks_what_each_method_got_right():
    """Two classes, support 0 and 1; queries: both right, gained, lost, both wrong."""
    truth = np.array([0, 1, 0, 0, 1, 1])
    task = Example(
        images=np.zeros((6, 4, 4), np.uint8),
        labels=np.array([0, 1, -1, -1, -1, -1]),
        truth=truth,
        class_names=["<a>", "b"],
        predictions={"old": np.array([0, 1, 0, 1, 1, 0]), "new": np.array([0, 1, 0, 0, 0, 0])},
    )
    html = report.example("Task", task)
    page = Page(html)
    assert "Task: old 50 %, new 50 %" in page.texts
    assert re.findall(r'class="cell (\w*)"', html) == ["support", "", "gained", "support", "lost", "wrong"]
    assert page.titles == [
        "labelled <a>",
        "<a>; old: <a>; new: <a>",
        "<a>; old: b; new: <a>",
        "labelled b",
        "b; old: b; new: <a>",
        "b; old: <a>; new: <a>",
    ]
    marks = [text for text in page.texts if text[:1] in "✓✗"]
    assert marks == ["✓ b", "✗ <", "✗ <"]
    Page(report.example_legend("old", "new"))
