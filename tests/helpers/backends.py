"""Where the parity tests run the operators: on the CPU, on a GPU, and on an emulated GPU (cuda_emulation).

Every backend has the solvers `adm`, `robust` and `gd` and the operators `distance_softmax`, `q_update`,
`w_update` and `gd_gradient`, with the arguments that `tim_ext` and `torch.ops.tim_ext` have, on tensors of
the CPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cuda_emulation import build
from torch import Tensor

import tim_ext
from tim_ext.selftest.cases import Call
from tim_ext.selftest.device import Gpu
from tim_ext.solver import native
from tim_ext.solver.batch import Batch
from tim_ext.solver.roots import with_roots

STEPS = ("distance_softmax", "q_update", "w_update", "gd_gradient")


class Backend:
    """The CPU."""

    name = "cpu"

    def adm(self, *arguments: Any, **options: Any) -> tim_ext.Result:
        return self.call(tim_ext.adm, arguments, options)

    def robust(self, *arguments: Any, **options: Any) -> tim_ext.Result:
        return self.call(tim_ext.robust, arguments, options)

    def gd(self, *arguments: Any, **options: Any) -> tim_ext.Result:
        return self.call(tim_ext.gd, arguments, options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in STEPS:
            raise AttributeError(name)
        return lambda *arguments, **options: self.call(
            lambda *a, **o: getattr(native.torch_ops.tim_ext, name)(*a, **o), arguments, options
        )

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return function(*arguments, **options)

    def schedules(self, count: int) -> Sequence[Backend]:
        """The same backend with threads in another order, where that can be chosen."""
        return [self]


class Cuda(Backend):
    name = "cuda"

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return Gpu(torch.cuda.current_device()).run(Call(function, arguments, options))


@dataclass(frozen=True)
class Emulated(Backend):
    """variant: see cuda_emulation/build.py; seed: of the schedule; the others: properties of the device."""

    variant: str = os.environ.get("TIM_EXT_EMULATION_BUILD", "plain")
    seed: int = 0
    processors: int = 4
    shared_per_block: int = 101376  # of an RTX 3090 or 4090
    resident: int = 0  # blocks of a team that fit, if part of the device is set aside; 0: a processor each
    slice: float = 0  # multiply-adds of a slice of a long batch; 0: one launch

    name = "cuda-emulated"

    @property
    def module(self) -> Any:
        return build.tim_ext_kernels(self.variant)

    def schedules(self, count: int) -> Sequence[Backend]:
        return [replace(self, seed=self.seed + 1000 * schedule) for schedule in range(count)]

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        names = ("adm_solve", "gd_solve", *STEPS)
        operators = SimpleNamespace(**{name: getattr(self, f"_{name}") for name in names})
        with patch.object(native, "torch_ops", SimpleNamespace(tim_ext=operators)):
            return function(*arguments, **options)

    # The operators, with the schemas of csrc/ops.cpp.

    @property
    def _how(self) -> dict[str, float]:
        names = ("seed", "processors", "shared_per_block", "resident", "slice")
        return {name: getattr(self, name) for name in names}

    def _adm_solve(self, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        return self._solve(self.module.adm_solve, *arguments, **options)

    def _gd_solve(self, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
        return self._solve(self.module.gd_solve, *arguments, **options)

    def _solve(
        self,
        solve: Callable[..., Any],
        features: Tensor,
        rows: Tensor | None,
        labels: Tensor,
        offsets: Tensor,
        classes: Tensor,
        *,
        class_prior: Tensor | None = None,
        weights: Tensor | None = None,
        sample_weight: Tensor | None = None,
        sample_log_prior: Tensor | None = None,
        sample_prior_weight: float = 0.0,
        roots: bool = False,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        if roots:  # on CUDA they are taken beforehand
            batch = Batch(features, rows, labels, offsets, classes, (), (), None)
            features, rows = with_roots(batch)[:2]
        results = solve(
            *array_and_name(features),
            None if rows is None else rows.numpy(),
            labels.numpy(),
            offsets.numpy(),
            classes.numpy(),
            class_prior=None if class_prior is None else class_prior.numpy(),
            weights=None if weights is None else weights.numpy(),
            sample_weight=None if sample_weight is None else sample_weight.numpy(),
            sample_log_prior=None if sample_log_prior is None else sample_log_prior.numpy(),
            sample_prior_weight=sample_prior_weight,
            emulation=self._how,
            **options,
        )
        return tuple(map(torch.from_numpy, results))

    def _distance_softmax(
        self, features: Tensor, weights: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        results = self.module.distance_softmax(
            features.numpy(), weights.numpy(), temperature=temperature, emulation=self._how
        )
        probs, log_probs = map(torch.from_numpy, results)
        return probs, log_probs

    def _q_update(
        self, log_probs: Tensor, labels: Tensor, alpha: float, beta: float, marginal_weight: float
    ) -> Tensor:
        result = self.module.q_update(
            log_probs.numpy(),
            labels.numpy(),
            alpha=alpha,
            beta=beta,
            marginal_weight=marginal_weight,
            emulation=self._how,
        )
        return torch.from_numpy(result)

    def _w_update(
        self,
        features: Tensor,
        weights: Tensor,
        probs: Tensor,
        assignments: Tensor,
        labels: Tensor,
        lam: float,
        alpha: float,
        beta: float,
    ) -> Tensor:
        arrays = [tensor.numpy() for tensor in (features, weights, probs, assignments, labels)]
        result = self.module.w_update(*arrays, lam=lam, alpha=alpha, beta=beta, emulation=self._how)
        return torch.from_numpy(result)

    def _gd_gradient(
        self,
        features: Tensor,
        weights: Tensor,
        labels: Tensor,
        *,
        lam: float,
        alpha: float,
        temperature: float,
        marginal_weight: float,
        entropy_order: float = 1.0,
        class_prior: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        loss, terms, gradient, status = self.module.gd_gradient(
            *array_and_name(features),
            weights.numpy(),
            labels.numpy(),
            lam=lam,
            alpha=alpha,
            temperature=temperature,
            marginal_weight=marginal_weight,
            entropy_order=entropy_order,
            class_prior=None if class_prior is None else class_prior.numpy(),
            emulation=self._how,
        )
        for task, code in enumerate(status[:, 0]):
            if code != 0:
                raise RuntimeError(f"gd_gradient: task {task} is refused")
        return torch.from_numpy(loss), torch.from_numpy(terms), torch.from_numpy(gradient)


def array_and_name(tensor: Tensor) -> tuple[Any, str]:
    """numpy has no bfloat16, so half types travel as their bits."""
    name = str(tensor.dtype).removeprefix("torch.")
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return (tensor.view(torch.uint16) if half else tensor).numpy(), name


def why_no_emulation() -> str | None:
    if shutil.which(build.COMPILER.split()[0]) is None:
        return f"needs {build.COMPILER}"
    if importlib.util.find_spec("pybind11") is None:
        return "needs pybind11"
    return None


needs_emulation = pytest.mark.skipif(why_no_emulation() is not None, reason=str(why_no_emulation()))

BACKENDS = [
    pytest.param(Backend(), id="cpu"),
    pytest.param(Cuda(), id="cuda", marks=pytest.mark.gpu),
    pytest.param(Emulated(), id="cuda-emulated", marks=needs_emulation),
]
backends = pytest.mark.parametrize("backend", BACKENDS)
