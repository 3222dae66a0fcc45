"""Tensors with a description in one file, whole or not there, checked when read; descriptions as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import UserError, one_line, require
from .atomic import write_atomically
from .features import hash_tensors

Tensors = dict[str, Tensor]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_tensors(path: Path, tensors: Tensors, description: Mapping[str, Any]) -> None:
    """A .safetensors file with the description, as JSON, and a hash of everything in its header."""
    text = json.dumps(description, sort_keys=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"description": text, "sha256": _digest(tensors, text)}
    write_atomically(path, require("safetensors.torch", "train").save(tensors, header))


def read_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the description; a file that is not exactly what was written is refused."""
    safetensors = require("safetensors", "train")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged, or not a .safetensors file ({one_line(error)})") from error
    if "description" not in header or "sha256" not in header:
        raise UserError(f"{path}: not written by python_train: it has no description")
    if header["sha256"] != _digest(tensors, header["description"]):
        raise UserError(f"{path}: damaged: its content does not match its hash")
    try:
        return tensors, dict(json.loads(header["description"]))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: not written by python_train: its description is no JSON object") from error


def _digest(tensors: Tensors, text: str) -> str:
    return hashlib.sha256(f"{hash_named(tensors)} {text}".encode()).hexdigest()


def hash_named(tensors: Tensors) -> str:
    """SHA-256 of names, types, shapes and values."""
    names = sorted(tensors)
    return hashlib.sha256(f"{names} {hash_tensors(*(tensors[name] for name in names))}".encode()).hexdigest()
