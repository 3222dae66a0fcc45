"""The speed that tim_ext claims, measured in one run: `python -m benchmarks.headline [--seconds 20]`.

15 queries per class, float32; TIM-ADM with 150 iterations, TIM-GD with 1000. Every competitor works on the
same tensors, its predictions are compared before it is timed, and all of them take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import tim_ext

from . import competitors, measure
from .tasks import make_tasks

ADM = {
    "torch loop": competitors.torch_loop,
    "torch loop, regrouped": competitors.torch_regrouped_loop,
    "torch loop, Gram domain": competitors.torch_gram_loop,
    "torch loop, torch.compile": competitors.compiled_torch_loop,
}
GD = {"autograd + torch.optim.Adam": competitors.torch_gd_loop}
Table = dict[str, float]  # seconds per task


def compare(
    solver: Callable[..., tim_ext.Result],
    rivals: dict[str, Callable[..., Tensor]],
    work: Callable[..., float],
    shape: tuple[int, int, int],
    threads: int,
    seconds: float,
) -> Table:
    """Prints a table of one solver against its rivals; shape is (tasks, ways, dim)."""
    tasks, ways, dim = shape
    torch.set_num_threads(threads)
    features, labels = make_tasks(tasks, ways, dim=dim)
    support = int((labels[0] >= 0).sum())
    mine = (features[0], labels[0]) if tasks == 1 else (features, labels)
    own = f"tim_ext.{solver.__name__}"
    calls: dict[str, Callable[[], Tensor]] = {own: lambda: solver(*mine).predictions}
    for name, rival in rivals.items():
        calls[name] = lambda rival=rival: rival(features, labels, support)
    expected = calls[own]().reshape(tasks, -1)
    for name, call in calls.items():
        agree = (call().reshape(tasks, -1) == expected).float().mean().item()
        if agree < 0.999:
            raise SystemExit(f"{name} disagrees with {own}: only {agree:.2%} of the predictions are equal")
    times = measure.interleaved(calls, seconds)
    share = work(tasks, features.shape[1], dim, ways) / times[own] / measure.peak()
    print(f"\n{own}: {tasks} task(s), {ways}-way 5-shot, d = {dim}, {threads} thread(s);", end="")
    print(f" {share:.0%} of the multiply-add peak")
    for name, value in times.items():
        print(f"  {name:28s} {value / tasks * 1e6:12.1f} us per task {value / times[own]:8.1f} x", flush=True)
    return {name: value / tasks for name, value in times.items()}


def plot(table: Table, path: str) -> None:
    """Time per task of each candidate, as bars on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names, values = list(table), [1e3 * value for value in table.values()]
    figure, axes = pyplot.subplots(figsize=(8, 2.4))
    bars = axes.barh(names, values, color=["#c2410c"] + ["#94a3b8"] * (len(names) - 1))
    labels = [f" {v:.2f} ms" + ("" if i == 0 else f"  ({v / values[0]:.0f} x)") for i, v in enumerate(values)]
    axes.bar_label(bars, labels)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 8)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per task: TIM-ADM, 5-way 5-shot, d = 640, batch of 200, two CPU threads")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20, help="of measurement per table (default 20)")
    parser.add_argument("--threads", type=int, default=2, help="for the batches (default 2)")
    parser.add_argument("--solver", choices=["adm", "gd"], help="only this one")
    parser.add_argument("--plot", metavar="PNG", help="draw the first TIM-ADM table")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {torch.ops.tim_ext.cpu_capability()} kernels, ", end="")
    print(f"peak {measure.peak() / 1e9:.1f} G multiply-adds/s on {args.threads} threads")
    if args.solver != "gd":
        some = {name: rival for name, rival in ADM.items() if "compile" not in name}
        work = measure.adm_multiply_adds
        table = compare(tim_ext.adm, ADM, work, (200, 5, 640), args.threads, args.seconds)
        if args.plot:
            plot(table, args.plot)
        compare(tim_ext.adm, some, work, (1, 5, 640), 1, args.seconds)
        compare(tim_ext.adm, some, work, (200, 5, 1280), args.threads, args.seconds)
    if args.solver != "adm":
        for shape, threads in [
            ((50, 5, 640), args.threads),
            ((1, 5, 640), 1),
            ((50, 5, 1280), args.threads),
            ((4, 20, 640), args.threads),
        ]:
            compare(tim_ext.gd, GD, measure.gd_multiply_adds, shape, threads, args.seconds)


if __name__ == "__main__":
    main()
