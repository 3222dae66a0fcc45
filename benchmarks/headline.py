"""The speed that tim_ext claims, measured in one run: `python -m benchmarks.headline [--seconds 20]`.

5-way 5-shot, 15 queries per class, float32, 150 iterations. Every competitor works on the same tensors, its
predictions are compared before it is timed, and all of them take turns.
"""

from __future__ import annotations

import argparse

import torch

import tim_ext

from . import competitors, measure
from .tasks import make_tasks


def report(title: str, tasks: int, threads: int, dim: int, seconds: float, with_compile: bool) -> None:
    torch.set_num_threads(threads)
    features, labels = make_tasks(tasks, dim=dim)
    support = int((labels[0] >= 0).sum())
    mine = (features[0], labels[0]) if tasks == 1 else (features, labels)
    loop = (features, labels, support)
    candidates = {
        "tim_ext.adm": lambda: tim_ext.adm(*mine).predictions,
        "torch loop": lambda: competitors.torch_loop(*loop),
        "torch loop, regrouped": lambda: competitors.torch_regrouped_loop(*loop),
        "torch loop, Gram domain": lambda: competitors.torch_gram_loop(*loop),
    }
    if with_compile:
        candidates["torch loop, torch.compile"] = lambda: competitors.compiled_torch_loop(*loop)
    expected = candidates["tim_ext.adm"]().reshape(tasks, -1)
    for name, call in candidates.items():
        agree = (call().reshape(tasks, -1) == expected).float().mean().item()
        if agree < 0.999:
            raise SystemExit(f"{name} disagrees with tim_ext.adm: only {agree:.2%} of the predictions are equal")
    times = measure.interleaved(candidates, seconds)
    own = times["tim_ext.adm"]
    rate = measure.adm_multiply_adds(tasks, features.shape[1], dim, 5) / own
    share = rate / measure.peak()
    print(f"\n{title}: {tasks} task(s), d = {dim}, {threads} thread(s); {share:.0%} of the multiply-add peak")
    for name, value in times.items():
        print(f"  {name:28s} {value / tasks * 1e6:10.1f} us per task {value / own:8.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of measurement per table (default 20)")
    parser.add_argument("--threads", type=int, default=2, help="for the batches (default 2)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes a minute")
    args = parser.parse_args()
    compiled = not args.no_compile
    print(f"torch {torch.__version__}, {torch.ops.tim_ext.cpu_capability()} kernels")
    report("batch", 200, args.threads, 640, args.seconds, compiled)
    report("single task", 1, 1, 640, args.seconds, False)
    report("batch, d = 1280", 200, args.threads, 1280, args.seconds, False)


if __name__ == "__main__":
    main()
