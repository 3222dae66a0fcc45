"""The page of `tim-ext predict`: every image by class and confidence, in one file."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from helpers.drawings import CLASSES, Image, read_csv, run_predict, write_folders
from helpers.html import Page
from hypothesis import given
from hypothesis import strategies as st

from tim_ext.cli import contact_sheet
from tim_ext.images import extraction, labelling


@pytest.fixture
def folders(tmp_path):
    return write_folders(tmp_path)


def test_the_page_shows_every_image_by_class_and_confidence(folders):
    assert run_predict(folders) == 0
    html = (folders / "out" / "contact_sheet.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "15 images in 3 classes" in page.texts
    assert len(page.images) == 15 + 6
    for source in page.images:
        kind, _, content = source.partition(",")
        assert kind == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(content))) as image:
            image.load()
            assert max(image.size) <= extraction.PICTURE
    assert not any("This page shows" in text for text in page.texts)
    found = {row["path"]: row for row in read_csv(folders)}
    titles = iter(page.titles)
    for name in CLASSES:
        known = [next(titles) for _ in range(2)]
        assert all(title.startswith(f"{name}/") and title.endswith(f"(labelled {name})") for title in known)
        rows = [found[next(titles).split(" (")[0]] for row in found.values() if row["class"] == name]
        assert {row["class"] for row in rows} == {name}
        confidences = [float(row["confidence"]) for row in rows]
        assert confidences == sorted(confidences, reverse=True)
    assert next(titles, None) is None


def test_beyond_the_limit_the_most_and_the_least_certain_are_shown(folders):
    assert run_predict(folders, "--limit", 9) == 0
    page = Page((folders / "out" / "contact_sheet.html").read_text(encoding="utf-8"))
    shown = [title for title in page.titles if "labelled" not in title]
    assert len(shown) == 9
    assert any(
        text.endswith("predictions.csv has them all.") and "9 of the 15 images" in text for text in page.texts
    )
    assert page.texts.count("2 more, of a confidence between these two groups") == 3
    ranked = sorted(read_csv(folders), key=lambda row: (row["class"], -float(row["confidence"])))
    paths = [row["path"] for row in ranked]
    expected = [path for k in range(3) for path in (*paths[5 * k : 5 * k + 2], paths[5 * k + 4])]
    assert [title.split(" (")[0] for title in shown] == expected
    assert run_predict(folders, "--limit", 0) == 0
    assert Page((folders / "out" / "contact_sheet.html").read_text(encoding="utf-8")).images == []
    assert len(read_csv(folders)) == 15


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_the_limit_is_shared_fairly(sizes, limit):
    shown = contact_sheet.share(sizes, limit)
    assert all(0 <= count <= size for count, size in zip(shown, sizes, strict=True))
    assert sum(shown) == min(sum(sizes), limit)
    cut = [count for count, size in zip(shown, sizes, strict=True) if count < size]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(shown) - min(cut) <= 1  # nobody has more than one who was cut


def test_doubtful_images_are_marked(folders, monkeypatch):
    def unsure(*arguments, **options):
        probs, sure = solve(*arguments, **options)
        return probs, np.full_like(sure, 1 / 3)

    solve = labelling.solve
    monkeypatch.setattr(labelling, "solve", unsure)
    assert run_predict(folders) == 0
    page = Page((folders / "out" / "contact_sheet.html").read_text(encoding="utf-8"))
    assert page.texts.count("33 %") == 15
    assert sum(text.startswith(" or ") for text in page.texts) == 15
