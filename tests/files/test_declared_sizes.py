"""Files that say they hold more than they do, or more than the memory does: one line, and no allocation."""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_files import X, Y, refusal, write
from helpers.forked import run_script

from tim_ext.cli.main import main
from tim_ext.files import memory
from tim_ext.files.features import load_features, open_pool

ROWS, D = 2**24, 1024  # 64 GB of float32
LARGE = 2**26  # of a file that is made: more than the limit below


def header(rows: int = ROWS, d: int = D) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, d)})
    return stream.getvalue()


def npz_without_data(path: Path) -> str:
    """An honest zip of a header alone."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", header())
    return rf"expected {len(header()) + 4 * ROWS * D} bytes, as its header says, got {len(header())}"


def npz_that_lies(path: Path) -> str:
    """A zip whose own table says that the data are there."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", header())
        (info,) = archive.infolist()
        info.file_size = info.compress_size = len(header()) + 4 * ROWS * D
    return r"expected \d+ bytes, as its header says, got \d+: the file is cut off"


def npz_of_more_than_deflate_can_do(path: Path) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", header() + bytes(1000))
        (info,) = archive.infolist()
        info.file_size = len(header()) + 4 * ROWS * D
    return r"expected at most 1032 bytes for each compressed one, got \d+ bytes of \d+ compressed ones"


def npz_with_a_long_header(path: Path) -> str:
    """Of four gigabytes, so says its length."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", b"\x93NUMPY\x02\x00\xf0\xff\xff\xff" + b" " * LARGE)
    return r"expected a header of at most 10000 bytes, got 4294967280"


def npz_bomb(path: Path) -> str:
    """What it says is true: zeros that take a thousandth of the space. The memory is made small."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", header(LARGE // 4096) + bytes(LARGE))
    return r"expected at most 0.0 GB, the memory that is free, got 0.1 GB"


def npy_without_data(path: Path) -> str:
    path.write_bytes(header())
    return r"expected \d+ bytes, as its header says, got \d+: the file is cut off"


def safetensors_without_data(path: Path) -> str:
    pytest.importorskip("safetensors")
    entry = f'{{"features": {{"dtype": "F32", "shape": [{ROWS}, {D}], "data_offsets": [0, {4 * ROWS * D}]}}}}'
    path.write_bytes(len(entry).to_bytes(8, "little") + entry.encode())
    return r".+"  # safetensors has its own words


def pt_that_repeats_a_value(path: Path) -> str:
    torch.save({"features": torch.zeros(1, 1).expand(ROWS, D)}, path)
    return rf"expected {4 * ROWS * D} bytes for its shape, got 4 stored ones"


def pt_without_data(path: Path) -> str:
    """The pickle of a large tensor beside the storage of a small one."""
    small, large = io.BytesIO(), io.BytesIO()
    torch.save({"features": torch.zeros(3, 1)}, small)
    torch.save({"features": torch.zeros(LARGE // 4, 1)}, large)
    with (
        zipfile.ZipFile(path, "w") as archive,
        zipfile.ZipFile(small) as one,
        zipfile.ZipFile(large) as other,
    ):
        for info in one.infolist():
            source = other if info.filename.endswith("data.pkl") else one
            archive.writestr(info, source.read(info.filename))
    return r".+"


def pt_that_is_compressed(path: Path) -> str:
    whole = io.BytesIO()
    torch.save({"features": torch.zeros(3, 1)}, whole)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, zipfile.ZipFile(whole) as one:
        for info in one.infolist():
            content = one.read(info.filename)
            archive.writestr(info.filename, content + bytes(LARGE if "data.pkl" in info.filename else 0))
    return r"expected entries that are not compressed, got 'archive/data.pkl'"


def old_pt_without_data(path: Path) -> str:
    """As torch wrote them before 1.6: the size of a storage is in the pickle."""
    torch.save({"features": torch.zeros(70_000, 1)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    size = (70_000).to_bytes(3, "little") + b"\0"
    assert content.count(b"J" + size) >= 1
    path.write_bytes(content.replace(b"J" + size, b"J" + (2**31 - 1).to_bytes(4, "little")))
    return r".+"


def parquet_of_one_value(path: Path) -> str:
    """Runs of one value: a few kilobytes for 64 MB. The memory is made small."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(LARGE // 8, np.float64)), 64)
    parquet.write_table(pyarrow.table({"features": values}), path)
    assert path.stat().st_size < LARGE / 100
    return r"expected at most 0.0 GB, the memory that is free, got 0.0 GB"


FILES: list[tuple[str, Callable[[Path], str]]] = [
    (".npz", npz_without_data),
    (".npz", npz_that_lies),
    (".npz", npz_of_more_than_deflate_can_do),
    (".npz", npz_with_a_long_header),
    (".npz", npz_bomb),
    (".npy", npy_without_data),
    (".safetensors", safetensors_without_data),
    (".pt", pt_that_repeats_a_value),
    (".pt", pt_without_data),
    (".pt", pt_that_is_compressed),
    (".pt", old_pt_without_data),
    (".parquet", parquet_of_one_value),
]

# In a process that may allocate 32 MB: MemoryError would be the least that happens.
CHILD = """
import contextlib, io, json, resource, sys
import tim_ext.cli.main
from tim_ext.files import memory

for module in ("safetensors", "pyarrow.parquet", "pyarrow.compute", "torch._dynamo"):
    with contextlib.suppress(ImportError):
        __import__(module)
with open("/proc/self/status") as lines:
    data = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
resource.setrlimit(resource.RLIMIT_DATA, (data + 2**25, data + 2**25))
support, out, *pools = sys.argv[1:]
available = memory.available_memory
for pool in pools:
    memory.available_memory = (lambda: 2**20) if "small" in pool else available
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = tim_ext.cli.main.main(["label", pool, "--support", support, "--out", out])
        except BaseException as error:
            code = repr(error)
    print(json.dumps([pool, code, err.getvalue()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
def test_what_is_not_there_is_not_allocated(tmp_path: Path) -> None:
    for module in ("safetensors", "pyarrow.parquet"):
        pytest.importorskip(module)
    (tmp_path / "support.csv").write_text("0,a\n1,b\n")
    messages = {}
    for suffix, make in FILES:
        path = tmp_path / f"{make.__name__}{suffix}"
        message = make(path)
        if "the memory" in message:
            path = path.rename(path.with_name(f"small_{path.name}"))
        messages[str(path)] = message
    ended = run_script(CHILD, str(tmp_path / "support.csv"), str(tmp_path / "out.csv"), *messages)
    assert ended.returncode == 0, ended.stderr
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [pool for pool, _, _ in outcomes] == list(messages)
    for pool, code, err in outcomes:
        assert code == 2, (pool, code, err)
        pattern = rf"tim-ext label: {re.escape(pool)}(\['features'\])?: [^\n]*{messages[pool]}\n"
        assert re.fullmatch(pattern, err), err
    assert not (tmp_path / "out.csv").exists()


def test_what_fits_is_read(tmp_path: Path) -> None:
    """Compressed arrays, repeated and turned tensors."""
    np.savez_compressed(
        tmp_path / "some.npz", features=np.zeros((1000, 64), np.float32), labels=np.arange(1000)
    )
    assert load_features(tmp_path / "some.npz").features.shape == (1000, 64)
    torch.save({"features": torch.from_numpy(X).T.contiguous().T}, tmp_path / "some.pt")
    assert torch.equal(open_pool(tmp_path / "some.pt"), torch.from_numpy(X))
    torch.save({"features": torch.from_numpy(X)[2:4]}, tmp_path / "part.pt")
    assert torch.equal(open_pool(tmp_path / "part.pt"), torch.from_numpy(X)[2:4])


def test_memory_that_is_refused_after_all(tmp_path: Path, monkeypatch) -> None:
    path = write(tmp_path / "some.npz", features=X, labels=Y)

    def refuse(*arguments, **options):
        raise MemoryError("Unable to allocate 60.0 GiB")

    monkeypatch.setattr(np.lib.format, "read_array", refuse)
    assert refusal(path) == (
        f"{path}['features']: cannot be read: expected what fits into the free memory, got more"
    )


def test_memory_in_a_command(monkeypatch, capsys) -> None:
    from tim_ext.cli import info

    def refuse(options):
        raise MemoryError

    monkeypatch.setattr(info, "run", refuse)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "tim-ext info: expected what fits into the free memory, got more\n"


def test_the_memory_there_is(monkeypatch) -> None:
    total = memory.os.sysconf("SC_PHYS_PAGES") * memory.os.sysconf("SC_PAGE_SIZE")
    assert memory.available_memory() > 2**20
    monkeypatch.setattr("builtins.open", lambda *arguments, **options: io.StringIO("MemTotal: 1 kB\n"))
    assert memory.available_memory() == total


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    memory.os.mkfifo(tmp_path / "pipe.npz")
    assert refusal(tmp_path / "pipe.npz").endswith("pipe.npz: expected a file, got a pipe or a device")
