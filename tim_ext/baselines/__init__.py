"""The methods TIM is compared with, each `(features, labels) -> Result` on one or many few-shot tasks.

They take what `tim_ext.adm` takes (a task, a batch, a list, or `index=` into a pool), refuse what it refuses
in the same words, and return the same `Result`, without history. docs/baselines.md has the equations, the
sources and what differs from them.

Inductive:    prototype (SimpleShot), protonet, finetune_linear (Baseline), finetune_cosine (Baseline++)
Transductive: entropy_min, bd_cspn, laplacian_shot, pt_map, alpha_tim, paddle, protolp, alpha_am
"""

from .alpha_am import alpha_am
from .bd_cspn import bd_cspn
from .finetuned_classifier import finetune_cosine, finetune_linear
from .information import alpha_tim, entropy_min
from .laplacian_shot import laplacian_shot
from .paddle import paddle
from .protolp import protolp
from .prototype import protonet, prototype
from .pt_map import pt_map

__all__ = [
    "alpha_am",
    "alpha_tim",
    "bd_cspn",
    "entropy_min",
    "finetune_cosine",
    "finetune_linear",
    "laplacian_shot",
    "paddle",
    "protolp",
    "protonet",
    "prototype",
    "pt_map",
]
