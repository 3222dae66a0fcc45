"""Glyphs for the tests: the real classes, found once, with few images of each."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch
from cuda_emulation.build import cache_folder
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
def found() -> tuple[glyphs.Classes, Tensor]:
    """The classes and their pictures: half a minute, so one of pytest's workers finds them for all."""
    key = hashlib.sha256()
    for file in (glyphs.__file__, outlines.__file__, *outlines.font_files()):
        key.update(Path(file).read_bytes())
    target = cache_folder() / f"glyphs_{key.hexdigest()[:20]}.pickle"
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            classes = glyphs.find_classes()
            drawn = torch.from_numpy(outlines.draw(classes.outlines, glyphs.PICTURE, glyphs.EXTENT))
            draft = target.with_suffix(".draft")
            draft.write_bytes(pickle.dumps((classes, drawn)))
            os.replace(draft, target)
    return pickle.loads(target.read_bytes())


def classes() -> glyphs.Classes:
    return found()[0]


def pictures() -> Tensor:
    return found()[1]


def build(seed: int) -> dict[str, glyphs.GlyphSet]:
    """What glyphs._build does, without finding the classes again."""
    return {split: glyphs._draw_split(classes(), pictures(), split, seed) for split in glyphs.SHARES}


def use_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes glyphs.load quick."""
    if missing_fonts():
        pytest.skip(missing_fonts())
    monkeypatch.setattr(glyphs, "PER_CLASS", FEW)
    monkeypatch.setattr(glyphs, "_build", build)
