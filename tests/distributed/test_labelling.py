"""`tim-ext label`: a second run with the same output, drafts of other runs, and a process that comes late."""

from __future__ import annotations

import io
import os
import re
import socket
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.train_runs import start_together

from tim_ext.cli import label as cli_label
from tim_ext.cli.main import main
from tim_ext.distributed import labelling, ranks

M = 300


@pytest.fixture
def arguments(tmp_path) -> list[str]:
    """Two classes in a pool of their own folder; what is written goes to out.csv in another one."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    centres = np.random.default_rng(0).standard_normal((2, 8))
    rows = centres[np.arange(M) % 2] + 0.1 * np.random.default_rng(1).standard_normal((M, 8))
    np.save(tmp_path / "in" / "pool.npy", rows.astype(np.float32))
    (tmp_path / "in" / "support.csv").write_text("0,even\n1,odd\n")
    files = [str(tmp_path / "in" / "pool.npy"), "--support", str(tmp_path / "in" / "support.csv")]
    return [
        "label",
        *files,
        "--method",
        "adm",
        "--iterations",
        "3",
        "--out",
        str(tmp_path / "out" / "out.csv"),
    ]


def pause_at_labels(results: Any, arguments: list[str], folder: Path) -> None:
    """In one of the processes: the run stops when a draft is open, until the file `go` is there."""
    labelling.ROWS = 32

    @contextmanager
    def bar_of(total, processes):
        def show(what: str, rows: int) -> None:
            if what == "labels" and not (folder / "go").exists():
                results.put((processes.rank, os.getpid()))
                while not (folder / "go").exists():
                    time.sleep(0.01)

        yield show

    cli_label.bar_of = bar_of
    with redirect_stdout(io.StringIO()):
        code = main(arguments)
    results.put((int(os.environ["RANK"]), code))


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_run_with_the_same_output_is_refused(arguments, tmp_path, capsys, size):
    results, processes = start_together(pause_at_labels, size, arguments, tmp_path / "in")
    first = dict(results.get(timeout=100) for _ in processes)[0]
    there = sorted((tmp_path / "out").iterdir())
    assert [path.suffix for path in there].count(".tmp") == size  # a draft of each process
    assert main(arguments) == 2
    assert capsys.readouterr() == (
        "",
        "tim-ext label: --out: expected an output that no other run is writing, got "
        f"{arguments[-1]}, which process {first} on {socket.gethostname()} is writing\n",
    )
    assert sorted((tmp_path / "out").iterdir()) == there
    (tmp_path / "in" / "go").touch()
    assert dict(results.get(timeout=100) for _ in processes) == dict.fromkeys(range(size), 0)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["out.csv"]
    assert len(Path(arguments[-1]).read_text().splitlines()) == M + 1


def test_drafts_of_other_outputs_stay(arguments, tmp_path):
    """Of a name that goes on where this one ends, as of names that are not drafts."""
    left = [".out.csv.12-34.0.tmp", ".out.csv.ab_cd3fg.tmp"]
    stay = [
        ".out.csv.npz.12-34.0.tmp",
        ".out.csv.npz.ab_cd3fg.tmp",
        ".out.csv.mine",
        ".other.csv.12-34.0.tmp",
    ]
    for name in (*left, *stay):
        (tmp_path / "out" / name).touch()
    assert main(arguments) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*stay, "out.csv"])


def come_late(results: Any, arguments: list[str]) -> None:
    rank = int(os.environ["RANK"])
    ranks.NOTICE = 0.2
    if rank == 1:
        open_pool = cli_label.open_pool

        def from_a_slow_disk(*inputs: Any, **options: Any) -> Any:
            time.sleep(2)
            return open_pool(*inputs, **options)

        cli_label.open_pool = from_a_slow_disk
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        code = main(arguments)
    results.put((rank, (code, said.getvalue())))


def test_a_process_that_comes_late_is_waited_for(arguments):
    results, processes = start_together(come_late, 2, arguments)
    got = dict(results.get(timeout=100) for _ in processes)
    assert [got[rank][0] for rank in (0, 1)] == [0, 0]
    first, *_ = got[0][1].splitlines()
    assert re.fullmatch(r"tim_ext: waiting for rank 1 of 2, 0:00:\d\d so far, at most 2:00:00", first)
