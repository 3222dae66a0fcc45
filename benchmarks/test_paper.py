"""The run-time table of the paper on this machine: seconds per 5-way 5-shot task, features of a WRN-28-10.

Entropy minimisation trains the whole network on the 100 images of the task, 25 times. That takes a CPU hours,
so one step on a few images is measured and multiplied; the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import tim_ext
from tim_ext import baselines
from tim_ext.images.networks import make_encoder
from tim_ext.solver.params import FINETUNE

from .comparison import Candidate, Comparison
from .conftest import suite
from .tasks import Shape, Tasks

THREADS = min(2, torch.get_num_threads())
SHAPE, BATCH = Shape(1), Shape(100)
IMAGES, SIZE = 4, 84  # images that a measured step trains on, pixels along a side


def methods(shape: Shape) -> dict[str, Any]:
    def task(tasks: Tasks) -> tuple[Tensor, Tensor]:
        return tasks.one() if shape.tasks == 1 else (tasks.features, tasks.labels)

    return {
        "SimpleShot": lambda tasks: baselines.prototype(*task(tasks)).predictions,
        "TIM-ADM": lambda tasks: tim_ext.adm(*task(tasks)).predictions,
        "TIM-GD": lambda tasks: tim_ext.gd(*task(tasks)).predictions,
    }


def check(name: str, predictions: Tensor, tasks: Tasks) -> None:
    accuracy = tasks.accuracy(predictions.reshape(len(tasks.features), -1))
    assert accuracy > 0.5, f"{accuracy:.1%} of the queries are right, expected more than half"


def compare(shape: Shape, name: str, quick: bool) -> Comparison:
    candidates = {method: Candidate(call) for method, call in methods(shape).items()}
    return Comparison(
        name,
        shape.make,
        candidates,
        check,
        reference="TIM-GD",
        tasks=shape.tasks,
        threads=THREADS,
        quick=quick,
        seconds=3.0,
        devices=("cpu", "cuda"),
    )


@dataclass(frozen=True)
class Images:
    encoder: nn.Module
    images: Tensor  # [N, 3, 84, 84]
    labels: Tensor


class Encoder(nn.Module):
    """forward() for what python_train calls forward_features()."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.forward_features(images)


def make_images(device: torch.device) -> Images:
    torch.manual_seed(0)
    encoder = Encoder(make_encoder("wrn28_10")).to(device)
    images = torch.rand(IMAGES, 3, SIZE, SIZE, device=device)
    labels = torch.tensor([0, 1] + [-1] * (IMAGES - 2), device=device)
    return Images(encoder, images, labels)


def entropy_min_step(data: Images, steps: int) -> tim_ext.Result:
    return tim_ext.finetune(
        data.encoder, data.images, data.labels, lam=1.0, alpha=1.0, marginal_weight=0.0, iterations=steps
    )


def check_loss(name: str, result: tim_ext.Result, data: Images) -> None:
    assert result.history is not None
    assert result.history.loss.isfinite().all(), "the loss is not finite"


STEPS, ALL_IMAGES = FINETUNE.iterations, SHAPE.samples
ENT_MIN = Comparison(
    "entropy minimisation, WRN-28-10",
    make_images,
    {
        # finetune also runs the network before the first step and after the last, as it does for 0 steps
        "0 steps": Candidate(lambda data: entropy_min_step(data, 0), x={"steps": 0, "images": IMAGES}),
        "1 step": Candidate(lambda data: entropy_min_step(data, 1), x={"steps": 1, "images": IMAGES}),
    },
    check_loss,
    threads=THREADS,
    seconds=5.0,
    note=f"a task has {ALL_IMAGES} images and {STEPS} steps",
    devices=("cpu", "cuda"),
)
COMPARISONS = [
    compare(SHAPE, "one task at a time", True),
    compare(BATCH, "100 tasks at a time", False),
    ENT_MIN,
]


@suite("paper", COMPARISONS)
def test_paper(run, comparison, candidate, device):
    run(comparison, candidate, device)
