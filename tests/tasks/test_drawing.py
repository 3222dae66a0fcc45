"""Drawing without replacement, and the rounding of shares."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
from helpers.sampled_tasks import chi_square
from hypothesis import given
from hypothesis import strategies as st

from tim_ext.tasks import drawing

sizes_and_counts = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@given(
    st.lists(sizes_and_counts, max_size=6).filter(lambda pairs: any(count for _, count in pairs)),
    st.integers(0, 2**32),
)
def test_choose_is_the_algorithm_of_fisher_and_yates(pairs, seed) -> None:
    sizes, counts = np.array(pairs).T
    draws = iter(np.random.default_rng(seed).random(counts.sum()))
    expected = []
    for size, count in pairs:
        cards = list(range(size))
        for step in range(count):
            target = step + int(next(draws) * (size - step))
            cards[step], cards[target] = cards[target], cards[step]
        expected += cards[:count]
    assert drawing.choose(np.random.default_rng(seed), sizes, counts).tolist() == expected


def test_choose_is_uniform() -> None:
    count = 30_000
    chosen = drawing.choose(np.random.default_rng(0), np.full(count, 5), np.full(count, 3)).reshape(count, 3)
    seen = Counter(map(tuple, chosen.tolist()))
    assert seen.keys() == set(permutations(range(5), 3))
    assert abs(chi_square(list(seen.values()))) < 4


def test_choose_out_of_very_many() -> None:
    """Neither time nor memory depends on how many there are."""
    chosen = drawing.choose(np.random.default_rng(0), np.full(100, 10**12), np.full(100, 50))
    assert chosen.min() >= 0
    assert abs(chosen.mean() / 10**12 - 0.5) < 5 * (1 / 12 / 5000) ** 0.5


# Balanced and unbalanced ---------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8), st.integers(1, 100))
def test_rounding_takes_the_largest_remainders(parts, total) -> None:
    exact = np.array(parts) / sum(parts) * total
    rounded = drawing.round_shares(exact[None], total)[0]
    # one at a time to whom most is missing, starting from the whole numbers
    expected = np.floor(exact)
    while expected.sum() < total:
        expected[np.argmax(exact - expected)] += 1
    assert rounded.sum() == total
    assert np.abs(rounded - exact).max() <= 1
    # equal up to ties
    np.testing.assert_allclose(np.sort(np.abs(rounded - exact)), np.sort(np.abs(expected - exact)), atol=1e-9)
