"""What tests rely on."""

from __future__ import annotations

from helpers.forked import run_script


def test_processes_are_forked_with_torch_imported_and_tim_ext_not() -> None:
    """A name that the server cannot import it passes over, and every process would take seconds then."""
    ended = run_script("import sys; print('torch._dynamo' in sys.modules, 'tim_ext' in sys.modules)")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "True False\n"
