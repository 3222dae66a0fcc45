"""Transductive few-shot classification (TIM) from features, fast, in torch.

    result = tim_ext.adm(features, labels)        labels: class of a support sample, -1 query, -100 padding
    result.predictions, result.probs, result.weights

`tim_ext.gd` is the solver by gradient descent, `tim_ext.finetune` trains an encoder along with it.
`tim_ext.reference` holds the same in plain torch; `torch.ops.tim_ext` the single steps.
"""

from . import reference
from .finetune import finetune
from .result import History, Result
from .solvers import adm, gd

__version__ = "0.1.0"

__all__ = ["History", "Result", "__version__", "adm", "finetune", "gd", "reference"]
