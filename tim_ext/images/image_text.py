"""Encoders of images and texts, and the vectors of classes that are known by their names.

The names are put into prompts p, "a photo of a {}.", and with e the text side of the encoder

    t_k = 1/P sum_p unit(e(p, k))

`tim_ext.solver.class_vectors` has what becomes of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import UserError, one_line, require
from .preprocessing import Preprocessing

PLACE = "{}"  # of the name in a prompt
PROMPTS = ("a photo of a {}.", "a photo of the {}.", "a picture of a {}.", "an image of a {}.", "{}.")
BATCH = 64  # texts


class ImageTextEncoder(nn.Module):
    """Images and texts become points [dim] of one space."""

    def __init__(self, dim: int, published: Preprocessing) -> None:
        super().__init__()
        self.dim, self.published = dim, published

    def forward_features(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, dim]"""
        raise NotImplementedError

    def forward_texts(self, texts: Sequence[str]) -> Tensor:
        """[B, dim]"""
        raise NotImplementedError


def class_vectors(
    encoder: nn.Module, name: str, texts: Sequence[str], prompts: Sequence[str] = PROMPTS
) -> Tensor:
    """[K, dim]: of each class, whose text may be its name.

    `name`: of the encoder, for messages. Encoders without a text side are refused.
    """
    check_text_side(encoder, name)
    assert isinstance(encoder, ImageTextEncoder)
    sentences = [prompt.replace(PLACE, text) for text in texts for prompt in prompts]
    tqdm = require("tqdm", "clip").tqdm
    parts = []
    try:
        with torch.inference_mode(), tqdm(total=len(sentences), unit="text", disable=None) as bar:
            for start in range(0, len(sentences), BATCH):
                batch = sentences[start : start + BATCH]
                parts.append(encoder.forward_texts(batch).to("cpu", torch.float32))
                bar.update(len(batch))
    except UserError:
        raise
    except Exception as error:  # networks of other libraries raise all kinds
        raise UserError(f"--encoder: {name} fails on texts ({one_line(error)})") from error
    vectors = torch.nn.functional.normalize(torch.cat(parts), dim=1)
    return vectors.view(len(texts), len(prompts), -1).mean(dim=1)


def check_text_side(encoder: nn.Module | None, name: str) -> None:
    if not isinstance(encoder, ImageTextEncoder):
        raise UserError(
            "--class-names: expected an encoder with a text side, the folder of a CLIP or SigLIP model as "
            f"--encoder, got {name!r}, which is for images alone"
        )
