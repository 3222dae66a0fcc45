"""Checkpoints: the weights of a network and how to use them, and what training needs to go on.

One .safetensors file holds it all, so that a file is a state: tensors `encoder.*`, `head.*` and `momentum.*`,
and a description in JSON. There is no state of random generators: see counters.py.
`tim_ext.images.networks.load_encoder` reads the encoder alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tim_ext.files.tensors import Tensors, write_tensors
from tim_ext.images.networks import load_weights

from .network import Network

MOMENTUM = "momentum."


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
    load_weights(path, network, tensors)
    for name, parameter in network.named_parameters():
        if MOMENTUM + name in momentum:
            buffer = momentum[MOMENTUM + name].to(parameter.device)
            optimizer.state[parameter]["momentum_buffer"] = buffer
