"""Base training: `python -m python_train.train --dataset NAME --data-root DIR --out DIR`.

The recipe of the TIM paper: cross entropy with label smoothing on the base classes, SGD with momentum, the
learning rate divided by 10 at 1/2 and 3/4 of the training. With `--episodic`, Prototypical Networks instead.
The same command again goes on where a run was stopped, whatever stopped it, and ends with the same weights.

    DIR/last.safetensors    the state after the last checkpoint: weights, momentum, progress
    DIR/best.safetensors    the weights of the best few-shot accuracy on the validation classes
    DIR/run.json            the recipe and the machine
    DIR/log.csv, DIR/tensorboard
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from tim_ext.images.networks import ENCODERS
from tim_ext.images.preprocessing import NORMALIZATION, Preprocessing

from . import distributed
from .datasets import Dataset, find_source, image_form
from .errors import Parser, UserError, run_command
from .options import add_data_options, add_machine_options, choose_workers, count, number, open_split
from .recipe import Recipe
from .run import Run
from .validation import Validation

EPOCHS, ITERATIONS = 90, 100_000
BATCH_SIZE, BATCH_SIZES = 256, {"wrn28_10": 128}
VALIDATE_EVERY = 1000  # steps, if they are not counted in epochs


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return run_command("train", lambda: train(options))


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m python_train.train", description="Trains an encoder on base classes.")
    add_data_options(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    _add_encoder_options(parser.add_argument_group("encoder and images"))
    _add_optimisation_options(parser.add_argument_group("optimisation"))

    group = parser.add_argument_group("episodes")
    group.add_argument("--episodic", action="store_true", help="train Prototypical Networks")
    group.add_argument("--episodes", type=count(1), default=2, metavar="N", help="of a step (2)")
    group.add_argument("--ways", type=count(2), default=5, metavar="N", help="(5)")
    group.add_argument("--shots", type=count(1), default=5, metavar="N", help="(5)")
    group.add_argument("--queries", type=count(1), default=20, metavar="N", help="of each class (20)")

    _add_validation_options(parser.add_argument_group("validation and checkpoints"))
    add_machine_options(parser)
    return parser


def _add_encoder_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        default="resnet18",
        metavar="NAME",
        help=f"{', '.join(ENCODERS)}, timm:NAME, torchvision:NAME (resnet18)",
    )
    group.add_argument("--width", type=count(1), metavar="N", help="channels of the first stage")
    group.add_argument("--size", type=count(1), metavar="PX", help="image size; the default is the dataset's")
    group.add_argument("--resize", type=count(1), metavar="PX", help="shorter side before the centre crop")
    group.add_argument("--no-antialias", action="store_true", help="resize as the paper's ablation does")
    group.add_argument("--crop-scale", type=number("(0, 1]"), metavar="SHARE", help="smallest random crop")
    group.add_argument(
        "--jitter", type=number("[0, 1)"), metavar="X", help="strength of the change of colours"
    )
    group.add_argument("--flip", action=argparse.BooleanOptionalAction, help="mirror half of the images")


def _add_optimisation_options(group: argparse._ArgumentGroup) -> None:
    length = group.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=count(1), metavar="N", help=f"({EPOCHS})")
    length.add_argument(
        "--iterations", type=count(1), nargs="?", const=ITERATIONS, metavar="N", help=f"({ITERATIONS})"
    )
    group.add_argument(
        "--batch-size", type=count(1), metavar="N", help="of all processes (256; wrn28_10: 128)"
    )
    group.add_argument("--lr", type=number("(0, inf)"), default=0.1, metavar="X", help="(0.1)")
    group.add_argument("--momentum", type=number("[0, 1)"), default=0.9, metavar="X", help="(0.9)")
    group.add_argument("--weight-decay", type=number("[0, inf)"), default=1e-4, metavar="X", help="(1e-4)")
    group.add_argument("--label-smoothing", type=number("[0, 1)"), default=0.1, metavar="X", help="(0.1)")
    group.add_argument(
        "--seed", type=count(0), default=0, metavar="N", help="of weights, order and changes (0)"
    )


def _add_validation_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--val-tasks", type=count(0), default=500, metavar="N", help="few-shot tasks; 0: none (500)"
    )
    group.add_argument("--val-ways", type=count(2), default=5, metavar="N", help="(5)")
    group.add_argument("--val-shots", type=count(1), default=1, metavar="N", help="(1)")
    group.add_argument("--val-queries", type=count(1), default=15, metavar="N", help="of each class (15)")
    group.add_argument(
        "--validate-every", type=count(1), metavar="STEPS", help=f"(an epoch, or {VALIDATE_EVERY} iterations)"
    )
    group.add_argument(
        "--checkpoint-every", type=count(1), default=1000, metavar="STEPS", help="and at validations (1000)"
    )
    group.add_argument("--no-tensorboard", action="store_true", help="write log.csv alone")


def train(options: argparse.Namespace) -> None:
    with distributed.start(options.device) as world:
        base = open_split(options, "train")
        held_out = _open_validation(options)
        workers = choose_workers(options, base)
        recipe, per_epoch = make_recipe(options, base, held_out)
        if recipe.batch_size < world.size:
            got = f"{recipe.batch_size} for {world.size} processes"
            raise UserError(f"--batch-size: expected an image for each process, got {got}")
        run = Run(
            recipe,
            base,
            None if held_out is None else Validation(recipe, held_out, workers),
            world,
            options.out,
            per_epoch=per_epoch,
            checkpoint_every=options.checkpoint_every,
            workers=workers,
            tensorboard=not options.no_tensorboard,
        )
        with run.alone():
            run.resume()
            run.go()


def _open_validation(options: argparse.Namespace) -> Dataset | None:
    if not options.val_tasks:
        return None
    try:
        return open_split(options, "val")
    except UserError as error:
        raise UserError(f"{error}\nWithout validation classes: --val-tasks 0") from error


def make_recipe(
    options: argparse.Namespace, base: Dataset, held_out: Dataset | None
) -> tuple[Recipe, int | None]:
    """The recipe, and the steps of an epoch; None if there are no epochs."""
    size, channels = image_form(base)
    size = options.size or size
    change = {"crop_scale": options.crop_scale, "jitter": options.jitter, "flip": options.flip}
    given = {name: value for name, value in change.items() if value is not None}
    per_epoch: int | None
    if options.episodic:
        if options.batch_size or options.epochs:
            raise UserError("--episodic: expected --iterations and --episodes, got --epochs or --batch-size")
        batch_size = options.episodes * options.ways * (options.shots + options.queries)
        steps, per_epoch = options.iterations or ITERATIONS, None
    else:
        batch_size = options.batch_size or BATCH_SIZES.get(options.model, BATCH_SIZE)
        if batch_size > len(base):
            raise UserError(f"--batch-size: expected at most {len(base)}, all images, got {batch_size}")
        per_epoch = len(base) // batch_size
        steps = options.iterations or (options.epochs or EPOCHS) * per_epoch
    every = VALIDATE_EVERY if per_epoch is None or options.iterations else per_epoch
    made = {
        "images": base.listing_hash,
        "val_images": None if held_out is None else held_out.listing_hash,
        "preprocessing": Preprocessing(
            size, options.resize or size, not options.no_antialias, *NORMALIZATION[channels]
        ),
        "augmentation": replace(find_source(options.dataset).augmentation, **given),
        "steps": steps,
        "batch_size": batch_size,
        "episodes": options.episodes if options.episodic else 0,
        "validate_every": options.validate_every or every,
    }
    as_given = {
        field.name: getattr(options, field.name) for field in fields(Recipe) if field.name not in made
    }
    return Recipe(**made, **as_given), per_epoch


if __name__ == "__main__":
    sys.exit(main())
