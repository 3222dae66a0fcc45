"""One task over many processes, or too large for memory. A call of `adm`, `robust` or `gd` passes through

    solve.py        what each rank passes, checked on all ranks together
    iterations.py   the order of an iteration, and the step that all ranks make alike
    smoothing.py    before the first iteration, if asked for: neighbours among the samples of all ranks
    shard.py        the samples of one rank: half an iteration of TIM on them at a time
    ranks.py        the process group: sums over all ranks, and one error for all of them

processes.py starts such processes on this machine; labelling.py labels a pool with them, file to file.
"""

from .ranks import LostRankError
from .solve import Labels, adm, classify, gd, robust

__all__ = ["Labels", "LostRankError", "adm", "classify", "gd", "robust"]
