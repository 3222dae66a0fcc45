"""Several processes as one: who they are, sums over them, and batch-norm over the batch of all of them.

`torchrun` starts the processes; without it there is one. Process r of W takes part r of every batch. A loss
that is a sum over the samples then has the gradient of one process, up to rounding, if batch-norm sees the
whole batch: torch.nn.SyncBatchNorm does that on GPUs, `WholeBatchNorm` here on CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from tim_ext.distributed import processes, ranks

from .errors import UserError, one_line


@dataclass(frozen=True)
class World(processes.World):
    device: torch.device

    def sum(self, values: list[float]) -> list[float]:
        """Over all processes."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return cast(list[float], total.tolist())

    def gather_rows(self, rows: Tensor, counts: list[int]) -> list[Tensor]:
        """rows [counts[rank], d] of every process, on every process."""
        if self.size == 1:
            return [rows]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return [part[:count] for part, count in zip(gathered, counts, strict=True)]

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def first_enters(self, block: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """The first process is in the block; what it refuses there at the start, all refuse."""
        with ExitStack() as stack:
            said: list[str | None] = [None]
            if self.is_first:
                try:
                    stack.enter_context(block())
                except (UserError, OSError) as error:
                    said = [one_line(error)]
            if self.size > 1:
                dist.broadcast_object_list(said, device=self.device)
            if said[0] is not None:
                raise UserError(said[0])
            yield


@contextmanager
def start(device: str) -> Iterator[World]:
    """The processes of torchrun, or this one alone; device "auto", "cpu" or "cuda"."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: expected cpu, as torch finds no CUDA device, got cuda")
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    place = torch.device(device)
    if device == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(place)
    if size == 1:
        yield World(rank, size, place)
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=ranks.PATIENCE)
    try:
        yield World(rank, size, place)
    finally:
        dist.destroy_process_group()


# Batch-norm ---------------------------------------------------------------------------------------


class _Normalize(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps), mean and variance over the samples x [B, C, ..] of all processes.

    Each process has its own mean m_r, variance v_r and number n_r of values of a channel; with N = sum_r n_r

        mean = sum_r n_r m_r / N,    var = sum_r n_r (v_r + (m_r - mean)^2) / N

    and the gradient, with averages over all values of all processes,

        dL/dx = ( dL/dy - average(dL/dy) - y average(y dL/dy) ) / sqrt(var + eps)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        values = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
        axes = [axis for axis in range(x.dim()) if axis != 1]
        count = torch.tensor([x.numel() // x.shape[1]], dtype=torch.float64, device=x.device)
        local_var, local_mean = torch.var_mean(values, dim=axes, correction=0)
        mine = torch.cat([count, local_mean.double(), local_var.double()])
        all_ = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_, mine)
        n, m, v = torch.split(torch.stack(all_), [1, x.shape[1], x.shape[1]], dim=1)  # [W, 1], [W, C], [W, C]
        total = n.sum()
        mean = (n * m).sum(dim=0) / total
        var = (n * (v + (m - mean) ** 2)).sum(dim=0) / total

        shape = [1, -1] + [1] * (x.dim() - 2)
        scale = (var + eps).rsqrt().to(values.dtype)
        y = (values - mean.to(values.dtype).view(shape)) * scale.view(shape)
        ctx.save_for_backward(y, scale, total)
        ctx.axes, ctx.shape, ctx.dtype = axes, shape, x.dtype
        ctx.mark_non_differentiable(mean, var, total)
        return y, mean, var, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        y, scale, total = ctx.saved_tensors
        dy = gradients[0]
        sums = torch.stack([dy.sum(dim=ctx.axes), (dy * y).sum(dim=ctx.axes)]).double()
        dist.all_reduce(sums)
        first, second = (sums / total).to(dy.dtype)
        dx = (dy - first.view(ctx.shape) - y * second.view(ctx.shape)) * scale.view(ctx.shape)
        return dx.to(ctx.dtype), None


normalize: Any = _Normalize.apply  # untyped in some versions of torch


class WholeBatchNorm(nn.Module):
    """Batch-norm over the samples of all processes in training, with the state of the module it replaces."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.register_buffer("num_batches_tracked", norm.num_batches_tracked)
        self.eps, self.momentum = norm.eps, norm.momentum

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        y, mean, var, total = normalize(x, self.eps)
        if self.training and self.running_mean is not None:
            self._follow(mean, var * total / (total - 1))
        shape = [1, -1] + [1] * (x.dim() - 2)
        if self.weight is not None:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return cast(Tensor, y.to(x.dtype))

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(var.to(self.running_var.dtype), momentum)


def synchronize_batch_norm(network: nn.Module, world: World) -> nn.Module:
    """The same network, with batch-norm over the samples of all processes."""
    if world.size == 1:
        return network
    if world.device.type == "cuda":
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(network))  # type: ignore[no-untyped-call]
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                setattr(module, name, WholeBatchNorm(child))
    return network
