"""Drawings of three classes in folders, and `tim-ext predict` on them."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from tim_ext.cli.main import main

Image = pytest.importorskip("PIL.Image")

CLASSES = ("rings", "stripes", "zigzag")


def draw(kind, seed, side=32):
    """A noisy white-on-black drawing of a class."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side - 0.5 + rng.uniform(-0.05, 0.05, (2, 1, 1))
    waves = {
        "rings": np.hypot(x, y) * 5,
        "stripes": y * 4,
        "zigzag": x * 3 + np.abs((y * 3) % 2 - 1),
    }[kind]
    pixels = 255 * (np.sin(2 * np.pi * waves) > 0) + rng.normal(0, 25, (side, side))
    return pixels.clip(0, 255).astype(np.uint8)


def write_folders(path):
    """Two labelled images of each of three classes, and five of each to label."""
    for k, kind in enumerate(CLASSES):
        for i in range(7):
            folder = path / "support" / kind if i < 2 else path / "query" / f"day{i % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw(kind, 10 * k + i)).save(folder / f"{kind[0]}{i}.png")
    return path


def run_predict(folders, *more, encoder="glyphs", out="out"):
    given = ["--support", folders / "support", "--query", folders / "query", "--out", folders / out]
    return main(["predict", *map(str, given), "--encoder", str(encoder), *map(str, more)])


def read_csv(folders, name="predictions.csv", out="out"):
    with (folders / out / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
