"""A training run: steps, reports, checkpoints, and how it goes on after a stop."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tim_ext
from tim_ext.errors import require
from tim_ext.files.atomic import remove_leftovers
from tim_ext.files.lock import only_run
from tim_ext.files.tensors import read_tensors, write_json
from tim_ext.images.networks import make_encoder

from . import checkpoint, counters, objectives
from .datasets import Dataset
from .distributed import World, synchronize_batch_norm
from .errors import UserError
from .loading import Images, load
from .logs import Log, Row
from .network import Network, count_parameters
from .precision import autocast, make_scaler
from .recipe import Recipe, batches
from .validation import Accuracy, Validation


class Progress(NamedTuple):
    """What a checkpoint knows besides weights and momentum."""

    step: int = 0  # steps done
    loss: float = 0.0  # sums over the samples since the last report
    correct: float = 0.0
    seen: float = 0.0
    seconds: float = 0.0
    best: float = -1.0  # validation accuracy
    rows: tuple[Row, ...] = ()  # of the log


class Run:
    """Trains a new network, or the one of the last checkpoint in the folder: `alone`, then `resume` and `go`.

    Args:
        folder: where everything is written.
        per_epoch: steps of an epoch; None if epochs are not counted.
        checkpoint_every: steps; there is a checkpoint at every report, too.
    """

    def __init__(
        self,
        recipe: Recipe,
        base: Dataset,
        validation: Validation | None,
        world: World,
        folder: Path,
        *,
        per_epoch: int | None,
        checkpoint_every: int,
        workers: int,
        tensorboard: bool,
    ) -> None:
        self.recipe, self.base, self.validation, self.world = recipe, base, validation, world
        self.folder, self.per_epoch, self.checkpoint_every = folder, per_epoch, checkpoint_every
        self.workers, self.tensorboard = workers, tensorboard
        self.started = time.monotonic()
        self.progress = Progress()
        self.totals = torch.zeros(3, dtype=torch.float64, device=world.device)  # loss, correct, seen; here

        torch.manual_seed(recipe.seed)
        encoder = make_encoder(recipe.model, in_channels=recipe.preprocessing.channels, width=recipe.width)
        self.network = Network(encoder, 0 if recipe.episodes else len(base.class_names)).to(world.device)
        synchronize_batch_norm(self.network, world)
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay
        )
        self.scaler = make_scaler(world.device, recipe.amp)

    # Where it stands ------------------------------------------------------------------------------

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With the folder, which is made if need be: whoever comes second to it is refused."""

        @contextmanager
        def lock() -> Iterator[None]:
            self.folder.mkdir(parents=True, exist_ok=True)
            with only_run("--out", self.folder):
                remove_leftovers(self.folder)  # of a run that was killed
                yield

        with self.world.first_enters(lock):
            yield

    def resume(self) -> None:
        """Takes up the last checkpoint of the folder, if there is one."""
        if not self.last.exists():
            if self.world.is_first:
                write_json(self.folder / "run.json", self.describe() | {"machine": self._describe_machine()})
            return
        tensors, description = read_tensors(self.last)
        if "progress" not in description:
            raise UserError(f"{self.last}: not the state of a run: its description has no 'progress'")
        self._check_recipe(description["recipe"])
        checkpoint.restore(self.last, tensors, self.network, self.optimizer)
        saved = description["progress"]
        self.progress = Progress(**saved["counts"], rows=tuple(saved["rows"]))
        self.scaler.load_state_dict(saved["scaler"])
        if self.world.is_first:
            sums = self.progress.loss, self.progress.correct, self.progress.seen
            self.totals += torch.tensor(sums, dtype=torch.float64, device=self.world.device)
        self._say(f"resumed at step {self.progress.step} of {self.recipe.steps}")

    def _check_recipe(self, saved: dict[str, Any]) -> None:
        for name, wanted in json.loads(json.dumps(asdict(self.recipe))).items():
            if saved.get(name) != wanted:
                raise UserError(
                    f"{self.folder}: holds a run with {name} = {saved.get(name)}, got {wanted}; "
                    "a run goes on with its own options: choose another --out for others"
                )

    def describe(self) -> dict[str, Any]:
        """What is stored with the weights."""
        return {
            "recipe": asdict(self.recipe),
            "model": {"name": self.recipe.model, "width": self.recipe.width},
            "preprocessing": asdict(self.recipe.preprocessing),
            "class_names": self.base.class_names,
            "versions": {"tim_ext": tim_ext.__version__, "torch": torch.__version__, "numpy": np.__version__},
        }

    def _describe_machine(self) -> dict[str, Any]:
        device = self.world.device
        return {
            "processes": self.world.size,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        }

    def save(self) -> None:
        loss, correct, seen = self.world.sum(self.totals.tolist())
        self._check_finite(loss)
        if not self.world.is_first:
            return
        progress = self.progress._replace(loss=loss, correct=correct, seen=seen, seconds=self.seconds())
        counts = progress._asdict()
        rows = counts.pop("rows")
        state = {"counts": counts, "rows": rows, "scaler": self.scaler.state_dict()}
        checkpoint.save(self.last, self.network, self.describe() | {"progress": state}, self.optimizer)

    def seconds(self) -> float:
        """Of this session and those before it."""
        return self.progress.seconds + time.monotonic() - self.started

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            step = self.progress.step
            raise UserError(f"training diverged: the loss is {loss} at or before step {step}; lower --lr")

    def _say(self, line: str) -> None:
        if self.world.is_first:
            print(line, flush=True)

    # Steps ----------------------------------------------------------------------------------------

    def go(self) -> None:
        recipe, world, first = self.recipe, self.world, self.progress.step
        if first == recipe.steps:
            self._say(f"already finished: {self.folder}")
            return
        self._say(
            f"{recipe.model}: {count_parameters(self.network):,} parameters, {len(self.base):,} images of "
            f"{len(self.base.class_names)} classes, {recipe.steps:,} steps of {recipe.batch_size}"
        )
        model: nn.Module = self.network
        if world.size > 1:
            model = DistributedDataParallel(self.network, broadcast_buffers=False)
        images = Images(self.base, recipe.preprocessing, recipe.augmentation, recipe.seed)
        loaded = load(images, batches(recipe, self.base, world, first), self.workers, world.device)
        self.network.train()
        with ExitStack() as stack:
            log = None
            if world.is_first:
                log = stack.enter_context(closing(Log(self.folder, first, tensorboard=self.tensorboard)))
            bar = stack.enter_context(
                require("tqdm", "train").tqdm(
                    total=recipe.steps, initial=first, unit="step", disable=None if world.is_first else True
                )
            )
            for pixels, labels in loaded:
                self.step(model, pixels, labels)
                self.progress = self.progress._replace(step=self.progress.step + 1)
                bar.update()
                self._after_step(log, bar.write)
        world.wait()
        self._say(f"finished: {self.folder}")

    def step(self, model: nn.Module, pixels: Tensor, labels: Tensor) -> None:
        recipe, world, step = self.recipe, self.world, self.progress.step
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.lr_at(step)
        torch.manual_seed(counters.number(recipe.seed, counters.STEP, world.rank, step))  # dropout, if any
        with autocast(world.device, recipe.amp):
            outputs = model(pixels)
        outputs = outputs.to(torch.float32)
        if recipe.episodes:  # every process computes the loss of all queries
            features = self._all_features(outputs)
            total = recipe.episodes * recipe.ways * recipe.queries
            loss, correct = objectives.prototypical(
                features, recipe.ways, recipe.shots, recipe.queries, recipe.label_smoothing
            )
            mine = float(world.is_first)
            counted = loss.detach() * mine, correct * mine, loss.new_tensor(total * mine)
        else:
            total = recipe.batch_size
            loss, correct = objectives.cross_entropy(outputs, labels, recipe.label_smoothing)
            counted = loss.detach(), correct, loss.new_tensor(len(labels))
        self.totals += torch.stack([number.double() for number in counted])
        self.optimizer.zero_grad(set_to_none=True)
        # DistributedDataParallel takes the mean of the processes' gradients, but their sum is wanted
        backward: Callable[[], None] = self.scaler.scale(loss / total * world.size).backward
        backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _all_features(self, mine: Tensor) -> Tensor:
        """[E N, d]: those of this process, which gradients flow to, among those of the others."""
        if self.world.size == 1:
            return mine
        parts = self.world.gather_rows(mine.detach(), self.world.counts(self.recipe.batch_size))
        parts[self.world.rank] = mine
        return torch.cat(parts)

    def _after_step(self, log: Log | None, show: Callable[..., None]) -> None:
        step = self.progress.step
        if step % self.recipe.validate_every == 0 or step == self.recipe.steps:
            self.report(log, show)
        elif step % self.checkpoint_every:
            return
        self.save()

    # Reports --------------------------------------------------------------------------------------

    def report(self, log: Log | None, show: Callable[..., None]) -> None:
        """A row of the log: means since the row before, and the accuracy on validation tasks."""
        loss, correct, seen = self.world.sum(self.totals.tolist())
        self._check_finite(loss)
        self.totals.zero_()
        seconds = self.seconds()
        accuracy = None if self.validation is None else self.validation(self.network.encoder, self.world)
        if log is None:
            return
        before = self.progress.rows[-1]["seconds"] or 0.0 if self.progress.rows else 0.0
        step = self.progress.step
        row: Row = {
            "step": step,
            "epoch": None if self.per_epoch is None else round(step / self.per_epoch, 3),
            "lr": self.recipe.lr_at(step - 1),
            "loss": loss / seen,
            "accuracy": correct / seen,
            "validation_accuracy": accuracy and accuracy.mean,
            "validation_ci95": accuracy and accuracy.ci95,
            "images_per_second": round(seen / max(seconds - before, 1e-9), 1),
            "seconds": round(self.seconds(), 3),
        }
        self.progress = self.progress._replace(rows=(*self.progress.rows, row))
        if accuracy is not None and accuracy.mean > self.progress.best:
            self._save_best(accuracy)
        log.write(self.progress.rows, show)

    def _save_best(self, accuracy: Accuracy) -> None:
        self.progress = self.progress._replace(best=accuracy.mean)
        found = {"step": self.progress.step, "accuracy": accuracy.mean, "ci95": accuracy.ci95}
        checkpoint.save(
            self.folder / "best.safetensors", self.network, self.describe() | {"validation": found}
        )
