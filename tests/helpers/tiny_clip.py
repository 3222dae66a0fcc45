"""CLIP and SigLIP as folders of transformers, tiny: random, or trained for a second to tell three colours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'tim_ext[clip]'")
Image = pytest.importorskip("PIL.Image")

COLOURS = {"red": (200, 40, 40), "green": (50, 170, 60), "blue": (40, 50, 190)}
START, END = "<|startoftext|>", "<|endoftext|>"
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
SIDE = 32  # pixels
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGE = {**TEXT, "image_size": SIDE, "patch_size": 16}


def write_clip(folder: Path, trained: bool = False) -> Path:
    """A vocabulary of single letters; texts of at most 40 tokens."""
    folder.mkdir(parents=True)
    letters = [chr(code) for code in range(33, 127)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), START, END]
    size = len(tokens)
    (folder / "vocab.json").write_text(json.dumps({token: k for k, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"bos_token_id": size - 2, "eos_token_id": size - 1, "pad_token_id": size - 1}
    text = {**TEXT, **special, "vocab_size": size, "max_position_embeddings": 40}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(text_config=text, vision_config=IMAGE, projection_dim=16)
    model = transformers.CLIPModel(config)
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder, pad_token=END)
    tokenizer.save_pretrained(folder)
    if trained:
        train(model, tokenizer)
    model.save_pretrained(folder)
    write_preprocessing(folder, size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    return folder


def train(model, tokenizer) -> None:
    rng = np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    names = list(COLOURS)
    for _ in range(60):
        pixels = torch.stack([torch.from_numpy(noisy(name, rng)).permute(2, 0, 1) for name in names]) / 255
        pixels = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        texts = tokenizer([f"a {name}." for name in names], padding=True, return_tensors="pt")
        loss = model(pixel_values=pixels.float(), **texts, return_loss=True).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def noisy(name: str, rng: np.random.Generator, height: int = SIDE, width: int = SIDE) -> np.ndarray:
    pixels = np.array(COLOURS[name]) + rng.normal(0, 30, (height, width, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def write_preprocessing(folder: Path, **changed) -> None:
    about = {"do_resize": True, "resample": 3, "do_center_crop": True, "do_rescale": True}
    about |= {"rescale_factor": 1 / 255, "do_normalize": True, "image_mean": MEAN, "image_std": STD}
    about |= changed
    about = {key: value for key, value in about.items() if value is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))


def write_siglip(folder: Path) -> Path:
    """Of nine words, without upper case; texts of 12 tokens."""
    folder.mkdir(parents=True)
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<pad>", "<unk>", "a", "photo", "of", "red", "green", "blue", "."]
    model = tokenizers.models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    text = {**TEXT, "vocab_size": len(words), "max_position_embeddings": 12, "projection_size": 32}
    config = transformers.SiglipConfig(text_config=text, vision_config=IMAGE)
    transformers.SiglipModel(config).save_pretrained(folder)
    write_preprocessing(folder, size={"height": SIDE, "width": SIDE}, do_center_crop=None, resample=2)
    return folder


def image_processor(kind: str, folder: Path):
    """The library's own, by Pillow: since version 5 that by torchvision has its former name."""
    name = f"{kind}ImageProcessor"
    made = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    return made.from_pretrained(folder)


def pooled(features):
    """What version 5 returns holds the features."""
    return getattr(features, "pooler_output", features)
