"""Two large jobs: `python -m benchmarks.large`.

10,000 tasks (5-way 5-shot, 15 queries per class) through `index=` into a pool of 12,000 x 640 features, with
what they add to the resident memory; and one task of 100,000 samples, d = 512, 100 classes, primal form.
"""

from __future__ import annotations

import resource
import time

import torch

import tim_ext

from . import measure


def peak_memory() -> float:
    """Largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def many_tasks(tasks: int = 10_000, rows: int = 12_000, dim: int = 640) -> None:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(rows, dim, generator=generator)
    index = torch.randint(rows, (tasks, 100), generator=generator)
    labels = torch.where(torch.arange(100) < 25, torch.arange(100) % 5, -1).expand(tasks, 100).contiguous()
    before = peak_memory()
    for outputs in [("predictions",), ("probs", "predictions", "weights")]:
        begin = time.perf_counter()
        result = tim_ext.adm(pool, labels, index=index, outputs=outputs)
        seconds = time.perf_counter() - begin
        grown = peak_memory() - before
        print(f"{tasks} tasks, {', '.join(outputs)}: {seconds:.2f} s, resident memory + {grown:.0f} MB")
        del result


def one_task(samples: int = 100_000, dim: int = 512, classes: int = 100, iterations: int = 10) -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(classes, (samples,), generator=generator)
    features = torch.randn(samples, dim, generator=generator)
    features += 0.5 * torch.randn(classes, dim, generator=generator)[truth]
    labels = torch.full((samples,), -1)
    for k in range(classes):
        labels[(truth == k).nonzero()[:5, 0]] = k
    begin = time.perf_counter()
    result = tim_ext.adm(features, labels, iterations=iterations, solver="primal", outputs=("predictions",))
    seconds = time.perf_counter() - begin
    # logits K - 1 columns in every iteration and once more at the end, the update K columns
    work = samples * dim * ((iterations + 1) * (classes - 1) + iterations * classes)
    right = (result.predictions == truth).float().mean()
    print(
        f"one task, {samples} x {dim}, {classes} classes: {seconds / iterations:.3f} s per iteration,", end=""
    )
    print(f" {work / seconds / measure.peak():.0%} of the multiply-add peak; {right:.1%} right")


if __name__ == "__main__":
    torch.set_num_threads(min(2, torch.get_num_threads()))
    many_tasks()
    one_task()
