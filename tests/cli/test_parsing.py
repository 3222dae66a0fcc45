"""From text on the command line to values."""

from __future__ import annotations

import pytest

from tim_ext.cli.parsing import Parser, Renamed, memory_size, split_assignment
from tim_ext.errors import UserError


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("2k", 2048), ("512MB", 2**29), ("1.5 GB", 3 * 2**29), ("10B", 10)]
)
def test_memory_size(text, size):
    assert memory_size(text) == size


def test_assignments():
    assert split_assignment("--set", "a=b=c") == ("a", "b=c")
    assert split_assignment("--class-prior", "a=b=3", "NAME=SHARE", at_last=True) == ("a=b", "3")
    for text in ("", "a", "=b", "a=", "="):
        with pytest.raises(UserError, match=rf"\A--x: expected A=B, got {text!r}\Z"):
            split_assignment("--x", text, "A=B")


def test_the_former_name_of_an_option(capsys):
    parser = Parser(prog="tim-ext predict")
    parser.add_argument("--method", default="adm")
    parser.add_argument("--solver", action=Renamed, new="--method")
    assert vars(parser.parse_args([])) == {"method": "adm"}
    assert "--solver" not in parser.format_help()
    for arguments in (["--solver", "gd"], ["--solver=gd"], ["--solver"]):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(arguments)
        assert ended.value.code == 2
        said = "--solver: expected --method, the new name of this option, got --solver"
        assert capsys.readouterr().err == f"tim-ext predict: {said}; see tim-ext predict --help\n"


def test_the_parser_comes_without_the_commands(run_python):
    """`python_train` uses it."""
    code = (
        "import sys, tim_ext.cli.parsing; "
        "print([name for name in sys.modules if name.startswith('tim_ext.cli.')])"
    )
    ended = run_python("-c", code)
    assert ended.stdout == "['tim_ext.cli.parsing']\n", ended.stderr
