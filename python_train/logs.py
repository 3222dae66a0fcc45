"""The log of a run: CSV, TensorBoard, and a line for the eye."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tim_ext.errors import require
from tim_ext.files.atomic import write_atomically

COLUMNS = (
    "step",
    "epoch",
    "lr",
    "loss",
    "accuracy",
    "validation_accuracy",
    "validation_ci95",
    "images_per_second",
    "seconds",
)
Row = dict[str, float | None]


class Log:
    """`log.csv` is written anew from all rows, so it never holds a row of a time that a crash has undone."""

    def __init__(self, folder: Path, first_step: int, *, tensorboard: bool) -> None:
        self.file = folder / "log.csv"
        self.events: Any = None
        if tensorboard:
            require("tensorboard", "train")
            writer = require("torch.utils.tensorboard", "train").SummaryWriter
            self.events = writer(str(folder / "tensorboard"), purge_step=first_step + 1)

    def write(self, rows: Sequence[Row], show: Any) -> None:
        """All rows; `show` prints the line of the last one."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.file, text.getvalue())
        row = {name: value for name, value in rows[-1].items() if value is not None}
        if self.events is not None:
            for name in row.keys() - {"step"}:
                self.events.add_scalar(name, row[name], row["step"])
            self.events.flush()
        line = f"step {row['step']}: loss {row['loss']:.4f}, accuracy {row['accuracy']:.2%}"
        if "validation_accuracy" in row:
            line += f", validation {row['validation_accuracy']:.2%} ± {row['validation_ci95']:.2%}"
        show(line, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()
