"""Features of a split: `python -m python_train.extract --dataset NAME --data-root DIR --checkpoint FILE`.

Writes the tensors `features` [M, d] and `labels` [M] to a .safetensors file, which `tim-ext evaluate` reads,
and a description to .json beside it; of classes with a hierarchy, also .hierarchy.json or .superclasses.json.
The file carries a key made of every byte of the images, the weights and the preprocessing. If the key still
fits, nothing is done; else the features are made anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import tim_ext
from tim_ext.errors import require
from tim_ext.files.outputs import output_file
from tim_ext.files.tensors import hash_named, read_tensors, write_json, write_tensors
from tim_ext.images.networks import LIBRARIES, LITE, feature_size, load_encoder, published_encoder
from tim_ext.images.preprocessing import Preprocessing

from .datasets import Dataset
from .distributed import World, start
from .embedding import embed
from .errors import Parser, UserError, run_command
from .loading import Images
from .options import add_data_options, add_machine_options, choose_workers, count, inputs_of, open_split

SUFFIXES = ".safetensors", ".json", ".hierarchy.json", ".superclasses.json"  # of what is written
DTYPES = {"float32": torch.float32, "float16": torch.float16}


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return run_command("extract", lambda: extract(options))


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m python_train.extract", description="Writes the features of a split.")
    add_data_options(parser)
    parser.add_argument("--split", default="test", help="train, val or test; glyphs: also digits (test)")
    encoder = parser.add_mutually_exclusive_group(required=True)
    encoder.add_argument("--checkpoint", type=Path, metavar="FILE", help="best.safetensors of a training run")
    encoder.add_argument(
        "--model", metavar="NAME", help=f"{LITE}, timm:NAME or torchvision:NAME, published weights"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="(features/DATASET_SPLIT.safetensors beside the checkpoint)",
    )
    parser.add_argument("--size", type=count(1), metavar="PX", help="image size, if not the checkpoint's")
    parser.add_argument("--resize", type=count(1), metavar="PX", help="shorter side before the centre crop")
    parser.add_argument("--no-antialias", action="store_true", help="resize as the paper's ablation does")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the features (float32)")
    parser.add_argument("--batch-size", type=count(1), default=256, metavar="N", help="(256)")
    add_machine_options(parser)
    return parser


def extract(options: argparse.Namespace) -> None:
    out = _out_file(options)
    inputs = {"--checkpoint": options.checkpoint, **inputs_of(options)}
    for suffix in SUFFIXES:
        output_file("--out", out.with_suffix(suffix), inputs)
    with start(options.device) as world:
        encoder, how, origin = _open_encoder(options)
        dataset = open_split(options, options.split)
        description = describe(options, dataset, encoder, how, origin) if world.is_first else {}
        current = world.is_first and _is_current(out, description["key"])
        if any(world.sum([float(current)])):
            _say(world, f"up to date: {out}")
            return
        features = _compute(options, encoder.to(world.device), dataset, how, world)
        if world.is_first:
            write_json(out.with_suffix(".json"), description)
            _write_groups(out, dataset)
            labels = torch.from_numpy(dataset.labels)
            write_tensors(out, {"features": features, "labels": labels}, description)  # last: it has the key
        world.wait()
        _say(world, f"{len(dataset):,} features of {feature_size(encoder)} values: {out}")


def _out_file(options: argparse.Namespace) -> Path:
    if options.out is None:
        if options.checkpoint is None:
            raise UserError("--out: expected the file to write with --model, got none")
        name = f"{options.dataset}_{options.split}.safetensors".replace(":", "_")
        return Path(options.checkpoint.parent / "features" / name)
    out: Path = options.out
    if out.suffix != ".safetensors":
        raise UserError(f"--out: expected a file that ends with .safetensors, got {out}")
    return out


def _open_encoder(options: argparse.Namespace) -> tuple[nn.Module, Preprocessing, dict[str, Any]]:
    """The encoder, its preprocessing, and where it comes from."""
    if options.checkpoint is not None:
        encoder, how, description = load_encoder(options.checkpoint)
        origin = {"checkpoint": str(options.checkpoint), **description["model"]}
    else:
        if options.model != LITE and options.model.partition(":")[0] not in LIBRARIES:
            raise UserError(f"--model: expected {LITE}, timm:NAME or torchvision:NAME, got {options.model!r}")
        encoder, how = published_encoder(options.model)
        origin = {"name": options.model}
    size = options.size or how.size
    resize = options.resize or round(size * how.resize / how.size)
    how = replace(how, size=size, resize=resize, antialias=how.antialias and not options.no_antialias)
    return encoder, how, origin


def describe(
    options: argparse.Namespace,
    dataset: Dataset,
    encoder: nn.Module,
    how: Preprocessing,
    origin: dict[str, Any],
) -> dict[str, Any]:
    """What the features are, and the key of what they depend on."""
    depends_on = {
        "dataset_sha256": dataset.content_hash,
        "network": origin["name"],
        "weights_sha256": hash_named(encoder.state_dict()),
        "preprocessing": asdict(how),
        "amp": options.amp,
        "dtype": options.dtype,
        "tim_ext": tim_ext.__version__,
    }
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
    return {
        "key": key,
        **depends_on,
        "dataset": dataset.name,
        "split": dataset.split,
        "images": len(dataset),
        "dim": feature_size(encoder),
        "class_names": dataset.class_names,
        "encoder": origin,
        "torch": torch.__version__,
    }


def _is_current(out: Path, key: str) -> bool:
    """Whether the file is there, whole, and of this key; one that is damaged is made anew."""
    try:
        return bool(read_tensors(out)[1].get("key") == key)
    except UserError:
        return False


def _compute(
    options: argparse.Namespace, encoder: nn.Module, dataset: Dataset, how: Preprocessing, world: World
) -> torch.Tensor:
    tqdm = require("tqdm", "train").tqdm
    with tqdm(total=len(dataset), unit="image", disable=None if world.is_first else True) as bar:
        features = embed(
            encoder,
            Images(dataset, how),
            np.arange(len(dataset)),
            world,
            batch_size=options.batch_size,
            workers=choose_workers(options, dataset),
            amp=options.amp,
            progress=bar.update,
        )
    return features.to(DTYPES[options.dtype])


def _write_groups(out: Path, dataset: Dataset) -> None:
    """For `tim-ext evaluate`: classes as the numbers of `labels`."""
    number = {name: k for k, name in enumerate(dataset.class_names)}
    for kind, groups in (("hierarchy", dataset.hierarchy), ("superclasses", dataset.superclasses)):
        file = out.with_suffix(f".{kind}.json")
        file.unlink(missing_ok=True)  # of another dataset
        if groups is not None:
            write_json(file, {group: [number.get(name, name) for name in groups[group]] for group in groups})


def _say(world: World, line: str) -> None:
    if world.is_first:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
