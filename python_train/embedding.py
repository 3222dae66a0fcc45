"""Features of many images, shared out over the processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from tim_ext.images.networks import feature_size, features_of

from .distributed import World
from .loading import Batch, Images, Ints, load
from .precision import autocast


def embed(
    encoder: nn.Module,
    images: Images,
    rows: Ints,
    world: World,
    *,
    batch_size: int,
    workers: int,
    amp: str,
    progress: Callable[[int], object] = lambda count: None,
) -> Tensor:
    """[len(rows), dim] in float32, on the CPU of the first process; of no length on the others.

    Processes take whole batches in turn, so features do not depend on their number: a batch is the same.
    `progress` is told the number of images done. The encoder is left in the mode, training or not, it was in.
    """
    batches = [Batch(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
    mine = load(images, iter(batches[world.rank :: world.size]), workers, world.device)
    training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode():
            parts = list(_rounds(encoder, mine, batches, world, amp, progress))
    finally:
        encoder.train(training)
    return torch.cat(parts) if parts else torch.empty(0, feature_size(encoder))


def _rounds(
    encoder: nn.Module,
    mine: Iterator[tuple[Tensor, Tensor]],
    batches: list[Batch],
    world: World,
    amp: str,
    progress: Callable[[int], object],
) -> Iterator[Tensor]:
    """In every round each process does one batch; the first process gets them all, in order."""
    for start in range(0, len(batches), world.size):
        counts = [len(batch.rows) for batch in batches[start : start + world.size]]
        counts += [0] * (world.size - len(counts))
        if counts[world.rank]:
            pixels, _ = next(mine)
            with autocast(world.device, amp):
                features = features_of(encoder, pixels)
        else:
            features = torch.empty(0, feature_size(encoder), device=world.device)
        for part in world.gather_rows(features, counts):
            if world.is_first:
                yield part.cpu()
        progress(sum(counts))
