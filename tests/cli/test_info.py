"""`tim-ext info`: what it prints and how it ends."""

from __future__ import annotations

import platform

import pytest
import torch

import tim_ext
from tim_ext.cli.main import main
from tim_ext.solver import native


@pytest.mark.parametrize("arguments", [[], ["info"]])
def test_info(arguments, capsys):
    assert main(arguments) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["tim_ext"] == tim_ext.__version__
    assert lines["torch"] == torch.__version__
    assert lines["python"] == platform.python_version()
    assert lines["threads"] == str(torch.get_num_threads())


def test_info_names_the_libraries_and_the_capability(capsys):
    main(["info"])
    out = capsys.readouterr().out
    assert "native library  _C." in out
    assert f"CPU capability  {torch.ops.tim_ext.cpu_capability()}" in out
    assert f"CUDA torch      {torch.version.cuda or 'no, torch is built without CUDA'}" in out
    assert "CUDA library" in out
    assert ("CUDA device     none" in out) == (not torch.cuda.is_available())


def test_info_reports_an_unusable_library(monkeypatch, capsys):
    monkeypatch.setattr(native, "cpu_failure", "it is missing")
    assert main(["info"]) == 1
    assert "native library  not usable: it is missing" in capsys.readouterr().out
