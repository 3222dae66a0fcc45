"""Checkpoints: the weights of a network and how to use them, and what training needs to go on.

One .safetensors file holds it all, so that a file is a state: tensors `encoder.*`, `head.*` and `momentum.*`,
and a description in JSON. There is no state of random generators: see counters.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import UserError, one_line
from .files import Tensors, read_tensors, write_tensors
from .models import Network, make_encoder
from .transforms import Preprocessing

MOMENTUM = "momentum."
ENCODER = "encoder."


def save(
    path: Path, network: Network, description: Mapping[str, Any], optimizer: torch.optim.SGD | None = None
) -> None:
    tensors = dict(network.state_dict())
    if optimizer is not None:
        for name, parameter in network.named_parameters():
            state = optimizer.state.get(parameter, {})
            if state.get("momentum_buffer") is not None:
                tensors[MOMENTUM + name] = state["momentum_buffer"]
    write_tensors(path, tensors, description)


def restore(path: Path, tensors: Tensors, network: Network, optimizer: torch.optim.SGD) -> None:
    """Puts the state read from a checkpoint into the network and its optimizer."""
    tensors = dict(tensors)
    momentum = {name: tensors.pop(name) for name in list(tensors) if name.startswith(MOMENTUM)}
    _load(path, network, tensors)
    for name, parameter in network.named_parameters():
        if MOMENTUM + name in momentum:
            buffer = momentum[MOMENTUM + name].to(parameter.device)
            optimizer.state[parameter]["momentum_buffer"] = buffer


def load_encoder(path: Path) -> tuple[nn.Module, Preprocessing, dict[str, Any]]:
    """The encoder of a checkpoint, how images are made ready for it, and the description."""
    tensors, description = read_tensors(path)
    try:
        model = description["model"]
        how = Preprocessing.from_description(description["preprocessing"])
        encoder = make_encoder(model["name"], in_channels=how.channels, width=model["width"])
    except KeyError as error:
        raise UserError(f"{path}: not a checkpoint: its description has no {error}") from error
    weights = {
        name.removeprefix(ENCODER): value for name, value in tensors.items() if name.startswith(ENCODER)
    }
    _load(path, encoder, weights)
    return encoder, how, description


def _load(path: Path, network: nn.Module, tensors: Tensors) -> None:
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{path}: the weights are not those of this network ({one_line(error)})") from error
