"""Operators called directly, with sizes that wrap, devices that differ and tensors that want a gradient."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from helpers.operator_calls import (
    ADM,
    FEATURES,
    FIRST,
    GD,
    LABELS,
    PRIOR,
    SAMPLES,
    TERMS,
    WEIGHTS,
    overload,
    samples,
    solve_arguments,
)

import tim_ext

ops = torch.ops.tim_ext
MOST = 2**63 - 1


def solve(own: dict[str, Any], **changed: Any) -> Any:
    arguments, options = solve_arguments(own=own, **changed)
    return (ops.adm_solve if own is ADM else ops.gd_solve)(*arguments, **options)


@pytest.mark.parametrize("own", [ADM, GD], ids=["adm_solve", "gd_solve"])
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (  # every difference wraps to something positive, and their sum to 66
            {
                "offsets": torch.tensor([0, 2**62, -(2**63), -(2**62), 66]),
                "classes": torch.ones(4).long(),
                "probs_size": 66,
                "weights_rows": 4,
            },
            "offsets must not decrease, got 4611686018427387904 before -9223372036854775808 (task 1)",
        ),
        (  # the sum of the classes wraps to 1
            {"classes": torch.tensor([2**62 + 1, 2**62 + 1, MOST]), "weights_rows": 1, "probs_size": 0},
            "classes must give sizes below 2^63, got 4611686018427387905 (task 0)",
        ),
        (  # 22 K wraps to 0
            {"classes": torch.tensor([2**63 // 11 * 11, 1, 1]), "weights_rows": 0, "probs_size": 0},
            "classes must give sizes below 2^63, got 9223372036854775800 (task 0)",
        ),
        (  # no N K wraps, as there is no sample, but the sum of the K does
            {
                "labels": LABELS.reshape(-1)[:0],
                "offsets": torch.zeros(4).long(),
                "classes": torch.tensor([MOST, 1, 1]),
                "weights_rows": 0,
                "probs_size": 0,
            },
            "classes must give sizes below 2^63, got 1 (task 1)",
        ),
        ({"iterations": MOST}, "iterations must be >= 0 and at most 2^53, got 9223372036854775807"),
        ({"offsets": torch.tensor([0, 22, 44, -1])}, "the number of labels (66), got 0 to -1"),
        ({"offsets": torch.tensor([MOST, 22, 44, 66])}, "got 9223372036854775807 to 66"),
    ],
)
def test_sizes_that_wrap_are_refused(own, changed, sentence):
    name = "adm_solve: " if own is ADM else "gd_solve: "
    with pytest.raises(RuntimeError) as raised:
        solve(own, **changed)
    assert name in str(raised.value)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("own", [ADM, GD], ids=["adm_solve", "gd_solve"])
@pytest.mark.parametrize("count", [67, 2**31 + 3, 2**33])
def test_more_classes_than_samples_cost_no_memory(own, count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    classes = torch.tensor([3, count, 3])
    status = solve(own, classes=classes, probs_size=0, weights_rows=0, proportions_size=0)[-1]
    assert status.tolist() == [[0, 0, 0], [3, -1, 3], [0, 0, 0]]  # class 3 is the first without support
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.parametrize(
    ("name", "arguments", "options", "word"),
    [
        ("distance_softmax", (torch.zeros(4, 2**31, 0), torch.zeros(4, 2**31, 0), 1.0), {}, "one column"),
        (
            "distance_softmax",
            (torch.zeros(2**40, 0, 1), torch.zeros(2**40, 2, 0)[..., :1], 1.0),
            {},
            "weights",
        ),
        ("gd_gradient", (torch.zeros(2**40, 0, 5), torch.zeros(2**40, 0, 5)), TERMS, "weights"),
        ("gd_gradient", (torch.zeros(3, 0, 11), WEIGHTS.float()), TERMS, "every task needs a support sample"),
    ],
)
def test_steps_on_shapes_without_data(name, arguments, options, word):
    labels = () if name == "distance_softmax" else (torch.zeros(arguments[0].shape[:2]).long(),)
    with pytest.raises(RuntimeError, match=word):
        getattr(ops, name)(*arguments[:2], *labels, *arguments[2:], **options)


def test_q_update_of_no_sample_looks_at_no_task():
    empty = torch.zeros(2**40, 0, 3)
    assert ops.q_update(empty, torch.zeros(2**40, 0).long(), 0.1, 1.0, 1.0).shape == empty.shape


# Devices ------------------------------------------------------------------------------------------

MIXED = [
    (name, position)
    for name, calls in samples().items()
    for position, value in enumerate(calls[0][0])
    if isinstance(value, torch.Tensor)
]


@pytest.mark.parametrize(("name", "position"), MIXED)
def test_a_meta_tensor_among_others_is_refused(name, position):
    arguments, options = samples()[name][0]
    names = [argument.name for argument in overload(name)._schema.arguments]
    mixed = [value.to("meta") if i == position else value for i, value in enumerate(arguments)]
    operator = name.partition(".")[0]
    with pytest.raises(RuntimeError, match=rf"^{operator}: \w+ must be on the device of {names[0]} \("):
        overload(name)(*mixed, **options)


@pytest.mark.parametrize(
    "name", [n for n in samples() if not n.startswith("cpu_") and not n.endswith(".out")]
)
def test_all_meta_tensors_give_shapes(name):
    for arguments, options in samples()[name]:
        meta = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in arguments]
        on_device = [name for name in ("weights", *SAMPLES) if isinstance(options.get(name), torch.Tensor)]
        moved = options | {name: options[name].to("meta") for name in on_device}
        shapes = getattr(ops, name)(*meta, **moved)
        expected = getattr(ops, name)(*arguments, **options)
        for shape, value in zip(
            *(((x,) if isinstance(x, torch.Tensor) else x) for x in (shapes, expected)), strict=True
        ):
            assert (shape.shape, shape.dtype, shape.device.type) == (value.shape, value.dtype, "meta")


@pytest.mark.parametrize("name", ["class_prior", "weights", "sample_weight", "sample_log_prior"])
def test_an_input_on_the_meta_device_is_refused(name):
    value = ({"class_prior": PRIOR, "weights": FIRST} | SAMPLES)[name]
    for own in (ADM, GD):
        with pytest.raises(RuntimeError, match=f"solve: {name} must be on the device of features"):
            solve(own, **{name: value.to("meta")})


# Gradients ----------------------------------------------------------------------------------------

FOLLOWED = [
    (name, position, compiled)
    for name, calls in samples().items()
    if name not in ("distance_softmax", "gd_gradient")
    for position, value in enumerate(calls[0][0])
    if isinstance(value, torch.Tensor) and value.is_floating_point()
    for compiled in (False, True)
]


@pytest.mark.parametrize(("name", "position", "compiled"), FOLLOWED)
@pytest.mark.parametrize("leaf", [True, False])
def test_a_gradient_that_does_not_exist_is_refused(name, position, compiled, leaf):
    arguments, options = samples()[name][0]
    followed = arguments[position].clone().requires_grad_()
    changed = [*arguments]
    changed[position] = followed if leaf else followed * 1
    operator = overload(name)
    call = torch.compile(operator, backend="aot_eager") if compiled else operator
    argument = operator._schema.arguments[position].name
    with pytest.raises(Exception, match=rf"{name.partition('.')[0]}: {argument} must not require a gradient"):
        call(*changed, **options)
    with torch.no_grad():
        operator(*changed, **options)
    with torch.inference_mode():
        operator(*changed, **options)


def test_a_prior_with_a_gradient_is_refused():
    prior = PRIOR.clone().requires_grad_()
    for own in (ADM, GD):
        with pytest.raises(RuntimeError, match="solve: class_prior must not require a gradient"):
            solve(own, class_prior=prior)
    features = FEATURES.clone().requires_grad_()
    for z in (FEATURES, features):
        with pytest.raises(RuntimeError, match="gd_gradient: class_prior must not require a gradient"):
            ops.gd_gradient(z, WEIGHTS, LABELS, class_prior=prior.view(3, 3), **TERMS)


def test_the_solvers_take_features_as_constants():
    features = FEATURES.clone().requires_grad_()
    for call in (tim_ext.adm, tim_ext.gd):
        result = call(features, LABELS, iterations=5)
        assert not result.probs.requires_grad
        assert torch.equal(result.probs, call(FEATURES, LABELS, iterations=5).probs)
