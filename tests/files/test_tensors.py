"""Tensors come back as they were, and a damaged file is told from a good one."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("safetensors")


from tim_ext.errors import UserError
from tim_ext.files.tensors import hash_named, read_tensors, write_tensors

safetensors_torch = pytest.importorskip("safetensors.torch")


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "weights": torch.randn(7, 5, generator=generator),
        "half": torch.randn(3, generator=generator).to(torch.float16),
        "brain": torch.randn(4, generator=generator).to(torch.bfloat16),
        "count": torch.tensor(12),
        "none": torch.empty(0, 3),
        "turned": torch.randn(4, 6, generator=generator).mT,
    }


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "deep" / "a.safetensors"
    description = {"number": 0.1 + 0.2, "list": [1, None, "é"], "nested": {"a": True}}
    write_tensors(path, tensors(), description)
    read, read_description = read_tensors(path)
    assert read_description == description
    assert read.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    assert torch.equal(safetensors_torch.load_file(path)["weights"], tensors()["weights"])  # by others, too


def assert_refused(path, why: str) -> None:
    with pytest.raises(UserError) as refused:
        read_tensors(path)
    assert str(refused.value).startswith(f"{path}: {why}")
    assert "\n" not in str(refused.value)


def test_truncated_files_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, tensors(), {"step": 1})
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert_refused(path, "damaged, or not a .safetensors file (")
    path.write_bytes(whole + b"\0")
    assert_refused(path, "damaged, or not a .safetensors file (")


def test_a_single_changed_bit_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, tensors(), {"step": 1})
    whole = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(whole)), 200):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(UserError) as refused:
            read_tensors(path)
        assert "\n" not in str(refused.value)


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    assert_refused(path, "no such file")
    safetensors_torch.save_file(tensors() | {"turned": torch.zeros(1)}, path)
    assert_refused(path, "not written by python_train: it has no description")
    path.write_text("PK\3\4 something else")
    assert_refused(path, "damaged, or not a .safetensors file (")


def test_hashes_see_names_types_shapes_and_values():
    a = {"x": torch.zeros(4), "y": torch.ones(2)}
    others = [
        {"x": torch.zeros(4), "z": torch.ones(2)},
        {"x": torch.ones(4), "y": torch.zeros(2)},
        {"x": torch.zeros(4, dtype=torch.int32), "y": torch.ones(2)},
        {"x": torch.zeros(2, 2), "y": torch.ones(2)},
        {"x": torch.zeros(4), "y": torch.tensor([1.0, 1.0 + 2**-20])},
    ]
    assert hash_named(dict(reversed(a.items()))) == hash_named(a)
    assert len({hash_named(item) for item in [a, *others]}) == 6
