"""The operators: against the reference's equations, under opcheck and torch.compile, and on bad shapes."""

from __future__ import annotations

import pytest
import torch
from helpers.operator_calls import (
    ADM,
    ALPHA,
    BETA,
    FEATURES,
    FIRST,
    GD,
    LABELS,
    LAM,
    PRIOR,
    SAMPLE_LOG_PRIOR,
    SAMPLE_WEIGHT,
    TAU,
    TERMS,
    WEIGHTS,
    M,
    overload,
    samples,
    solve_arguments,
    steps,
)

import tim_ext
from tim_ext import reference

ops = torch.ops.tim_ext

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def assert_step(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.dtype == expected.dtype
    atol = 1e-12 if expected.dtype == torch.float64 else 2e-5
    torch.testing.assert_close(result, expected, rtol=atol, atol=atol)


@dtypes
def test_distance_softmax(dtype):
    s = steps(dtype)
    probs, log_probs = ops.distance_softmax(s["features"], s["weights"], TAU)
    assert_step(probs, s["probs"])
    assert_step(log_probs, s["log_probs"])


@dtypes
def test_log_probs_do_not_underflow(dtype):
    s = steps(dtype)
    probs, log_probs = ops.distance_softmax(s["features"], s["weights"], 1e4)
    exact = reference.log_distance_softmax(FEATURES[0], WEIGHTS[0], 1e4)
    assert exact.min() < -1000  # far below the smallest number of either type
    assert (probs < 1e-30).any()
    torch.testing.assert_close(log_probs[0], exact.to(dtype), rtol=1e-4, atol=1e-2)


@dtypes
def test_q_update(dtype):
    s = steps(dtype)
    assignments = ops.q_update(s["log_probs"], LABELS, ALPHA, BETA, M)
    assert_step(assignments, s["assignments"])
    assert (assignments[LABELS == -100] == 0).all()


@dtypes
@pytest.mark.parametrize(("alpha", "beta", "m"), [(0.0, 1.0, 1.0), (0.1, 1.0, 0.0), (0.5, 2.0, 0.3)])
def test_q_update_options(dtype, alpha, beta, m):
    s = steps(dtype)
    query = LABELS[1] == -1
    expected = reference.q_update(steps(torch.float64)["log_probs"][1][query], alpha, beta, m)
    result = ops.q_update(s["log_probs"], LABELS, alpha, beta, m)
    assert_step(result[1][query], expected.to(dtype))


@dtypes
def test_w_update(dtype):
    s = steps(dtype)
    arguments = [s[name] for name in ("features", "weights", "probs", "assignments")]
    assert_step(ops.w_update(*arguments, LABELS, LAM, ALPHA, BETA), s["new_weights"])


@dtypes
def test_w_update_without_query(dtype):
    s = steps(dtype)
    labels = torch.where(LABELS == -1, -100, LABELS)
    arguments = [s[name] for name in ("features", "weights", "probs", "assignments")]
    result = ops.w_update(*arguments, labels, LAM, ALPHA, BETA)
    exact = steps(torch.float64)
    for t in range(3):
        c = LAM / (BETA + ALPHA) * (labels[t] >= 0).double()
        a = exact["assignments"][t]
        expected = reference.w_update(FEATURES[t], WEIGHTS[t], exact["probs"][t], a, c)
        assert_step(result[t], expected.to(dtype))


def new_results(name: str, arguments: tuple) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """Tensors for the results of an `out` overload, and what the operator itself returns."""
    options = TERMS if name == "gd_gradient" else {}
    expected = getattr(ops, name)(*arguments, **options)
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    names = {"distance_softmax": ("probs", "log_probs"), "gd_gradient": ("loss", "terms", "gradient")}
    given = zip(names.get(name, ("out",)), map(torch.full_like, expected, [torch.nan] * 3), strict=False)
    return options | dict(given), expected


@dtypes
@pytest.mark.parametrize("name", ["distance_softmax", "q_update", "w_update", "gd_gradient"])
def test_out_is_what_the_operator_returns(name, dtype):
    s = steps(dtype)
    step = [s[key] for key in ("features", "weights", "probs", "assignments")]
    arguments = {
        "distance_softmax": (*step[:2], TAU),
        "q_update": (s["log_probs"], LABELS, ALPHA, BETA, M),
        "w_update": (*step, LABELS, LAM, ALPHA, BETA),
        "gd_gradient": (*step[:2], LABELS),
    }[name]
    options, expected = new_results(name, arguments)
    assert overload(f"{name}.out")(*arguments, **options) is None
    found = [value for value in options.values() if isinstance(value, torch.Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    shared = {key: arguments[0] if torch.is_tensor(value) else value for key, value in options.items()}
    with pytest.raises(RuntimeError, match=rf"{name}: \w+ must (not share memory|have shape)"):
        overload(f"{name}.out")(*arguments, **shared)


def test_w_update_replaces_its_weights():
    s = steps(torch.float32)
    arguments = [s[name] for name in ("features", "weights", "probs", "assignments")]
    expected = ops.w_update(*arguments, LABELS, LAM, ALPHA, BETA)
    ops.w_update.out(*arguments, LABELS, LAM, ALPHA, BETA, out=s["weights"])
    assert torch.equal(s["weights"], expected)
    with pytest.raises(RuntimeError, match="out must not share memory with weights"):
        ops.w_update.out(
            *(x[:2] for x in arguments),
            LABELS[:2],
            LAM,
            ALPHA,
            BETA,
            out=s["weights"].view(-1)[33:].view(2, 3, 11),
        )


@dtypes
def test_no_task_and_no_sample(dtype):
    for T, N in [(0, 4), (2, 0)]:
        features, weights = torch.zeros(T, N, 5, dtype=dtype), torch.zeros(T, 3, 5, dtype=dtype)
        labels = torch.zeros(T, N, dtype=torch.int64)
        probs, log_probs = ops.distance_softmax(features, weights, TAU)
        assert probs.shape == log_probs.shape == (T, N, 3)
        assert ops.q_update(log_probs, labels, ALPHA, BETA, M).shape == (T, N, 3)
    none = FEATURES[:0].to(dtype), WEIGHTS[:0].to(dtype), LABELS[:0]
    loss, terms, gradient = ops.gd_gradient(*none, **TERMS)
    assert (loss.shape, terms.shape, gradient.shape) == ((0,), (0, 3), (0, 3, 11))


def user_loop(features, labels, weights, iterations: int):
    for _ in range(iterations):
        probs, log_probs = ops.distance_softmax(features, weights, TAU)
        assignments = ops.q_update(log_probs, labels, ALPHA, BETA, M)
        weights = ops.w_update(features, weights, probs, assignments, labels, LAM, ALPHA, BETA)
    return ops.distance_softmax(features, weights, TAU)[0], weights


@pytest.mark.parametrize("mode", ["plain", "eager", "aot_eager"])
def test_a_loop_of_ones_own_equals_adm(mode):
    loop = user_loop if mode == "plain" else torch.compile(user_loop, fullgraph=True, backend=mode)
    start = tim_ext.adm(FEATURES, LABELS, iterations=0, normalize=False).weights
    probs, weights = loop(FEATURES, LABELS, start, 6)
    expected = tim_ext.adm(FEATURES, LABELS, iterations=6, normalize=False)
    used = LABELS != -100
    torch.testing.assert_close(probs[used], expected.probs[used], rtol=0, atol=1e-10)
    torch.testing.assert_close(weights, expected.weights, rtol=0, atol=1e-10)


def test_every_operator_has_a_sample():
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("tim_ext::")}
    assert names == {f"tim_ext::{name}" for name in samples()}


@pytest.mark.parametrize("name", samples())
def test_opcheck(name):
    utils = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if not name.startswith("cpu_"):  # those return no tensor, so there is nothing to trace
        utils.append("test_aot_dispatch_dynamic")
    for arguments, options in samples()[name]:
        torch.library.opcheck(overload(name), arguments, options, test_utils=utils)


def test_cpu_capability():
    assert ops.cpu_capability() in ("avx512", "avx2", "baseline", "neon")


@pytest.mark.parametrize("double_precision", [False, True])
def test_cpu_peak(double_precision):
    assert ops.cpu_peak(0.01, double_precision) > 1e6  # multiply-adds per second


# Bad calls: refused with a sentence, never a crash ----------------------------------------------------

F, W, L = FEATURES, WEIGHTS, LABELS
P = torch.full((3, 22, 3), 1 / 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("distance_softmax", (F[0], W, TAU), "features"),
        ("distance_softmax", (F, W[0], TAU), "weights"),
        ("distance_softmax", (F, W[:2], TAU), "weights"),
        ("distance_softmax", (F, W[..., :5], TAU), "weights"),
        ("distance_softmax", (F, W.float(), TAU), "weights"),
        ("distance_softmax", (F.half(), W.half(), TAU), "features"),
        ("distance_softmax", (F.long(), W.long(), TAU), "features"),
        ("q_update", (P[0], L, ALPHA, BETA, M), "log_probs"),
        ("q_update", (P, L[0], ALPHA, BETA, M), "labels"),
        ("q_update", (P, L[:, :5], ALPHA, BETA, M), "labels"),
        ("q_update", (P, L.int(), ALPHA, BETA, M), "labels"),
        ("q_update", (P, L.double(), ALPHA, BETA, M), "labels"),
        ("w_update", (F[0], W, P, P, L, LAM, ALPHA, BETA), "features"),
        ("w_update", (F, W[:, :2], P, P, L, LAM, ALPHA, BETA), "probs|weights"),
        ("w_update", (F, W, P[:2], P, L, LAM, ALPHA, BETA), "probs"),
        ("w_update", (F, W, P, P[:, :9], L, LAM, ALPHA, BETA), "assignments"),
        ("w_update", (F, W, P, P.float(), L, LAM, ALPHA, BETA), "assignments"),
        ("w_update", (F, W, P, P, L[:, :9], LAM, ALPHA, BETA), "labels"),
        ("w_update", (F, W, P, P, L.int(), LAM, ALPHA, BETA), "labels"),
    ],
)
def test_steps_refuse_bad_arguments(name, arguments, word):
    with pytest.raises(RuntimeError, match=word):
        getattr(ops, name)(*arguments)


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((F[0], W, L), {}, "features"),
        ((F.half(), W.half(), L), {}, "features"),
        ((F, W[0], L), {}, "weights"),
        ((F, W[:2], L), {}, "weights"),
        ((F, W[..., :5], L), {}, "weights"),
        ((F, W[:, :0], L), {}, "weights"),
        ((F, W.float(), L), {}, "weights"),
        ((F, W, L[0]), {}, "labels"),
        ((F, W, L[:, :5]), {}, "labels"),
        ((F, W, L.int()), {}, "labels"),
        ((F, W, L), {"class_prior": PRIOR}, "class_prior"),
        ((F, W, L), {"class_prior": PRIOR.view(3, 3).float()}, "class_prior"),
        ((F, W[:, :2].contiguous(), L), {}, "task 0 is refused.*labels must be below 2"),
        ((F, W, L.clamp(max=1)), {}, "task 0 is refused: every class needs a support sample"),
        ((torch.full_like(F, torch.nan), W, L), {}, "task 0 is refused.*features finite"),
    ],
)
def test_gd_gradient_refuses_bad_arguments(arguments, options, word):
    with pytest.raises(RuntimeError, match=word):
        ops.gd_gradient(*arguments, **TERMS | options)


@pytest.mark.parametrize("own", [ADM, GD], ids=["adm_solve", "gd_solve"])
@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"features": FEATURES}, "features"),
        ({"features": FEATURES.reshape(-1, 11).long()}, "features"),
        ({"labels": LABELS}, "labels"),
        ({"labels": LABELS.reshape(-1).int()}, "labels"),
        ({"labels": LABELS.reshape(-1)[:-1]}, "labels|features|offsets"),
        ({"rows": torch.arange(5)}, "rows"),
        ({"rows": torch.arange(66).int()}, "rows"),
        ({"offsets": torch.tensor([0, 22, 44])}, "offsets"),
        ({"offsets": torch.tensor([0, 22, 44, 67])}, "offsets"),
        ({"offsets": torch.tensor([0, 44, 22, 66])}, "offsets"),
        ({"offsets": torch.tensor([-1, 22, 44, 66])}, "offsets"),
        ({"offsets": torch.tensor([0, 22, 44, 66]).int()}, "offsets"),
        ({"classes": torch.tensor([3, 3])}, "classes|offsets"),
        ({"classes": torch.tensor([3, 0, 3])}, "classes"),
        ({"classes": torch.tensor([3, -2, 3])}, "classes"),
        ({"classes": torch.tensor([3, 3, 3]).int()}, "classes"),
        ({"probs_size": 5}, "probs_size"),
        ({"weights_rows": 5}, "weights_rows"),
        ({"iterations": -1}, "iterations"),
        ({"class_prior": PRIOR[:6]}, "class_prior"),
        ({"class_prior": PRIOR.float()}, "class_prior"),
        ({"class_prior": PRIOR - 0.2}, "class_prior must be > 0"),
        ({"class_prior": PRIOR * torch.nan}, "class_prior must be > 0"),
        ({"weights": FIRST}, "weights"),  # float64 with features of float32
        ({"weights": FIRST[:8].float()}, "weights"),
        ({"weights": FIRST[:, 1:].float()}, "weights"),
        ({"sample_weight": SAMPLE_WEIGHT}, "sample_weight"),  # float64 with features of float32
        ({"sample_weight": SAMPLE_WEIGHT[1:].float()}, "sample_weight"),
        ({"sample_weight": SAMPLE_WEIGHT.float().view(3, -1)}, "sample_weight"),
        ({"sample_log_prior": SAMPLE_LOG_PRIOR, "sample_prior_weight": 0.3}, "sample_log_prior"),
        ({"sample_log_prior": SAMPLE_LOG_PRIOR[3:].float(), "sample_prior_weight": 0.3}, "sample_log_prior"),
        ({"sample_log_prior": SAMPLE_LOG_PRIOR.float()}, "sample_prior_weight must be > 0"),
        ({"sample_log_prior": SAMPLE_LOG_PRIOR.float(), "sample_prior_weight": torch.nan}, "must be > 0"),
    ],
    ids=str,
)
def test_solvers_refuse_bad_arguments(own, changed, word):
    arguments, options = solve_arguments(own=own, **changed)
    with pytest.raises(RuntimeError, match=word):
        (ops.adm_solve if own is ADM else ops.gd_solve)(*arguments, **options)


@pytest.mark.parametrize("changed", [{"form": "fast"}, {"form": "dual", "weights": FIRST.float()}], ids=str)
def test_adm_solve_refuses_a_form(changed):
    arguments, options = solve_arguments(**changed)
    with pytest.raises(RuntimeError, match="form"):
        ops.adm_solve(*arguments, **options)


@pytest.mark.parametrize("own", [ADM, GD], ids=["adm_solve", "gd_solve"])
def test_solvers_report_refused_tasks(own):
    features, labels = FEATURES.reshape(-1, 11).clone(), LABELS.clone()
    sample = int((labels[1] == -1).nonzero()[0])
    features[22 + sample, 4] = torch.nan
    labels[2, 3] = 8
    arguments, options = solve_arguments(own=own, features=features, labels=labels.reshape(-1))
    status = (ops.adm_solve if own is ADM else ops.gd_solve)(*arguments, **options)[-1]
    assert status[0].tolist() == [0, 0, 0]
    assert status[1, :2].tolist() == [1, sample]
    assert status[2].tolist() == [2, 3, 8]
