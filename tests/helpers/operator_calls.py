"""A call of every operator, on three small tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import one_hot

from tim_ext import reference

from .make_tasks import make_batch

ops = torch.ops.tim_ext

FEATURES, LABELS, _ = make_batch(range(3), shots=(2, 1, 3), queries=14, d=11, noise=0.6, padding=2)
WEIGHTS = torch.randn(3, 3, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 3
TAU, LAM, ALPHA, BETA, M = 15.0, 0.1, 0.1, 1.0, 1.0


def steps(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """One iteration as the reference writes it, in float64, then rounded to dtype."""
    log_probs = torch.stack(
        [reference.log_distance_softmax(z, w, TAU) for z, w in zip(FEATURES, WEIGHTS, strict=True)]
    )
    assignments, new_weights = torch.zeros_like(log_probs), []
    for t, labels in enumerate(LABELS):
        support, query = labels >= 0, labels == -1
        assignments[t, support] = one_hot(labels[support], 3).double()
        assignments[t, query] = reference.q_update(log_probs[t, query], ALPHA, BETA, M)
        c = LAM / (BETA + ALPHA) * support.double() + int(support.sum()) / int(query.sum()) * query.double()
        new_weights.append(reference.w_update(FEATURES[t], WEIGHTS[t], log_probs[t].exp(), assignments[t], c))
    tensors = {
        "features": FEATURES,
        "weights": WEIGHTS,
        "probs": log_probs.exp(),
        "log_probs": log_probs,
        "assignments": assignments,
        "new_weights": torch.stack(new_weights),
    }
    return {name: tensor.to(dtype) for name, tensor in tensors.items()} | {"labels": LABELS}


FIRST = WEIGHTS.view(9, 11)  # of the three tasks, one after the other
PRIOR = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).repeat(3)
SAMPLE_WEIGHT = torch.linspace(0, 2, LABELS.numel(), dtype=torch.float64)
SAMPLE_LOG_PRIOR = -(torch.arange(LABELS.numel() * 3, dtype=torch.float64) % 3)
SAMPLES = {"sample_weight": SAMPLE_WEIGHT, "sample_log_prior": SAMPLE_LOG_PRIOR, "sample_prior_weight": 0.3}
ADM = {"beta": BETA, "smoothing": 0.0, "relaxation": 1.0, "form": "auto", "roots": False}
GD = {"entropy_order": 1.0, "lr": 1e-3, "adam_beta1": 0.9, "adam_beta2": 0.999, "eps": 1e-8}
TERMS = {"lam": LAM, "alpha": ALPHA, "temperature": TAU, "marginal_weight": M}


def solve_arguments(dtype=torch.float32, own=ADM, **changed):
    """adm_solve, or with own=GD gd_solve, on the three tasks above."""
    tensors = {
        "features": FEATURES.reshape(-1, 11).to(dtype),
        "rows": None,
        "labels": LABELS.reshape(-1),
        "offsets": torch.arange(0, LABELS.numel() + 1, LABELS.shape[1]),
        "classes": torch.full((3,), 3),
    }
    options = {
        **TERMS,
        **own,
        "iterations": 7,
        "tol": 0.0,
        "normalize": True,
        "probs_size": LABELS.numel() * 3,
        "weights_rows": 9,
        "proportions_size": 9,
        "history": True,
        "class_prior": None,
        "weights": None,
        "sample_weight": None,
        "sample_log_prior": None,
        "sample_prior_weight": 0.0,
    }
    tensors |= {name: value for name, value in changed.items() if name in tensors}
    options |= {name: value for name, value in changed.items() if name in options}
    return tuple(tensors.values()), options


def overload(name: str) -> Any:
    """`operator` or `operator.overload`."""
    operator, _, kind = name.partition(".")
    return getattr(getattr(ops, operator), kind or "default")


def samples() -> dict[str, list[tuple[tuple, dict]]]:
    s, rows = steps(torch.float32), torch.arange(LABELS.numel()).flip(0)
    step = [s[name] for name in ("features", "weights", "probs", "assignments")]
    return {
        "cpu_capability": [((), {})],
        "cpu_peak": [((1e-3, False), {}), ((1e-3, True), {})],
        "adm_solve": [
            solve_arguments(),
            solve_arguments(torch.float64, rows=rows, form="primal", history=False),
            solve_arguments(torch.float16, probs_size=0, weights_rows=0, iterations=0),
            solve_arguments(class_prior=PRIOR),
            solve_arguments(torch.float64, weights=FIRST),
            solve_arguments(torch.float64, **SAMPLES),
            solve_arguments(sample_weight=SAMPLE_WEIGHT.float(), form="primal"),
            solve_arguments(marginal_weight=None, smoothing=None, relaxation=0.5, iterations=30, roots=True),
        ],
        "gd_solve": [
            solve_arguments(own=GD),
            solve_arguments(torch.float64, GD, rows=rows, entropy_order=2.0, history=False),
            solve_arguments(torch.bfloat16, GD, probs_size=0, weights_rows=0, iterations=0),
            solve_arguments(own=GD, class_prior=PRIOR),
            solve_arguments(torch.bfloat16, GD, weights=FIRST.float()),
            solve_arguments(torch.float64, GD, **SAMPLES),
        ],
        "gd_gradient": [
            ((FEATURES, WEIGHTS, LABELS), TERMS),
            ((s["features"], s["weights"], LABELS), TERMS | {"entropy_order": 2.0}),
            ((FEATURES, WEIGHTS, LABELS), TERMS | {"class_prior": PRIOR.view(3, 3)}),
        ],
        "distance_softmax": [((FEATURES, WEIGHTS, TAU), {}), ((s["features"], s["weights"], TAU), {})],
        "q_update": [((s["log_probs"], LABELS, ALPHA, BETA, M), {})],
        "w_update": [((*step, LABELS, LAM, ALPHA, BETA), {})],
        "distance_softmax.out": [
            ((*step[:2], TAU), {"probs": torch.empty(3, 22, 3), "log_probs": torch.empty(3, 22, 3)})
        ],
        "q_update.out": [((s["log_probs"], LABELS, ALPHA, BETA, M), {"out": torch.empty(3, 22, 3)})],
        "w_update.out": [((*step, LABELS, LAM, ALPHA, BETA), {"out": torch.empty(3, 3, 11)})],
        "gd_gradient.out": [
            (
                (FEATURES.float(), WEIGHTS.float(), LABELS),
                TERMS
                | {
                    "loss": torch.empty(3),
                    "terms": torch.empty(3, 3),
                    "gradient": torch.empty(3, 3, 11),
                },
            )
        ],
        **baseline_samples(),
        **shard_samples(),
    }


def baseline_samples() -> dict[str, list[tuple[tuple, dict]]]:
    """Three tasks, in every type."""
    found: dict[str, list[tuple[tuple, dict]]] = {}
    rows = torch.arange(LABELS.numel()).flip(0).view(LABELS.shape)
    for dtype in (torch.float64, torch.float32, torch.float16):
        features = FEATURES.flatten(0, 1).to(dtype)
        mean = features[0].to(torch.float64 if dtype == torch.float64 else torch.float32)
        task = features, rows, LABELS, "center+l2", mean
        for name, settings in [
            ("gather_tasks", ()),
            ("bd_cspn", (3, 10.0, 10.0)),
            ("laplacian_shot", (3, True, 10.0, 2, 0.7, 20, 1e-6)),
            ("pt_map", (3, 10.0, 0.2, 20, 1e-6)),
        ]:
            found.setdefault(name, []).append(((*task, *settings), {}))
    return found


def shard_samples() -> dict[str, list[tuple[tuple, dict]]]:
    """A part of a task, in every type."""
    found: dict[str, list[tuple[tuple, dict]]] = {}
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        features, labels = FEATURES[0].to(dtype), LABELS[0]
        scale, _ = ops.shard_scale(features, labels, True)
        part = features, labels, scale
        weights, factor = WEIGHTS[0].to(scale), torch.ones(3).to(scale)
        memory = torch.zeros(256 * 3).to(scale)
        sums = {"support_weight": 0.3, "query_weight": 0.7}
        softmax = sums | {"temperature": TAU, "power": 1.1, "entropy_order": 1.0, "terms": True}
        for name, arguments, options in [
            ("shard_scale", (features, labels, True), {}),
            ("shard_softmax", (*part, weights, memory, memory.clone()), softmax),
            ("shard_softmax", (*part, weights, memory, None), softmax | {"power": 0.0, "terms": False}),
            ("shard_adm_sums", (*part, memory, factor), sums | {"power": 1.1, "exact": False}),
            ("shard_gd_sums", (*part, memory, factor), sums | {"alpha": 0.1, "entropy_order": 2.0}),
            ("shard_classify", (*part, weights), {"temperature": TAU, "probs": True}),
        ]:
            found.setdefault(name, []).append((arguments, options))
    return found
