"""`tim-ext`: what it prints and how it ends."""

from __future__ import annotations

import platform

import pytest
import torch

import tim_ext
from tim_ext import _native, cli


@pytest.mark.parametrize("arguments", [[], ["info"]])
def test_info(arguments, capsys):
    assert cli.main(arguments) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["tim_ext"] == tim_ext.__version__
    assert lines["torch"] == torch.__version__
    assert lines["python"] == platform.python_version()
    assert lines["threads"] == str(torch.get_num_threads())


def test_info_names_the_libraries_and_the_capability(capsys):
    cli.main(["info"])
    out = capsys.readouterr().out
    assert "native library  _C." in out
    assert f"CPU capability  {torch.ops.tim_ext.cpu_capability()}" in out
    assert f"CUDA torch      {torch.version.cuda or 'no, torch is built without CUDA'}" in out
    assert "CUDA library" in out
    assert ("CUDA device     none" in out) == (not torch.cuda.is_available())


def test_info_reports_an_unusable_library(monkeypatch, capsys):
    monkeypatch.setattr(_native, "cpu_failure", "it is missing")
    assert cli.main(["info"]) == 1
    assert "native library  not usable: it is missing" in capsys.readouterr().out


def test_python_m(run_python):
    ended = run_python("-m", "tim_ext")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"tim_ext         {tim_ext.__version__}\n")


@pytest.mark.parametrize("arguments", [["fly"], ["--fly"], ["info", "--fly"], ["info", "more"]])
def test_bad_input_is_one_line_and_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tim-ext")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(("option", "text"), [("--version", tim_ext.__version__), ("--help", "info")])
def test_options_that_only_print(option, text, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([option])
    assert ended.value.code == 0
    assert text in capsys.readouterr().out
