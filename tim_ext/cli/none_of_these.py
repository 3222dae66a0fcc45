"""`--none-of-these`: samples that look as if they were of none of the classes, as a class of their own."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from ..files.predictions import NONE_OF_THESE
from ..solver.outliers import FOREIGN

OPTION = "--none-of-these"
MUCH = 0.15  # of the samples


def add_none_of_these(add: Any) -> None:
    add.add_argument(
        OPTION,
        nargs="?",
        type=_threshold,
        const=FOREIGN,
        metavar="THRESHOLD",
        help=f'label "{NONE_OF_THESE}" what has an outlier score, 0 to 1, of THRESHOLD or more ({FOREIGN}); '
        "the larger its score, the less a sample counts for the others (default: off)",
    )


def _threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number > 0 and <= 1, got {text!r}")
    return value


def check_names(options: argparse.Namespace, names: Sequence[str]) -> None:
    if options.none_of_these is None:
        return
    if NONE_OF_THESE in names:
        raise UserError(f'{OPTION}: expected no class called "{NONE_OF_THESE}", got one')
    if len(names) < 2:
        raise UserError(f"{OPTION}: expected two classes or more, got one")


def describe_foreign(options: argparse.Namespace, foreign: int, total: int, what: str) -> list[str]:
    """A line to print, if any; foreign: how many have an outlier score of FOREIGN or more."""
    if options.none_of_these is not None or foreign < MUCH * total or not foreign:
        return []
    return [
        f"{foreign:,} of {total:,} {what} ({foreign / total:.0%}) look as if they were of none of the "
        f"classes; {OPTION} sets them apart"
    ]
