"""The command line `tim-ext`, or `python -m tim_ext`: info, evaluate, label, paper, demo, predict."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

import tim_ext

from ..distributed.processes import SaidElsewhereError
from ..distributed.ranks import LostRankError
from ..errors import one_line
from ..evaluation import paper
from ..solver import native
from . import demo, predict
from . import evaluate as cli_evaluate
from . import label as cli_label


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="tim-ext", description="Transductive few-shot classification from features.")
    parser.add_argument("--version", action="version", version=f"tim_ext {tim_ext.__version__}")
    parser.set_defaults(run=info)  # without a command
    commands = parser.add_subparsers(metavar="command", title="commands")
    add = commands.add_parser("info", help="versions, native libraries, CPU and CUDA state (the default)")
    add.set_defaults(run=info)
    cli_evaluate.add_command(commands)
    cli_label.add_command(commands)
    paper.add_command(commands)
    demo.add_command(commands)
    predict.add_command(commands)
    options = parser.parse_args(arguments)
    options.command = ["tim-ext", *(sys.argv[1:] if arguments is None else arguments)]
    try:
        return int(options.run(options))
    except SaidElsewhereError as error:  # by another process of torchrun
        return cli_evaluate.INTERRUPTED if error.interrupted else 2
    except (ImportError, LostRankError, OSError, TypeError, ValueError) as error:  # a sentence, no traceback
        print(f"tim-ext {options.run.__name__}: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"tim-ext {options.run.__name__}: interrupted", file=sys.stderr)
        return cli_evaluate.INTERRUPTED


def info(options: argparse.Namespace) -> int:
    """Returns 1 if the solvers cannot run at all."""
    for name, value in describe():
        print(f"{name:<15} {value}")
    return 0 if native.cpu_failure is None else 1


def describe() -> list[tuple[str, str]]:
    usable = native.cpu_failure is None
    library = native.find_library("_C")
    return [
        ("tim_ext", tim_ext.__version__),
        ("torch", torch.__version__),
        ("python", platform.python_version()),
        ("native library", library.name if usable and library else f"not usable: {native.cpu_failure}"),
        ("built with", f"torch {_build_info().get('torch_version', 'unknown')}"),
        ("CPU capability", torch.ops.tim_ext.cpu_capability() if usable else "unknown"),
        ("threads", str(torch.get_num_threads())),
        ("CUDA torch", torch.version.cuda or "no, torch is built without CUDA"),
        ("CUDA library", _cuda_library()),
        ("CUDA device", _cuda_device()),
    ]


def _cuda_library() -> str:
    library = native.find_library("_cuda")
    if library is None:
        return f"not built: {_build_info().get('reason', 'unknown reason')}"
    architectures = _build_info().get("architectures") or "unknown architectures"
    state = f"not loaded: {native.cuda_failure}" if native.cuda_failure else "loaded"
    return f"{library.name}, {state}, for {architectures}"


def _build_info() -> dict[str, str]:
    """What setup.py wrote next to the libraries."""
    file = Path(tim_ext.__file__).with_name("_build_info.json")
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _cuda_device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


if __name__ == "__main__":
    sys.exit(main())
