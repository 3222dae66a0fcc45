"""`tim-ext`: from the command line to the command, and from errors to sentences and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..distributed.processes import SaidElsewhereError
from ..distributed.ranks import LostRankError
from ..errors import one_line
from ..version import __version__
from . import demo, evaluate, gpu_selftest, info, label, paper, predict
from .parsing import INTERRUPTED, REFUSED, Parser

COMMANDS = (info, evaluate, label, paper, demo, predict, gpu_selftest)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code. `arguments` are those of the command line without the name of the program."""
    parser = Parser(prog="tim-ext", description="Transductive few-shot classification from features.")
    parser.add_argument("--version", action="version", version=f"tim_ext {__version__}")
    parser.set_defaults(run=info.run)  # without a command
    commands = parser.add_subparsers(metavar="command", title="commands", dest="name")
    for command in COMMANDS:
        command.add_command(commands)
    options = parser.parse_args(arguments)
    options.command = ["tim-ext", *(sys.argv[1:] if arguments is None else arguments)]
    name = f"tim-ext {options.name or 'info'}"
    try:
        return int(options.run(options))
    except SaidElsewhereError as error:  # by another process of torchrun
        return INTERRUPTED if error.interrupted else REFUSED
    except (ImportError, LostRankError, OSError, TypeError, ValueError) as error:  # a sentence, no traceback
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        return REFUSED
    except MemoryError:
        print(f"{name}: expected what fits into the free memory, got more", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
