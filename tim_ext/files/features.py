"""Feature files: features [M, d] and labels [M] from .npz, .npy, .safetensors, .pt or .parquet.

Nothing in a file is ever run: arrays of objects and pickles other than torch's weights are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import require
from ..solver.inputs import FLOATS, INTEGERS, dtype_name
from ..solver.result import ShortRepr

# looked for in a file when no key is given; exactly one must be there
KEYS = {
    "features": ("features", "feats", "embeddings", "embedding", "X", "x"),
    "labels": ("labels", "label", "targets", "target", "y"),
}
CLASS_NAMES = "class_names"
CHUNK = 2**18  # elements looked at in one go
SHOWN = 20  # keys of a file that an error lists


@dataclass(frozen=True, eq=False, repr=False)
class Features(ShortRepr):
    """A labelled pool of feature vectors."""

    features: Tensor  # [M, d]  of the type stored: float16, bfloat16, float32 or float64
    labels: Tensor  # [M]  int64; negative: not used
    class_names: list[str] | None  # of class 0, 1, ..
    sha256: str  # of features and labels: the same for the same data in another format
    path: str


def load_features(
    path: str | os.PathLike[str],
    *,
    features_key: str | None = None,
    labels_key: str | None = None,
    labels_path: str | os.PathLike[str] | None = None,
) -> Features:
    """Reads features and labels, and checks them: one shape, finite values in every row of a class.

    Args:
        path: .npz, .safetensors, .pt or .pth (a dict), .parquet (features: a column of lists), or .npy
            (features alone). In .npy, .safetensors and .pt the features stay in the file, mapped into memory,
            and can be changed without changing the file.
        features_key: key of the features; by default the one of "features", "feats", "embeddings",
            "embedding", "X", "x" that is there.
        labels_key: key of the labels; by default the one of "labels", "label", "targets", "target", "y".
        labels_path: file of the labels, of any of these formats, if it is another one.

    Returns:
        Features. Labels are integers, or strings that become the numbers 0, 1, .. of their sorted order, with
        `class_names`. Beside integers, an entry "class_names" of .npz or .pt names the classes 0, 1, ..

    Raises:
        FileNotFoundError, ValueError: one line that says what was expected and what came.
    """
    source = _check_path("path", path)
    labels_source = source if labels_path is None else _check_path("labels_path", labels_path)
    with ExitStack() as files:
        entries = files.enter_context(_open(source))
        labels_entries = entries
        if labels_path is not None:
            labels_entries = files.enter_context(_open(labels_source))
        elif "" in entries.keys:
            raise ValueError(f"{source}: expected labels_path, as this file is a single array, got None")
        key = _find("features", source, entries, features_key)
        features = _to_features(_name(source, key), _read(source, entries, key))
        key = _find("labels", labels_source, labels_entries, labels_key)
        where = _name(labels_source, key)
        labels, class_names = _to_labels(where, _read(labels_source, labels_entries, key), len(features))
        if class_names is None and CLASS_NAMES in labels_entries.keys:
            names = _read(labels_source, labels_entries, CLASS_NAMES)
            class_names = _to_class_names(_name(labels_source, CLASS_NAMES), names, int(labels.max()) + 1)
    _check_finite(source, features, labels)
    return Features(features, labels, class_names, hash_tensors(features, labels), str(source))


def open_pool(path: str | os.PathLike[str], *, features_key: str | None = None) -> Tensor:
    """The features [M, d] alone, of the type stored, where they lie in the file if `load_features` maps it.

    Their values are not looked at: that would read the whole file.
    """
    source = _check_path("path", path)
    with _open(source) as entries:
        key = _find("features", source, entries, features_key)
        return _to_features(_name(source, key), _read(source, entries, key))


def row_blocks(features: Tensor, elements: int | None = None) -> Iterator[slice]:
    """The rows in order, a few at a time: at most so many elements, or one row."""
    rows = max((elements or CHUNK) // features.shape[1], 1)
    for start in range(0, len(features), rows):
        yield slice(start, min(start + rows, len(features)))


def mean_of_rows(features: Tensor) -> Tensor:
    """[d], float64; torch's own mean would first convert all of them."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    for rows in row_blocks(features):
        total += features[rows].sum(dim=0, dtype=torch.float64)
    return total / len(features)


def hash_tensors(*tensors: Tensor) -> str:
    """SHA-256 of types, shapes and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        flat = tensor.contiguous().view(-1)
        for start in range(0, len(flat), CHUNK):  # little at a time of a file that is mapped into memory
            chunk = flat[start : start + CHUNK].cpu()
            digest.update(chunk.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()


# Files --------------------------------------------------------------------------------------------


class Entries(NamedTuple):
    keys: list[str]  # [""] if the file is a single array
    read: Callable[[str], Any]


@contextmanager
def _open(path: Path) -> Iterator[Entries]:
    with ExitStack() as stack:
        try:
            entries = stack.enter_context(FORMATS[path.suffix.lower()](path))
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # readers of broken files raise anything
            raise ValueError(f"{path}: cannot be read as {path.suffix}: {_sentence(error)}") from error
        yield entries


def _read(path: Path, entries: Entries, key: str) -> Any:
    try:
        return entries.read(key)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{_name(path, key)}: cannot be read: {_sentence(error)}") from error


@contextmanager
def _open_npz(path: Path) -> Iterator[Entries]:
    with path.open("rb") as file:  # numpy itself leaves a broken one open
        _check_start(file, b"PK")
        with np.load(file, allow_pickle=False) as arrays:
            yield Entries(arrays.files, arrays.__getitem__)


@contextmanager
def _open_npy(path: Path) -> Iterator[Entries]:
    with path.open("rb") as file:
        _check_start(file, b"\x93NUMPY")
        array = _map_npy(file)
    yield Entries([""], lambda key: array)


def _map_npy(file: BinaryIO) -> NDArray[Any]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # (3, 0): structured types with names beyond Latin-1
        raise ValueError(f"expected version 1.0 or 2.0 of the format, got {'.'.join(map(str, version))}")
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read(file)
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
    array: NDArray[Any] = np.ndarray(shape, dtype, _map(file), offset)
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
    return torch.frombuffer(_map(file), dtype=dtype, count=math.prod(shape), offset=begin).view(shape)


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


def _map(file: BinaryIO) -> mmap.mmap:
    """The file as memory. Pages that are written to become private, so no write reaches the file; and no
    memory is set apart for all of them, which the kernel would refuse for a file larger than the memory."""
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)  # named since Python 3.13
    return mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _check_size(file: BinaryIO, expected: int) -> None:
    """Behind the end of a file there is nothing to map: reading there would end the process."""
    size = os.fstat(file.fileno()).st_size
    if size < expected:
        raise ValueError(f"expected {expected} bytes, as its header says, got {size}: the file is cut off")


@contextmanager
def _open_torch(path: Path) -> Iterator[Entries]:
    mapped = zipfile.is_zipfile(path)  # the format of torch since 1.6
    try:
        with warnings.catch_warnings():  # that the pickle is odd: it is refused, or it is not
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except UnpicklingError as error:
        raise ValueError(_why_not_weights_only(str(error))) from error
    if isinstance(content, Tensor):
        yield Entries([""], lambda key: content)
    elif isinstance(content, dict):
        values = {str(key): value for key, value in content.items()}
        yield Entries(list(values), values.__getitem__)
    else:
        raise ValueError(f"expected a dict or a tensor, got {type(content).__name__}")


@contextmanager
def _open_parquet(path: Path) -> Iterator[Entries]:
    with require("pyarrow.parquet", "evaluate").ParquetFile(path) as file:
        yield Entries(file.schema_arrow.names, lambda key: _from_arrow(file.read(columns=[key])[key]))


FORMATS = {
    ".npz": _open_npz,
    ".npy": _open_npy,
    ".safetensors": _open_safetensors,
    ".pt": _open_torch,
    ".pth": _open_torch,
    ".parquet": _open_parquet,
}


def _check_start(file: BinaryIO, expected: bytes) -> None:
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


# What is in them ----------------------------------------------------------------------------------


def _check_path(name: str, value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}: expected a path, got {type(value).__name__}")
    path = Path(value)
    if path.suffix.lower() not in FORMATS:
        got = path.suffix or "none"
        raise ValueError(f"{path}: expected a file of type {', '.join(FORMATS)}, got {got}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: expected a file, got a directory")
    return path


def _find(what: str, path: Path, entries: Entries, key: str | None) -> str:
    if "" in entries.keys:
        if key is not None:
            raise ValueError(f"{path}: expected no {what}_key, as this file is a single array, got {key!r}")
        return ""
    there = ", ".join(map(repr, entries.keys[:SHOWN])) or "none"
    if len(entries.keys) > SHOWN:
        there += f", .. ({len(entries.keys)} keys)"
    if key is not None:
        if key not in entries.keys:
            raise ValueError(f"{path}: expected {what} under {what}_key={key!r}, got the keys {there}")
        return key
    found = [key for key in KEYS[what] if key in entries.keys]
    if len(found) > 1:
        names = " and ".join(map(repr, found))
        raise ValueError(f"{path}: expected one key of {what}, got {names}: choose by {what}_key")
    if not found:
        known = ", ".join(map(repr, KEYS[what]))
        raise ValueError(f"{path}: expected {what} under {known} or {what}_key, got the keys {there}")
    return found[0]


def _to_features(where: str, value: Any) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.dtype.itemsize <= 8:
        value = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))
    if not _is_plain(value) or value.dtype not in FLOATS:
        _refuse(where, f"{', '.join(map(dtype_name, FLOATS))} [M, d]", value)
    if value.dim() != 2 or 0 in value.shape:
        _refuse(where, "shape [M, d], neither of them 0", value)
    features: Tensor = value.detach().contiguous()
    return features


def _is_plain(value: Any) -> bool:
    dense = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested
    return dense and not value.is_meta


def _to_labels(where: str, value: Any, count: int) -> tuple[Tensor, list[str] | None]:
    """Class numbers [M], and the names if they were strings."""
    if isinstance(value, (list, tuple)):
        value = _from_list(where, value)
    elif _is_plain(value) and value.dtype in INTEGERS:
        value = value.numpy()
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuUS":
        _refuse(where, f"integers or strings [{count}]", value)
    if value.shape != (count,):
        _refuse(where, f"labels of shape [{count}] to match features", value)
    if value.dtype.kind in "US":
        names, numbers = np.unique(_strings(where, value), return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), names.tolist()
    if value.dtype == np.uint64 and value.max() > np.iinfo(np.int64).max:
        _refuse(where, "integers below 2^63", value)
    return torch.from_numpy(value.astype(np.int64)), None


def _to_class_names(where: str, value: Any, count: int) -> list[str]:
    if isinstance(value, (list, tuple)):
        value = _from_list(where, value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "US" or value.ndim != 1:
        _refuse(where, "strings [C]", value)
    if len(value) < count:
        raise ValueError(f"{where}: expected names of class 0 to {count - 1}, got {len(value)} names")
    return [str(name) for name in _strings(where, value)]


def _from_list(where: str, values: Sequence[Any]) -> NDArray[Any]:
    """Strings or integers, not both: numpy would write the numbers as strings."""
    kinds = sorted({type(value).__name__ for value in values})
    if kinds not in (["int"], ["str"]):
        raise ValueError(f"{where}: expected integers or strings, got {' and '.join(kinds) or 'nothing'}")
    return np.array(values)


def _strings(where: str, values: NDArray[Any]) -> NDArray[np.str_]:
    try:
        return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: expected UTF-8, got {error.object!r}") from error


def _check_finite(path: Path, features: Tensor, labels: Tensor) -> None:
    for rows in row_blocks(features):
        chunk = features[rows]
        if chunk.sum(dtype=torch.float64).isfinite():  # then every value is
            continue
        wrong = ~chunk.isfinite().all(dim=1) & (labels[rows] >= 0)
        if wrong.any():
            row = rows.start + int(wrong.nonzero()[0])
            raise ValueError(f"{path}: expected finite features, got NaN or Inf in row {row}")


# Sentences ----------------------------------------------------------------------------------------


def _name(path: Path, key: str) -> str:
    return f"{path}[{key!r}]" if key else str(path)


def _refuse(where: str, expected: str, value: Any) -> NoReturn:
    if isinstance(value, Tensor):
        kind = "" if _is_plain(value) else f" ({value.device}, {value.layout})"
        got = f"{dtype_name(value)} {list(value.shape)}{kind}"
    elif isinstance(value, np.ndarray):
        got = f"{value.dtype} {list(value.shape)}"
    else:
        got = type(value).__name__
    raise ValueError(f"{where}: expected {expected}, got {got}")


def _sentence(error: Exception) -> str:
    """The first sentence of an error of another library."""
    text = str(error).strip().splitlines()
    first = re.split(r"(?<=\w)\. ", text[0])[0] if text else ""
    named = isinstance(error, LookupError) or not first  # the message alone says nothing
    return f"{type(error).__name__} {first}".strip() if named else first
