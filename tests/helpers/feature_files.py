"""Small files of features: one pool in every format, and how it is refused; one of clusters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tim_ext.files.features import load_features

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


def write_clusters(folder: Path) -> Path:
    """A file of 21 classes of 25 samples."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(525) % 21
    means = torch.randn(21, 16, generator=generator)
    path = folder / "small.npz"
    np.savez(path, features=means[labels] + torch.randn(525, 16, generator=generator), labels=labels)
    return path
