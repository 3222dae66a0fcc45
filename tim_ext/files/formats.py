"""The formats of feature files: which arrays a file holds, and how to read one of them.

Nothing in a file is ever run: arrays of objects and pickles other than torch's weights are refused. What
readers raise becomes one sentence that names the file. Arrays of .npy, .safetensors and .pt stay in the file,
mapped into memory.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import require
from .mapped import map_file
from .memory import check_fits, within_memory

NPY = b"\x93NUMPY"
HEADER = 10_000  # bytes of the header of an array, at most: numpy's own limit
DEFLATE = 1032  # bytes that one compressed byte can become, at most


class Entries(NamedTuple):
    keys: list[str]  # [""] if the file is a single array
    read: Callable[[str], Any]


@contextmanager
def open_file(path: Path) -> Iterator[Entries]:
    with ExitStack() as stack:
        try:
            with within_memory(str(path)):
                entries = stack.enter_context(FORMATS[path.suffix.lower()](path))
        except ImportError:
            raise
        except Exception as error:  # readers of broken files raise anything
            raise ValueError(f"{path}: cannot be read as {path.suffix}: {_sentence(error, path)}") from error
        yield entries


def read_entry(path: Path, entries: Entries, key: str) -> Any:
    where = entry_name(path, key)
    try:
        with within_memory(where):
            return entries.read(key)
    except Exception as error:
        raise ValueError(f"{where}: cannot be read: {_sentence(error, where)}") from error


@contextmanager
def _open_npz(path: Path) -> Iterator[Entries]:
    with path.open("rb") as file:
        _check_start(file, b"PK")
        with zipfile.ZipFile(file) as archive:
            entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            yield Entries(list(entries), lambda key: _read_npz(archive, entries[key], file))


def _read_npz(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO) -> NDArray[Any]:
    """numpy allocates what the header of an array says before it reads: that must be true, and fit."""
    _check_size(file, info.compress_size)
    with archive.open(info) as entry:
        _check_start(entry, NPY)
        shape, _, dtype = _read_header(entry)
        if dtype.hasobject:
            raise ValueError("expected numbers or strings, got objects")
        size = entry.tell() + math.prod(shape) * dtype.itemsize
        if size != info.file_size:
            raise ValueError(f"expected {size} bytes, as its header says, got {info.file_size}")
    if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > DEFLATE * (info.compress_size + 1):
        got = f"{info.file_size} bytes of {info.compress_size} compressed ones"
        raise ValueError(f"expected at most {DEFLATE} bytes for each compressed one, got {got}")
    check_fits(info.file_size)
    with archive.open(info) as entry:
        array: NDArray[Any] = np.lib.format.read_array(entry, allow_pickle=False)
        entry.read()  # the end, where the checksum is
    return array


@contextmanager
def _open_npy(path: Path) -> Iterator[Entries]:
    with path.open("rb") as file:
        _check_start(file, NPY)
        array = _map_npy(file)
    yield Entries([""], lambda key: array)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # (3, 0): structured types with names beyond Latin-1
        raise ValueError(f"expected version 1.0 or 2.0 of the format, got {'.'.join(map(str, version))}")
    first = version == (1, 0)
    start = file.tell()
    length = int.from_bytes(file.read(2 if first else 4), "little")
    if length > HEADER:  # numpy would read it before it refuses it
        raise ValueError(f"expected a header of at most {HEADER} bytes, got {length}")
    file.seek(start)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read(file)
    if any(size < 0 for size in shape):
        raise ValueError(f"expected a shape, got {shape}")
    return shape, columns_first, dtype


def _map_npy(file: BinaryIO) -> NDArray[Any]:
    shape, columns_first, dtype = _read_header(file)
    if dtype.hasobject:
        raise ValueError("expected numbers or strings, got objects")
    if len(shape) > 1 and (columns_first or not dtype.isnative):  # a copy could be larger than the memory
        expected, got = ("C", "Fortran") if columns_first else ("native byte", "another")
        hint = "np.save(path, array.astype(array.dtype.newbyteorder('='), order='C'))"
        raise ValueError(f"expected an array in {expected} order, got {got}: {hint}")
    offset, size = file.tell(), math.prod(shape) * dtype.itemsize
    _check_size(file, offset + size)
    if not size:
        return np.empty(shape, dtype)
    array: NDArray[Any] = np.ndarray(shape, dtype, map_file(file), offset)
    return array


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Entries]:
    # their reader checks the header; its tensors are in mappings that may not be larger than the memory
    with require("safetensors", "evaluate").safe_open(path, framework="np") as file:
        keys = list(file.keys())
    with path.open("rb") as content:
        yield Entries(keys, lambda key: _map_safetensor(content, key))


def _map_safetensor(file: BinaryIO, key: str) -> Tensor:
    file.seek(0)
    header = int.from_bytes(file.read(8), "little")
    entry = json.loads(file.read(header))[key]
    if entry["dtype"] not in SAFETENSORS_TYPES:
        raise ValueError(f"expected a type out of {', '.join(SAFETENSORS_TYPES)}, got {entry['dtype']}")
    dtype, shape = SAFETENSORS_TYPES[entry["dtype"]], entry["shape"]
    begin, end = (8 + header + offset for offset in entry["data_offsets"])
    _check_size(file, end)
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if begin % dtype.itemsize:
        raise ValueError(f"expected data at a multiple of {dtype.itemsize} bytes, got them at {begin}")
    return torch.frombuffer(map_file(file), dtype=dtype, count=math.prod(shape), offset=begin).view(shape)


SAFETENSORS_TYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}


def _check_size(file: BinaryIO, expected: int) -> None:
    """Behind the end of a file there is nothing to map: reading there would end the process."""
    size = os.fstat(file.fileno()).st_size
    if size < expected:
        raise ValueError(f"expected {expected} bytes, as its header says, got {size}: the file is cut off")


@contextmanager
def _open_torch(path: Path) -> Iterator[Entries]:
    mapped = zipfile.is_zipfile(path)  # the format of torch since 1.6
    if mapped:
        _check_stored(path)
    try:
        with warnings.catch_warnings():  # that the pickle is odd: it is refused, or it is not
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except UnpicklingError as error:
        raise ValueError(_why_not_weights_only(str(error))) from error
    if isinstance(content, Tensor):
        yield Entries([""], lambda key: _stored(content))
    elif isinstance(content, dict):
        values = {str(key): value for key, value in content.items()}
        yield Entries(list(values), lambda key: _stored(values[key]))
    else:
        raise ValueError(f"expected a dict or a tensor, got {type(content).__name__}")


def _check_stored(path: Path) -> None:
    """torch.save compresses nothing; torch.load would unpack what is compressed, however large it is."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(f"expected entries that are not compressed, got {info.filename!r}")
            _check_size(file, info.header_offset + info.file_size)


def _stored(value: Any) -> Any:
    """A tensor may repeat few values by strides of 0: whatever copies it would need memory for all."""
    if isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_nested):
        stored = value.untyped_storage().nbytes()
        if value.nbytes > stored:
            raise ValueError(f"expected {value.nbytes} bytes for its shape, got {stored} stored ones")
    return value


@contextmanager
def _open_parquet(path: Path) -> Iterator[Entries]:
    with require("pyarrow.parquet", "evaluate").ParquetFile(path) as file:
        yield Entries(file.schema_arrow.names, lambda key: _read_parquet(file, key))


def _read_parquet(file: Any, key: str) -> NDArray[Any] | list[str]:
    """A few rows at a time, as a run of one value takes a few bytes in the file but not in memory; what was
    read is copied once more. Sizes of columns are in the file too, but pyarrow ends the process if the
    statistics beside them are damaged."""
    chunks, size = [], 0
    for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[key]):
        chunks.append(batch.column(key))
        size += batch.nbytes
        check_fits(size)
    kind = file.schema_arrow.field(key).type
    return _from_arrow(require("pyarrow", "evaluate").chunked_array(chunks, kind))


PARQUET_ROWS = 1024


FORMATS = {
    ".npz": _open_npz,
    ".npy": _open_npy,
    ".safetensors": _open_safetensors,
    ".pt": _open_torch,
    ".pth": _open_torch,
    ".parquet": _open_parquet,
}


def _check_start(file: IO[bytes], expected: bytes) -> None:
    """numpy takes whatever begins otherwise for a pickle, and says so."""
    start = file.read(len(expected))
    if start != expected:
        raise ValueError(f"expected a file that begins with {expected!r}, got {start!r}")
    file.seek(0)


def _why_not_weights_only(message: str) -> str:
    """From torch's page of advice to the one fact in it."""
    found = re.search(r"GLOBAL (\S+)", message)
    if not found:
        return "a pickle that is not weights-only is refused, as it may run code"
    what = found[1]
    hint = "; save tensors, not arrays" if what.startswith("numpy.") else ""
    return f"a pickle that is not weights-only is refused, as it may run code: it holds {what}{hint}"


def _from_arrow(column: Any) -> NDArray[Any] | list[str]:
    """A column of lists [M, d], or of numbers or strings [M]."""
    types, kind = require("pyarrow", "evaluate").types, column.type
    if not len(column):
        raise ValueError("expected one row or more, got none")
    if column.null_count:
        row = next(i for i, value in enumerate(column) if not value.is_valid)
        raise ValueError(f"expected a value in every row, got none in row {row}")
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = require("pyarrow.compute", "evaluate").list_value_length(column).to_numpy()
        if (lengths != lengths[0]).any():
            row = int((lengths != lengths[0]).argmax())
            raise ValueError(f"expected {lengths[0]} values as in row 0, got {lengths[row]} in row {row}")
        values = [chunk.flatten() for chunk in column.chunks]
        if any(chunk.null_count for chunk in values):
            raise ValueError("expected lists of numbers, got a list with an empty value")
        flat = np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in values])
        return flat.reshape(len(lengths), lengths[0])
    if types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return list(column.to_pylist())
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(f"expected lists, numbers or strings, got {kind}")
    array = np.array(column.to_numpy())  # a copy: arrow's memory is read-only
    return array


def check_path(name: str, value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}: expected a path, got {type(value).__name__}")
    path = Path(value)
    if path.suffix.lower() not in FORMATS:
        got = path.suffix or "none"
        raise ValueError(f"{path}: expected a file of type {', '.join(FORMATS)}, got {got}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():  # to read a pipe would wait for ever
        got = "a directory" if path.is_dir() else "a pipe or a device"
        raise ValueError(f"{path}: expected a file, got {got}")
    return path


def entry_name(path: Path, key: str) -> str:
    return f"{path}[{key!r}]" if key else str(path)


def _sentence(error: Exception, where: object) -> str:
    """The first sentence of an error of another library, without what will be said before it."""
    text = str(error).strip().removeprefix(f"{where}: ").splitlines()
    first = re.split(r"(?<=\w)\. ", text[0])[0] if text else ""
    named = isinstance(error, LookupError) or not first  # the message alone says nothing
    return f"{type(error).__name__} {first}".strip() if named else first
