"""Training: the recipe, its batches and losses, validation, logs, and what is refused."""

from __future__ import annotations

import csv
import json
import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.train_runs import arguments, write_arrays

from python_train import train
from python_train.datasets import open_dataset
from python_train.distributed import World
from python_train.loading import Batch, Images
from python_train.network import Network
from python_train.objectives import cross_entropy, prototypical
from python_train.options import count, number
from python_train.recipe import batches
from tim_ext.files.tensors import read_tensors
from tim_ext.images.networks import features_of, load_encoder, make_encoder
from tim_ext.images.preprocessing import center_crop, normalize, to_tensor

CPU = torch.device("cpu")
ONE = World(0, 1, CPU)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    assert train.main(arguments(data, out)) == 0
    return out


def recipe_of(data, *more: str, length=None):
    options = train.make_parser().parse_args(
        arguments(data, data, *more) if length is None else arguments(data, data, *more, length=length)
    )
    return train.make_recipe(options, open_dataset("npz", data, "train"), None)[0]


# The recipe ---------------------------------------------------------------------------------------


def test_the_defaults_are_the_papers(tmp_path):
    """90 epochs, batches of 256 (WRN: 128), SGD 0.1 with momentum 0.9, and so on."""
    data = write_arrays(tmp_path, classes=4, per_class=70, side=8)
    common = ["--dataset", "npz", "--data-root", str(data), "--out", str(tmp_path)]
    base = open_dataset("npz", data, "train")  # 280 images

    def made(*more):
        return train.make_recipe(train.make_parser().parse_args([*common, *more]), base, None)

    recipe, per_epoch = made()
    assert (recipe.model, recipe.batch_size, per_epoch, recipe.steps) == ("resnet18", 256, 1, 90)
    assert (recipe.lr, recipe.momentum, recipe.weight_decay, recipe.label_smoothing) == (0.1, 0.9, 1e-4, 0.1)
    change = recipe.augmentation
    assert (change.crop_scale, change.aspect, change.jitter, change.flip) == (0.08, 4 / 3, 0.4, True)
    assert (recipe.val_tasks, recipe.val_ways, recipe.val_queries, recipe.episodes) == (500, 5, 15, 0)
    assert recipe.validate_every == 1
    assert recipe.preprocessing.antialias
    assert not made("--no-antialias")[0].preprocessing.antialias

    recipe, per_epoch = made("--model", "wrn28_10")
    assert (recipe.batch_size, recipe.steps) == (128, 180)
    recipe, _ = made("--iterations")
    assert (recipe.steps, recipe.validate_every) == (100_000, 1000)
    recipe, per_epoch = made("--episodic")
    assert (recipe.steps, recipe.episodes, recipe.batch_size, per_epoch) == (100_000, 2, 250, None)
    assert (recipe.ways, recipe.shots, recipe.queries) == (5, 5, 20)


def test_learning_rate(data):
    recipe = recipe_of(data, length=["--iterations", "90", "--batch-size", "40"])
    rates = [recipe.lr_at(step) for step in range(90)]
    assert rates[:45] == [0.1] * 45
    assert rates[45:68] == [0.01] * 23
    assert rates[68:] == [0.001] * 22


# Batches ------------------------------------------------------------------------------------------


def test_epochs_are_random_orders_without_repetition(data):
    recipe = recipe_of(data, length=["--epochs", "4", "--batch-size", "50"])  # 2 batches, 20 images left
    epochs = np.array([batch.rows for batch in batches(recipe, open_dataset("npz", data, "train"), ONE, 0)])
    assert epochs.shape == (8, 50)
    epochs = epochs.reshape(4, 100)
    assert all(len(set(epoch)) == 100 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len(set(epochs.reshape(-1))) == 120  # what one epoch leaves out is in another


@pytest.mark.parametrize(
    "length", [["--epochs", "3", "--batch-size", "40"], ["--episodic", "--iterations", "5", "--queries", "3"]]
)
@pytest.mark.parametrize("first", [0, 4])
def test_batches_from_any_step_and_in_any_parts(data, length, first):
    recipe, base = recipe_of(data, length=length), open_dataset("npz", data, "train")
    whole = list(batches(recipe, base, ONE, 0))
    for size in (1, 3):
        parts = [list(batches(recipe, base, World(rank, size, CPU), first)) for rank in range(size)]
        for step, of_processes in enumerate(zip(*parts, strict=True), start=first):
            assert {batch.turn for batch in of_processes} == {whole[step].turn}
            for name in ("rows", "counters"):
                joined = np.concatenate([getattr(batch, name) for batch in of_processes])
                assert np.array_equal(joined, getattr(whole[step], name))


def test_episodes(data):
    length = ["--episodic", "--iterations", "3", "--ways", "4", "--shots", "2", "--queries", "3"]
    recipe, base = recipe_of(data, length=length), open_dataset("npz", data, "train")
    for step, batch in enumerate(batches(recipe, base, ONE, 0)):
        assert batch.turn == step
        assert batch.counters.tolist() == list(range(40))
        for rows in batch.rows.reshape(2, 20):
            assert len(set(rows)) == 20
            support, queries = base.labels[rows[:8]].reshape(4, 2), base.labels[rows[8:]].reshape(4, 3)
            assert (support == support[:, :1]).all()
            assert (queries == support[:, :1]).all()
            assert len(set(support[:, 0])) == 4


# Losses -------------------------------------------------------------------------------------------


def test_cross_entropy_with_smoothed_labels():
    logits = torch.randn(6, 4, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 1, 2, 0])
    loss, correct = cross_entropy(logits, labels, 0.1)
    expected = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        log_sum = math.log(sum(math.exp(value) for value in row))
        for k, value in enumerate(row):
            expected -= (0.1 / 4 + 0.9 * (k == label)) * (value - log_sum)
    assert float(loss) == pytest.approx(expected)
    assert int(correct) == sum(
        max(range(4), key=row.__getitem__) == k for row, k in zip(logits.tolist(), labels, strict=True)
    )


def test_prototypical_loss():
    """Two episodes of 3 classes, 2 shots and 4 queries, by loops."""
    features = torch.randn(2 * 18, 5, dtype=torch.float64)
    loss, correct = prototypical(features, 3, 2, 4, 0.0)
    expected, right = 0.0, 0
    for episode in features.view(2, 18, 5):
        prototypes = [episode[2 * k : 2 * k + 2].mean(dim=0) for k in range(3)]
        for q in range(12):
            distances = [float(((episode[6 + q] - w) ** 2).sum()) for w in prototypes]
            log_sum = math.log(sum(math.exp(-value) for value in distances))
            expected += distances[q // 4] + log_sum
            right += distances.index(min(distances)) == q // 4
    assert float(loss) == pytest.approx(expected)
    assert int(correct) == right


def test_a_run_is_the_plain_loop(data, tmp_path):
    """The weights after 12 steps, bit for bit, against torch's own loss, optimizer and schedule."""
    length = ["--iterations", "12", "--batch-size", "40", "--val-tasks", "0"]
    assert train.main(arguments(data, tmp_path, length=length)) == 0
    recipe, base = recipe_of(data, length=length), open_dataset("npz", data, "train")
    torch.manual_seed(0)
    network = Network(make_encoder("conv4", width=8), 6)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 9])
    images = Images(base, recipe.preprocessing, recipe.augmentation)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for batch in batches(recipe, base, ONE, 0):
        pixels, labels = images[batch]
        optimizer.zero_grad()
        criterion(network(pixels), labels).backward()
        optimizer.step()
        schedule.step()
    tensors, _ = read_tensors(tmp_path / "last.safetensors")
    for name, value in network.state_dict().items():
        torch.testing.assert_close(tensors[name], value, rtol=1e-5, atol=1e-6, msg=name)


# What a run leaves --------------------------------------------------------------------------------


def read_log(out):
    with open(out / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_it_learns_and_logs(run):
    rows = read_log(run)
    assert [int(row["step"]) for row in rows] == list(range(3, 25, 3))
    assert [float(row["epoch"]) for row in rows] == list(range(1, 9))
    assert [float(row["lr"]) for row in rows] == [0.1] * 4 + [0.01] * 2 + [0.001] * 2
    assert float(rows[-1]["loss"]) < 0.8 * float(rows[0]["loss"])
    assert float(rows[-1]["accuracy"]) > 0.5  # of six classes
    assert float(rows[-1]["validation_accuracy"]) > 0.5  # of five ways
    assert all(float(row["images_per_second"]) > 0 for row in rows)
    content = json.loads((run / "run.json").read_text())
    assert content["recipe"]["steps"] == 24
    assert content["machine"]["processes"] == 1


def test_best_is_the_best(run):
    accuracies = [float(row["validation_accuracy"]) for row in read_log(run)]
    _, description = read_tensors(run / "best.safetensors")
    found = description["validation"]
    assert found["accuracy"] == max(accuracies)
    assert found["step"] == 3 * (accuracies.index(max(accuracies)) + 1)


def test_validation_is_the_nearest_prototype(data, run):
    """The accuracy stored with the best weights, recomputed from them with numpy."""
    from tim_ext import tasks

    encoder, how, description = load_encoder(run / "best.safetensors")
    held_out = open_dataset("npz", data, "val")
    with torch.inference_mode():
        pixels = normalize(center_crop(to_tensor(held_out.images, 3), how), how)
        features = features_of(encoder.eval(), pixels).double().numpy()
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    drawn = tasks.balanced(held_out.labels, ways=5, shots=1, queries=5, seed=0)[0:20]
    accuracies = []
    for rows, truth in zip(drawn.index.numpy(), drawn.truth.numpy(), strict=True):
        distances = ((features[rows[5:], None] - features[rows[:5]]) ** 2).sum(axis=-1)
        accuracies.append((truth[:5][distances.argmin(axis=1)] == truth[5:]).mean())
    assert description["validation"]["accuracy"] == pytest.approx(np.mean(accuracies))
    expected = NormalDist().inv_cdf(0.975) * np.std(accuracies, ddof=1) / np.sqrt(20)
    assert description["validation"]["ci95"] == pytest.approx(expected)


def test_without_validation(data, tmp_path):
    only = tmp_path / "data"
    only.mkdir()
    (only / "train.npz").write_bytes((data / "train.npz").read_bytes())
    length = ["--epochs", "1", "--batch-size", "40", "--val-tasks", "0"]
    assert train.main(arguments(only, tmp_path / "out", length=length)) == 0
    assert read_log(tmp_path / "out")[0]["validation_accuracy"] == ""
    assert not (tmp_path / "out" / "best.safetensors").exists()
    load_encoder(tmp_path / "out" / "last.safetensors")


def test_tensorboard(data, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    common = arguments(data, tmp_path, length=["--epochs", "2", "--batch-size", "40"])
    common.remove("--no-tensorboard")
    assert train.main(common) == 0
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    rows = read_log(tmp_path)
    for name in ("loss", "accuracy", "validation_accuracy", "lr"):
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [3, 6]
        assert [scalar.value for scalar in scalars] == pytest.approx([float(row[name]) for row in rows])


def test_image_files(tmp_path):
    """A folder of one's own, with images of all sizes, read by workers."""
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for k in range(6):
        (tmp_path / "data" / f"pet{k}").mkdir(parents=True)
        for i in range(6):
            shape = rng.integers(20, 40, 2)
            pixels = (rng.integers(0, 30, (*shape, 3)) + 40 * k).astype(np.uint8)
            pillow.fromarray(pixels).save(tmp_path / "data" / f"pet{k}" / f"{i}.png")
    options = (
        f"--dataset imagefolder --data-root {tmp_path / 'data'} --split-ratio 0.5 0.5 0 --out {tmp_path}/out"
    )
    options += (
        " --model conv4 --width 4 --size 16 --resize 18 --epochs 1 --batch-size 9 --workers 1 --device cpu"
    )
    options += " --val-ways 3 --val-queries 2 --val-tasks 5 --no-tensorboard"
    assert train.main(options.split()) == 0
    _, description = read_tensors(tmp_path / "out" / "last.safetensors")
    assert (description["preprocessing"]["size"], description["preprocessing"]["resize"]) == (16, 18)


# What is refused ----------------------------------------------------------------------------------


def refused(capsys, options: list[str]) -> str:
    """The message of a run that ends with exit code 2."""
    assert train.main(options) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("train: ")
    assert "Traceback" not in captured.err
    return captured.err.removeprefix("train: ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch-size", "121"], "--batch-size: expected at most 120, all images, got 121"),
        (["--episodic"], "--episodic: expected --iterations and --episodes, got --epochs or --batch-size"),
        (["--model", "alexnet"], "--model: expected one of conv4, resnet10, "),
        (["--resize", "15"], "--resize: expected at least the image size 16, got 15"),
        (["--val-ways", "7"], "tasks of npz, split 'val': ways: expected at most 6"),
        (["--val-shots", "18"], "tasks of npz, split 'val': labels: class 0 has 20 samples"),
        (["--dataset", "mini-imagenet"], "mini-imagenet: found no split 'train'"),
        (["--lr", "1e30"], "training diverged: "),
    ],
)
def test_refusals(data, tmp_path, capsys, more, message):
    assert refused(capsys, arguments(data, tmp_path, *more)).startswith(message)


def test_more_ways_than_classes(data, tmp_path, capsys):
    length = ["--episodic", "--ways", "7"]
    message = refused(capsys, arguments(data, tmp_path, length=length))
    assert message.startswith("tasks of npz, split 'train': ways: expected at most 6")


def test_a_missing_validation_split_says_how_to_do_without(data, tmp_path, capsys):
    (tmp_path / "train.npz").write_bytes((data / "train.npz").read_bytes())
    message = refused(capsys, arguments(tmp_path, tmp_path / "out"))
    assert message.startswith(
        f"npz: found no split 'val' in {tmp_path}.\nExpected below --data-root:\n  train.npz"
    )
    assert message.endswith("Without validation classes: --val-tasks 0\n")


def test_no_gpu(data, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    message = refused(capsys, arguments(data, tmp_path, "--device", "cuda"))
    assert message == "--device: expected cpu, as torch finds no CUDA device, got cuda\n"


@pytest.mark.parametrize(
    ("more", "name"), [(["--lr", "0.2"], "lr"), (["--seed", "1"], "seed"), (["--width", "9"], "width")]
)
def test_another_recipe_in_the_same_folder(data, run, capsys, more, name):
    """The run is left as it was."""
    before = (run / "last.safetensors").read_bytes()
    message = refused(capsys, arguments(data, run, *more))
    assert name in message
    assert message.count("\n") == 1
    assert (run / "last.safetensors").read_bytes() == before


def test_other_images_in_the_same_folder(run, tmp_path, capsys):
    other = write_arrays(tmp_path, seed=1)
    assert "holds a run with images = " in refused(capsys, arguments(other, run))


def test_damaged_checkpoints(data, run, tmp_path, capsys):
    whole = (run / "last.safetensors").read_bytes()
    damaged = whole[:-100] + b"x" + whole[-99:]
    for content in (b"", whole[: len(whole) // 2], damaged):
        (tmp_path / "last.safetensors").write_bytes(content)
        message = refused(capsys, arguments(data, tmp_path))
        assert message.startswith(f"{tmp_path / 'last.safetensors'}: damaged")
        assert message.count("\n") == 1


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_damaged_image(tmp_path, capsys, workers):
    pillow = pytest.importorskip("PIL.Image")
    for k in range(2):
        (tmp_path / "train" / f"pet{k}").mkdir(parents=True)
        for i in range(4):
            pillow.new("RGB", (20, 20), (60 * i, 0, 0)).save(tmp_path / "train" / f"pet{k}" / f"{i}.jpg")
    path = tmp_path / "train" / "pet1" / "2.jpg"
    path.write_bytes(path.read_bytes()[:300])
    options = (
        f"--dataset imagefolder --data-root {tmp_path} --out {tmp_path}/out --model conv4 --width 4 --size 16"
    )
    options += f" --epochs 1 --batch-size 8 --val-tasks 0 --workers {workers} --device cpu --no-tensorboard"
    message = refused(capsys, options.split())
    assert message.startswith(f"{path}: not a readable image (")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "more",
    [
        ["--epochs", "0"],
        ["--epochs", "2", "--iterations", "3"],
        ["--lr", "0"],
        ["--lr", "nan"],
        ["--momentum", "1"],
        ["--crop-scale", "0"],
        ["--amp", "float8"],
        ["--unknown"],
    ],
)
def test_options_out_of_range(more, capsys):
    with pytest.raises(SystemExit) as ended:
        train.main(["--dataset", "npz", "--out", "x", *more])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_argument_types():
    assert (count(0)("0"), number("[0, 1)")("0"), number("(0, 1]")("1")) == (0, 0.0, 1.0)
    for kind, text in ((count(1), "0"), (count(0), "-1"), (count(0), "1.5"), (number("[0, 1)"), "1")):
        with pytest.raises(Exception, match="expected"):
            kind(text)


def test_the_images_of_a_batch_do_not_depend_on_the_reader(data):
    """Workers or not, the first batch of an epoch is the same."""
    from python_train.loading import load

    recipe, base = recipe_of(data), open_dataset("npz", data, "train")
    images = Images(base, recipe.preprocessing, recipe.augmentation)
    rows = np.arange(10)
    made = [Batch(rows, turn, rows) for turn in range(3)]
    here = list(load(images, iter(made), 0, CPU))
    there = list(load(images, iter(made), 2, CPU))
    for (pixels, labels), (other, other_labels) in zip(here, there, strict=True):
        torch.testing.assert_close(pixels, other, rtol=0, atol=1e-6)
        assert torch.equal(labels, other_labels)
