"""The memory of a solve with a large W: a small multiple of it."""

from __future__ import annotations

import pytest
from helpers.forked import run_script

SCRIPT = """
import resource, sys, torch, tim_ext
K, d = 1000, 35_000
torch.set_num_threads(1)
N = 1024  # 32 blocks of rows or more
features, labels = torch.ones(2, d), torch.where(torch.arange(N) < K, torch.arange(N), -1)
rows = torch.arange(N) % 2
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
options = dict(index=rows, iterations=0, outputs=["predictions"])
if sys.argv[1] == "adm":
    options["form"] = "primal"
before = peak()
getattr(tim_ext, sys.argv[1])(features, labels, **options)
print((peak() - before) / (K * d * 4))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adm", "gd"])
def test_a_large_w_is_not_copied_many_times(method):
    ended = run_script(SCRIPT, method)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 9  # W, its differences, 4 sums, and for GD two moments; it was 34 times
