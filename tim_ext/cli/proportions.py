"""A word on classes that a method finds far more or less often than the nearest prototype does."""

from __future__ import annotations

from collections.abc import Sequence

MUCH = 0.15  # of the samples


def compare_with_nearest(
    names: Sequence[str],
    found: Sequence[int],
    nearest: Sequence[int],
    *,
    what: str,
    method: str,
    told: bool,
) -> list[str]:
    """Lines to print, if any.

    found, nearest: [K] how many samples the method and the nearest prototype give to each class; what: the
    samples, in the plural; method: its name; told: whether it was told the proportions.
    """
    total = max(sum(found), 1)
    gains = [mine - other for mine, other in zip(found, nearest, strict=True)]
    moved = sum(map(abs, gains)) // 2  # at least so many samples have another class
    if moved < MUCH * total:
        return []
    most, least = gains.index(max(gains)), gains.index(min(gains))
    advice = "look at them"
    if not told:
        known = "--class-prior if you know the proportions"
        advice += f", or give {known}" if method == "robust" else f", or give --method robust, or {known}"
    return [
        f"the proportions differ much from those of the nearest prototype, by {moved:,} of {total:,} {what} "
        f"({moved / total:.0%}):",
        f"most joined {names[most]!r} ({nearest[most]:,} -> {found[most]:,}) and most left {names[least]!r} "
        f"({nearest[least]:,} -> {found[least]:,}); {advice}",
    ]
