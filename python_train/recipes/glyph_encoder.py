"""Makes the encoder that ships in tim_ext/data: `python -m python_train.recipes.glyph_encoder`.

Trains a Conv-4 on the base classes of glyphs, measures its few-shot accuracy on the novel classes and on
handwritten digits, and writes

    tim_ext/data/glyph_encoder.safetensors    the weights, without the layer to the classes
    tim_ext/data/glyph_encoder.json           the command of the training, its log, the accuracies

It takes minutes on two cores. Sums are rounded in another order on another machine or with another number of
threads, so weights differ from run to run; the accuracies hardly do. Stopped, it goes on where it was.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import tim_ext
from tim_ext.files.tensors import read_tensors, write_json, write_tensors
from tim_ext.images import encoder, glyphs

from .. import train
from ..errors import Parser, run_command
from ..options import count

EPOCHS = 6
OPTIONS = "--dataset glyphs --model conv4 --epochs {epochs} --crop-scale 0.7 --no-tensorboard --workers 0"
METHODS, TASKS = ("prototype", "tim-adm"), 2000  # what the accuracies are of


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m python_train.recipes.glyph_encoder", description="Makes glyph_encoder.")
    parser.add_argument("--run", type=Path, default=Path("runs/glyph_encoder"), help="folder of the training")
    parser.add_argument("--out", type=Path, default=encoder.WEIGHTS.parent, help="folder of the two files")
    parser.add_argument("--epochs", type=count(1), default=EPOCHS, metavar="N", help=f"({EPOCHS})")
    options = parser.parse_args(arguments)
    return run_command("glyph_encoder", lambda: make(options.run, options.out, options.epochs))


def make(run: Path, out: Path, epochs: int) -> None:
    command = OPTIONS.format(epochs=epochs)
    train.train(train.make_parser().parse_args([*command.split(), "--out", str(run)]))
    tensors, description = read_tensors(run / "best.safetensors")
    weights = {name: value for name, value in tensors.items() if name.startswith(encoder.PREFIX)}
    for name, value in weights.items():
        weights[name] = value.half() if value.dim() == 4 else value  # the convolutions: nearly all of them
    del description["class_names"]  # of the layer that is left out
    write_tensors(out / encoder.WEIGHTS.name, weights, description)
    with (run / "log.csv").open() as file:
        log = [{name: json.loads(value) for name, value in row.items()} for row in csv.DictReader(file)]
    write_json(
        out / encoder.WEIGHTS.with_suffix(".json").name,
        {
            "command": f"python -m python_train.train {command} --out DIR",
            "threads": torch.get_num_threads(),
            "versions": description["versions"],
            "validation": description["validation"],
            "accuracy": measure(encoder.glyph_encoder(out / encoder.WEIGHTS.name)),
            "log": log,
        },
    )


def measure(network: encoder.Conv4) -> dict[str, dict[str, dict[str, float]]]:
    """Percent by split, by setting (5-way 1-shot, 5-way 5-shot), by method."""
    accuracy: dict[str, dict[str, dict[str, float]]] = {}
    for split in ("novel", "digits"):
        data = glyphs.load(split)
        features = encoder.extract(network, data.images)
        for row in tim_ext.evaluate(features, data.labels, methods=METHODS, tasks=TASKS).rows:
            setting = accuracy.setdefault(split, {}).setdefault(row.setting, {})
            setting[row.method] = round(row.accuracy, 2)
            print(f"{split}, {row.setting}, {row.method}: {row.accuracy:.2f} %", flush=True)
    return accuracy


if __name__ == "__main__":
    sys.exit(main())
