"""Feature files: every format gives the same data, and every broken file one line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_files import FORMATS, NAMES, TEXT, D, M, X, Y, refusal, write, write_data

from tim_ext.files import features as module
from tim_ext.files.features import hash_tensors, load_features, open_pool

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
            "cannot be read: expected numbers or strings, got objects",
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


def test_open_pool(tmp_path) -> None:
    for suffix in FORMATS:
        arguments = write_data(tmp_path / f"some{suffix}")
        assert torch.equal(open_pool(arguments["path"]), torch.from_numpy(X))
    assert torch.equal(
        open_pool(write(tmp_path / "b.npz", a=X, b=2 * X), features_key="b"), torch.from_numpy(2 * X)
    )
    with pytest.raises(ValueError, match="expected features under features_key='z', got the keys 'a', 'b'"):
        open_pool(tmp_path / "b.npz", features_key="z")


def test_mean_of_rows(monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = torch.from_numpy(X).to(dtype)
        torch.testing.assert_close(module.mean_of_rows(x), x.double().mean(dim=0), rtol=1e-14, atol=1e-14)
    assert [len(X[rows]) for rows in module.row_blocks(torch.from_numpy(X), 11)] == [2] * 6


def test_real_data() -> None:
    folder = os.environ.get("TIM_EXT_DATA")
    if not folder:
        pytest.skip("TIM_EXT_DATA is not set")
    data = load_features(Path(folder) / "clinc150_features.npz")
    assert data.features.shape == (22_500, 384)
    assert data.features.dtype == torch.float16
    assert len(data.class_names) == 150
    assert torch.bincount(data.labels).tolist() == [150] * 150


@pytest.mark.parametrize("order", ["<", ">"])
def test_characters_that_do_not_exist(tmp_path, order) -> None:
    """Found by fuzzing: Python raised SystemError."""
    names = np.array(NAMES).astype(f"{order}U3")
    path = write(tmp_path / "some.npz", features=X, labels=Y, class_names=names)
    assert load_features(path).class_names == NAMES
    names.view(f"{order}u4")[4] = 0x110000
    write(path, features=X, labels=Y, class_names=names)
    assert refusal(path) == f"{path}['class_names']: expected text, got a character of number 1114112"
    write(path, features=X, labels=np.resize(names, M))
    assert refusal(path) == f"{path}['labels']: expected text, got a character of number 1114112"
