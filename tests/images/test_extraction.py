"""From image files to features: few images in memory, threads as they were."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.drawings import write_folders

from tim_ext.images import encoder, extraction
from tim_ext.images.networks import load_encoder


@pytest.fixture
def folders(tmp_path):
    return write_folders(tmp_path)


def test_few_images_are_in_memory_at_a_time(folders, monkeypatch):
    """Those that wait are at most four for each thread, however many there are."""
    paths = [folders / "query" / "day0" / "r2.png"] * 50
    opened = []
    original = extraction.open_image
    monkeypatch.setattr(extraction, "open_image", lambda *a, **o: opened.append(1) or original(*a, **o))
    how = load_encoder(encoder.WEIGHTS)[1]
    reading = extraction._read(paths, how, workers=2)
    for used in range(1, 51):
        assert isinstance(next(reading), extraction.Image)
        assert len(opened) <= used + 2 * 4
    assert next(reading, None) is None
    assert len(opened) == 50


def test_pictures_are_on_the_disk_and_not_in_memory(tmp_path):
    with (tmp_path / "spool").open("w+b") as spool:
        contents = [b"first", b"", b"third"]
        stored = [extraction._store(spool, content) for content in contents]
        for read, content in reversed(list(zip(stored, contents, strict=True))):
            assert read() == content
            assert not any(isinstance(cell.cell_contents, bytes) for cell in read.__closure__)


def test_threads_of_torch_are_left_as_they_were(folders, set_threads):
    set_threads(3)
    seen = []
    how = load_encoder(encoder.WEIGHTS)[1]
    paths = sorted((folders / "query").rglob("*.png"))
    for _ in extraction._read(paths, how, workers=2):
        seen.append(torch.get_num_threads())
    assert set(seen) == {3}
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 3


def test_what_was_skipped_keeps_no_image(folders):
    path = folders / "query" / "cut.png"
    path.write_bytes((folders / "query" / "day0" / "r2.png").read_bytes()[:200])
    error = extraction._read_one(path, load_encoder(encoder.WEIGHTS)[1])
    assert isinstance(error, extraction.ImageError)
    assert error.__traceback__ is error.__cause__ is error.__context__ is None
