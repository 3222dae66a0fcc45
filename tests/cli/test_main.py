"""`tim-ext`: commands, exit codes, and one line for every refusal."""

from __future__ import annotations

import pytest

import tim_ext
from tim_ext.cli.main import main


def test_python_m(run_python):
    ended = run_python("-m", "tim_ext")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"tim_ext         {tim_ext.__version__}\n")


@pytest.mark.parametrize("arguments", [["fly"], ["--fly"], ["info", "--fly"], ["info", "more"]])
def test_bad_input_is_one_line_and_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tim-ext")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(("option", "text"), [("--version", tim_ext.__version__), ("--help", "info")])
def test_options_that_only_print(option, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main([option])
    assert ended.value.code == 0
    assert text in capsys.readouterr().out


def test_a_process_of_its_own_shows_no_traceback(run_python, tmp_path):
    ended = run_python("-m", "tim_ext", "evaluate", str(tmp_path / "none.npz"))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == f"tim-ext evaluate: {tmp_path / 'none.npz'}: no such file\n"


def test_the_estimator_is_there_without_being_imported(run_python):
    code = "import sys, tim_ext; assert 'sklearn' not in sys.modules; assert 'TIMClassifier' in dir(tim_ext)"
    ended = run_python("-c", code)
    assert ended.returncode == 0, ended.stderr
