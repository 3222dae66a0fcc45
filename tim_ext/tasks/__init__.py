"""Seeded few-shot tasks drawn from labels.

A slice of a sampler passes through samplers.py (what users ask for, checked; Sampler and Tasks) and
drawing.py (the tasks of a block, all at once). hierarchy.py: which classes a task of Meta-Dataset may mix.
"""

from .samplers import Sampler, Tasks, balanced, dirichlet, few_classes, meta_dataset

__all__ = ["Sampler", "Tasks", "balanced", "dirichlet", "few_classes", "meta_dataset"]
