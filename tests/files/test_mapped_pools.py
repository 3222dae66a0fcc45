"""A pool that is mapped from a file is never copied: the limit of the kernel on a process's data says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tim_ext
from tim_ext import baselines, tasks
from tim_ext.evaluation.methods import METHODS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")

CLASSES, D = 20, 256

# In a process of its own, as a limit stays. Mapped files count as data, so their sizes come on top.
LIMIT = """
import resource, sys
import torch
import tim_ext.cli.main, tqdm

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))

def limit(*extra):
    size = status("VmData") + sum(extra)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))

torch.set_num_threads(1)
torch.zeros(400, 400) @ torch.zeros(400, 400)  # torch's own buffers
"""


def write_pool(folder: Path, rows: int, dtype: torch.dtype) -> tuple[Path, Path]:
    """Features of CLASSES classes that overlap, in .npy or, for bfloat16, in .safetensors; and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % CLASSES
    some = torch.randn(CLASSES, D, generator=generator).repeat(200, 1)
    some += 2 * torch.randn(some.shape, generator=generator)
    features = some.repeat(-(-rows // len(some)), 1)[:rows].to(dtype)
    np.save(folder / "labels.npy", labels.numpy())
    if dtype == torch.bfloat16:
        pytest.importorskip("safetensors.torch").save_file(
            {"features": features}, folder / "pool.safetensors"
        )
        return folder / "pool.safetensors", folder / "labels.npy"
    np.save(folder / "pool.npy", features.numpy())
    return folder / "pool.npy", folder / "labels.npy"


def run_within(run_python, margin: int, pool: Path, extra: int, *arguments: str) -> str:
    """`tim-ext ...` in a process that may allocate `margin` bytes beside the pool and `extra` bytes of mapped
    files; returns what it prints."""
    code = (
        f"{LIMIT}\nlimit({pool.stat().st_size}, {extra}, {margin})\n"
        f"before = status('RssAnon')\ncode = tim_ext.cli.main.main({list(arguments)!r})\n"
        "print('anonymous', status('RssAnon') - before)\n"
        f"pool = tim_ext.files.features.open_pool({str(pool)!r})\n"
        "try:\n    pool.clone()\nexcept RuntimeError as error:\n    print(error)\nsys.exit(code)"
    )
    # large blocks are given back when they are freed: the limit is for what is in use at once
    ended = run_python("-c", code, MALLOC_MMAP_THRESHOLD_=str(2**20))
    assert ended.returncode == 0, ended.stderr
    assert "can't allocate memory" in ended.stdout  # the limit is one that a copy runs into
    return ended.stdout


def evaluate_within(run_python, pool: Path, labels: Path, out: Path, margin: int, *options: str) -> str:
    arguments = ["evaluate", str(pool), "--labels-path", str(labels), "--out", str(out), *options]
    return run_within(run_python, margin, pool, 2 * labels.stat().st_size, *arguments)


def rows_of(out: Path) -> list[tuple[object, ...]]:
    rows = json.loads((out / "evaluation.json").read_text())["rows"]
    return [(row["setting"], row["method"], row["accuracy"], row["difference"]) for row in rows]


@pytest.mark.slow
def test_evaluate_copies_nothing_of_a_mapped_pool(run_python, tmp_path):
    """Methods on 120 MB of float16: a copy of it, or its float32, would not fit. The numbers are those of a
    pool in memory with the same `memory`."""
    pool, labels = write_pool(tmp_path, 240_000, torch.float16)
    methods = [
        name for name in METHODS if name not in ("tim-gd", "alpha-tim", "ent-min", "alpha-am")
    ]  # as tim-adm, slower
    options = ["--methods", *methods, "--shots", "1", "--tasks", "6", "--memory", "8MB"]
    options += ["--set", "baseline.iterations=5", "baseline++.iterations=5"]
    np.save(tmp_path / "mean.npy", np.full(D, 0.1, np.float32))
    options += ["--base-mean", str(tmp_path / "mean.npy")]
    evaluate_within(run_python, pool, labels, tmp_path / "out", 96 * 2**20, *options)
    hyper = {name: {"iterations": 5} for name in ("baseline", "baseline++")}
    expected = tim_ext.evaluate(
        np.load(pool),
        np.load(labels),
        methods=methods,
        shots=1,
        tasks=6,
        memory=8 * 2**20,
        hyper=hyper,
        base_mean=np.full(D, 0.1, np.float32),
    )
    assert rows_of(tmp_path / "out") == [
        (row.setting, row.method, row.accuracy, row.difference) for row in expected.rows
    ]


def label_within(run_python, pool: Path, folder: Path, margin: int, *options: str) -> str:
    (folder / "support.csv").write_text("".join(f"{row},class {row}\n" for row in range(CLASSES)))
    files = [str(pool), "--support", str(folder / "support.csv"), "--out", str(folder / "out.csv")]
    return run_within(run_python, margin, pool, 0, "label", *files, "--method", "adm", *options)


@pytest.mark.slow
def test_label_copies_nothing_of_a_mapped_pool(run_python, tmp_path):
    """240,000 rows and 123 MB of float16; some 60 MB are for work, whatever the pool."""
    pool, _ = write_pool(tmp_path, 240_000, torch.float16)
    text = label_within(run_python, pool, tmp_path, 110 * 2**20, "--iterations", "2", "--memory", "8MB")
    assert "240000 rows, d = 256; 20 of them labelled, 20 classes" in text
    with (tmp_path / "out.csv").open() as lines:
        right = [
            line.split(",")[1] == f"class {row % CLASSES}" for row, line in enumerate(lines, -1) if row >= 0
        ]
    assert len(right) == 240_000
    assert sum(right) > 0.5 * len(right)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npz", ".csv"])  # pyarrow's allocator sets memory apart as it likes
def test_label_on_a_large_mapped_pool(run_python, tmp_path, suffix):
    """800,000 rows and 400 MB of bfloat16."""
    pool, _ = write_pool(tmp_path, 800_000, torch.bfloat16)
    options = ["--iterations", "3", "--memory", "32MB", "--out", str(tmp_path / f"out{suffix}")]
    text = label_within(run_python, pool, tmp_path, 300 * 2**20, *options)
    assert int(text.split("anonymous")[1].split()[0]) < 150 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_evaluate_on_a_large_mapped_pool(run_python, tmp_path, dtype):
    """400 MB and 800 MB, with the default memory of tasks cut to 32 MB."""
    pool, labels = write_pool(tmp_path, 800_000, dtype)
    options = ["--methods", "prototype", "bd-cspn", "tim-adm", "tim-gd", "--set", "tim-gd.iterations=50"]
    options += ["--memory", "32MB", "--tasks", "300"]
    evaluate_within(run_python, pool, labels, tmp_path / "out", 120 * 2**20, *options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_pools_leave_transforms_to_the_methods(dtype):
    """The same accuracies whether there is room for a transformed copy or not, here on easy tasks."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % CLASSES
    pool = torch.randn(CLASSES, 32, generator=generator)[labels]
    pool = (pool + 0.8 * torch.randn(400, 32, generator=generator)).to(dtype)
    methods = ["prototype", "simpleshot", "bd-cspn", "laplacianshot", "pt-map", "tim-adm"]
    mean = torch.full((32,), 0.1, dtype=dtype)
    arguments = {"methods": methods, "shots": 5, "queries": 10, "tasks": 40, "base_mean": mean}
    small = tim_ext.evaluate(pool, labels, **arguments)
    large = tim_ext.evaluate(pool, labels, memory=30_000, **arguments)
    for one, other in zip(small.rows, large.rows, strict=True):
        assert one.accuracy == pytest.approx(other.accuracy, abs=0.1)
        assert one.accuracy > 40


@pytest.mark.parametrize("solver", [tim_ext.adm, tim_ext.gd, baselines.bd_cspn, baselines.prototype])
def test_index_into_a_read_only_memory_map(tmp_path, solver, recwarn):
    """As from memory, bit by bit, and without a warning that the array cannot be written to."""
    path, labels_path = write_pool(tmp_path, 2000, torch.float16)
    sampler = tasks.balanced(np.load(labels_path), ways=4, shots=2, queries=5)
    drawn = sampler[0:5]
    mapped = np.load(path, mmap_mode="r")
    one = solver(mapped, drawn.labels, index=drawn.index)
    other = solver(np.load(path), drawn.labels, index=drawn.index)
    assert torch.equal(one.probs, other.probs)
    assert not recwarn.list


def test_index_into_a_memory_map_of_another_order(tmp_path):
    """It would have to be copied whole; rows of one that is in order are fine."""
    path, _ = write_pool(tmp_path, 2000, torch.float32)
    labels, index = [0, 1, -1], [0, 1, 20]
    mapped = np.load(path, mmap_mode="r")
    assert tim_ext.adm(mapped[100:], labels, index=index).predictions[2] == 0
    columns = np.lib.format.open_memmap(
        tmp_path / "columns.npy", mode="w+", dtype="f4", shape=(50, 3), fortran_order=True
    )
    for wrong in (columns, mapped[::2], mapped[:, :8]):
        with pytest.raises(ValueError, match=r"^features: expected a memory-mapped pool in C order, got .*$"):
            tim_ext.adm(wrong, labels, index=index)


def test_baselines_look_at_the_rows_they_use(tmp_path):
    """NaN in a row of a large pool matters only to the task that has it."""
    path, labels_path = write_pool(tmp_path, 2000, torch.float32)
    pool = np.load(path)
    drawn = tasks.balanced(np.load(labels_path), ways=4, shots=2, queries=5)[0:3]
    used = set(drawn.index.flatten().tolist())
    pool[min(set(range(2000)) - used)] = np.nan
    assert baselines.bd_cspn(pool, drawn.labels, index=drawn.index).predictions.shape == (3, 28)
    pool[int(drawn.index[1, 4])] = np.inf
    with pytest.raises(ValueError, match="got NaN or Inf at sample 4 in task 1"):
        baselines.bd_cspn(pool, drawn.labels, index=drawn.index)
    outside = drawn.index.clone()
    outside[2, 3] = 2000
    with pytest.raises(
        ValueError, match="expected rows 0 to 1999 of features, got 2000 at sample 3 in task 2"
    ):
        baselines.bd_cspn(np.load(path), drawn.labels, index=outside)
