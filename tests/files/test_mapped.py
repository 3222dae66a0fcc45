"""A pool that is cut off while it is read: a sentence before the next piece, and not SIGBUS."""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.forked import run_script

from tim_ext.files import mapped
from tim_ext.files.features import open_pool
from tim_ext.files.mapped import check_mapped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SIGBUS as Linux sends it")

M, D = 3000, 64


@pytest.fixture(params=[".npy", ".safetensors"])
def path(tmp_path: Path, request) -> Path:
    return write_pool(tmp_path, request.param)


def write_pool(folder: Path, suffix: str) -> Path:
    x = np.random.default_rng(0).standard_normal((M, D)).astype(np.float32)
    path = folder / f"pool{suffix}"
    if suffix == ".npy":
        np.save(path, x)
    else:
        save_file = pytest.importorskip("safetensors.torch").save_file
        save_file({"features": torch.from_numpy(x)}, path)
    return path


def test_a_file_that_was_cut_off_is_refused(path: Path) -> None:
    pool = open_pool(path)
    size = path.stat().st_size
    os.truncate(path, size + 1)
    for part in (pool, pool[5:], pool[M - 1 :]):
        check_mapped(part)
    os.truncate(path, size - 5)
    pattern = (
        f"^{path}: expected {size} bytes, as when it was opened, got {size - 5}: the file was cut off .*"
    )
    for part in (pool, pool[5:], pool[M - 1 :]):
        with pytest.raises(ValueError, match=pattern):
            check_mapped(part)
    check_mapped(pool[:10].clone())  # in memory
    check_mapped(torch.zeros(2, 2))


def test_a_file_that_is_replaced_is_as_it_was(path: Path) -> None:
    pool = open_pool(path)
    path.with_name("new").write_bytes(b"short")
    os.replace(path.with_name("new"), path)
    check_mapped(pool)
    assert pool.isfinite().all()


def test_mappings_are_forgotten_with_their_tensors(path: Path) -> None:
    pool = open_pool(path)
    part = pool[7:9]
    del pool
    gc.collect()
    known = [one.memory() is not None for one in mapped._mappings if one.path == str(path)]
    assert known == [True]  # a part of it is in use
    del part
    gc.collect()
    assert not any(one.memory() is not None for one in mapped._mappings if one.path == str(path))


# In a process of its own, which SIGBUS would end. The file is cut off at a moment of the run.
LABEL = """
import os, sys
from contextlib import contextmanager
from tim_ext.cli import label
from tim_ext.cli.main import main
from tim_ext.distributed import labelling, shard

pool, when, *arguments = sys.argv[1:]
shard.SEGMENT_ROWS = labelling.ROWS = 512

@contextmanager
def bar_of(total, processes):
    yield lambda what, rows: os.truncate(pool, 8192) if what == when else None

label.bar_of = bar_of
sys.exit(main(["label", pool, "--method", "adm", *arguments]))
"""


@pytest.mark.parametrize(("suffix", "when"), [(".npy", "iteration 2"), (".safetensors", "labels")])
def test_label(tmp_path: Path, suffix: str, when: str) -> None:
    path = write_pool(tmp_path, suffix)
    support, out = tmp_path / "support.csv", tmp_path / "out.csv"
    support.write_text("0,a\n1,b\n")
    given = ["--support", str(support), "--out", str(out), "--iterations", "4"]
    ended = run_script(LABEL, str(path), when, *given)
    assert ended.returncode == 2, ended.stderr
    pattern = (
        rf"tim-ext label: {re.escape(str(path))}: expected \d+ bytes, .*, got 8192: the file was cut off .*\n"
    )
    assert re.fullmatch(pattern, ended.stderr), ended.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == [path.name, "support.csv"]


EVALUATE = """
import os, sys
from tim_ext.cli.main import main
from tim_ext.evaluation import run

pool, *arguments = sys.argv[1:]
share = run._share

def cut(*chunk):
    os.truncate(pool, 8192)
    return share(*chunk)

run._share = cut
sys.exit(main(["evaluate", pool, *arguments]))
"""


def test_evaluate(tmp_path: Path) -> None:
    path = write_pool(tmp_path, ".npy")
    np.save(tmp_path / "labels.npy", np.arange(M) % 30)
    given = ["--labels-path", str(tmp_path / "labels.npy"), "--tasks", "20", "--methods", "tim-adm"]
    ended = run_script(EVALUATE, str(path), *given)
    assert ended.returncode == 2, ended.stderr
    assert re.fullmatch(r"tim-ext evaluate: .*: the file was cut off while it was read\n", ended.stderr)
