"""The formats of feature files: mapped where they can be, nothing in them run, broken ones refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_files import FORMATS, NAMES, TEXT, D, M, X, Y, refusal, write, write_data

from tim_ext.files.features import hash_tensors, load_features, open_pool


def test_array_orders(tmp_path) -> None:
    """Columns first and the other byte order: same data, same hash, contiguous."""
    plain = load_features(**write_data(tmp_path / "plain.npy"))
    for other in (np.asfortranarray(X), X.astype(">f4"), np.repeat(X, 2, axis=0)[::2]):
        data = load_features(**write_data(tmp_path / "other.npz", other))
        assert data.sha256 == plain.sha256
        assert data.features.is_contiguous()
        assert torch.equal(data.features, plain.features)
    columns = torch.from_numpy(X).T.contiguous().T
    assert load_features(write(tmp_path / "some.pt", features=columns, labels=Y)).sha256 == plain.sha256


def test_array_orders_that_would_need_a_copy(tmp_path) -> None:
    """A .npy file is used where it lies, whatever its size; the hint in the refusal makes it fit."""
    for other, text in (
        (np.asfortranarray(X), "expected an array in C order, got Fortran: np.save("),
        (X.astype(">f4"), "expected an array in native byte order, got another: np.save("),
    ):
        arguments = write_data(tmp_path / "other.npy", other)
        message = refusal(**arguments)
        assert text in message
        save = message[message.index("np.save") :]
        exec(save, {"np": np, "path": arguments["path"], "array": np.load(arguments["path"])})
        assert torch.equal(load_features(**arguments).features, torch.from_numpy(X))
    write_data(tmp_path / "labels.npy", labels=Y.astype(">i4"))  # small, and converted
    assert load_features(tmp_path / "other.npy", labels_path=tmp_path / "labels.npy").labels.tolist() == list(
        Y
    )


def test_parquet_column_types(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    plain = load_features(**write_data(tmp_path / "plain.npy", labels=TEXT))
    lists = [
        pyarrow.array(list(X), type=pyarrow.list_(pyarrow.float32())),
        pyarrow.array(list(X), type=pyarrow.large_list(pyarrow.float32())),
        pyarrow.array(list(X), type=pyarrow.list_(pyarrow.float32(), D)),
        pyarrow.chunked_array([list(X[:5]), list(X[5:])], type=pyarrow.list_(pyarrow.float32())),
    ]
    texts = [
        pyarrow.array(TEXT),
        pyarrow.array(TEXT, type=pyarrow.large_string()),
        pyarrow.array(TEXT).dictionary_encode(),
    ]
    for features in lists:
        for labels in texts:
            table = pyarrow.table({"label": labels, "more": pyarrow.array(range(M)), "embedding": features})
            parquet.write_table(table, tmp_path / "some.parquet", row_group_size=7)
            data = load_features(tmp_path / "some.parquet")
            assert data.sha256 == plain.sha256
            assert data.class_names == NAMES
            assert torch.equal(data.features, plain.features)


def test_a_tensor_alone(tmp_path) -> None:
    torch.save(torch.from_numpy(X), tmp_path / "some.pt")
    torch.save(torch.from_numpy(Y), tmp_path / "labels.PTH")
    data = load_features(tmp_path / "some.pt", labels_path=tmp_path / "labels.PTH")
    assert torch.equal(data.features, torch.from_numpy(X))


def test_torch_files_of_the_old_format(tmp_path) -> None:
    content = {"features": torch.from_numpy(X).requires_grad_(), "labels": Y.tolist()}
    torch.save(content, tmp_path / "some.pt", _use_new_zipfile_serialization=False)
    data = load_features(tmp_path / "some.pt")
    assert not data.features.requires_grad
    assert data.labels.tolist() == Y.tolist()


@pytest.mark.parametrize("suffix", FORMATS)
def test_writing_to_the_tensors_leaves_the_file_alone(tmp_path, suffix) -> None:
    arguments = write_data(tmp_path / f"some{suffix}")
    before = arguments["path"].read_bytes()
    data = load_features(**arguments)
    data.features.mul_(2)
    data.labels.add_(1)
    assert torch.equal(data.features, torch.from_numpy(2 * X))
    assert arguments["path"].read_bytes() == before
    assert load_features(**arguments).sha256 != hash_tensors(data.features, data.labels)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc/self/maps")
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".pt"])
def test_features_stay_in_the_file(tmp_path, suffix) -> None:
    arguments = write_data(tmp_path / f"some{suffix}", np.zeros((M, 4096), np.float32))
    data = load_features(**arguments)
    middle = data.features[M // 2].data_ptr()
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [([int(end, 16) for end in line[0].split("-")], line[-1]) for line in lines]
    assert [name for (low, high), name in spans if low <= middle < high] == [str(arguments["path"])]


def test_refused_parquet_columns(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "some.parquet"

    def refused(features, labels):
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table({"features": features, "labels": labels}), path
        )
        return refusal(path).removeprefix(str(path))

    rows = X.tolist()
    labels = Y.tolist()
    cut = [*rows[:3], rows[3][:4], *rows[4:]]
    assert (
        refused(cut, labels) == "['features']: cannot be read: expected 5 values as in row 0, got 4 in row 3"
    )
    hole = [*rows[:3], None, *rows[4:]]
    assert (
        refused(hole, labels)
        == "['features']: cannot be read: expected a value in every row, got none in row 3"
    )
    inner = [*rows[:3], [*rows[3][:4], None], *rows[4:]]
    assert "got a list with an empty value" in refused(inner, labels)
    assert refused(X[:, 0], labels).endswith("shape [M, d], neither of them 0, got float32 [12]")
    assert refused([TEXT[:5].tolist()] * M, labels).endswith("[M, d], got object [12, 5]")
    empty = pyarrow.array([[]] * M, type=pyarrow.list_(pyarrow.float32()))
    assert refused(empty, labels).endswith("shape [M, d], neither of them 0, got float32 [12, 0]")
    missing = [*labels[:5], None, *labels[6:]]
    assert (
        refused(rows, missing)
        == "['labels']: cannot be read: expected a value in every row, got none in row 5"
    )
    assert refused(rows, Y * 0.5).endswith("['labels']: expected integers or strings [12], got float64 [12]")
    assert refused(rows, (Y > 0).tolist()).endswith("expected integers or strings [12], got bool [12]")
    dates = pyarrow.array(np.arange(M).astype("datetime64[s]"))
    assert "cannot be read: expected lists, numbers or strings, got timestamp" in refused(rows, dates)
    nothing = pyarrow.array([], type=pyarrow.list_(pyarrow.float32()))
    assert refused(nothing, pyarrow.array([], type=pyarrow.int64())) == (
        "['features']: cannot be read: expected one row or more, got none"
    )


class Harmful:
    """Its pickle creates a file when it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("kind", ["zip", "old", "pickle"])
def test_pickles_that_are_not_weights_only(tmp_path, kind) -> None:
    path, trace = tmp_path / "some.pt", tmp_path / "trace"
    content = {"features": torch.from_numpy(X), "labels": Harmful(trace)}
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"labels": Harmful(trace)}, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    assert refusal(path) == (
        f"{path}: cannot be read as .pt: a pickle that is not weights-only is refused, as it may run code: "
        f"it holds {os.mkdir.__module__}.mkdir"
    )
    assert not trace.exists()


def test_other_torch_files(tmp_path) -> None:
    path = tmp_path / "some.pt"
    torch.save({"features": X, "labels": Y}, path)
    assert re.search(r"may run code: it holds numpy\.\S+; save tensors, not arrays$", refusal(path))
    path.write_bytes(pickle.dumps({"features": [1.0]}))
    assert refusal(path).endswith("a pickle that is not weights-only is refused, as it may run code")
    torch.save(torch.nn.Linear(2, 2), path)
    assert refusal(path).endswith("it holds torch.nn.modules.linear.Linear")
    torch.save([torch.from_numpy(X), torch.from_numpy(Y)], path)
    assert refusal(path) == f"{path}: cannot be read as .pt: expected a dict or a tensor, got list"


def test_objects_in_numpy_files(tmp_path) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / "some.npz"
    np.savez(path, features=X, labels=np.array([Harmful(trace)] * M))
    assert refusal(path).endswith("cannot be read: expected numbers or strings, got objects")
    path = tmp_path / "some.npy"
    np.save(path, np.array([Harmful(trace)] * M))
    assert f"{path}: cannot be read as .npy: " in refusal(path, labels_path=path)
    path.write_bytes(pickle.dumps(Harmful(trace)))
    assert "expected a file that begins with b'\\x93NUMPY', got b'" in refusal(path, labels_path=path)
    assert not trace.exists()


@pytest.mark.parametrize("suffix", FORMATS)
def test_broken_files(tmp_path, suffix) -> None:
    """Cut off anywhere, empty, or something else: one line that names the file."""
    arguments = write_data(tmp_path / f"some{suffix}")
    path = arguments["path"]
    whole = path.read_bytes()
    for length in [0, 1, 4, 7, 8, 30, len(whole) // 2, len(whole) - 9, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert refusal(**arguments).startswith(str(path))
    for content in (b"hello world, this is no such file", b"\0" * 300, b"PK" + b"\xff" * 300, whole[::-1]):
        path.write_bytes(content)
        assert refusal(**arguments).startswith(f"{path}: cannot be read as {suffix}: ")


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_file_that_is_cut_off_says_by_how_much(tmp_path, suffix) -> None:
    arguments = write_data(tmp_path / f"some{suffix}")
    path = arguments["path"]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 3)
    message = refusal(**arguments)
    if suffix == ".npy":  # safetensors has its own words
        text = f"expected {size} bytes, as its header says, got {size - 3}: the file is cut off"
        assert message == f"{path}: cannot be read as .npy: {text}"


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_file_larger_than_the_memory(tmp_path, suffix) -> None:
    """A sparse file of a hundred times the memory: no memory is asked for what is not read."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = 100 * total // (2 * 1024)
    path = tmp_path / f"huge{suffix}"
    with path.open("wb") as file:
        if suffix == ".npy":
            header = {"descr": "<f2", "fortran_order": False, "shape": (rows, 1024)}
            np.lib.format.write_array_header_1_0(file, header)
        else:
            pytest.importorskip("safetensors")
            entry = {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [0, rows * 2048]}
            text = json.dumps({"features": entry}).encode()
            text += b" " * (-len(text) % 8)
            file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        try:
            file.truncate(start + rows * 2048)
        except OSError as error:
            pytest.skip(f"no file of this size here: {error}")
        file.seek(start + (rows - 1) * 2048)
        file.write(b"\x80\x3f" * 1024)  # 1.0 in bfloat16
    pool = open_pool(path)
    assert pool.shape == (rows, 1024)
    assert pool[rows // 2].count_nonzero() == 0
    assert pool[rows - 1].count_nonzero() == 1024
    if suffix == ".safetensors":
        assert pool[rows - 1].float().eq(1).all()


def test_types_of_safetensors(tmp_path) -> None:
    path = write(tmp_path / "some.safetensors", features=X, labels=Y)
    for dtype in ("int8", "int16", "int32", "int64"):
        write(path, features=X, labels=Y.astype(dtype))
        assert load_features(path).labels.tolist() == Y.tolist()
    write(path, features=X, labels=Y >= 0)
    assert refusal(path).endswith(
        "cannot be read: expected a type out of F16, BF16, F32, F64, U8, I8, I16, I32, I64, got BOOL"
    )


def test_flipped_bits(tmp_path) -> None:
    """Refused or read, never another error; .npz has checksums of its arrays."""
    for suffix in (".npz", ".pt", ".parquet", ".safetensors"):
        arguments = write_data(tmp_path / f"some{suffix}")
        path = arguments["path"]
        whole = path.read_bytes()
        for place in range(0, len(whole), max(len(whole) // 60, 1)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
            with contextlib.suppress(ValueError):
                data = load_features(path)
                assert data.features.shape == (M, D)
                if suffix == ".npz":
                    assert data.features.numpy().tobytes() == X.tobytes()


def test_checksum_of_a_zip(tmp_path) -> None:
    path = write(tmp_path / "some.npz", features=X, labels=Y)
    whole = bytearray(path.read_bytes())
    whole[whole.index(X.tobytes()) + 5] ^= 1
    path.write_bytes(whole)
    assert refusal(path) == f"{path}['features']: cannot be read: Bad CRC-32 for file 'features.npy'"


def test_a_zip_of_something_else(tmp_path) -> None:
    for suffix in (".npz", ".pt"):
        path = tmp_path / f"some{suffix}"
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("readme.txt", "hello")
        path.write_bytes(buffer.getvalue())
        assert refusal(path).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("suffix", "module_name"), [(".safetensors", "safetensors"), (".parquet", "pyarrow")]
)
def test_a_missing_extra_is_named(tmp_path, suffix, module_name, monkeypatch) -> None:
    path = write(tmp_path / f"some{suffix}", features=X, labels=Y)
    for name in [name for name in sys.modules if name.split(".")[0] == module_name]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=re.escape("pip install 'tim_ext[evaluate]'")):
        load_features(path)
