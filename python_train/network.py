"""The network that is trained: an encoder and a layer to the classes."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from tim_ext.images.networks import Encoder, feature_size


class Network(nn.Module):
    """An encoder, and a linear layer to the classes; with 0 classes there is none: features come out."""

    def __init__(self, encoder: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(feature_size(encoder), num_classes) if num_classes else None

    def forward(self, images: Tensor) -> Tensor:
        features = cast(Encoder, self.encoder).forward_features(images)
        return features if self.head is None else cast(Tensor, self.head(features))


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
