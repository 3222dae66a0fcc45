"""Feature files: every format gives the same data, and every broken file one line."""

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

from tim_ext.files import features as module
from tim_ext.files.features import hash_tensors, load_features, open_pool

M, D = 12, 5
X = np.random.default_rng(0).standard_normal((M, D)).astype(np.float32)
Y = np.array([4, 0, 2, 2, 4, 0, 1, 1, 3, 3, -1, 0])
NAMES = ["ant", "bee", "cat", "dog", "eel"]
TEXT = np.array([NAMES[label] if label >= 0 else "bee" for label in Y])

FORMATS = [".npz", ".npy", ".safetensors", ".pt", ".parquet"]


def write(path: Path, **arrays) -> Path:
    """The arrays under their names; a .npy file takes one."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".npy":
        (array,) = arrays.values()
        np.save(path, array)
    elif path.suffix == ".safetensors":
        save_file = pytest.importorskip("safetensors.torch").save_file
        save_file({key: torch.as_tensor(array) for key, array in arrays.items()}, path)
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        columns = {
            key: list(array) if isinstance(array, np.ndarray) and array.ndim == 2 else array
            for key, array in arrays.items()
        }
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    else:
        tensors = {
            key: torch.as_tensor(array)
            if isinstance(array, np.ndarray) and array.dtype.kind in "iuf"
            else array.tolist()
            if isinstance(array, np.ndarray)
            else array
            for key, array in arrays.items()
        }
        torch.save(tensors, path)
    return path


def write_data(path: Path, features=X, labels=Y) -> dict[str, object]:
    """A file, or two, and the arguments that read it."""
    if path.suffix == ".npy":
        return {
            "path": write(path, features=features),
            "labels_path": write(path.with_name("labels.npy"), labels=labels),
        }
    return {"path": write(path, features=features, labels=labels)}


def refusal(*arguments, **named) -> str:
    """The line it refuses with."""
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        load_features(*arguments, **named)
    return str(caught.value)


# What is read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same(tmp_path, suffix, dtype) -> None:
    arguments = write_data(tmp_path / f"some{suffix}", X.astype(dtype))
    data = load_features(**arguments)
    assert data.features.dtype == torch.from_numpy(X.astype(dtype)).dtype
    assert data.features.numpy().tobytes() == X.astype(dtype).tobytes()
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == Y.tolist()
    assert data.class_names is None
    assert data.path == str(tmp_path / f"some{suffix}")
    assert data.sha256 == hash_tensors(torch.from_numpy(X.astype(dtype)), torch.from_numpy(Y))
    assert repr(data).startswith("Features(features=[12, 5], labels=[12], class_names=None, sha256=")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".pt", ".parquet"])
def test_strings_become_sorted_class_numbers(tmp_path, suffix) -> None:
    data = load_features(**write_data(tmp_path / f"some{suffix}", labels=TEXT))
    assert data.class_names == NAMES
    assert [data.class_names[label] for label in data.labels] == TEXT.tolist()
    assert data.labels.dtype == torch.int64


def test_bytes_and_unicode(tmp_path) -> None:
    text = np.char.add(TEXT, "ü")
    encoded = load_features(write(tmp_path / "a.npz", features=X, labels=np.char.encode(text, "utf-8")))
    assert encoded.class_names == [f"{name}ü" for name in NAMES]
    assert load_features(write(tmp_path / "b.npz", features=X, labels=text)).sha256 == encoded.sha256
    bad = np.array([b"\xff"] * M)
    assert "expected UTF-8, got b'" in refusal(write(tmp_path / "c.npz", features=X, labels=bad))


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_class_names_beside_numbers(tmp_path, suffix) -> None:
    names = np.array(NAMES)
    data = load_features(write(tmp_path / f"some{suffix}", features=X, labels=Y, class_names=names))
    assert data.class_names == NAMES
    text = refusal(write(tmp_path / f"some{suffix}", features=X, labels=Y, class_names=names[:3]))
    assert text.endswith("['class_names']: expected names of class 0 to 4, got 3 names")
    text = refusal(write(tmp_path / f"some{suffix}", features=X, labels=Y, class_names=np.arange(5)))
    assert re.search(r"\['class_names'\]: expected strings \[C\], got int64 \[5\]$", text)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint64", ">i4"])
def test_integer_labels(tmp_path, dtype) -> None:
    labels = np.abs(Y).astype(dtype)
    data = load_features(write(tmp_path / "some.npz", features=X, labels=labels))
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == np.abs(Y).tolist()


def test_bfloat16(tmp_path) -> None:
    features = torch.from_numpy(X).bfloat16()
    first = load_features(write(tmp_path / "some.pt", features=features, labels=Y))
    second = load_features(write(tmp_path / "some.safetensors", features=features, labels=Y))
    assert torch.equal(first.features, features)
    assert first.sha256 == second.sha256


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


def test_keys(tmp_path) -> None:
    path = write(tmp_path / "some.npz", embeddings=X, y=Y, other=X * 2, coarse=Y % 2)
    assert torch.equal(load_features(path).features, torch.from_numpy(X))
    data = load_features(path, features_key="other", labels_key="coarse")
    assert torch.equal(data.features, torch.from_numpy(X * 2))
    assert data.labels.tolist() == (Y % 2).tolist()
    assert load_features(str(path)).path == str(path)


@pytest.mark.parametrize("labels_suffix", FORMATS)
@pytest.mark.parametrize("suffix", FORMATS)
def test_labels_of_another_file(tmp_path, suffix, labels_suffix) -> None:
    path = write(tmp_path / f"some{suffix}", features=X)
    labels = write(tmp_path / f"labels{labels_suffix}", labels=Y)
    assert load_features(path, labels_path=labels).labels.tolist() == Y.tolist()


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


def test_hash_tells_data_apart() -> None:
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    seen = {
        hash_tensors(x, y),
        hash_tensors(x.double(), y),
        hash_tensors(x.view(D, M), y),
        hash_tensors(x, y.int()),
        hash_tensors(x, y.flip(0)),
        hash_tensors(-x, y),
        hash_tensors(y, x),
    }
    assert len(seen) == 7
    assert hash_tensors(x, y) == hash_tensors(x.T.contiguous().T, y.clone())


def test_hash_in_pieces(monkeypatch) -> None:
    x = torch.from_numpy(X)
    whole = hash_tensors(x)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert hash_tensors(x) == whole


# What is refused ----------------------------------------------------------------------------------


def test_paths(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"some\.npz: no such file$"):
        load_features(tmp_path / "some.npz")
    path = write(tmp_path / "some.npz", features=X, labels=Y)
    with pytest.raises(FileNotFoundError, match=r"labels\.npy: no such file$"):
        load_features(path, labels_path=tmp_path / "labels.npy")
    known = ".npz, .npy, .safetensors, .pt, .pth, .parquet"
    assert refusal(tmp_path / "some.csv").endswith(f"some.csv: expected a file of type {known}, got .csv")
    assert refusal(tmp_path / "some").endswith(f"some: expected a file of type {known}, got none")
    (tmp_path / "folder.npz").mkdir()
    assert refusal(tmp_path / "folder.npz").endswith("folder.npz: expected a file, got a directory")
    with pytest.raises(TypeError, match=r"path: expected a path, got int"):
        load_features(3)
    with pytest.raises(TypeError, match=r"labels_path: expected a path, got ndarray"):
        load_features(path, labels_path=Y)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt", ".parquet"])
def test_refused_keys(tmp_path, suffix) -> None:
    path = tmp_path / f"some{suffix}"
    write(path, images=X, labels=Y)
    assert refusal(path) in (
        f"{path}: expected features under 'features', 'feats', 'embeddings', 'embedding', 'X', 'x' "
        f"or features_key, got the keys {keys}"
        for keys in ("'images', 'labels'", "'labels', 'images'")
    )
    text = refusal(path, features_key="image")
    assert text.startswith(f"{path}: expected features under features_key='image', got the keys '")
    assert refusal(path, features_key="images", labels_key="class").startswith(
        f"{path}: expected labels under labels_key='class', got the keys "
    )
    write(path, features=X, embeddings=X.copy(), labels=Y)
    assert refusal(path) == (
        f"{path}: expected one key of features, got 'features' and 'embeddings': choose by features_key"
    )
    write(path, features=X, labels=Y, label=Y.copy())
    assert (
        refusal(path) == f"{path}: expected one key of labels, got 'labels' and 'label': choose by labels_key"
    )
    write(path, features=X)
    assert refusal(path).endswith("or labels_key, got the keys 'features'")


def test_many_keys(tmp_path) -> None:
    path = write(tmp_path / "some.npz", **{f"f{i}": X for i in range(30)})
    assert refusal(path).endswith("'f19', .. (30 keys)")


def test_a_single_array_has_no_keys_and_no_labels(tmp_path) -> None:
    path = write(tmp_path / "some.npy", features=X)
    assert refusal(path) == f"{path}: expected labels_path, as this file is a single array, got None"
    labels = write(tmp_path / "labels.npy", labels=Y)
    assert refusal(path, labels_path=labels, features_key="features") == (
        f"{path}: expected no features_key, as this file is a single array, got 'features'"
    )
    assert refusal(path, labels_path=labels, labels_key="y").startswith(f"{labels}: expected no labels_key")


FLOATS = "float32, float64, float16, bfloat16"


@pytest.mark.parametrize(
    ("features", "text"),
    [
        (X[0], "expected shape [M, d], neither of them 0, got float32 [5]"),
        (X[None], "expected shape [M, d], neither of them 0, got float32 [1, 12, 5]"),
        (X[:0], "expected shape [M, d], neither of them 0, got float32 [0, 5]"),
        (X[:, :0], "expected shape [M, d], neither of them 0, got float32 [12, 0]"),
        (X.astype(int), f"expected {FLOATS} [M, d], got int64 [12, 5]"),
        (X > 0, f"expected {FLOATS} [M, d], got bool [12, 5]"),
        (X.astype(complex), f"expected {FLOATS} [M, d], got complex128 [12, 5]"),
        (X.astype(np.longdouble), f"expected {FLOATS} [M, d], got float128 [12, 5]"),
        (TEXT, f"expected {FLOATS} [M, d], got <U3 [12]"),
    ],
)
def test_refused_features(tmp_path, features, text) -> None:
    if features.dtype == np.longdouble:
        text = text.replace("float128", str(features.dtype))
        if features.dtype.itemsize == 8:
            pytest.skip("long double is float64 here")
    path = write(tmp_path / "some.npz", features=features, labels=Y)
    assert refusal(path) == f"{path}['features']: {text}"
    path = write(tmp_path / "some.npy", features=features)
    assert refusal(path, labels_path=write(tmp_path / "y.npy", y=Y)) == f"{path}: {text}"


@pytest.mark.parametrize(
    ("features", "text"),
    [
        (X.tolist(), f"expected {FLOATS} [M, d], got list"),
        ("abc", f"expected {FLOATS} [M, d], got str"),
        (None, f"expected {FLOATS} [M, d], got NoneType"),
        (
            torch.zeros(12, 5).to_sparse(),
            f"expected {FLOATS} [M, d], got float32 [12, 5] (cpu, torch.sparse_coo)",
        ),
        (torch.zeros(12, 5, dtype=torch.int8), f"expected {FLOATS} [M, d], got int8 [12, 5]"),
    ],
)
def test_refused_features_of_a_torch_file(tmp_path, features, text) -> None:
    torch.save({"features": features, "labels": torch.from_numpy(Y)}, tmp_path / "some.pt")
    assert refusal(tmp_path / "some.pt") == f"{tmp_path / 'some.pt'}['features']: {text}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_that_are_not_finite(tmp_path, dtype, value, monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3 * D)  # three rows at a time
    features = X.astype(dtype)
    features[7, 2] = value
    path = write(tmp_path / "some.npz", features=features, labels=Y)
    assert refusal(path) == f"{path}: expected finite features, got NaN or Inf in row 7"
    features[7, 2], features[10, 2] = 0, value  # the label of row 10 is -1
    assert load_features(write(path, features=features, labels=Y)).features[10, 2].isfinite().logical_not()


def test_large_finite_values(tmp_path) -> None:
    """Their sum overflows; they do not."""
    for largest, dtype in ((65504, np.float16), (3e38, np.float32), (1e308, np.float64)):
        load_features(write(tmp_path / "some.npz", features=np.full((M, D), largest, dtype), labels=Y))


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (Y[:-1], "expected labels of shape [12] to match features, got int64 [11]"),
        (TEXT[:-1], "expected labels of shape [12] to match features, got <U3 [11]"),
        (Y[:, None], "expected labels of shape [12] to match features, got int64 [12, 1]"),
        (np.eye(12, dtype=int), "expected labels of shape [12] to match features, got int64 [12, 12]"),
        (np.array(3), "expected labels of shape [12] to match features, got int64 []"),
        (Y * 1.0, "expected integers or strings [12], got float64 [12]"),
        (Y > 0, "expected integers or strings [12], got bool [12]"),
        (np.full(12, 2**63, np.uint64), "expected integers below 2^63, got uint64 [12]"),
        (
            np.array([1, "a"] * 6, dtype=object),
            "cannot be read: Object arrays cannot be loaded when allow_pickle=False",
        ),
    ],
)
def test_refused_labels(tmp_path, labels, text) -> None:
    path = write(tmp_path / "some.npz", features=X, labels=labels)
    assert refusal(path) == f"{path}['labels']: {text}"


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([1, "a"] * 6, "expected integers or strings, got int and str"),
        ([1.0, None] * 6, "expected integers or strings, got NoneType and float"),
        ([True] * 12, "expected integers or strings, got bool"),
        ([], "expected integers or strings, got nothing"),
        ([1] * 11, "expected labels of shape [12] to match features, got int64 [11]"),
        ([2**70] * 12, "expected integers or strings [12], got object [12]"),
        (torch.zeros(12), "expected integers or strings [12], got float32 [12]"),
        (torch.zeros(12) > 1, "expected integers or strings [12], got bool [12]"),
        ("abcdefghijkl", "expected integers or strings [12], got str"),
        ({"a": 1}, "expected integers or strings [12], got dict"),
    ],
)
def test_refused_labels_of_a_torch_file(tmp_path, labels, text) -> None:
    torch.save({"features": torch.from_numpy(X), "labels": labels}, tmp_path / "some.pt")
    assert refusal(tmp_path / "some.pt") == f"{tmp_path / 'some.pt'}['labels']: {text}"


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
    assert refusal(path).endswith("cannot be read: Object arrays cannot be loaded when allow_pickle=False")
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


def test_open_pool(tmp_path) -> None:
    for suffix in FORMATS:
        arguments = write_data(tmp_path / f"some{suffix}")
        assert torch.equal(open_pool(arguments["path"]), torch.from_numpy(X))
    assert torch.equal(
        open_pool(write(tmp_path / "b.npz", a=X, b=2 * X), features_key="b"), torch.from_numpy(2 * X)
    )
    with pytest.raises(ValueError, match="expected features under features_key='z', got the keys 'a', 'b'"):
        open_pool(tmp_path / "b.npz", features_key="z")


def test_types_of_safetensors(tmp_path) -> None:
    path = write(tmp_path / "some.safetensors", features=X, labels=Y)
    for dtype in ("int8", "int16", "int32", "int64"):
        write(path, features=X, labels=Y.astype(dtype))
        assert load_features(path).labels.tolist() == Y.tolist()
    write(path, features=X, labels=Y >= 0)
    assert refusal(path).endswith(
        "cannot be read: expected a type out of F16, BF16, F32, F64, U8, I8, I16, I32, I64, got BOOL"
    )


def test_mean_of_rows(monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = torch.from_numpy(X).to(dtype)
        torch.testing.assert_close(module.mean_of_rows(x), x.double().mean(dim=0), rtol=1e-14, atol=1e-14)
    assert [len(X[rows]) for rows in module.row_blocks(torch.from_numpy(X), 11)] == [2] * 6


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


def test_real_data() -> None:
    folder = os.environ.get("TIM_EXT_DATA")
    if not folder:
        pytest.skip("TIM_EXT_DATA is not set")
    data = load_features(Path(folder) / "clinc150_features.npz")
    assert data.features.shape == (22_500, 384)
    assert data.features.dtype == torch.float16
    assert len(data.class_names) == 150
    assert torch.bincount(data.labels).tolist() == [150] * 150
