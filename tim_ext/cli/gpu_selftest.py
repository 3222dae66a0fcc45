"""`tim-ext gpu-selftest`: whether a GPU computes what the CPU does, and how fast; a report for an issue."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..files.atomic import write_atomically
from ..files.outputs import output_folder
from ..selftest.device import Device, Gpu
from ..selftest.report import PARTS, Report, as_text
from ..selftest.report import run as run_parts
from ..solver import native
from .info import describe

FILES = ("report.json", "report.txt")


def add_command(commands: Any) -> None:
    add = commands.add_parser(
        "gpu-selftest",
        help="whether a GPU computes what the CPU does, and how fast",
        description="Runs every kernel on a GPU and compares it with the CPU in float64; CUDA graphs, "
        "streams, other devices, the same bits twice, memory in use; compute-sanitizer, if there is one; "
        "then times. Writes a report that can be attached to an issue. Exit code 0: all passed, 1: something "
        "failed, 2: there is no GPU to test.",
    )
    add.set_defaults(run=run)
    add.add_argument("--device", type=int, default=0, metavar="N", help="the GPU cuda:N (default: 0)")
    add.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"out of {', '.join(PARTS)}"
    )
    add.add_argument("--quick", action="store_true", help="without large tasks")
    folder = Path("gpu-selftest")
    add.add_argument(
        "--out",
        type=Path,
        default=folder,
        metavar="FOLDER",
        help=f"for {' and '.join(FILES)} (default: {folder})",
    )
    add.add_argument("--no-report", action="store_true", help="only print")


def run(options: argparse.Namespace) -> int:
    device = open_device(options.device)
    if not options.no_report:
        output_folder("--out", options.out, FILES, {})
    about = dict(describe()) | device.about()
    print("\n".join(f"{name:<15} {value}" for name, value in about.items()))
    report = run_parts(
        device, options.parts, quick=options.quick, say=lambda text: print(text, file=sys.stderr, flush=True)
    )
    print(as_text(report))
    if not options.no_report:
        write(options.out, options.command, about, report)
        print(f"report: {options.out / FILES[0]}, {options.out / FILES[1]}")
    return 0 if report.passed else 1


def open_device(index: int) -> Device:
    if native.cpu_failure is not None:
        raise ImportError(native.cpu_failure)
    if native.cuda_failure is not None:
        raise UserError(f"expected a GPU to test, got none: {native.cuda_failure}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise UserError("expected a GPU to test, got none: torch finds no CUDA device; does nvidia-smi?")
    if not 0 <= index < count:
        raise UserError(f"--device: expected 0 to {count - 1}, got {index}")
    return Gpu(index)


def write(folder: Path, command: list[str], about: dict[str, str], report: Report) -> None:
    data = {"command": command, "versions": about, **report.as_data()}
    write_atomically(folder / FILES[0], json.dumps(data, indent=2, allow_nan=False) + "\n")
    lines = [" ".join(command), *(f"{name:<15} {value}" for name, value in about.items())]
    write_atomically(folder / FILES[1], "\n".join([*lines, as_text(report)]) + "\n")
