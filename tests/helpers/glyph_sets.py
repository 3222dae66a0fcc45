"""Glyphs for the tests: the real classes, found once, with few images of each."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tim_ext.errors import UserError
from tim_ext.images import glyphs, outlines


def missing_fonts() -> str:
    """Why there can be no glyphs here; "" if there can."""
    try:
        outlines.font_files()
    except (ImportError, UserError) as error:
        return str(error)
    return ""


needs_fonts = pytest.mark.skipif(bool(missing_fonts()), reason=missing_fonts())

FEW = {"base": 1, "validation": 1, "novel": 6}


@functools.cache
def classes() -> glyphs.Classes:
    return glyphs.find_classes()


@functools.cache
def pictures() -> Tensor:
    return torch.from_numpy(outlines.draw(classes().outlines, glyphs.PICTURE, glyphs.EXTENT))


def build(seed: int) -> dict[str, glyphs.GlyphSet]:
    """What glyphs._build does, without finding the classes again."""
    return {split: glyphs._draw_split(classes(), pictures(), split, seed) for split in glyphs.SHARES}


def use_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes glyphs.load quick."""
    if missing_fonts():
        pytest.skip(missing_fonts())
    monkeypatch.setattr(glyphs, "PER_CLASS", FEW)
    monkeypatch.setattr(glyphs, "_build", build)
