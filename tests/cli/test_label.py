"""`tim-ext label`: a pool labelled from a few rows, by one process or several, and killed ones."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
from collections.abc import Callable
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.paths import DOCS
from helpers.train_runs import start_together

import tim_ext
from tim_ext import baselines
from tim_ext.cli import label as cli_label
from tim_ext.cli.main import main
from tim_ext.cli.parsing import Parser
from tim_ext.distributed import labelling
from tim_ext.files import predictions
from tim_ext.files.features import load_features

M, D = 300, 24
NAMES = ["9", "10", 'eel, or "snake"', "ünder"]
TRUTH = np.random.default_rng(1).integers(0, 4, M)
X = np.random.default_rng(0).standard_normal((4, D))[TRUTH]
X = (X + 1.3 * np.random.default_rng(2).standard_normal((M, D))).astype(np.float32)
ROWS = [int(row) for k in range(4) for row in np.flatnonzero(k == TRUTH)[3:6]]  # three of each class


def write_support(path: Path, header: bool = True) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["row", "label"]] * header)
        writer.writerows([row, NAMES[TRUTH[row]]] for row in ROWS)
    return path


@pytest.fixture
def files(tmp_path) -> list[str]:
    """The options of a small pool."""
    np.save(tmp_path / "pool.npy", X)
    support = write_support(tmp_path / "support.csv")
    return ["label", str(tmp_path / "pool.npy"), "--method", "adm", "--support", str(support)]


def read_csv(path: Path) -> tuple[list[str], np.ndarray]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(len(rows)))
    return [row["label"] for row in rows], np.array([float(row["confidence"]) for row in rows])


def expected(solver: Callable[..., Any] = tim_ext.adm, **hyper: Any) -> tuple[list[str], np.ndarray]:
    """What the solver of tasks in memory says."""
    names = sorted(NAMES)
    labels = np.full(M, -1)
    labels[ROWS] = [names.index(NAMES[TRUTH[row]]) for row in ROWS]
    result = solver(X, labels, outputs=("predictions", "confidence"), **hyper)
    confidences = result.confidence.numpy()
    confidences[ROWS] = 1
    found = result.predictions.numpy()
    found[ROWS] = labels[ROWS]
    return [names[label] for label in found], confidences


def test_labels_are_those_of_the_solver(files, tmp_path, capsys):
    out = tmp_path / "new" / "out.csv"
    assert main([*files, "--out", str(out)]) == 0
    labels, confidences = read_csv(out)
    names, wanted = expected(solver_of("primal"))
    assert labels == names
    np.testing.assert_allclose(confidences, wanted, atol=2e-5)
    assert [path.name for path in out.parent.iterdir()] == ["out.csv"]
    text = capsys.readouterr()
    assert text.err == ""
    head, predicted, confidence, solved, written = text.out.splitlines()
    assert head == f"pool.npy: {M} rows, d = {D}; 12 of them labelled, 4 classes"
    for name in NAMES:
        assert f"{name} {labels.count(name)}" in predicted
    queries = np.delete(confidences, ROWS)
    share = f"{(queries < 0.5).mean():.1%}"
    assert confidence == f"confidence: {queries.mean():.3f} on average, below 0.5 in {share} of the rows"
    assert solved.startswith("adm: 150 iterations, ")
    assert written == f"written: {out}"


def solver_of(form: str) -> Callable[..., Any]:
    return lambda *task, **hyper: tim_ext.adm(*task, form=form, **hyper)


@pytest.mark.parametrize(
    ("options", "solver", "hyper"),
    [
        (["--iterations", "0"], baselines.prototype, {}),
        (
            ["--set", "temperature=0.5", "alpha=0.3", "normalize=false", "--iterations", "7"],
            tim_ext.adm,
            {"temperature": 0.5, "alpha": 0.3, "normalize": False, "iterations": 7},
        ),
        (
            ["--method", "gd", "--iterations", "20", "--set", "lr=0.01", "--set", "entropy_order=2"],
            tim_ext.gd,
            {"iterations": 20, "lr": 0.01, "entropy_order": 2.0},
        ),
        (["--method", "alpha-tim", "--iterations", "20"], baselines.alpha_tim, {"iterations": 20}),
    ],
)
def test_methods_and_hyper_parameters(files, tmp_path, options, solver, hyper):
    out = tmp_path / "out.csv"
    assert main([*files, "--out", str(out), "--memory", "2KB", *options]) == 0
    labels, confidences = read_csv(out)
    names, wanted = expected(solver, **hyper)
    assert labels == names
    np.testing.assert_allclose(confidences, wanted, atol=2e-5)


def test_class_prior(files, tmp_path):
    out, prior = tmp_path / "out.csv", tmp_path / "prior.csv"
    shares = dict(zip(NAMES, (0.1, 0.2, 0.3, 0.4), strict=True))
    with prior.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["label", "proportion"], *shares.items()])
    assert main([*files, "--out", str(out), "--iterations", "9", "--class-prior", str(prior)]) == 0
    names, wanted = expected(iterations=9, class_prior=[shares[name] for name in sorted(NAMES)])
    assert read_csv(out)[0] == names
    np.testing.assert_allclose(read_csv(out)[1], wanted, atol=2e-5)
    assert names != expected(iterations=9)[0]


def test_every_format_says_the_same(files, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(predictions, "BLOCK", 70)  # more than one, and the last not full
    monkeypatch.setattr(labelling, "BLOCK", 70)
    monkeypatch.setattr(labelling, "ROWS", 64)
    for suffix in (".csv", ".npz", ".parquet"):
        assert main([*files, "--iterations", "5", "--out", str(tmp_path / f"out{suffix}")]) == 0
    labels, confidences = read_csv(tmp_path / "out.csv")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("row").to_pylist() == list(range(M))
    assert table.column("label").to_pylist() == labels
    np.testing.assert_allclose(table.column("confidence").to_numpy(), confidences, atol=1e-6)
    arrays = np.load(tmp_path / "out.npz", allow_pickle=False)
    assert [str(arrays["class_names"][label]) for label in arrays["labels"]] == labels
    assert np.array_equal(arrays["confidences"], table.column("confidence").to_numpy())
    data = load_features(tmp_path / "pool.npy", labels_path=tmp_path / "out.npz")
    assert [data.class_names[label] for label in data.labels] == labels


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_and_keys_of_safetensors(tmp_path, dtype):
    save = pytest.importorskip("safetensors.torch").save_file
    save({"a": torch.from_numpy(X).to(dtype), "b": torch.zeros(3, 3)}, tmp_path / "pool.safetensors")
    support, out = write_support(tmp_path / "support.csv", header=False), tmp_path / "out.csv"
    arguments = ["label", str(tmp_path / "pool.safetensors"), "--support", str(support), "--out", str(out)]
    arguments += ["--method", "adm"]
    assert main([*arguments, "--features-key", "a", "--iterations", "5"]) == 0
    same = np.mean([a == b for a, b in zip(read_csv(out)[0], expected(iterations=5)[0], strict=True)])
    assert same > 0.95  # other rounding


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "out.txt"], r"out.txt: expected a file of type .csv, .npz, .parquet, got .txt"),
        (["--out", "/proc/out.csv"], r"--out: expected a folder to write to, got /proc \(.*\)"),
        (
            ["--out", "out.npz", "--spreadsheet-safe"],
            r"--spreadsheet-safe: expected a .csv file as --out with it, got out.npz",
        ),
        (["--set", "tau=3"], r"--set: expected a hyper-parameter out of normalize, .*, got 'tau'"),
        (["--set", "solver=dual"], r"--set: expected a hyper-parameter out of .*, got 'solver'"),
        (["--set", "temperature=hot"], r"adm.temperature: expected a number, got 'hot'"),
        (["--set", "temperature=-1"], r"temperature: expected a finite number > 0, got -1.0"),
        (["--set", "temperature"], r"--set: expected NAME=VALUE, got 'temperature'"),
        (["--iterations", "-1"], r"--iterations: expected an integer >= 0, got -1"),
        (["--threads", "0"], r"--threads: expected an integer >= 1, got 0"),
        (["--support", "none.csv"], r"No such file or directory: none.csv"),
        (
            ["--class-prior", "none.csv"],
            r"--class-prior: expected a CSV file or NAME=SHARE .*, got 'none.csv'",
        ),
        (["--features-key", "a"], r".*pool.npy: expected no features_key, as .*, got 'a'"),
    ],
)
def test_refuses_options_in_one_line(files, tmp_path, options, message, capsys):
    before = sorted(tmp_path.iterdir())
    assert main([*files, "--out", str(tmp_path / "out.csv"), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"tim-ext label: {message}\n", captured.err), captured.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: os.truncate(path, path.stat().st_size - 5),
            r".*: expected \d+ bytes, .*: the file is cut off",
        ),
        (
            lambda path: np.save(path, np.asfortranarray(X)),
            r".*: expected an array in C order, got Fortran.*",
        ),
        (lambda path: np.save(path, X.astype(int)), r".*: expected float32, .*, got int64 \[300, 24\]"),
        (
            lambda path: np.save(path, np.where(np.arange(M)[:, None] == 77, np.nan, X)),
            r".*NaN or Inf in row 77",
        ),
        (lambda path: path.unlink(), r".*pool.npy: no such file"),
    ],
)
def test_refuses_pools_in_one_line(files, tmp_path, change, message, capsys):
    change(tmp_path / "pool.npy")
    assert main([*files, "--out", str(tmp_path / "out.csv")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"tim-ext label: {message}\n", captured.err), captured.err
    assert not (tmp_path / "out.csv").exists()


# Progress -----------------------------------------------------------------------------------------


def test_progress_counts_all_passes(files, tmp_path, monkeypatch):
    seen: list[tuple[str, int]] = []

    @contextmanager
    def bar_of(total, processes):
        seen.append(("total", total))
        yield lambda what, rows: seen.append((what, rows))

    monkeypatch.setattr(cli_label, "bar_of", bar_of)
    assert main([*files, "--iterations", "3", "--out", str(tmp_path / "out.csv")]) == 0
    (_, total), *steps = seen
    assert [what for what, _ in steps] == ["iteration 1", "iteration 2", "iteration 3", "labels", "writing"]
    assert total == sum(rows for _, rows in steps) == 5 * M


# Several processes, and troubles ------------------------------------------------------------------

TROUBLES = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
}


def in_part(results: Any, arguments: list[str], trouble: tuple[str, str, int] | None) -> None:
    """In one of the processes: exit code, output and errors. (what, when, rank): what befalls whom."""
    rank = int(os.environ["RANK"])
    labelling.ROWS = 32
    if trouble is not None:
        what, when, whom = trouble

        @contextmanager
        def bar_of(total, processes):
            yield lambda step, rows: TROUBLES[what]() if (step, rank) == (when, whom) else None

        cli_label.bar_of = bar_of
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    results.put((rank, (code, out.getvalue(), err.getvalue())))


def label_in(size: int, arguments: list[str], trouble: tuple[str, str, int] | None = None):
    """Of every process that lives to tell: its exit code, output and errors."""
    results, processes = start_together(in_part, size, arguments, trouble)
    killed = trouble is not None and trouble[0] == "kill"
    told = dict(results.get(timeout=100) for _ in range(size - killed))
    for process in processes:
        process.join()
    return [told[rank] for rank in sorted(told)]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_write_what_one_writes(files, tmp_path, size):
    options = [*files, "--iterations", "20", "--out"]
    assert main([*options, str(tmp_path / "one.csv")]) == 0
    first, *others = label_in(size, [*options, str(tmp_path / "many.csv")])
    assert (first[0], first[2]) == (0, "")
    assert f"written: {tmp_path / 'many.csv'}" in first[1]
    assert others == [(0, "", "")] * (size - 1)
    labels, confidences = read_csv(tmp_path / "one.csv")
    assert read_csv(tmp_path / "many.csv")[0] == labels
    np.testing.assert_allclose(read_csv(tmp_path / "many.csv")[1], confidences, atol=1e-5)
    assert not list(tmp_path.glob(".*"))


def test_fewer_rows_than_processes(tmp_path):
    np.save(tmp_path / "pool.npy", np.float32([[1, 0], [0.1, 1]]))
    (tmp_path / "a.csv").write_text("0,yes\n")
    arguments = [
        "label",
        str(tmp_path / "pool.npy"),
        "--support",
        str(tmp_path / "a.csv"),
        "--method",
        "adm",
        "--iterations",
        "2",
    ]
    assert [code for code, _, _ in label_in(3, [*arguments, "--out", str(tmp_path / "out.csv")])] == [0, 0, 0]
    assert read_csv(tmp_path / "out.csv")[0] == ["yes", "yes"]


def test_bad_input_of_a_part_is_said_once(files, tmp_path):
    np.save(tmp_path / "pool.npy", np.where(np.arange(M)[:, None] == 277, np.nan, X).astype(np.float32))
    ended = label_in(2, [*files, "--out", str(tmp_path / "out.csv")])
    assert [code for code, _, _ in ended] == [2, 2]
    assert "".join(out + err for _, out, err in ended) == (
        "tim-ext label: features: expected finite values, got NaN or Inf in row 277\n"
    )


@pytest.mark.parametrize("when", ["iteration 2", pytest.param("labels", marks=pytest.mark.slow)])
def test_a_process_that_is_killed(files, tmp_path, when):
    """The other ends with a sentence that names it; the old file is as it was, nothing else is left; and the
    same command succeeds."""
    out = tmp_path / "out.csv"
    out.write_text("old")
    before = sorted(tmp_path.iterdir())
    arguments = [*files, "--iterations", "5", "--out", str(out)]
    ((code, text, err),) = label_in(2, arguments, trouble=("kill", when, 1))
    assert (code, text) == (2, "")
    assert re.fullmatch(r"tim-ext label: rank 1 of 2 [^\n]*lost[^\n]*\n", err), err
    assert sorted(tmp_path.iterdir()) == before
    assert out.read_text() == "old"
    assert [code for code, _, _ in label_in(2, arguments)] == [0, 0]
    assert len(read_csv(out)[0]) == M


@pytest.mark.parametrize(
    ("what", "when"),
    [
        ("interrupt", "iteration 2"),
        pytest.param("terminate", "iteration 2", marks=pytest.mark.slow),
        pytest.param("interrupt", "labels", marks=pytest.mark.slow),
    ],
)
def test_signals_end_all_processes_in_order(files, tmp_path, what, when):
    before = sorted(tmp_path.iterdir())
    arguments = [*files, "--iterations", "5", "--out", str(tmp_path / "out.csv")]
    ended = label_in(2, arguments, trouble=(what, when, 1))
    assert [code for code, _, _ in ended] == [130, 130]
    assert "".join(out + err for _, out, err in ended) == "tim-ext label: interrupted\n"
    assert sorted(tmp_path.iterdir()) == before


def test_killed_while_it_writes(files, tmp_path):
    """What is left is hidden, and the next run removes it."""
    before = sorted(tmp_path.iterdir())
    arguments = [*files, "--iterations", "2", "--out", str(tmp_path / "out.csv")]
    assert label_in(1, arguments, trouble=("kill", "writing", 0)) == []
    assert {path.name[:9] for path in tmp_path.iterdir() if path not in before} == {".out.csv."}
    (tmp_path / ".out.csv.other").touch()
    assert main(arguments) == 0
    assert sorted(set(tmp_path.iterdir()) - set(before)) == [
        tmp_path / ".out.csv.other",
        tmp_path / "out.csv",
    ]


def test_interrupted_alone(files, tmp_path, monkeypatch, capsys):
    before = sorted(tmp_path.iterdir())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    @contextmanager
    def bar_of(total, processes):
        yield lambda what, rows: TROUBLES["terminate"]() if what == "labels" else None

    monkeypatch.setattr(cli_label, "bar_of", bar_of)
    assert main([*files, "--iterations", "2", "--out", str(tmp_path / "out.csv")]) == 130
    assert capsys.readouterr() == ("", "tim-ext label: interrupted\n")
    assert sorted(tmp_path.iterdir()) == before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_folder_that_is_not_shared(files, tmp_path, monkeypatch, capsys):
    """As if the draft of a process lay on another machine."""
    monkeypatch.setattr(
        labelling, "_draft", lambda out, job, what: out.with_name(f".{out.name}.{job}.x{what}.tmp")
    )
    check = labelling._check_drafts
    monkeypatch.setattr(
        labelling, "_check_drafts", lambda drafts, counts: check([drafts[0].with_name("gone")], counts)
    )
    assert main([*files, "--iterations", "1", "--out", str(tmp_path / "out.csv")]) == 2
    assert f"without the {M} rows of process 0" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))


# The page -----------------------------------------------------------------------------------------


def test_the_python_of_the_page_runs(capsys):
    page = (DOCS / "label.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    share = re.search(r"([0-9.]+)% right", capsys.readouterr().out)
    assert share is not None
    assert float(share[1]) > 90


def test_the_page_has_every_option():
    page = (DOCS / "label.md").read_text()
    parser = Parser()
    cli_label.add_command(parser.add_subparsers())
    help_text = parser._subparsers._group_actions[0].choices["label"].format_help()
    for option in set(re.findall(r"--[a-z-]+", help_text)) - {"--help", "--nproc-per-node"}:
        assert f"`{option}" in page or f" {option} " in page, option


def test_real_data(tmp_path, capsys):
    """More rows right than the nearest prototype has."""
    folder = os.environ.get("TIM_EXT_DATA")
    if not folder:
        pytest.skip("TIM_EXT_DATA is not set")
    data = np.load(Path(folder) / "clinc150_features.npz")
    few = data["labels"] < 30
    truth = data["labels"][few]
    np.save(tmp_path / "pool.npy", data["features"][few])
    rows = [row for k in range(30) for row in np.flatnonzero(truth == k)[:5]]
    (tmp_path / "a.csv").write_text("".join(f"{row},{truth[row]}\n" for row in rows))
    files = ["label", str(tmp_path / "pool.npy"), "--method", "adm", "--support", str(tmp_path / "a.csv")]
    right = []
    for iterations in ("0", "30"):
        assert main([*files, "--iterations", iterations, "--out", str(tmp_path / "out.npz")]) == 0
        right.append(np.mean(np.delete(np.load(tmp_path / "out.npz")["labels"] == truth, rows)))
    assert right[1] > right[0] + 0.02
