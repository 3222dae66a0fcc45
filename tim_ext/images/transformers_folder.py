"""CLIP and SigLIP from a folder, as the library transformers writes it; nothing is downloaded.

    config.json                  which of the two, and its sizes
    model.safetensors            the weights, in one file or in parts with an index; or pytorch_model.bin
    preprocessor_config.json     how images are made ready; or within processor_config.json
    tokenizer.json               or vocab.json and merges.txt, or spiece.model: for the text side alone

Images are made ready by Pillow and `preprocessing`: the library's own code for that may want torchvision.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor, nn

from ..errors import UserError, listed, one_line, require
from .image_text import ImageTextEncoder
from .preprocessing import PillowPreprocessing
from .reading import shown

CONFIG = "config.json"
WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
IMAGES = ("preprocessor_config.json", "processor_config.json")
FILTERS = 1, 2, 3  # of Pillow: Lanczos, bilinear, bicubic
TOKENS = "tokenizer.json"


class Kind(NamedTuple):
    model: str  # class of transformers
    tokenizers: tuple[tuple[str, ...], ...]  # files, of which one set must be there
    padded: bool  # texts are lower case and padded to the full length: so the network was trained


KINDS = {  # by model_type of config.json
    "clip": Kind("CLIPModel", ((TOKENS,), ("vocab.json", "merges.txt")), False),
    "siglip": Kind("SiglipModel", ((TOKENS,), ("spiece.model",)), True),
}


@dataclass(frozen=True)
class Folder:
    option: str  # of the command line
    path: Path

    def has(self, *names: str) -> bool:
        return all((self.path / name).is_file() for name in names)

    def json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads((self.path / name).read_bytes())
        except (ValueError, RecursionError) as error:
            self.refuse(f"JSON in {name}", one_line(error))
        if not isinstance(content, dict):
            self.refuse(f"a JSON object in {name}", type(content).__name__)
        return cast(dict[str, Any], content)

    def refuse(self, expected: str, got: str) -> NoReturn:
        raise UserError(f"{self.option}: expected {expected} in {shown(self.path)}, got {got}")


class TransformersEncoder(ImageTextEncoder):
    def __init__(self, folder: Folder, kind: Kind, model: nn.Module, published: PillowPreprocessing) -> None:
        config = cast(Any, model).config
        # of CLIP the space of images and texts has its own size, of SigLIP it is that of the images
        dim = getattr(config, "projection_dim", None) or config.vision_config.hidden_size
        super().__init__(dim, published)
        self.folder, self.kind, self.model = folder, kind, model
        self.tokenizer: Any = None

    def forward_features(self, images: Tensor) -> Tensor:
        return _pooled(cast(Any, self.model).get_image_features(pixel_values=images))

    def forward_texts(self, texts: Sequence[str]) -> Tensor:
        if self.tokenizer is None:
            self.tokenizer = open_tokenizer(self.folder, self.kind, self._text_config.vocab_size)
        limit = self._text_config.max_position_embeddings
        if self.kind.padded:
            texts = [text.lower() for text in texts]
        with _quiet():
            tokens = self.tokenizer(
                list(texts),
                padding="max_length" if self.kind.padded else "longest",
                max_length=limit,
                return_attention_mask=True,
                return_tensors=None,
            )
        _check_lengths(texts, tokens["attention_mask"], limit)
        device = next(self.model.parameters()).device
        given = {"input_ids": torch.tensor(tokens["input_ids"], device=device)}
        if not self.kind.padded:
            given["attention_mask"] = torch.tensor(tokens["attention_mask"], device=device)
        return _pooled(cast(Any, self.model).get_text_features(**given))

    @property
    def _text_config(self) -> Any:
        return cast(Any, self.model).config.text_config


def _pooled(features: Any) -> Tensor:
    """What transformers returns: a tensor before version 5, an object with all kinds of features since."""
    return cast(Tensor, getattr(features, "pooler_output", features))


def _check_lengths(texts: Sequence[str], masks: Sequence[Sequence[int]], limit: int) -> None:
    for text, mask in zip(texts, masks, strict=True):
        if sum(mask) > limit:
            raise UserError(
                f"--class-names: expected names that make texts of at most {limit} tokens, "
                f"got {sum(mask)} in {text!r}"
            )


def is_transformers(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def has_model_type(folder: Path) -> bool:
    """A folder for open_clip or timm may have a config.json too, without it."""
    return is_transformers(folder) and b'"model_type"' in (folder / CONFIG).read_bytes()


def open_transformers(option: str, path: Path) -> TransformersEncoder:
    """The encoder of a folder; what it lacks is named. The tokenizer is not looked at before it is used."""
    folder = Folder(option, path)
    got = folder.json(CONFIG).get("model_type")
    kind = KINDS.get(str(got))
    if kind is None:
        known = " or ".join(map(repr, KINDS))
        folder.refuse(f"a model of images and texts, model_type {known}", repr(got))
    if not any(map(folder.has, WEIGHTS)):
        folder.refuse(WEIGHTS[0], "none")
    published = _published(folder)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")  # as local_files_only, before the import
    make = getattr(require("transformers", "clip"), kind.model)
    try:
        with _quiet():
            model, report = make.from_pretrained(
                str(path), local_files_only=True, weights_only=True, output_loading_info=True
            )
    except Exception as error:  # the library raises all kinds
        raise UserError(f"{option}: transformers cannot open {shown(path)} ({one_line(error)})") from error
    missing = sorted(report["missing_keys"])  # the library would leave them random
    if missing:
        folder.refuse("all weights of the model", f"none for {listed(missing, 3)}")
    return TransformersEncoder(folder, kind, model.to(torch.float32).eval(), published)


def open_tokenizer(folder: Folder, kind: Kind, size: int) -> Any:
    """`size`: of the vocabulary of the network."""
    if not any(folder.has(*names) for names in kind.tokenizers):
        expected = ", or ".join(" and ".join(names) for names in kind.tokenizers)
        folder.refuse(f"a tokenizer, {expected},", "none")  # the library would make an empty one
    try:
        with _quiet():
            tokenizer = require("transformers", "clip").AutoTokenizer.from_pretrained(
                str(folder.path), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # the library raises all kinds
        where = shown(folder.path)
        raise UserError(
            f"{folder.option}: transformers cannot open the tokenizer in {where} ({one_line(error)})"
        ) from error
    if len(tokenizer) > size:
        folder.refuse(f"a tokenizer of at most {size} tokens, those of the network,", str(len(tokenizer)))
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Without bars and advice of the library: what is wrong comes as an error."""
    logging = require("transformers", "clip").utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# How images are made ready ------------------------------------------------------------------------


def _published(folder: Folder) -> PillowPreprocessing:
    name = next(filter(folder.has, IMAGES), None)
    if name is None:
        folder.refuse(f"{IMAGES[0]}, how images are made ready,", "none")
    about = folder.json(name)
    about = about.get("image_processor", about)  # in processor_config.json
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if about.get(key, True) is not True:
            folder.refuse(f"{key} true in {name}", repr(about[key]))
    if about.get("resample") not in FILTERS:
        folder.refuse(f"resample out of {FILTERS} in {name}", repr(about.get("resample")))
    try:
        mean, std = (tuple(map(float, about[key])) for key in ("image_mean", "image_std"))
        resize, squash = _side(about["size"])
        crops = about.get("do_center_crop", not squash)
        size = _side(about.get("crop_size", resize))[0] if crops else resize * squash
        scale = 255 * float(about.get("rescale_factor", 1 / 255))
    except (KeyError, TypeError, ValueError) as error:
        folder.refuse(f"sizes, image_mean and image_std in {name}", one_line(error))
    if not 0 < size <= resize or len(mean) != 3 or len(std) != 3 or 0 in std or abs(scale - 1) > 1e-6:
        keys = ("size", "do_center_crop", "crop_size", "image_mean", "image_std", "rescale_factor")
        got = str({key: about[key] for key in keys if key in about})
        folder.refuse(f"square images of three channels of 0 .. 1 in {name}", got)
    return PillowPreprocessing(size, resize, mean=mean, std=std, resample=about["resample"], squash=squash)


def _side(size: Any) -> tuple[int, bool]:
    """Pixels of the shorter side, or of both (True); 0 for anything else."""
    if isinstance(size, int):
        return size, False
    if set(size) == {"shortest_edge"}:
        return int(size["shortest_edge"]), False
    square = set(size) == {"height", "width"} and size["height"] == size["width"]
    return (int(size["height"]) if square else 0), True
