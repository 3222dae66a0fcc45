"""How text on a command line becomes values: the parser, and what its options have in common.

No command is imported here: `python_train` uses the parser as well.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UserError

REFUSED = 2  # exit codes: bad input,
INTERRUPTED = 130  # and Ctrl-C, 128 + SIGINT


class Parser(argparse.ArgumentParser):
    """argparse's own, with refusals of one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message}; see {self.prog} --help\n")


class Renamed(argparse.Action):
    """The former name of an option: refused, with a sentence that gives the new one."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, new: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", help=argparse.SUPPRESS)
        self.new = new

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option: str | None = None
    ) -> NoReturn:
        parser.error(f"{option}: expected {self.new}, the new name of this option, got {option}")


def split_assignment(
    option: str, text: str, form: str = "NAME=VALUE", *, at_last: bool = False
) -> tuple[str, str]:
    """Name and value of NAME=VALUE. `at_last`: at the last =, as the names may hold others."""
    name, _, value = text.rpartition("=") if at_last else text.partition("=")
    if not name or not value:
        raise UserError(f"{option}: expected {form}, got {text!r}")
    return name, value


def memory_size(text: str) -> int:
    """Bytes, from a text such as 512MB: a type of argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.replace(" ", ""), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"expected a size such as 512MB or 2GB, got {text!r}")
    return int(float(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def load_groups(path: Path | None, option: str) -> Any:
    """JSON {group: [member, ...]}; None without a file."""
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also what is not text, or nested without end
        raise ValueError(f"{option}: expected JSON in {path}, got something else ({error})") from None
