"""Work in threads of its own: each item once, errors come through, the threads are given back."""

from __future__ import annotations

import pytest
import torch

from tim_ext.baselines.threads import for_each


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_item_runs_once_with_one_thread_and_the_threads_are_given_back(threads, set_threads):
    set_threads(threads)
    seen: list[tuple[int, int]] = []
    for_each(lambda item: seen.append((item, torch.get_num_threads())), range(50), torch.device("cpu"))
    assert sorted(seen) == [(item, 1) for item in range(50)]
    assert torch.get_num_threads() == threads
    seen.clear()
    for_each(lambda item: seen.append((item, torch.get_num_threads())), [7], torch.device("cpu"))
    assert seen == [(7, threads)]  # a single item is left all threads


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_through_and_the_threads_are_given_back(error, set_threads):
    set_threads(2)

    def run(item: int) -> None:
        if item == 3:
            raise error

    with pytest.raises(error):
        for_each(run, range(100), torch.device("cpu"))
    assert torch.get_num_threads() == 2
