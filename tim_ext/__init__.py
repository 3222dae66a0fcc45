"""Transductive few-shot classification (TIM) from features, fast, in torch.

    result = tim_ext.adm(features, labels)        labels: class of a support sample, -1 query, -100 padding
    result.predictions, result.probs, result.weights

`tim_ext.robust` is the same for pools whose proportions nobody knows, `tim_ext.gd` the solver by gradient
descent, `tim_ext.finetune` trains an encoder along with it, and `tim_ext.TIMClassifier` is a scikit-learn
estimator. `tim_ext.distributed` solves one task too large for one process or for memory. `tim_ext.evaluate`
compares methods on many tasks; its parts are `tim_ext.load_features`, `tim_ext.tasks`, `tim_ext.transforms`
and `tim_ext.baselines`.
`tim_ext.reference` holds the solvers in plain torch; `torch.ops.tim_ext` the single steps.
"""

from typing import TYPE_CHECKING, Any

from . import baselines, distributed, reference, tasks, transforms
from .evaluation.compare import evaluate
from .evaluation.table import Evaluation
from .files.features import load_features
from .solver.finetuning import finetune
from .solver.result import History, Result
from .solver.solve import adm, gd, robust
from .version import __version__

if TYPE_CHECKING:
    from .estimator import TIMClassifier as TIMClassifier

__all__ = [
    "Evaluation",
    "History",
    "Result",
    "__version__",
    "adm",
    "baselines",
    "distributed",
    "evaluate",
    "finetune",
    "gd",
    "load_features",
    "reference",
    "robust",
    "tasks",
    "transforms",
]


def __getattr__(name: str) -> Any:
    if name == "TIMClassifier":  # needs scikit-learn, which nothing else does
        from .estimator import TIMClassifier

        return TIMClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "TIMClassifier"])
