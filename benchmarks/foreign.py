"""The tables of docs/outliers.md: tasks some of whose queries are of none of the classes.

    python -m benchmarks.foreign NAME=FILE ... [--part second] [--ways 5] [--tasks 100]

FILE is anything `tim-ext evaluate` reads. Foreign queries are of 2 to 10 other classes of the same file, or
of the first other file with as many columns. --part: half of the classes of every file, at random; the
constants of the score were chosen on the first halves of CIFAR-FS, Omniglot and CLINC150. Intervals are 95 %,
of paired differences.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import tim_ext
from tim_ext.files.features import Features, load_features
from tim_ext.reference import prototypes, unit_length

QUERIES = 15  # of each class that is not foreign
SHARES = (0.0, 0.2, 0.4)  # of the queries that are foreign
SHOTS = (1, 5)
MOST_FOREIGN = 10  # classes
SEED = 1
OUTLIER, DISTANCE = "`outlier`", "distance to the prototype"
LARGEST = {"prototype": "largest p, prototype", "adm": "largest p, `adm`", "robust": "largest p, `robust`"}


class Pool(NamedTuple):
    name: str
    data: Features
    classes: Tensor


class Setting(NamedTuple):
    pool: Pool
    foreign: Pool
    ways: int
    shots: int
    share: float
    dirichlet: bool

    @property
    def kind(self) -> str:
        return "other classes" if self.pool is self.foreign else "other set"


class Drawn(NamedTuple):
    features: Tensor  # [T, N, d]
    labels: Tensor  # [T, N]
    truth: Tensor  # [T, N]  K for foreign ones


def part_of(labels: Tensor, part: str) -> Tensor:
    known = labels[labels >= 0].unique()
    shuffled = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(7))]
    half = len(known) // 2
    return {"first": shuffled[:half], "second": shuffled[half:], "all": shuffled}[part]


def draw(setting: Setting, total: int) -> Drawn:
    generator, rng = torch.Generator().manual_seed(SEED), np.random.default_rng(SEED)
    drawn = [one_task(setting, generator, rng) for _ in range(total)]
    features, labels, truth = (torch.stack(parts) for parts in zip(*drawn, strict=True))
    return Drawn(features, labels, truth)


def one_task(
    setting: Setting, generator: torch.Generator, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    ways, shots, pool = setting.ways, setting.shots, setting.pool

    def shuffled(x: Tensor) -> Tensor:
        return x[torch.randperm(len(x), generator=generator)]

    classes = shuffled(pool.classes)
    own = [shuffled((pool.data.labels == k).nonzero()[:, 0]) for k in classes[:ways]]
    counts = queries_of(setting, [len(rows) - shots for rows in own], rng)
    rows = [r[:shots] for r in own] + [r[shots : shots + n] for r, n in zip(own, counts, strict=True)]
    numbers = [k for k in range(ways) for _ in range(shots)] + [
        k for k, n in enumerate(counts) for _ in range(n)
    ]
    count = round(len(numbers[ways * shots :]) * setting.share / (1 - setting.share))
    others = classes[ways:] if setting.pool is setting.foreign else shuffled(setting.foreign.classes)
    several = others[: int(torch.randint(2, MOST_FOREIGN + 1, (1,), generator=generator))]
    candidates = shuffled(torch.isin(setting.foreign.data.labels, several).nonzero()[:, 0])[:count]
    features = torch.cat(
        [pool.data.features[torch.cat(rows)], setting.foreign.data.features[candidates]]
    ).float()
    truth = torch.tensor(numbers + [ways] * len(candidates))
    if len(candidates) < count:  # so that all tasks are of one size: fewer classes than were wanted
        return one_task(setting, generator, rng)
    labels = truth.clone()
    labels[ways * shots :] = -1
    return features, labels, truth


def queries_of(setting: Setting, most: Sequence[int], rng: np.random.Generator) -> list[int]:
    if not setting.dirichlet:
        return [min(QUERIES, n) for n in most]
    limit = np.array(most)
    counts = rng.multinomial(QUERIES * setting.ways, rng.dirichlet(np.full(setting.ways, 2.0)))
    while (counts > limit).any():
        over, free = (counts - limit).clip(0).sum(), np.flatnonzero(counts < limit)
        counts = counts.clip(max=limit) + np.bincount(rng.choice(free, over), minlength=len(limit))
    return counts.tolist()


def oslo(z: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """-sum_k q_ik cos(z_i, w_k) after two rounds, of the order of 1 - xi; as published."""
    q, w = torch.full_like(y, 1 / y.shape[1]), prototypes(z, y)
    for _ in range(2):
        cos = z @ unit_length(w).T
        xi = ((q * cos).sum(dim=1) / 0.05).sigmoid()
        q = (xi[:, None] * cos / 0.1).softmax(dim=1)
        a = torch.where(query[:, None], xi[:, None] * q, y)
        w = a.T @ z / a.sum(dim=0)[:, None]
    return -(q * (z @ unit_length(w).T)).sum(dim=1)


def auroc(scores: Tensor, positive: Tensor) -> float:
    """In percent; ties count half."""
    _, rank, count = scores.unique(return_inverse=True, return_counts=True)
    ranks = (count.cumsum(0) - (count - 1) / 2)[rank]
    inside, outside = int(positive.sum()), int((~positive).sum())
    return 100 * (float(ranks[positive].double().sum()) - inside * (inside + 1) / 2) / (inside * outside)


def scores_of(drawn: Drawn, outlier: Tensor) -> Iterator[dict[str, float]]:
    """AUROC by score, of one task after the other."""
    solved = {
        "prototype": tim_ext.adm(*drawn[:2], iterations=0),
        "adm": tim_ext.adm(*drawn[:2]),
        "robust": tim_ext.robust(*drawn[:2]),
    }
    for t, (z, labels, truth) in enumerate(zip(*drawn, strict=True)):
        query = labels == -1
        z, ways = unit_length(z), int(labels.max()) + 1
        y = one_hot(labels.clamp(min=0), ways).to(z) * ~query[:, None]
        scores = {LARGEST[name]: -result.probs[t].amax(dim=1) for name, result in solved.items()}
        scores[DISTANCE] = torch.cdist(z, prototypes(z, y)).amin(dim=1)
        scores["OSLO"] = oslo(z, y, query)
        scores[OUTLIER] = outlier[t]
        yield {name: auroc(score[query], truth[query] == ways) for name, score in scores.items()}


def right(predictions: Tensor, drawn: Drawn) -> Tensor:
    """[T], percent of the queries that are not foreign."""
    counts = (drawn.labels == -1) & (drawn.truth <= drawn.labels.amax(dim=1, keepdim=True))
    return 100 * ((predictions == drawn.truth) & counts).sum(dim=1) / counts.sum(dim=1)


def interval(values: Sequence[float]) -> str:
    x = np.asarray(values)
    return f"{x.mean():+.1f} +- {1.96 * x.std(ddof=1) / len(x) ** 0.5:.1f}"


def settings(pools: Sequence[Pool], ways: int) -> Iterator[Setting]:
    for pool in pools:
        dim = pool.data.features.shape[1]
        others = [other for other in pools if other is not pool and other.data.features.shape[1] == dim]
        for foreign in [pool, *others[:1]]:
            for shots, share, dirichlet in itertools.product(SHOTS, SHARES, (False, True)):
                yield Setting(pool, foreign, ways, shots, share, dirichlet)


class Found(NamedTuple):
    setting: Setting
    aurocs: list[dict[str, float]]  # of each task, if any query is foreign
    right: dict[str, Tensor]  # [T]
    # percent with a score of 1/2 or more, of the inliers and of the foreign; mean score
    flagged: tuple[float, float, float]
    milliseconds: tuple[float, float]  # of a task: robust, the score


def run(setting: Setting, total: int) -> Found:
    drawn = draw(setting, total)
    query, foreign = drawn.labels == -1, drawn.truth == setting.ways
    start = time.perf_counter()
    outlier = tim_ext.robust(*drawn[:2], iterations=0, outputs=["outlier"]).outlier
    seconds = time.perf_counter() - start
    aurocs = list(scores_of(drawn, outlier)) if setting.share else []
    accuracies = {}
    for how, weight in (("on", "auto"), ("off", None)):
        for name, solve in (("adm", tim_ext.adm), ("robust", tim_ext.robust)):
            start = time.perf_counter()
            found = solve(*drawn[:2], sample_weight=weight, outputs=["predictions"])
            times = 1000 * (time.perf_counter() - start) / total, 1000 * seconds / total  # of robust at last
            accuracies[f"{name} {how}"] = right(found.predictions, drawn)
    over = (outlier >= 0.5) & query
    false, true = (
        100 * float(over[part].float().mean()) if part.any() else np.nan
        for part in (query & ~foreign, foreign)
    )
    return Found(setting, aurocs, accuracies, (false, true, 100 * float(outlier[query].mean())), times)


# The tables ---------------------------------------------------------------------------------------


def print_aurocs(found: Sequence[Found]) -> None:
    names = [DISTANCE, *LARGEST.values(), "OSLO", OUTLIER]
    print("\n| set | foreign | shots | " + " | ".join(names) + " | against the best other |")
    print("|---|---|--:|" + "--:|" * (len(names) + 1))
    groups: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for one in found:
        key = (one.setting.pool.name, one.setting.kind, one.setting.shots)
        groups.setdefault(key, []).extend(one.aurocs)
    for (name, kind, shots), tasks in groups.items():
        means = {score: float(np.mean([task[score] for task in tasks])) for score in names}
        best = max(names[:-1], key=lambda score: means[score])
        cells = " | ".join(f"{means[score]:.1f}" for score in names)
        against = interval([task[OUTLIER] - task[best] for task in tasks])
        print(f"| {name} | {kind} | {shots} | {cells} | {against} |")


def print_accuracies(found: Sequence[Found]) -> None:
    print("\n| method | proportions | shots | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |")
    print("|---|---|--:|" + "--:|" * len(SHARES))
    for method, dirichlet, shots in itertools.product(("adm", "robust"), (False, True), SHOTS):
        cells = []
        for share in SHARES:
            some = [one.right for one in found if one.setting[3:] == (shots, share, dirichlet)]
            off, on = (torch.cat([right[f"{method} {how}"] for right in some]) for how in ("off", "on"))
            cells.append(f"{off.mean():.1f}, {interval((on - off).tolist())}")
        print(f"| `{method}` | {'Dirichlet' if dirichlet else 'equal'} | {shots} | {' | '.join(cells)} |")


def print_flagged(found: Sequence[Found]) -> None:
    print(
        "\n| shots | share of foreign | mean score | inliers >= 0.5 | foreign >= 0.5 |\n|--:|--:|--:|--:|--:|"
    )
    for shots, share in itertools.product(SHOTS, SHARES):
        some = [one.flagged for one in found if one.setting[3:5] == (shots, share)]
        false, true, mean = np.mean(some, axis=0)
        last = "" if np.isnan(true) else f"{true:.1f} %"
        print(f"| {shots} | {share:.0%} | {mean:.1f} % | {false:.1f} % | {last} |")


def print_times(found: Sequence[Found]) -> None:
    threads = torch.get_num_threads()
    print(f"\n| set | d | ms of a task by `robust`, {threads} threads | of the score |\n|---|--:|--:|--:|")
    for pool in {one.setting.pool.name: one.setting.pool for one in found}.values():
        some = [one.milliseconds for one in found if one.setting.pool is pool]
        robust, score = np.median(some, axis=0)
        print(f"| {pool.name} | {pool.data.features.shape[1]} | {robust:.1f} | {score:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--part", choices=("first", "second", "all"), default="all", help="of the classes")
    parser.add_argument("--ways", type=int, default=5, metavar="K")
    parser.add_argument("--tasks", type=int, default=100, metavar="N", help="of every setting (100)")
    options = parser.parse_args()
    pools = []
    for name, _, path in (item.partition("=") for item in options.files):
        data = load_features(path)
        pools.append(Pool(name, data, part_of(data.labels, options.part)))
    found = [run(setting, options.tasks) for setting in settings(pools, options.ways)]
    for table in (print_aurocs, print_accuracies, print_flagged, print_times):
        table(found)


if __name__ == "__main__":
    main()
