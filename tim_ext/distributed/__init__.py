"""One task over many processes."""

from .ranks import LostRankError
from .solve import Labels, adm, classify, gd

__all__ = ["Labels", "LostRankError", "adm", "classify", "gd"]
