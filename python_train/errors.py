"""What a command refuses, and how it says so."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tim_ext.cli.parsing import Parser
from tim_ext.errors import UserError, one_line

__all__ = ["Parser", "UserError", "one_line", "run_command"]


def run_command(name: str, command: Callable[[], None]) -> int:
    """The exit code: 0, or 2 with the refusal on stderr, or 130 after Ctrl-C."""
    try:
        command()
    except (UserError, ImportError, OSError) as error:  # a package, a file, the disk
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        return 130
    return 0
