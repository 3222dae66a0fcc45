"""Which images a split has, in each published layout and in a folder of one's own; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.dataset_files import classes, draw, listing, pillow, write
from helpers.paths import ROOT

from python_train.datasets import image_form, open_dataset
from python_train.errors import UserError

assert ROOT


# Split files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["images", "data", "."])
@pytest.mark.parametrize("header", ["filename,label\n", ""])
@pytest.mark.parametrize("where", [".", "split", "splits"])
def test_csv_of_file_names(tmp_path, place, header, where):
    """mini-ImageNet of Ravi and Larochelle: all images in one folder."""
    for name in ("n01.jpg", "n02.jpg", "n03.jpg"):
        draw(tmp_path / place / name)
    write(tmp_path / where / "train.csv", f"{header}n01.jpg,n1\nn03.jpg,n3\nn02.jpg,n1\n")
    write(tmp_path / where / "val.csv", f"{header}n02.jpg,n2\n")
    dataset = open_dataset("mini-imagenet", tmp_path, "train")
    prefix = "" if place == "." else f"{place}/"
    expected = {(f"{prefix}n01.jpg", "n1"), (f"{prefix}n03.jpg", "n3"), (f"{prefix}n02.jpg", "n1")}
    assert listing(dataset) == expected
    assert classes(dataset) == ["n1", "n3"]
    assert classes(open_dataset("mini-imagenet", tmp_path, "val")) == ["n2"]
    assert image_form(dataset) == (84, 3)


def test_csv_with_classes_first(tmp_path):
    """mini-ImageNet of easyfsl: columns in the other order, a folder for each class, JPEG suffix."""
    draw(tmp_path / "images" / "n01" / "n01_5.JPEG")
    draw(tmp_path / "images" / "n02" / "n02_5.JPEG")
    write(tmp_path / "test.csv", "class_name,image_name\nn01,n01_5.JPEG\nn02,n02_5.JPEG\n")
    assert listing(open_dataset("mini-imagenet", tmp_path, "test")) == {
        ("images/n01/n01_5.JPEG", "n01"),
        ("images/n02/n02_5.JPEG", "n02"),
    }


def test_csv_in_a_folder_of_its_own(tmp_path):
    """The TIM repository: data/ and split/ apart; numbers as classes, in the order of numbers."""
    for label in (2, 10):
        draw(tmp_path / "tiered" / "data" / f"train_0_{label}_1.png")
    write(tmp_path / "split" / "train.csv", "train_0_10_1.png,10\ntrain_0_2_1.png,2\n")
    dataset = open_dataset("tiered-imagenet", tmp_path / "tiered", "train", splits=tmp_path / "split")
    assert classes(dataset) == ["2", "10"]
    assert dataset.labels.tolist() == [1, 0]


@pytest.mark.parametrize("names", [("base", "val", "novel"), ("train", "valid", "test")])
def test_json_of_images_written_on_another_machine(tmp_path, names):
    """CUB of Chen et al.: absolute paths, labels that number all classes."""
    for split, label in zip(names, (0, 1, 2), strict=True):
        draw(tmp_path / "CUB_200_2011" / "images" / f"00{label}.Bird" / "a.jpg")
        there = f"/home/x/filelists/CUB/CUB_200_2011/images/00{label}.Bird/a.jpg"
        content = {
            "label_names": ["000.Bird", "001.Bird", "002.Bird"],
            "image_names": [there],
            "image_labels": [label],
        }
        write(tmp_path / f"{split}.json", content)
    for split, label in (("train", 0), ("val", 1), ("test", 2)):
        expected = {(f"CUB_200_2011/images/00{label}.Bird/a.jpg", f"00{label}.Bird")}
        assert listing(open_dataset("cub", tmp_path, split)) == expected


def test_json_of_class_folders(tmp_path):
    """tiered-ImageNet of easyfsl."""
    draw(tmp_path / "images" / "n01" / "a.JPEG")
    draw(tmp_path / "images" / "n02" / "b.JPEG")
    roots = ["./data/tiered_imagenet/images/n01", "./data/tiered_imagenet/images/n02"]
    write(tmp_path / "val.json", {"class_names": ["cat", "dog"], "class_roots": roots})
    dataset = open_dataset("tiered-imagenet", tmp_path, "val")
    assert listing(dataset) == {("images/n01/a.JPEG", "cat"), ("images/n02/b.JPEG", "dog")}


def test_a_folder_for_each_split(tmp_path):
    for split, name in (("train", "n1"), ("val", "n2"), ("test", "n3")):
        draw(tmp_path / split / name / "deep" / "a.jpg")
        write(tmp_path / split / name / "notes.txt", "no image")
        draw(tmp_path / split / name / ".hidden.png")
    for name in ("mini-imagenet", "tiered-imagenet", "cifar-fs", "imagefolder"):
        assert listing(open_dataset(name, tmp_path, "val")) == {("val/n2/deep/a.jpg", "n2")}


def test_class_lists(tmp_path):
    """CIFAR-FS of Bertinetto et al."""
    for name in ("apple", "bear", "cup"):
        draw(tmp_path / "data" / name / "1.png")
    write(tmp_path / "splits" / "bertinetto" / "train.txt", "cup\napple\n\n")
    dataset = open_dataset("cifar-fs", tmp_path, "train")
    assert listing(dataset) == {("data/apple/1.png", "apple"), ("data/cup/1.png", "cup")}
    assert image_form(dataset) == (32, 3)


def test_cub_as_published(tmp_path):
    """Without split files, the rule of Chen et al.: half of the classes, then the others in turn."""
    for k in range(1, 9):
        draw(tmp_path / "CUB_200_2011" / "images" / f"{k:03}.Bird" / "a.jpg")
    numbers = {
        split: [name[:3] for name in classes(open_dataset("cub", tmp_path, split))]
        for split in ("train", "val", "test")
    }
    assert numbers == {"train": ["001", "003", "005", "007"], "val": ["002", "006"], "test": ["004", "008"]}


# Omniglot -----------------------------------------------------------------------------------------


def test_omniglot_by_alphabets(tmp_path):
    """val: the five alphabets of the background set with the fewest characters."""
    for number in range(7):
        for character in range(number + 1):
            path = tmp_path / "images_background" / f"A{number}" / f"character{character:02}"
            draw(path / "1.png")
    draw(tmp_path / "images_evaluation" / "Z" / "character01" / "1.png")
    val = open_dataset("omniglot", tmp_path, "val")
    assert list(val.superclasses) == ["A0", "A1", "A2", "A3", "A4"]
    assert val.superclasses["A1"] == ["A1/character00", "A1/character01"]
    assert len(classes(val)) == 15
    assert list(open_dataset("omniglot", tmp_path, "train").superclasses) == ["A5", "A6"]
    assert classes(open_dataset("omniglot", tmp_path, "test")) == ["Z/character01"]
    assert image_form(val) == (28, 1)


def test_omniglot_with_rotated_classes(tmp_path):
    """Vinyals' split: every angle is a class."""
    path = tmp_path / "data" / "Angelic" / "character01" / "1.png"
    path.parent.mkdir(parents=True)
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    pillow().fromarray(pixels).save(path)
    lines = "".join(f"Angelic/character01/rot{angle:03}\n" for angle in (0, 90, 180, 270))
    write(tmp_path / "splits" / "vinyals" / "train.txt", lines)
    dataset = open_dataset("omniglot", tmp_path, "train")
    assert len(classes(dataset)) == 4
    for row, angle in enumerate((0, 1, 2, 3)):
        assert dataset.class_names[dataset.labels[row]] == f"Angelic/character01/rot{90 * angle:03}"
        assert np.array_equal(dataset.read(row, 1), np.rot90(pixels, angle))
    write(tmp_path / "splits" / "vinyals" / "val.txt", "Angelic/character02/rot000\n")
    with pytest.raises(
        UserError, match=r"val.txt: expected lines such as .* got 'Angelic/character02/rot000'"
    ):
        open_dataset("omniglot", tmp_path, "val")


# A folder of one's own ----------------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path):
    for k in range(10):
        draw(tmp_path / f"pet{k}" / "a.jpg", k)
    return tmp_path


def test_imagefolder_by_ratio(pets):
    found = {}
    for split in ("train", "val", "test"):
        dataset = open_dataset("imagefolder", pets, split, ratio=(0.5, 0.2, 0.3), seed=4)
        found[split] = classes(dataset)
    assert [len(names) for names in found.values()] == [5, 2, 3]
    assert sorted(name for names in found.values() for name in names) == [f"pet{k}" for k in range(10)]
    again = open_dataset("imagefolder", pets, "train", ratio=(0.5, 0.2, 0.3), seed=4)
    assert again.class_names == found["train"]
    other = open_dataset("imagefolder", pets, "train", ratio=(0.5, 0.2, 0.3), seed=5)
    assert other.class_names != found["train"]
    with pytest.raises(
        UserError, match=r"--split-ratio: expected three shares >= 0 of sum 1, got 0.5 0.2 0.2"
    ):
        open_dataset("imagefolder", pets, "train", ratio=(0.5, 0.2, 0.2))
    with pytest.raises(UserError, match="--split-ratio: expected --dataset imagefolder with it, got cub"):
        open_dataset("cub", pets, "train", ratio=(0.5, 0.2, 0.3))


@pytest.mark.parametrize("inside", [True, False])
def test_imagefolder_by_a_file_of_classes(pets, tmp_path_factory, inside):
    content = {"train": ["pet3", "pet1"], "valid": ["pet2"], "test": ["pet9"]}
    folder = pets if inside else tmp_path_factory.mktemp("elsewhere")
    file = write(folder / "splits.json", content)
    splits = None if inside else file
    assert classes(open_dataset("imagefolder", pets, "train", splits=splits)) == ["pet1", "pet3"]
    assert classes(open_dataset("imagefolder", pets, "val", splits=splits)) == ["pet2"]


def test_a_class_in_two_splits_is_refused(pets):
    write(pets / "splits.json", {"train": ["pet1"], "test": ["pet2", "pet1"]})
    with pytest.raises(
        UserError, match=r"splits.json: expected each class in one split, got 'pet1' in train and test"
    ):
        open_dataset("imagefolder", pets, "train")


# Meta-Dataset -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [".", "aircraft", "splits"])
def test_meta_dataset_by_class_lists(tmp_path, where):
    """Class names that cannot be names of folders."""
    draw(tmp_path / "aircraft" / "F-16A_B" / "1.jpg")
    draw(tmp_path / "aircraft" / "images" / "A320" / "1.jpg")
    write(tmp_path / where / "aircraft_splits.json", {"train": ["F-16A/B"], "valid": ["A320"], "test": []})
    assert classes(open_dataset("meta-dataset:aircraft", tmp_path, "train")) == ["F-16A/B"]
    assert classes(open_dataset("meta-dataset:aircraft", tmp_path, "val")) == ["A320"]
    with pytest.raises(
        UserError, match=r"aircraft_splits.json: expected a list of classes under 'test' or 'novel'"
    ):
        open_dataset("meta-dataset:aircraft", tmp_path, "test")


def test_meta_dataset_by_a_specification(tmp_path):
    """Classes are numbered through the splits; folders may be numbers."""
    for number in range(4):
        draw(tmp_path / "vgg_flower" / f"{number:05}" / "1.jpg")
    spec = {
        "classes_per_split": {"TRAIN": 2, "VALID": 1, "TEST": 1},
        "class_names": {"0": "003.rose", "1": "001.lily", "2": 2, "3": "000.tulip"},
    }
    write(tmp_path / "vgg_flower_dataset_spec.json", spec)
    train = open_dataset("meta-dataset:vgg_flower", tmp_path, "train")
    assert listing(train) == {("vgg_flower/00003/1.jpg", "003.rose"), ("vgg_flower/00001/1.jpg", "001.lily")}
    assert listing(open_dataset("meta-dataset:vgg_flower", tmp_path, "val")) == {
        ("vgg_flower/00002/1.jpg", "2")
    }
    assert classes(open_dataset("meta-dataset:vgg_flower", tmp_path, "test")) == ["000.tulip"]


def test_meta_dataset_omniglot(tmp_path):
    """Two levels: alphabets, numbered through the splits, and their characters."""
    for part, alphabet, count in (
        ("images_background", "A", 2),
        ("images_background", "B-C", 1),
        ("images_evaluation", "D", 1),
    ):
        for k in range(count):
            draw(tmp_path / "omniglot" / part / alphabet / f"character{k:02}" / "1.png")
    spec = {
        "superclasses_per_split": {"TRAIN": 1, "VALID": 1, "TEST": 1},
        "classes_per_superclass": {"0": 2, "1": 1, "2": 1},
        "superclass_names": {"0": "A", "1": "B-C", "2": "D"},
        "class_names": {
            "0": "A-character00",
            "1": "A-character01",
            "2": "B-C-character00",
            "3": "D-character00",
        },
    }
    write(tmp_path / "omniglot" / "dataset_spec.json", spec)
    train, val, test = (
        open_dataset("meta-dataset:omniglot", tmp_path, split) for split in ("train", "val", "test")
    )
    assert train.superclasses == {"A": ["A-character00", "A-character01"]}
    assert listing(val) == {("omniglot/images_background/B-C/character00/1.png", "B-C-character00")}
    assert test.superclasses == {"D": ["D-character00"]}


def test_meta_dataset_ilsvrc(tmp_path):
    """A graph for each split, whose leaves are the classes."""
    for name in ("n3", "n4", "n5"):
        draw(tmp_path / "ilsvrc_2012" / name / "1.JPEG")

    def node(name, children):
        return {"wn_id": name, "words": name, "children_ids": children, "parents_ids": []}

    graph = {
        "TRAIN": [node("n1", ["n2", "n3"]), node("n2", ["n3", "n4"]), node("n3", []), node("n4", [])],
        "VALID": [node("n1", ["n5"]), node("n5", [])],
        "TEST": [],
    }
    write(tmp_path / "ilsvrc_2012_dataset_spec.json", {"split_subgraphs": graph})
    train = open_dataset("meta-dataset:ilsvrc_2012", tmp_path, "train")
    assert classes(train) == ["n3", "n4"]
    assert train.hierarchy == {"n1": ["n2", "n3"], "n2": ["n3", "n4"]}
    with pytest.raises(UserError, match="ilsvrc_2012 has no classes in the split 'test'"):
        open_dataset("meta-dataset:ilsvrc_2012", tmp_path, "test")


def test_the_hierarchy_is_that_of_tim_ext(tmp_path):
    from tim_ext import tasks

    leaves = [f"c{k}" for k in range(6)]
    for name in leaves:
        for image in range(4):
            draw(tmp_path / "ilsvrc_2012" / name / f"{image}.png")
    nodes = [
        {"wn_id": "top", "children_ids": leaves},
        *({"wn_id": name, "children_ids": []} for name in leaves),
    ]
    spec = {"split_subgraphs": {"TRAIN": nodes, "VALID": [], "TEST": []}}
    write(tmp_path / "ilsvrc_2012" / "ilsvrc_2012_dataset_spec.json", spec)
    dataset = open_dataset("meta-dataset:ilsvrc_2012", tmp_path, "train")
    sampler = tasks.meta_dataset(dataset.labels, hierarchy=dataset.hierarchy, class_names=dataset.class_names)
    assert all(len(ways) == 6 for ways in sampler[0:3].classes)


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.csv", "", "expected lines of a file name and a class, got none"),
        ("train.csv", "a.jpg\n", "expected lines of a file name and a class, got a.jpg"),
        ("train.csv", "x,y\n1,2\n", "expected the columns filename and label, got x, y"),
        ("train.csv", "a.jpg,1\nb.jpg\n", "expected a file name and a class on each line, got 'b.jpg'"),
        ("train.csv", "z.jpg,1\n", "its first image, 'z.jpg', is not in "),
        ("train.csv", "a.jpg,1\nz.jpg,1\nb.jpg,2\n", "2 of 3 images are missing, the first is .*z.jpg"),
        ("train.txt", "cat\ndog\n", "2 of 2 classes have no folder, the first is 'cat'; looked in "),
        ("train.json", "{", "not a readable JSON file"),
        ("train.json", [1], "expected a JSON object, got a list"),
        ("train.json", {"x": 1}, "expected a list of classes under 'train' or 'base', got 'x'"),
        (
            "train.json",
            {"label_names": ["x"], "image_names": ["a.jpg"], "image_labels": []},
            "expected as many image_labels as image_names, 1, got 0",
        ),
        (
            "train.json",
            {"label_names": ["x"], "image_names": ["/far/z.jpg"], "image_labels": [0]},
            "its first entry, '/far/z.jpg', is not below ",
        ),
        (
            "train.json",
            {"class_names": ["x"], "class_roots": []},
            "expected as many class_roots as class_names, 1, got 0",
        ),
    ],
)
def test_split_files_that_are_refused(tmp_path, name, content, message):
    draw(tmp_path / "images" / "a.jpg")
    write(tmp_path / name, content)
    with pytest.raises(UserError, match=f"{name}: {message}") as refused:
        open_dataset("mini-imagenet", tmp_path, "train")
    assert "\n" not in str(refused.value)


def test_a_specification_that_is_refused(tmp_path):
    (tmp_path / "x").mkdir()
    write(tmp_path / "x_dataset_spec.json", {"classes_per_split": {"TRAIN": 1}})
    with pytest.raises(UserError, match=r"not a split or specification of Meta-Dataset \(KeyError 'VALID'"):
        open_dataset("meta-dataset:x", tmp_path, "train")
