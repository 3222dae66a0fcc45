"""Tensors and arrays from users: the dtype rules, the checks, and the sentences that refuse them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor

QUERY, PADDING = -1, -100
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def to_features(name: str, value: Any) -> Tensor:
    tensor = to_tensor(name, value)
    if tensor.dtype not in FLOATS:
        hint = " (convert with .float())" if tensor.dtype in INTEGERS else ""
        raise TypeError(
            f"{name}: expected {', '.join(map(dtype_name, FLOATS))}, got {dtype_name(tensor)}{hint}"
        )
    check_data(name, tensor)
    return tensor


def to_integers(
    name: str,
    value: Any,
    features: Tensor | None,
    shape: Sequence[int] | None = None,
    like: str = "",
    keep: bool = False,
) -> Tensor:
    """As int64, or with `keep` as they are."""
    tensor = to_tensor(name, value)
    if tensor.dtype not in INTEGERS:
        raise TypeError(f"{name}: expected integers (int64 to int8, or uint8), got {dtype_name(tensor)}")
    if features is None:
        check_data(name, tensor)
    else:
        check_device(name, tensor, features, "features")
    if shape is not None and tensor.shape != shape:
        refuse_shape(name, f"{list(shape)} to match {like}", tensor)
    return tensor if keep or tensor.dtype == torch.int64 else tensor.long()


def to_integer_list(
    name: str, value: Any, features: Tensor, sizes: list[int] | None, like: str = ""
) -> tuple[list[Tensor], list[int]]:
    if not is_list_of_vectors(value):
        kind = type(value).__name__
        raise TypeError(f"{name}: expected a list of vectors, as {like} is a list, got {kind}")
    if not value:
        raise ValueError(f"{name}: expected at least one task, got an empty list")
    if sizes is not None and len(value) != len(sizes):
        raise ValueError(f"{name}: expected {len(sizes)} tasks to match {like}, got {len(value)}")
    items = []
    for t, item in enumerate(value):
        shape = None if sizes is None else (sizes[t],)
        items.append(to_integers(f"{name}[{t}]", item, features, shape, f"{like}[{t}]"))
        if items[t].dim() != 1 or not len(items[t]):
            refuse_shape(f"{name}[{t}]", f"[N], not 0, as {name} is a list", items[t])
    return items, [len(item) for item in items]


def is_list_of_vectors(value: Any) -> bool:
    """A list of tasks; a list of plain numbers is one vector."""
    return isinstance(value, (list, tuple)) and not any(isinstance(item, Real) for item in value)


def to_proportions(name: str, value: Any, count: int) -> Tensor:
    """[K], > 0 and of sum 1, in float64 on the CPU."""
    tensor = to_numbers(name, value)
    check_numeric(name, tensor)
    if tensor.shape != (count,):
        refuse_shape(name, f"[{count}], one proportion for each class", tensor)
    check_data(name, tensor)
    values = tensor.tolist()
    for k, share in enumerate(values):
        if not 0 < share < math.inf:
            raise ValueError(f"{name}: expected numbers > 0, got {share} for class {k}")
    if not math.isclose(sum(values), 1, rel_tol=1e-3):
        raise ValueError(f"{name}: expected proportions of sum 1, got a sum of {sum(values):.6g}")
    return torch.tensor([share / sum(values) for share in values], dtype=torch.float64, device="cpu")


def to_weights(name: str, value: Any, count: int, features: Tensor) -> Tensor:
    """[K, d] in the type that features [M, d] compute in; the kernels refuse what is not finite."""
    tensor = to_features(name, value)
    if tensor.shape != (count, features.shape[1]):
        refuse_shape(name, f"[{count}, {features.shape[1]}], a row for each class", tensor)
    check_device(name, tensor, features, "features")
    return tensor.to(real_type(features)).contiguous()


def real_type(features: Tensor) -> torch.dtype:
    """What features are computed in."""
    return torch.float64 if features.dtype == torch.float64 else torch.float32


def to_numbers(name: str, value: Any) -> Tensor:
    """Plain numbers in float64, which is what they are."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, Real) for item in value):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    return to_tensor(name, value)


def to_tensor(name: str, value: Any) -> Tensor:
    tensor: Tensor
    if isinstance(value, Tensor):
        tensor = value
    else:
        try:
            tensor = _from_foreign(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(
                f"{name}: expected a tensor or array, got {type(value).__name__} ({error})"
            ) from error
    if tensor.layout != torch.strided or tensor.is_nested:
        raise TypeError(f"{name}: expected a dense tensor, got {tensor.layout}")
    return tensor.detach() if tensor.requires_grad else tensor


def _from_foreign(value: Any) -> Tensor:
    if any(stride < 0 for stride in getattr(value, "strides", None) or ()):
        value = value.copy()  # torch has no negative strides
    with warnings.catch_warnings():  # a read-only array is fine: nothing here writes to its input
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.as_tensor(value)


def check_numeric(name: str, tensor: Tensor) -> None:
    if not (tensor.dtype.is_floating_point or tensor.dtype in INTEGERS):
        raise TypeError(f"{name}: expected numbers, got {dtype_name(tensor)}")


def check_data(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise ValueError(f"{name}: expected a tensor with data, got one on device meta")


def check_device(name: str, tensor: Tensor, like: Tensor, like_name: str) -> None:
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected device {like.device} as {like_name}, got {tensor.device}")


def refuse_shape(name: str, expected: str, tensor: Tensor) -> NoReturn:
    raise ValueError(f"{name}: expected shape {expected}, got {list(tensor.shape)}")


def dtype_name(value: Tensor | torch.dtype) -> str:
    return str(value.dtype if isinstance(value, Tensor) else value).removeprefix("torch.")
