"""Base training and feature extraction: from images to the features that `tim_ext` works on.

    python -m python_train.train    trains an encoder on the base classes, by cross entropy or episodes
    python -m python_train.extract  writes the features of a split

Both run on one process, or on many through `torchrun`. They belong to the repository, not to the installed
package; docs/training.md says how to use them.
"""
