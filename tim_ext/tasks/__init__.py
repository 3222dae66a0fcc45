"""Seeded few-shot tasks drawn from labels.

A slice of a sampler passes through samplers.py (what users ask for, checked), sequence.py (Sampler and
Tasks) and drawing.py (the tasks of a block, all at once). hierarchy.py: which classes a task of Meta-Dataset
may mix.
"""

from .samplers import balanced, dirichlet, dominant, few_classes, meta_dataset, whole_pool, zipf
from .sequence import Sampler, Tasks

__all__ = [
    "Sampler",
    "Tasks",
    "balanced",
    "dirichlet",
    "dominant",
    "few_classes",
    "meta_dataset",
    "whole_pool",
    "zipf",
]
