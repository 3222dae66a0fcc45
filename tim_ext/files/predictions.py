"""Files of predictions: .csv, .npz or .parquet, written from blocks of rows and complete or not there at all.

row, label, confidence      .csv and .parquet: the number of the row, the name of its class, its probability
labels, confidences, class_names      .npz: class numbers [M], probabilities [M], names of the classes [K]
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import require
from .cells import as_cell

RECORD = np.dtype([("label", "<i4"), ("confidence", "<f4")])
NONE_OF_THESE = "none of these"  # a class of rows that are of none of the classes
BLOCK = 1 << 16  # rows in memory at once; of .parquet, a row group

Records = NDArray[Any]  # [n] of RECORD


class Predictions(NamedTuple):
    class_names: Sequence[str]
    total: int
    blocks: Callable[[], Iterator[Records]]  # all rows in order, as often as it is called
    spreadsheet_safe: bool = False  # of .csv


def check_format(path: Path) -> None:
    """Now rather than after hours of work."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: expected a file of type {', '.join(FORMATS)}, got {path.suffix or 'none'}")
    if path.suffix.lower() == ".parquet":
        require("pyarrow.parquet", "evaluate")


def write_predictions(suffix: str, file: BinaryIO, predictions: Predictions) -> None:
    FORMATS[suffix.lower()](file, predictions)


def _write_csv(file: BinaryIO, predictions: Predictions) -> None:
    file.write(b"row,label,confidence\n")
    safe = predictions.spreadsheet_safe
    names = [as_cell(name, spreadsheet_safe=safe) for name in predictions.class_names]
    row = 0
    for block in predictions.blocks():
        lines = (
            f"{number},{names[label]},{confidence:.6f}\n"
            for number, (label, confidence) in enumerate(block.tolist(), row)
        )
        file.write("".join(lines).encode())
        row += len(block)


def _write_npz(file: BinaryIO, predictions: Predictions) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for key, column in (("labels", "label"), ("confidences", "confidence")):
            header = {
                "descr": RECORD[column].str,
                "fortran_order": False,
                "shape": (predictions.total,),
            }
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                for block in predictions.blocks():
                    entry.write(np.ascontiguousarray(block[column]).tobytes())
        with archive.open("class_names.npy", "w") as entry:
            np.lib.format.write_array(entry, np.array(predictions.class_names, dtype=np.str_))


def _write_parquet(file: BinaryIO, predictions: Predictions) -> None:
    pyarrow, parquet = require("pyarrow", "evaluate"), require("pyarrow.parquet", "evaluate")
    names = pyarrow.array(predictions.class_names, pyarrow.string())
    kind = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    columns = {"row": pyarrow.int64(), "label": kind, "confidence": pyarrow.float32()}
    row = 0
    with parquet.ParquetWriter(file, pyarrow.schema(list(columns.items()))) as writer:
        for block in predictions.blocks():
            labels = pyarrow.array(np.ascontiguousarray(block["label"]))
            arrays = [
                pyarrow.array(np.arange(row, row + len(block))),
                pyarrow.DictionaryArray.from_arrays(labels, names),
                pyarrow.array(np.ascontiguousarray(block["confidence"])),
            ]
            writer.write_table(pyarrow.table(dict(zip(columns, arrays, strict=True))))
            row += len(block)


FORMATS: dict[str, Callable[[BinaryIO, Predictions], None]] = {
    ".csv": _write_csv,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}
