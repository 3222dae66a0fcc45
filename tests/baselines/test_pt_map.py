"""The transport plan of PT-MAP."""

from __future__ import annotations

import torch
from helpers.baseline_tasks import seeds, transformed
from helpers.make_tasks import make_task
from hypothesis import given, settings
from hypothesis import strategies as st

from tim_ext import baselines


@settings(max_examples=20)
@given(seed=seeds, lam=st.sampled_from([0.1, 10.0, 300.0]), queries=st.integers(1, 40))
def test_the_plan_of_pt_map_is_the_balanced_one(seed, lam, queries):
    """p_ik = exp(-lam ||w_k - z_i||^2 + f_i + g_k) with both sums as wanted: there is only one such plan."""
    task = make_task(seed, shots=(1, 2, 1, 3), queries=queries, d=5, noise=1.5)
    result = baselines.pt_map(task.features, task.labels, lam=lam, tol=1e-9)
    z, labels = transformed("power+l2+task_center+l2", task)
    plan = result.probs[labels == -1]
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(queries, dtype=torch.float64))
    torch.testing.assert_close(plan.sum(dim=0), torch.full((4,), queries / 4, dtype=torch.float64))
    cost = torch.stack([(result.weights - x).square().sum(dim=1) for x in z[labels == -1]])
    rest = plan.log() + lam * cost  # f_i + g_k
    g = rest - rest[:, :1]
    known = (plan > 1e-300).all(dim=1)
    torch.testing.assert_close(g[known], g[known][:1].expand_as(g[known]), atol=1e-5 * lam, rtol=1e-5)
