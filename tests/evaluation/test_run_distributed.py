"""`torchrun -m tim_ext evaluate`: several processes report what one reports, and end together."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.paths import ROOT
from helpers.train_runs import start_together

import tim_ext
from tim_ext.cli.main import main
from tim_ext.distributed.processes import Processes
from tim_ext.evaluation import run as evaluation
from tim_ext.evaluation.methods import METHODS, Method

CLASSES, D = 12, 16


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    """480 samples of 12 classes that overlap."""
    rng = np.random.default_rng(0)
    labels = np.arange(40 * CLASSES) % CLASSES
    features = rng.uniform(size=(CLASSES, D))[labels] + 0.3 * rng.standard_normal((len(labels), D))
    path = tmp_path_factory.mktemp("data") / "pool.npz"
    np.savez(path, features=features.astype(np.float32), labels=labels)
    return str(path)


def in_part(results: Any, arguments: list[str], trouble: str | None) -> None:
    """In one of the processes: exit code, output and errors. `trouble` befalls process 1 in its third call of
    the method "trouble"."""
    rank, calls = int(os.environ["RANK"]), []

    def method(features: Any, labels: Any, *, index: Any, outputs: Any, alpha: float = 0.0) -> tim_ext.Result:
        calls.append(len(labels))
        if rank == 1 and len(calls) == 3:
            if trouble == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            elif trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif trouble == "refuse":
                raise ValueError("features: expected\nsomething else")
        return tim_ext.Result(None, torch.zeros_like(labels), None, torch.zeros(len(labels)))

    METHODS["trouble"] = Method("trouble", method)
    steps: list[int] = []
    if trouble == "bar":

        def make_bar(progress: bool, total: int) -> Any:
            bar = evaluation._NoBar()
            if progress:
                steps.append(-total)
                bar.update = steps.append  # type: ignore[method-assign]
            return bar

        evaluation._bar = make_bar
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["evaluate", *arguments])
        if steps:
            total, *shown = steps
            print(f"bar: {sum(shown)} of {-total}, smallest step {'0 or more' if min(shown) >= 0 else shown}")
    results.put((rank, (code, out.getvalue(), err.getvalue())))


def evaluate_in(size: int, *arguments: str, trouble: str | None = None, survivors: int | None = None):
    """Of every process that lives to tell: its exit code, output and errors."""
    results, processes = start_together(in_part, size, list(arguments), trouble)
    told = dict(results.get(timeout=100) for _ in range(survivors or size))
    for process in processes:
        process.join()
    return [told[rank] for rank in sorted(told)]


def evaluate_in_one(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["evaluate", *arguments])
    return code, out.getvalue(), err.getvalue()


def comparable(out: Path) -> dict[str, Any]:
    """The JSON without what is of the run and not of its result."""
    report = json.loads((out / "evaluation.json").read_text())
    for name in ("command", "date", "seconds", "threads", "processes"):
        del report[name]
    for row in report["rows"]:
        del row["seconds_per_task"]
    return report


@pytest.mark.parametrize(
    "options",
    [
        ["--methods", "prototype", "bd-cspn", "tim-adm", "--tasks", "300"],
        ["--methods", "tim-adm", "--tasks", "5", "--shots", "1", "--memory", "20KB"],  # a chunk per task
        ["--methods", "prototype", "tim-adm", "--tasks", "20", "--shots", "1", "--meta-dataset"],
        ["--methods", "tim-adm", "bd-cspn", "--tasks", "20", "--tune", "--validation-tasks", "10"],
    ],
)
def test_tables_and_files_are_those_of_one_process(file, tmp_path, options):
    if "--meta-dataset" in options:
        options = [option for option in options if option not in ("--shots", "1")]
    options = [file, *options, "--no-times", "--out"]
    code, one, err = evaluate_in_one(*options, str(tmp_path / "one"))
    assert (code, err) == (0, "")
    first, *others = evaluate_in(3, *options, str(tmp_path / "many"))
    assert first == (0, one.replace(str(tmp_path / "one"), str(tmp_path / "many")), "")
    assert others == [(0, "", "")] * 2  # the first process speaks
    csv = [(tmp_path / name / "evaluation.csv").read_bytes() for name in ("one", "many")]
    assert csv[0] == csv[1]
    assert b"seconds" not in csv[0]
    assert comparable(tmp_path / "one") == comparable(tmp_path / "many")
    assert json.loads((tmp_path / "many" / "evaluation.json").read_text())["processes"] == 3


def test_every_process_has_its_share():
    """Every method on every chunk once, and no process with one method only."""
    runs = dict.fromkeys(["a", "b", "c", "d"])
    for size in (1, 2, 3, 4, 7):
        shares = [
            [list(evaluation._share(runs, chunk, Processes(rank, size))) for chunk in range(28)]
            for rank in range(size)
        ]
        for chunk in range(28):
            assert sorted(name for share in shares for name, _ in share[chunk]) == list(runs)
        counts = [sum(map(len, share)) for share in shares]
        assert max(counts) - min(counts) <= 1
        assert all({name for part in share for name, _ in part} == set(runs) for share in shares)


def test_progress_covers_all_processes(file):
    """Each process has half of the work, and the bar of the first goes to the end, never back."""
    arguments = ["--methods", "prototype", "tim-adm", "--tasks", "600", "--shots", "1"]
    (code, out, _), (_, other, _) = evaluate_in(2, file, *arguments, trouble="bar")
    assert code == 0
    assert out.endswith("bar: 1200 of 1200, smallest step 0 or more\n")
    assert "bar" not in other


def test_bad_input_is_one_message_of_all_processes(file, tmp_path):
    for options, message in (
        ([str(tmp_path / "none.npz")], f"tim-ext evaluate: {tmp_path / 'none.npz'}: no such file\n"),
        (
            [file, "--set", "tim-adm.temperature=-1"],
            "tim-ext evaluate: tim-adm: temperature: expected a finite number > 0, got -1.0\n",
        ),
    ):
        ended = evaluate_in(2, *options)
        assert [code for code, _, _ in ended] == [2, 2]
        assert "".join(out for _, out, _ in ended) == ""
        assert "".join(err for _, _, err in ended) == message


def test_an_error_of_one_process_ends_all(file, tmp_path):
    arguments = [file, "--methods", "tim-adm", "trouble", "--shots", "1", "--tasks", "1300"]
    arguments += ["--out", str(tmp_path / "out")]
    ended = evaluate_in(3, *arguments, trouble="refuse")
    assert [code for code, _, _ in ended] == [2, 2, 2]
    assert [out for _, out, _ in ended] == ["", "", ""]
    assert [err for _, _, err in ended] == [
        "",
        "tim-ext evaluate: trouble: features: expected something else\n",
        "",
    ]
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_a_process_that_is_killed_ends_all(file, tmp_path):
    arguments = [file, "--methods", "tim-adm", "trouble", "--shots", "1", "--tasks", "1300"]
    arguments += ["--out", str(tmp_path / "out")]
    (ended,) = evaluate_in(2, *arguments, trouble="kill", survivors=1)
    lost = "rank 1 of 2 is lost before it had finished: its process has ended or cannot be reached; "
    assert ended == (2, "", f"tim-ext evaluate: {lost}start all ranks again\n")
    assert not list((tmp_path / "out").iterdir())
    assert [code for code, _, _ in evaluate_in(2, *arguments)] == [0, 0]  # a rerun succeeds
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv", ".json"]


def test_ctrl_c_in_one_process_reports_what_all_have_done(file, tmp_path):
    """The first tasks that all methods have finished: as if no more had been asked for."""
    arguments = [file, "--methods", "tim-adm", "trouble", "--shots", "1", "--no-times"]
    out = tmp_path / "out"
    first, second = evaluate_in(2, *arguments, "--tasks", "100000", "--out", str(out), trouble="interrupt")
    assert (first[0], first[2]) == (
        130,
        "tim-ext evaluate: interrupted, the table holds what was done\n",
    )
    assert second == (130, "", "")
    report = json.loads((out / "evaluation.json").read_text())
    done = report["rows"][0]["tasks"]
    assert report["interrupted"] is True
    assert 0 < done < 100_000
    assert done % evaluation.CHUNK == 0
    METHODS["trouble"] = Method("trouble", _zeros)
    try:
        code, one, _ = evaluate_in_one(*arguments, "--tasks", str(done))
    finally:
        del METHODS["trouble"]
    assert code == 0
    assert first[1].replace(f"{done} of 100000 tasks", f"{done} tasks").startswith(one.rstrip("\n"))


def _zeros(features: Any, labels: Any, *, index: Any, outputs: Any, alpha: float = 0.0) -> tim_ext.Result:
    return tim_ext.Result(None, torch.zeros_like(labels), None, torch.zeros(len(labels)))


@pytest.mark.slow
def test_torchrun(file, tmp_path):
    """The real launcher: the table and the files of one process, pictures, and an error said once."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*torchrun, "tim_ext", "evaluate", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    options = [file, "--tasks", "300", "--no-times", "--out"]
    ended = launch(*options, "two", "--plots", "plots")
    assert ended.returncode == 0, ended.stderr
    code, one, _ = evaluate_in_one(*options, str(tmp_path / "one"))
    assert code == 0
    table, pictures = ended.stdout.rsplit("\n\n", 1)
    assert table == one.replace(str(tmp_path / "one"), "two").rstrip("\n")
    assert pictures.startswith("pictures: plots")
    assert (tmp_path / "plots" / "accuracy.png").exists()
    csv = [(tmp_path / name / "evaluation.csv").read_bytes() for name in ("one", "two")]
    assert csv[0] == csv[1]
    ended = launch("none.npz")
    assert ended.returncode == 1  # torchrun's own
    assert ended.stderr.count("tim-ext evaluate: none.npz: no such file\n") == 1
