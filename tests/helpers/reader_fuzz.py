"""Every reader of files on valid files that were damaged: run by tests/fuzz in a process of its own.

    PYTHONPATH=.:tests python -m helpers.reader_fuzz FOLDER SECONDS SEED

Each outcome must be a value, or an OSError, ValueError, TypeError or ImportError of one line. A case that
takes CASE_SECONDS ends the process, and memory beyond MEMORY is refused by the kernel. The file under test
stays in the folder when the process dies; hypothesis makes it small when a reader raises something else.
"""

from __future__ import annotations

import faulthandler
import io
import json
import resource
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tim_ext import tasks
from tim_ext.cli.options import load_mean
from tim_ext.cli.parsing import load_groups
from tim_ext.files import label_files
from tim_ext.files.features import load_features, open_pool
from tim_ext.files.predictions import RECORD, Predictions, write_predictions
from tim_ext.files.tensors import read_tensors, write_tensors

from .feature_files import TEXT, M, X, Y, write

ALLOWED = (OSError, ValueError, TypeError, ImportError)
MEMORY = 2**28  # bytes that a process may allocate beyond what it starts with
CASE_SECONDS = 20
EXAMPLES = 40  # of one seed of hypothesis
NAMES = ["ant", "bee", 'a "quoted", name']
NO_MEMORY = "expected what fits into the free memory"
# their libraries allocate what a file says before they look; the kernel's refusal becomes a sentence
BY_LIBRARIES = (".pt", ".parquet")
TOKENS = [
    *(b"", b"\0", b"\n", b"\r", b",", b'"', b"'", b"=", b"-1", b"1e400", b"NaN"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"9" * 20, b"9" * 5000, b"[" * 50_000, b'{"a":' * 5000),
    *(b"(4294967296, 4294967296)", b"|O", b"<f8", b"|S0", b"<U99999999", b"\x93NUMPY\x02\x00"),
    *(b"PK\x05\x06", b"PK\x03\x04", b"PAR1", b"\x80\x02", b"cos\nsystem\n"),
]
NUMBERS = [0, 1, 2, 127, 128, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**36, 2**63 - 1, 2**64 - 1]
CHANGES = ["byte", "number", "token", "bytes", "cut", "delete", "repeat", "splice"]


class Seed(NamedTuple):
    name: str
    suffix: str
    content: bytes
    readers: dict[str, Callable[[Path], Any]]


# The corpus ---------------------------------------------------------------------------------------


def make_corpus(folder: Path) -> list[Seed]:
    """Small valid files, and what reads each."""
    pool = write(folder / "pool.npy", features=X)
    labels = write(folder / "labels.npy", labels=Y)
    seeds = [*feature_seeds(folder, pool, labels), *text_seeds(folder)]
    for one in seeds:  # they are valid
        path = folder / f"valid{one.suffix}"
        path.write_bytes(one.content)
        assert any(outcome(read, path) == "value" for read in one.readers.values()), one.name
    return seeds


def feature_seeds(folder: Path, pool: Path, labels: Path) -> list[Seed]:
    of_pools = {
        "load_features": load_features,
        "load_features with labels": partial(load_features, labels_path=labels),
        "open_pool": open_pool,
        "load_mean": load_mean,
        "labels": lambda path: load_features(pool, labels_path=path),
    }
    seeds = []
    for suffix in (".npz", ".npy", ".safetensors", ".pt", ".parquet"):
        arrays: dict[str, Any] = {"features": X} if suffix == ".npy" else {"features": X, "labels": Y}
        variants = {"numbers": arrays, "half": {**arrays, "features": X.astype(np.float16)}}
        if suffix in (".npz", ".pt", ".parquet"):
            variants["text"] = {**arrays, "labels": TEXT}
        if suffix in (".npz", ".pt"):
            variants["names"] = {**arrays, "class_names": np.array(["a", "b", "c", "d", "e"])}
        for name, chosen in variants.items():
            content = write(folder / f"seed{suffix}", **chosen).read_bytes()
            seeds.append(Seed(f"{name}{suffix}", suffix, content, of_pools))
    compressed, old = io.BytesIO(), io.BytesIO()
    np.savez_compressed(compressed, features=X, labels=Y)
    tensors = {"features": torch.from_numpy(X), "labels": torch.from_numpy(Y)}
    torch.save(tensors, old, _use_new_zipfile_serialization=False)
    seeds.append(Seed("compressed.npz", ".npz", compressed.getvalue(), of_pools))
    seeds.append(Seed("old.pt", ".pt", old.getvalue(), of_pools))
    records = np.array([(k % 3, 0.5) for k in range(M)], RECORD)
    for suffix in (".npz", ".parquet"):
        stream = io.BytesIO()
        write_predictions(suffix, stream, Predictions(NAMES, M, lambda: iter([records])))
        readers = {"predictions": partial(read_predictions, pool, "label" if suffix == ".parquet" else None)}
        seeds.append(Seed(f"predictions{suffix}", suffix, stream.getvalue(), readers))
    write_tensors(folder / "seed.safetensors", {"w": torch.zeros(3, 2)}, {"model": {"name": "conv4"}})
    content = (folder / "seed.safetensors").read_bytes()
    return [*seeds, Seed("checkpoint.safetensors", ".safetensors", content, {"read_tensors": read_tensors})]


def read_predictions(pool: Path, key: str | None, path: Path) -> Any:
    return load_features(pool, labels_path=path, labels_key=key)


def text_seeds(folder: Path) -> list[Seed]:
    support = 'row,label\n17,ant\n3,"a ""quoted"", name"\n0,bee\n'
    shares = 'label,proportion\nant,0.5\nbee,2e-1\n"a ""quoted"", name",3\n'
    tree = {"root": ["left", "right"], "left": [0, 1, 2, 3, 4, 5], "right": [6, 7, 8, 9, 10, 11]}
    groups = {"low": [0, 1, 2, 3, 4, 5], "high": [6, 7, 8, 9, 10, 11]}
    csvs = {
        "read_support": lambda path: label_files.read_support(path, 20),
        "read_proportions": lambda path: label_files.read_proportions(path, NAMES),
    }
    jsons = {kind: partial(read_groups, kind) for kind in ("hierarchy", "superclasses")}
    return [
        Seed("support.csv", ".csv", support.encode(), csvs),
        Seed("shares.csv", ".csv", shares.encode(), csvs),
        Seed("tree.json", ".json", json.dumps(tree).encode(), jsons),
        Seed("groups.json", ".json", json.dumps(groups).encode(), jsons),
    ]


def read_groups(kind: str, path: Path) -> Any:
    groups = load_groups(path, f"--{kind}")
    return tasks.meta_dataset(np.arange(240) % 12, **{kind: groups})[0:1]


# Damage -------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: Any, contents: list[bytes], chosen: int) -> bytes:
    content = contents[chosen]
    if content[:2] == b"PK" and draw(st.booleans()):
        return repacked(draw, content, contents)
    return damage(draw, content, contents)


def repacked(draw: Any, content: bytes, contents: list[bytes]) -> bytes:
    """An archive whose own tables and checksums are right, with one entry damaged."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    name = draw(st.sampled_from(sorted(entries)))
    entries[name] = damage(draw, entries[name], contents)
    stream = io.BytesIO()
    kind = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, value in entries.items():
            archive.writestr(name, value)
    return stream.getvalue()


def damage(draw: Any, content: bytes, contents: list[bytes]) -> bytes:
    """Up to five changes."""
    for _ in range(draw(st.integers(0, 5))):
        size = len(content)
        at = draw(st.integers(0, size))
        at = size - at if draw(st.booleans()) else at  # drawn numbers are small: also near the end
        end = min(at + draw(st.integers(0, 64)), size)
        kind = draw(st.sampled_from(CHANGES))
        if kind == "byte" and at < size:
            content = content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
        elif kind == "number":
            width, value = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from(NUMBERS))
            number = (value % 256**width).to_bytes(width, "little")
            content = content[:at] + number + content[at + width :]
        elif kind == "token":
            content = content[:at] + draw(st.sampled_from(TOKENS)) + content[end:]
        elif kind == "bytes":
            content = content[:at] + draw(st.binary(max_size=16)) + content[end:]
        elif kind == "cut":
            content = content[:at]
        elif kind == "delete":
            content = content[:at] + content[end:]
        elif kind == "repeat":
            content = content[:at] + content[at:end] * draw(st.integers(1, 50)) + content[end:]
        elif kind == "splice":
            other = draw(st.sampled_from(contents))
            content = content[:at] + other[draw(st.integers(0, len(other))) :]
    return content


# The run ------------------------------------------------------------------------------------------


def outcome(read: Callable[[Path], Any], path: Path) -> str:
    try:
        read(path)
    except ALLOWED as error:
        text = str(error)
    else:
        return "value"
    assert text, "an error without a word"
    assert "\n" not in text, f"more than a line: {text!r}"
    assert NO_MEMORY not in text or path.suffix in BY_LIBRARIES, f"allocated too much: {text}"
    return "refused"


def limit_memory() -> None:
    with open("/proc/self/status", encoding="ascii") as lines:
        data = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY, data + MEMORY))


def run(folder: Path, seconds: float, first: int) -> Counter[str]:
    corpus = make_corpus(folder)
    contents = [one.content for one in corpus]
    counts: Counter[str] = Counter()
    limit_memory()
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end:
        chosen = number % len(corpus)
        try_many(number, damaged(contents, chosen), end, partial(_check, corpus[chosen], folder, counts))
        number += 1
    return counts


def try_many(
    number: int, strategy: st.SearchStrategy[bytes], end: float, check: Callable[[bytes], None]
) -> None:
    """`check` on files of the strategy, until the time `end`."""

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(content=strategy)
    def check_one(content: bytes) -> None:
        if time.monotonic() < end:
            check(content)

    check_one()


def _check(one: Seed, folder: Path, counts: Counter[str], content: bytes) -> None:
    path = folder / f"case{one.suffix}"
    path.unlink(missing_ok=True)  # a file that is still mapped must not change
    path.write_bytes(content)
    for name, read in one.readers.items():
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        try:
            result = outcome(read, path)
        except BaseException:
            print(f"{name} of {one.name}", file=sys.stderr)
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        counts["cases"] += 1
        counts[f"{one.suffix} {result}"] += 1


def main(folder: str, seconds: str, first: str) -> None:
    torch.set_num_threads(1)
    print(json.dumps(run(Path(folder), float(seconds), int(first))))


if __name__ == "__main__":
    main(*sys.argv[1:])
