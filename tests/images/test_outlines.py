"""The fonts of matplotlib, and what is said where one is missing."""

from __future__ import annotations

import pytest

from tim_ext.errors import UserError
from tim_ext.images import outlines


def test_a_missing_font_is_named(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(outlines, "FACES", (*outlines.FACES, "cmxx10"))
    with pytest.raises(
        UserError, match=r"^glyphs: expected the fonts of matplotlib >= 3.11 .*, got .*cmxx10.ttf$"
    ):
        outlines.font_files()
