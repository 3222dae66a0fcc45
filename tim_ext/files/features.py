"""Feature files: features [M, d] and labels [M] from .npz, .npy, .safetensors, .pt or .parquet."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..solver.inputs import FLOATS, INTEGERS, dtype_name
from ..solver.result import ShortRepr
from .formats import Entries, check_path, entry_name, open_file, read_entry
from .mapped import check_mapped
from .memory import within_memory

# looked for in a file when no key is given; exactly one must be there
KEYS = {
    "features": ("features", "feats", "embeddings", "embedding", "X", "x"),
    "labels": ("labels", "label", "targets", "target", "y"),
    "class vectors": ("class_vectors", "text", "texts", "text_features", "text_embeddings"),
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
    source = check_path("path", path)
    labels_source = source if labels_path is None else check_path("labels_path", labels_path)
    with ExitStack() as files:
        entries = files.enter_context(open_file(source))
        labels_entries = entries
        if labels_path is not None:
            labels_entries = files.enter_context(open_file(labels_source))
        elif "" in entries.keys:
            raise ValueError(f"{source}: expected labels_path, as this file is a single array, got None")
        key = _find("features", source, entries, features_key)
        features = _to_features(entry_name(source, key), read_entry(source, entries, key))
        key = _find("labels", labels_source, labels_entries, labels_key)
        where = entry_name(labels_source, key)
        labels, class_names = _to_labels(where, read_entry(labels_source, labels_entries, key), len(features))
        if class_names is None and CLASS_NAMES in labels_entries.keys:
            names = read_entry(labels_source, labels_entries, CLASS_NAMES)
            class_names = _to_class_names(
                entry_name(labels_source, CLASS_NAMES), names, int(labels.max()) + 1
            )
    row = first_not_finite(features, labels)
    if row is not None:
        raise ValueError(f"{source}: expected finite features, got NaN or Inf in row {row}")
    return Features(features, labels, class_names, hash_tensors(features, labels), str(source))


def open_pool(path: str | os.PathLike[str], *, features_key: str | None = None) -> Tensor:
    """The features [M, d] alone, of the type stored, where they lie in the file if `load_features` maps it.

    Their values are not looked at: that would read the whole file.
    """
    source = check_path("path", path)
    with open_file(source) as entries:
        key = _find("features", source, entries, features_key)
        return _to_features(entry_name(source, key), read_entry(source, entries, key))


class ClassVectors(NamedTuple):
    vectors: Tensor  # [K, d]
    class_names: list[str]  # [K]


def load_class_vectors(path: str | os.PathLike[str]) -> ClassVectors:
    """A vector of each class, and the names of the classes.

    Under "class_vectors", "text", "texts", "text_features" or "text_embeddings", or what `load_features`
    takes for features, or alone in .npy. The entry "class_names" of .npz or .pt names them; without it they
    are called 0, 1, ..
    """
    source = check_path("path", path)
    with open_file(source) as entries:
        what = "class vectors" if any(key in entries.keys for key in KEYS["class vectors"]) else "features"
        key = _find(what, source, entries, None)
        vectors = _to_features(entry_name(source, key), read_entry(source, entries, key))
        names = [str(k) for k in range(len(vectors))]
        if CLASS_NAMES in entries.keys:
            where = entry_name(source, CLASS_NAMES)
            names = _to_class_names(where, read_entry(source, entries, CLASS_NAMES), len(vectors))
            if len(names) != len(vectors):
                raise ValueError(
                    f"{where}: expected {len(vectors)} names, one of each vector, got {len(names)}"
                )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{source}: expected every class name once, got {name!r} again")
    return ClassVectors(vectors, names)


def row_blocks(features: Tensor, elements: int | None = None) -> Iterator[slice]:
    """The rows in order, a few at a time: at most so many elements, or one row."""
    rows = max((elements or CHUNK) // max(features.shape[1], 1), 1)
    for start in range(0, len(features), rows):
        check_mapped(features)
        yield slice(start, min(start + rows, len(features)))


def mean_of_rows(features: Tensor) -> Tensor:
    """[d], float64; torch's own mean would first convert all of them."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    for rows in row_blocks(features):
        total += features[rows].sum(dim=0, dtype=torch.float64)
    return total / len(features)


def first_not_finite(features: Tensor, labels: Tensor) -> int | None:
    """The first row of a class that has NaN or Inf. Nothing is kept of a block: small results between large
    temporary ones would break the memory that these leave into pieces too small for the next."""
    for rows in row_blocks(features):
        chunk = features[rows]
        if chunk.sum(dtype=torch.float64).isfinite():  # then every value is
            continue
        wrong = ~chunk.isfinite().all(dim=1).cpu() & (labels[rows] >= 0)
        if wrong.any():
            return int(rows.start) + int(wrong.nonzero()[0])
    return None


def hash_tensors(*tensors: Tensor) -> str:
    """SHA-256 of types, shapes and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        flat = tensor.contiguous().view(-1)
        for start in range(0, len(flat), CHUNK):  # little at a time of a file that is mapped into memory
            check_mapped(flat)
            chunk = flat[start : start + CHUNK].cpu()
            digest.update(chunk.view(torch.uint8).numpy().data)  # numpy has no bfloat16
    return digest.hexdigest()


# What is in them ----------------------------------------------------------------------------------


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
        with within_memory(where):
            value = torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))
    if not _is_plain(value) or value.dtype not in FLOATS:
        _refuse(where, f"{', '.join(map(dtype_name, FLOATS))} [M, d]", value)
    if value.dim() != 2 or 0 in value.shape:
        _refuse(where, "shape [M, d], neither of them 0", value)
    with within_memory(where):
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
    """Text, from bytes of UTF-8 or from numbers of characters, any of which a file may hold."""
    if values.dtype.kind == "S":
        try:
            return np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: expected UTF-8, got {error.object!r}") from error
    if values.dtype.itemsize:
        number = np.dtype("u4").newbyteorder(values.dtype.byteorder)
        largest = int(np.ascontiguousarray(values).view(number).max(initial=0))
        if largest > sys.maxunicode:  # Python itself would fail on it
            raise ValueError(f"{where}: expected text, got a character of number {largest}")
    return values


# Sentences ----------------------------------------------------------------------------------------


def _refuse(where: str, expected: str, value: Any) -> NoReturn:
    if isinstance(value, Tensor):
        kind = "" if _is_plain(value) else f" ({value.device}, {value.layout})"
        got = f"{dtype_name(value)} {list(value.shape)}{kind}"
    elif isinstance(value, np.ndarray):
        got = f"{value.dtype} {list(value.shape)}"
    else:
        got = type(value).__name__
    raise ValueError(f"{where}: expected {expected}, got {got}")
