"""Encoders of open_clip from a folder, as that library writes it; nothing is downloaded.

    open_clip_config.json            the network, and how images are made ready
    open_clip_model.safetensors      the weights; or another name that the library knows
    tokenizer.json                   for networks that have a tokenizer of their own

The library cannot be imported without torchvision, which on PyPI is built for one torch: an extra of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import UserError, one_line, require
from .image_text import ImageTextEncoder
from .preprocessing import PillowPreprocessing
from .reading import shown

CONFIG = "open_clip_config.json"
WEIGHTS = ("*.safetensors", "*.bin", "*.pth")
FILTERS = {"bicubic": 3, "bilinear": 2}  # Pillow's numbers


class OpenClipEncoder(ImageTextEncoder):
    def __init__(self, model: nn.Module, tokenizer: Any, dim: int, published: PillowPreprocessing) -> None:
        super().__init__(dim, published)
        self.model, self.tokenizer = model, tokenizer

    def forward_features(self, images: Tensor) -> Tensor:
        return cast(Tensor, cast(Any, self.model).encode_image(images))

    def forward_texts(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(list(texts))
        # the library cuts off what is too long: more words change nothing then
        cut = (tokens == self.tokenizer([f"{text} and" for text in texts])).all(dim=1)
        if cut.any():
            raise UserError(
                f"--class-names: expected names that make texts of less than {tokens.shape[1]} tokens, "
                f"got {texts[int(cut.nonzero()[0])]!r}"
            )
        device = next(self.model.parameters()).device
        return cast(Tensor, cast(Any, self.model).encode_text(tokens.to(device)))


def is_open_clip(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def open_open_clip(option: str, folder: Path) -> OpenClipEncoder:
    where = shown(folder)
    if not any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        raise UserError(f"{option}: expected weights, as open_clip_model.safetensors, in {where}, got none")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")  # of the tokenizers, before the import
    library: Any = require("open_clip", "open-clip")
    name = f"local-dir:{folder}"
    try:
        dim = int(json.loads((folder / CONFIG).read_bytes())["model_cfg"]["embed_dim"])
        model = library.create_model(name, precision="fp32", device="cpu", require_pretrained=True)
        tokenizer = library.get_tokenizer(name)
        published = _published(model.visual.preprocess_cfg)
    except Exception as error:  # the library raises all kinds
        raise UserError(f"{option}: open_clip cannot open {where} ({one_line(error)})") from error
    return OpenClipEncoder(model.to(torch.float32).eval(), tokenizer, dim, published)


def _published(about: dict[str, Any]) -> PillowPreprocessing:
    """Of the library's "shortest", the centre may lie one pixel beside where its torchvision has it."""
    sides = about["size"] if isinstance(about["size"], (list, tuple)) else [about["size"]]
    mode, filter_name = about["resize_mode"], about["interpolation"]
    if len(set(sides)) != 1 or mode not in ("shortest", "squash") or filter_name not in FILTERS:
        raise ValueError(f"square images, shortest or squash, bicubic or bilinear, got {about}")
    mean, std = tuple(about["mean"]), tuple(about["std"])
    return PillowPreprocessing(
        sides[0], sides[0], mean=mean, std=std, resample=FILTERS[filter_name], squash=mode == "squash"
    )
