"""Datasets in files: tiny folders in any layout, and what was read from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from python_train.datasets import Dataset


def pillow():
    """Tests that need images in files are skipped without Pillow."""
    return pytest.importorskip("PIL.Image")


def draw(path: Path, value: int = 0, size: tuple[int, int] = (6, 5)) -> Path:
    """An image of one colour, known by its value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow().new("RGB", size, (value, value, value)).save(path)
    return path


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def listing(dataset: Dataset) -> set[tuple[str, str]]:
    """(file below the root, class)"""
    names = [dataset.class_names[label] for label in dataset.labels]
    return {
        (str(path.relative_to(dataset.root)), name) for path, name in zip(dataset.images, names, strict=True)
    }


def classes(dataset: Dataset) -> list[str]:
    assert sorted(set(dataset.labels.tolist())) == list(range(len(dataset.class_names)))
    return dataset.class_names
