"""Seeded few-shot tasks drawn from labels."""

from .samplers import Sampler, Tasks, balanced, dirichlet, few_classes, meta_dataset

__all__ = ["Sampler", "Tasks", "balanced", "dirichlet", "few_classes", "meta_dataset"]
