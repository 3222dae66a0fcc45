"""The tables of the paper as printed, and what can measure each of their lines.

The paper is "Mutual-Information Based Few-Shot Classification" (Boudiaf, Masud, Rony, Dolz, Ben Ayed,
Piantanida); the numbers of other authors are those that it quotes.

The tables are, in the order of the paper: tab:benchmark_results, tab:domin_shift_results, tab:more_ways,
tab:meta_dataset_validation, tab:meta_dataset_results, tab:ablation_effect_terms, tab:runtimes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

DASH = "-"
RESNET, WRN = "ResNet-18", "WRN28-10"
RANDOM = "random tasks"  # of Meta-Dataset
TASKS, RANDOM_TASKS, QUERIES = (
    10_000,
    600,
    15,
)  # tasks averaged over, and queries per class of the balanced ones
Setting = tuple[int, int] | str  # ways and shots of balanced tasks, or RANDOM
Run = tuple[str, tuple[tuple[str, float], ...]]  # a method, and what is not default in it


@dataclass(frozen=True)
class Column:
    group: str  # what stands above it and its neighbours
    name: str
    setting: Setting
    dataset: str  # on the command line; "" for the mean over all columns before
    own: bool = False  # not in the paper


@dataclass(frozen=True)
class Line:
    heads: tuple[str, ...]
    published: tuple[str, ...]  # a cell for each column, as printed
    run: Run | None  # what can measure it
    backbone: str


@dataclass(frozen=True)
class Table:
    name: str  # on the command line
    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line | None, ...]  # None: a rule
    measure: str = "accuracy"  # or "seconds"

    @property
    def names_backbones(self) -> bool:
        return "Backbone" in self.heads


# The methods --------------------------------------------------------------------------------------

METHODS = {  # as the paper calls them; all others are defined by how they train the encoder
    "SimpleShot": "simpleshot",
    "Baseline": "baseline",
    "Baseline++": "baseline++",
    "Finetune": "baseline",
    "BD-CSPN": "bd-cspn",
    "LaplacianShot": "laplacianshot",
    "TIM-ADM": "tim-adm",
    "TIM-GD": "tim-gd",
}
ABLATION: dict[str, dict[str, float]] = {
    "TIM-ADM {W} CE": {"iterations": 0},  # its W-update is the prototypes: paper, "Details of ADM ablation"
    "TIM-ADM {W} CE + H(Y|X)": {"marginal_weight": 0.0},
    "TIM-ADM {W} CE - H(Y)": {"alpha": 0.0},
    "TIM-ADM {W} CE - H(Y) + H(Y|X)": {},
    "TIM-GD {W} CE": {"marginal_weight": 0.0, "alpha": 0.0},
    "TIM-GD {W} CE + H(Y|X)": {"marginal_weight": 0.0},
    "TIM-GD {W} CE - H(Y)": {"alpha": 0.0},
    "TIM-GD {W} CE - H(Y) + H(Y|X)": {},
}
BACKBONE_LINES = {  # of a backbone that is not in the paper: whether it is transductive
    "SimpleShot": "no",
    "BD-CSPN": "yes",
    "LaplacianShot": "yes",
    "TIM-ADM": "yes",
    "TIM-GD": "yes",
}

# The tables as printed ----------------------------------------------------------------------------


def _parse(text: str, *, method: int = 0, backbone: int | str = RESNET) -> Iterator[Line | None]:
    """From lines `head | head | numbers`; `method` and `backbone` are the places of these heads."""
    for line in text.strip().splitlines():
        *heads, numbers = (part.strip() for part in line.split(" | "))
        if not heads:  # RULE
            yield None
            continue
        name = METHODS.get(heads[method])
        run = None if name is None else (name, ())
        used = backbone if isinstance(backbone, str) else heads[backbone]
        yield Line(tuple(heads), tuple(numbers.split()), run, used)


def _parse_ablation(text: str) -> Iterator[Line | None]:
    """A line is a method with some hyper-parameters; with {phi, W} it trains the encoder."""
    for line in _parse(text):
        if line is None:
            yield None
        else:
            hyper = ABLATION.get(" ".join(line.heads))
            run = None if hyper is None else (METHODS[line.heads[0]], tuple(hyper.items()))
            yield replace(line, run=run)


def _shots(groups: Mapping[str, str], ways: int = 5) -> tuple[Column, ...]:
    """1-shot and 5-shot columns of each dataset."""
    return tuple(
        Column(group, f"{shots}-shot", (ways, shots), dataset)
        for dataset, group in groups.items()
        for shots in (1, 5)
    )


STANDARD_DATASETS = {"mini": "mini-ImageNet", "tiered": "tiered-ImageNet", "cub": "CUB"}

STANDARD = Table(
    "standard",
    "Standard benchmarks: accuracy (%), 5-way",
    ("Method", "Transd.", "Backbone"),
    _shots(STANDARD_DATASETS),
    tuple(
        _parse(
            """
        MAML | no | ResNet-18 | 49.6 65.7 - - 68.4 83.5
        RelatNet | no | ResNet-18 | 52.5 69.8 - - 68.6 84.0
        MatchNet | no | ResNet-18 | 52.9 68.9 - - 73.5 84.5
        ProtoNet | no | ResNet-18 | 54.2 73.4 - - 73.0 86.6
        MTL | no | ResNet-12 | 61.2 75.5 - - - -
        vFSL | no | ResNet-12 | 61.2 77.7 - - - -
        Neg-cosine | no | ResNet-18 | 62.3 80.9 - - 72.7 89.4
        MetaOpt | no | ResNet-12 | 62.6 78.6 66.0 81.6 - -
        SimpleShot | no | ResNet-18 | 62.9 80.0 68.9 84.6 68.9 84.0
        Distill | no | ResNet-12 | 64.8 82.1 71.5 86.0 - -
        RULE
        RelatNet + T | yes | ResNet-12 | 52.4 65.4 - - - -
        ProtoNet + T | yes | ResNet-12 | 55.2 71.1 - - - -
        MatchNet+T | yes | ResNet-12 | 56.3 69.8 - - - -
        TPN | yes | ResNet-12 | 59.5 75.7 - - - -
        TEAM | yes | ResNet-18 | 60.1 75.9 - - - -
        Ent-min | yes | ResNet-12 | 62.4 74.5 68.4 83.4 - -
        CAN+T | yes | ResNet-12 | 67.2 80.6 73.2 84.9 - -
        LaplacianShot | yes | ResNet-18 | 72.1 82.3 79.0 86.4 81.0 88.7
        TIM-ADM | yes | ResNet-18 | 73.6 85.0 80.0 88.5 81.9 90.7
        TIM-GD | yes | ResNet-18 | 73.9 85.0 79.9 88.5 82.2 90.8
        RULE
        LEO | no | WRN28-10 | 61.8 77.6 66.3 81.4 - -
        SimpleShot | no | WRN28-10 | 63.5 80.3 69.8 85.3 - -
        MatchNet | no | WRN28-10 | 64.0 76.3 - - - -
        CC+rot+unlabeled | no | WRN28-10 | 64.0 80.7 70.5 85.0 - -
        FEAT | no | WRN28-10 | 65.1 81.1 70.4 84.4 - -
        RULE
        AWGIM | yes | WRN28-10 | 63.1 78.4 67.7 82.8 - -
        Ent-min | yes | WRN28-10 | 65.7 78.4 73.3 85.5 - -
        SIB | yes | WRN28-10 | 70.0 79.2 - - - -
        BD-CSPN | yes | WRN28-10 | 70.3 81.9 78.7 86.92 - -
        LaplacianShot | yes | WRN28-10 | 74.9 84.1 80.2 87.6 - -
        TIM-ADM | yes | WRN28-10 | 77.5 87.2 82.0 89.7 - -
        TIM-GD | yes | WRN28-10 | 77.8 87.4 82.1 89.8 - -
        """,
            backbone=2,
        )
    ),
)

DOMAIN_SHIFT = Table(
    "domain-shift",
    "Domain shift, mini-ImageNet -> CUB: accuracy (%), 5-way, ResNet-18",
    ("Method",),
    (Column("mini-ImageNet -> CUB", "5-shot", (5, 5), "mini-cub"),),
    tuple(
        _parse(
            """
        MatchNet | 53.1
        MAML | 51.3
        ProtoNet | 62.0
        RelatNet | 57.7
        SimpleShot | 64.0
        GNN | 66.9
        Neg-Cosine | 67.0
        Baseline | 65.6
        LaplacianShot | 66.3
        TIM-ADM | 70.3
        TIM-GD | 71.0
        """
        )
    ),
)

WAYS = Table(
    "ways",
    "More classes, mini-ImageNet: accuracy (%)",
    ("Method",),
    _shots({"mini": "10-way"}, ways=10) + _shots({"mini": "20-way"}, ways=20),
    tuple(
        _parse(
            """
        MatchNet | - 52.3 - 36.8
        ProtoNet | - 59.2 - 45.0
        RelatNet | - 53.9 - 39.2
        SimpleShot | 45.1 68.1 32.4 55.4
        Baseline | - 55.0 - 42.0
        Baseline++ | - 63.4 - 50.9
        TIM-ADM | 56.0 72.9 39.5 58.8
        TIM-GD | 56.1 72.8 39.3 59.5
        """
        )
    ),
)

META_DATASETS = {
    "ilsvrc": "ILSVRC",
    "omniglot": "Omniglot",
    "aircraft": "Aircraft",
    "birds": "Birds",
    "textures": "Textures",
    "quickdraw": "Quick Draw",
    "fungi": "Fungi",
    "flower": "VGG Flower",
    "signs": "Traffic Signs",
    "mscoco": "MSCOCO",
}
META_COLUMNS = (
    *(Column("", name, RANDOM, dataset) for dataset, name in META_DATASETS.items()),
    Column("", "Mean", RANDOM, ""),
)

META_VALIDATION = Table(
    "meta-dataset-validation",
    "Implementations of Meta-Dataset: accuracy (%) of SimpleShot, ResNet-18",
    ("Implementation",),
    META_COLUMNS,
    (
        *_parse(
            """
        Original | 52.7 53.9 50.1 68.5 74.6 57.5 42.7 87.5 49.7 44.3 58.1
        Original + anti-aliasing | 59.7 54.0 55.1 79.1 77.4 56.9 48.7 90.8 49.3 45.9 61.7
        Ours | 60.0 54.2 55.9 78.6 77.8 57.4 49.2 90.3 49.6 44.2 61.7
        """
        ),
        Line(("tim_ext",), (DASH,) * len(META_COLUMNS), ("simpleshot", ()), RESNET),
    ),
)

META_RESULTS = Table(
    "meta-dataset",
    "Meta-Dataset: accuracy (%), random tasks, ResNet-18 trained on ILSVRC",
    ("", "Method"),
    META_COLUMNS,
    tuple(
        _parse(
            """
        Ind. | Finetune | 59.8 60.5 63.5 80.6 80.9 61.5 45.2 91.1 55.1 41.8 64.0
        Ind. | ProtoNet | 48.2 46.7 44.6 53.8 70.3 45.1 38.5 82.4 42.2 38.0 51.0
        Ind. | SimpleShot | 60.0 54.2 55.9 78.6 77.8 57.4 49.2 90.3 49.6 44.2 61.7
        RULE
        Transd. | BD-CSPN | 60.5 54.4 55.2 80.9 77.9 57.3 50.0 91.7 47.8 43.9 62.0
        Transd. | TIM-ADM | 64.1 62.4 63.8 84.6 84.1 63.4 57.6 94.4 62.9 52.1 68.9
        Transd. | TIM-GD | 63.6 65.6 66.4 85.6 84.7 65.8 57.5 95.6 65.2 50.9 70.1
        """,
            method=1,
        )
    ),
)


ABLATION_OF_TERMS = Table(
    "ablation",
    "Terms of the loss: accuracy (%), 5-way, ResNet-18",
    ("Method", "Param.", "Loss"),
    _shots(STANDARD_DATASETS),
    tuple(
        _parse_ablation(
            """
            TIM-ADM | {W} | CE | 60.0 79.6 68.0 84.6 68.6 86.4
            TIM-ADM | {W} | CE + H(Y|X) | 36.0 77.0 48.1 82.5 48.5 86.5
            TIM-ADM | {W} | CE - H(Y) | 66.7 82.0 74.0 86.5 74.2 88.3
            TIM-ADM | {W} | CE - H(Y) + H(Y|X) | 73.6 85.0 80.0 88.5 81.9 90.7
            RULE
            TIM-GD | {W} | CE | 60.7 79.4 68.4 84.3 69.6 86.3
            TIM-GD | {W} | CE + H(Y|X) | 35.3 79.2 45.9 80.6 46.1 85.9
            TIM-GD | {W} | CE - H(Y) | 66.1 81.3 73.4 86.0 73.9 88.0
            TIM-GD | {W} | CE - H(Y) + H(Y|X) | 73.9 85.0 79.9 88.5 82.2 90.8
            RULE
            TIM-GD | {phi, W} | CE | 60.8 81.6 65.7 83.5 68.7 87.7
            TIM-GD | {phi, W} | CE + H(Y|X) | 62.7 81.9 66.9 82.8 72.6 89.0
            TIM-GD | {phi, W} | CE - H(Y) | 62.3 82.7 68.3 85.4 70.7 88.8
            TIM-GD | {phi, W} | CE - H(Y) + H(Y|X) | 67.2 84.7 73.0 86.8 76.7 90.5
            """
        )
    ),
)

RUN_TIMES = Table(
    "run-times",
    "Run-times: seconds per 5-way 5-shot task, WRN28-10",
    ("Method", "Parameters", "Transductive"),
    (Column("mini-ImageNet", "s/task", (5, 5), "mini"),),
    tuple(
        _parse(
            """
        SimpleShot | {W} | no | 9.0e-03
        RULE
        TIM-ADM | {W} | yes | 1.2e-01
        TIM-GD | {W} | yes | 2.2e+00
        Ent-min | {phi, W} | yes | 2.1e+01
        """,
            backbone=WRN,
        )
    ),
    measure="seconds",
)

TABLES = (STANDARD, DOMAIN_SHIFT, WAYS, META_VALIDATION, META_RESULTS, ABLATION_OF_TERMS, RUN_TIMES)
DATASETS = {column.dataset for table in TABLES for column in table.columns if column.dataset}
