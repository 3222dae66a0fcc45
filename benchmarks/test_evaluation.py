"""From a pool of features to an accuracy: tim_ext.evaluate beside easyfsl and scikit-learn, which take one
task after the other. All see the same tasks; where the algorithms coincide, so must the accuracies of every
task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import tim_ext
from tim_ext.tasks import balanced

from . import competitors
from .comparison import Candidate, Comparison
from .conftest import suite

try:
    from easyfsl import methods as easyfsl
except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision for another torch
    pytest.skip(f"easyfsl does not import ({error}): pip install 'tim_ext[bench]'", allow_module_level=True)

CLASSES, PER_CLASS, DIM, WAYS, SHOTS = 20, 100, 640, 5, 5
TASKS, FEW = 200, 10  # for tim_ext, which takes many at once; for the others, one by one


@dataclass(frozen=True)
class Pool:
    features: Tensor  # [M, d]  positive, as after a ReLU
    labels: Tensor  # [M]
    expected: dict[str, Tensor]  # accuracies [T] of each method of tim_ext, as they are asked for

    def accuracies(self, method: str, hyper: dict[str, Any]) -> Tensor:
        """[T], percent, of tim_ext."""
        result = tim_ext.evaluate(
            self.features, self.labels, methods=[method], shots=SHOTS, tasks=TASKS, hyper={method: hyper}
        )
        (setting,) = result.accuracies.values()
        return setting[method]


def make(device: torch.device) -> Pool:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    centres = 0.25 * torch.randn(CLASSES, DIM, generator=generator)
    features = (centres[labels] + torch.randn(len(labels), DIM, generator=generator)).relu()
    return Pool(features.to(device), labels.to(device), {})


def one_by_one(pool: Pool, predict: Callable[..., Tensor]) -> Tensor:
    """Accuracies [FEW], percent: the first of the same tasks, drawn, gathered and solved task by task."""
    tasks = balanced(pool.labels, ways=WAYS, shots=SHOTS)[:FEW]
    support = WAYS * SHOTS
    order = (tasks.labels == -1).int().argsort(dim=1, stable=True)  # support samples first
    index, labels, truth = (t.gather(1, order) for t in (tasks.index, tasks.labels, tasks.truth))
    predictions = predict(pool.features[index], labels, support)
    return 100 * (predictions == truth[:, support:]).double().mean(dim=1)


def of_easyfsl(make_classifier: Callable[[], Any]) -> Callable[[Pool], Tensor]:
    def predict(features: Tensor, labels: Tensor, support: int) -> Tensor:
        return competitors.easyfsl_predictions(make_classifier, features, labels, support)

    return lambda pool: one_by_one(pool, predict)


def compare(
    name: str,
    method: str,
    hyper: dict[str, Any],
    rivals: dict[str, Callable[[Pool], Tensor]],
    *,
    points: float | None = None,  # largest difference of the accuracy of a task; None: another problem
    note: str = "",
    reference: str = "",
) -> Comparison:
    def check(who: str, accuracies: Tensor, pool: Pool) -> None:
        if method not in pool.expected:
            pool.expected[method] = pool.accuracies(method, hyper)
        if points is None:
            floor = 100 / WAYS + 10
            assert accuracies.mean() > floor, f"accuracy {accuracies.mean():.1f} %, expected above {floor} %"
        else:
            apart = float((accuracies[:FEW] - pool.expected[method][:FEW]).abs().max())
            assert apart <= points, f"{apart:.1f} points from tim_ext in a task, expected {points} at most"

    ours = {f"tim_ext.evaluate, {method}": Candidate(lambda pool: pool.accuracies(method, hyper))}
    theirs = {who: Candidate(call, tasks=FEW) for who, call in rivals.items()}
    return Comparison(
        name,
        make,
        ours | theirs,
        check,
        reference=reference or next(iter(theirs)),
        tasks=TASKS,
        quick=True,
        seconds=2.0,
        note=note,
        headline=True,
    )


def normalized(classifier: Any, **options: Any) -> Callable[[Pool], Tensor]:
    return of_easyfsl(lambda: classifier(feature_normalization=2, **options))


def spreading(pool: Pool) -> Tensor:
    return one_by_one(pool, competitors.label_spreading_predictions)


def floor(pool: Pool) -> Tensor:
    def predict(features: Tensor, labels: Tensor, support: int) -> Tensor:
        return competitors.nearest_prototype(features, labels, support)[:, support:]

    return one_by_one(pool, predict)


QUERY = 100 / (15 * WAYS)  # what one query is worth, in points
COMPARISONS = [
    compare(
        "nearest prototype",
        "prototype",
        {"metric": "cosine"},
        {"easyfsl SimpleShot": normalized(easyfsl.SimpleShot)},
        points=QUERY,
    ),
    compare(
        "BD-CSPN", "bd-cspn", {"scale": 1.0}, {"easyfsl BDCSPN": normalized(easyfsl.BDCSPN)}, points=QUERY
    ),
    compare(
        "LaplacianShot",
        "laplacianshot",
        {"scale": 1.0},
        {"easyfsl LaplacianShot": normalized(easyfsl.LaplacianShot)},
        points=QUERY,
    ),
    compare(
        "PT-MAP",
        "pt-map",
        {"transform": "l2+power", "iterations": 10},
        {"easyfsl PTMAP": normalized(easyfsl.PTMAP)},
        points=4 * QUERY,
        note="easyfsl adds 1e-6 to the features and stops its plans early",
    ),
    compare(
        "TIM-GD, 50 steps",
        "tim-gd",
        {"iterations": 50, "lam": 1.0, "temperature": 10.0},
        {"easyfsl TIM": normalized(easyfsl.TIM)},
        note="easyfsl takes cosines where the paper has distances: another loss",
    ),
    compare(
        "TIM-ADM and what else labels without labels",
        "tim-adm",
        {},
        {"scikit-learn LabelSpreading": spreading, "nearest prototype, torch": floor},
        note="other problems: accuracy above chance is all that is checked",
        reference="scikit-learn LabelSpreading",
    ),
]


@suite("evaluation", COMPARISONS)
def test_evaluation(run, comparison, candidate, device):
    run(comparison, candidate, device)
