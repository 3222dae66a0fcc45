"""`tim-ext predict --class-names`: images labelled from the names of their classes, by a tiny CLIP."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.drawings import read_csv
from helpers.html import Page
from helpers.tiny_clip import COLOURS, Image, noisy, write_clip

import tim_ext
from tim_ext.cli.main import main
from tim_ext.images.extraction import open_extractor
from tim_ext.images.image_text import class_vectors
from tim_ext.images.labelling import best_two
from tim_ext.solver.params import ALPHA_TIM

pytest.importorskip("tqdm")

NAMES = list(COLOURS)


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return write_clip(tmp_path_factory.mktemp("encoders") / "clip", trained=True)


@pytest.fixture
def pool(tmp_path) -> Path:
    """Two labelled images of each of three colours in `support`, five of each to label in `query`."""
    rng = np.random.default_rng(1)
    for name in NAMES:
        for k in range(7):
            folder = tmp_path / "support" / name if k < 2 else tmp_path / "query"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy(name, rng, 40, 60 - k)).save(folder / f"{name}{k}.png")
    return tmp_path


def predict(pool: Path, clip: Path, *more) -> int:
    given = ["--query", pool / "query", "--out", pool / "out", "--encoder", clip, "--device", "cpu"]
    return main(["predict", *map(str, given), *map(str, more)])


def found(pool: Path) -> dict[str, str]:
    """The class of each colour, all of whose images must have it."""
    pairs = {(re.sub(r"\d\.png$", "", row["path"]), row["class"]) for row in read_csv(pool)}
    assert len(pairs) == len(NAMES)
    return dict(pairs)


def features(clip: Path, folder: Path) -> torch.Tensor:
    extract = open_extractor(str(clip), device="cpu")
    with tempfile.TemporaryFile() as spool:
        return extract(sorted(folder.rglob("*.png")), spool)[0].features


def vectors(clip: Path, texts, *prompts) -> torch.Tensor:
    return class_vectors(open_extractor(str(clip), device="cpu").network, "", texts, *prompts)


def confidences(pool: Path) -> np.ndarray:
    """The two largest of every image."""
    return np.array([[float(row[f"{x}confidence"]) for x in ("", "second_")] for row in read_csv(pool)])


def expected(solve, *task, known: int = 0, **hyper) -> np.ndarray:
    """The same of the solver, whose first samples are `known`."""
    solved = solve(*task, outputs=("probs", "confidence"), **hyper)
    both = solved.probs[known:].double().numpy(), solved.confidence[known:].double().numpy()
    return np.array([(first, second) for _, first, _, second in best_two(*both)])


@pytest.mark.parametrize("method", ["robust", "adm", "gd", "alpha-tim"])
def test_names_alone(pool, clip, capsys, method):
    given = ["blue", "red", "green"]
    assert predict(pool, clip, "--class-names", *given, "--method", method) == 0
    assert len(read_csv(pool)) == 15
    assert found(pool) == {name: name for name in NAMES}
    out, err = capsys.readouterr()
    assert err == ""  # no bars and no advice of the library
    first, second = out.splitlines()[:2]
    done = (
        f"3 class names in 5 prompts each, read by {clip}; images and texts were each taken from their own "
    )
    assert first == f"{done}centre"
    assert second == ""
    assert re.findall(r"^(\w+) +0 +5 ", out, re.MULTILINE) == given
    solve, hyper = getattr(tim_ext, method, tim_ext.gd), {}
    if method == "alpha-tim":
        hyper = {"lam": ALPHA_TIM.lam, "alpha": ALPHA_TIM.alpha, "entropy_order": 2.0}  # as for one shot
    images, nobody = features(clip, pool / "query"), torch.full((15,), -1)
    of_solver = expected(solve, images, nobody, class_vectors=vectors(clip, given), **hyper)
    np.testing.assert_allclose(confidences(pool), of_solver, atol=1e-3)


def test_the_page(pool, clip):
    assert predict(pool, clip, "--class-names", *NAMES) == 0
    text = (pool / "out" / "contact_sheet.html").read_text(encoding="utf-8")
    assert "TIM labelled them from the names of the classes. Each class has" in text
    assert "3 class names in 5 prompts each, read by " in text
    assert 'class="photo known"' not in text
    assert "green: 5 images" in Page(text).texts
    assert predict(pool, clip, "--class-names", *NAMES, "--support", pool / "support") == 0
    text = (pool / "out" / "contact_sheet.html").read_text(encoding="utf-8")
    assert "from the names of the classes and 6 labelled images (dark frames). Each" in text
    assert text.count('class="photo known"') == 6


@pytest.mark.parametrize("value", ["{}", "@{}"])
def test_names_from_a_file(pool, clip, value):
    path = pool / "names.txt"
    path.write_bytes("\ufeffr01=red\r\n\r\n  gr\u00fcn=green \r\nblue".encode())
    assert predict(pool, clip, "--class-names", value.format(path)) == 0
    assert found(pool) == {"red": "r01", "green": "gr\u00fcn", "blue": "blue"}
    given = ["@" + str(path), "light_grey"]
    assert predict(pool, clip, "--class-names", *given) == 0
    images, nobody = features(clip, pool / "query"), torch.full((15,), -1)
    texts = vectors(clip, ["red", "green", "blue", "light grey"])
    of_solver = expected(tim_ext.robust, images, nobody, class_vectors=texts)
    np.testing.assert_allclose(confidences(pool), of_solver, atol=1e-3)


def test_beside_labelled_images(pool, clip, capsys):
    """A class need not have any; names that are not given are those of the folders."""
    shutil.rmtree(pool / "support" / "blue")
    images = torch.cat([features(clip, pool / folder) for folder in ("support", "query")])
    labels = torch.tensor([1, 1, 0, 0] + 15 * [-1])
    of_solver = expected(tim_ext.robust, images, labels, known=4, class_vectors=vectors(clip, NAMES))
    with_folders = ["--support", pool / "support", "--class-names"]
    assert predict(pool, clip, *with_folders, *NAMES) == 0
    np.testing.assert_allclose(confidences(pool), of_solver, atol=1e-3)
    assert re.findall(r"^(\w+) +(\d) +5 ", capsys.readouterr().out, re.MULTILINE) == [
        ("red", "2"),
        ("green", "2"),
        ("blue", "0"),
    ]
    (pool / "support" / "blue").mkdir()
    assert predict(pool, clip, *with_folders) == 0
    np.testing.assert_allclose(confidences(pool), of_solver, atol=1e-3)
    assert found(pool) == {name: name for name in NAMES}
    shutil.rmtree(pool / "support" / "green")
    shutil.rmtree(pool / "support" / "blue")
    assert predict(pool, clip, *with_folders, *NAMES) == 0
    assert found(pool) == {name: name for name in NAMES}


def test_prompts(pool, clip, capsys):
    prompts = ["a {}", "two {} {}"]
    assert predict(pool, clip, "--class-names", *NAMES, "--prompt", prompts[0], "--prompt", prompts[1]) == 0
    assert capsys.readouterr().out.startswith("3 class names in 2 prompts each, read by ")
    images, nobody = features(clip, pool / "query"), torch.full((15,), -1)
    of_solver = expected(tim_ext.robust, images, nobody, class_vectors=vectors(clip, NAMES, prompts))
    np.testing.assert_allclose(confidences(pool), of_solver, atol=1e-3)
    assert predict(pool, clip, "--class-names", *NAMES, "--prompt", "{}") == 0
    assert capsys.readouterr().out.startswith("3 class names in one prompt each, read by ")


def test_few_images_for_names_alone_are_labelled_by_the_nearest_text(pool, clip, capsys):
    for path in sorted((pool / "query").iterdir())[:7]:
        path.unlink()
    line = (
        "few images for names alone, 8 of 3 classes: below 3 per class the nearest text is mostly better, "
        "and they were labelled by it; --set iterations=100 uses the method all the same"
    )
    images, nobody = features(clip, pool / "query"), torch.full((8,), -1)

    def expect(solve, **hyper):
        of_solver = expected(solve, images, nobody, class_vectors=vectors(clip, NAMES), **hyper)
        np.testing.assert_allclose(confidences(pool), of_solver, atol=1e-3)

    assert predict(pool, clip, "--class-names", *NAMES) == 0
    assert capsys.readouterr().out.splitlines()[1] == line
    assert f"F{line[1:]}." in (pool / "out" / "contact_sheet.html").read_text(encoding="utf-8")
    expect(tim_ext.adm, iterations=0)
    assert predict(pool, clip, "--class-names", *NAMES, "--set", "iterations=100") == 0
    assert "few images" not in capsys.readouterr().out
    expect(tim_ext.robust)
    assert predict(pool, clip, "--class-names", *NAMES, "--support", pool / "support") == 0
    assert "few images" not in capsys.readouterr().out
    Image.fromarray(noisy("red", np.random.default_rng(0))).save(pool / "query" / "ninth.png")
    assert predict(pool, clip, "--class-names", *NAMES) == 0
    assert "few images" not in capsys.readouterr().out


def test_proportions_by_name(pool, clip):
    shares = ["--class-prior", "red=1", "green=1", "blue=2"]
    assert predict(pool, clip, "--class-names", *NAMES, *shares) == 0
    images, nobody = features(clip, pool / "query"), torch.full((15,), -1)
    given = {"class_vectors": vectors(clip, NAMES), "class_prior": [0.25, 0.25, 0.5]}
    of_solver = expected(tim_ext.robust, images, nobody, **given)
    np.testing.assert_allclose(confidences(pool), of_solver, atol=1e-3)


def test_the_folder_as_an_encoder_of_images_alone(pool, clip):
    assert predict(pool, clip, "--support", pool / "support") == 0
    assert found(pool) == {name: name for name in NAMES}


def test_outputs_that_are_refused(pool, clip, capsys):
    (pool / "out").mkdir()
    names = pool / "out" / "predictions.csv"
    names.write_text("red\nblue\n")
    for value in (names, f"@{names}"):
        assert predict(pool, clip, "--class-names", value) == 2
        message = f"--out: expected a file that is not read, got {names}, a file of --class-names\n"
        assert capsys.readouterr().err == f"tim-ext predict: {message}"
    assert names.read_text() == "red\nblue\n"
    before = sorted(path.name for path in clip.iterdir())
    assert predict(pool, clip, "--class-names", *NAMES, "--out", clip) == 2
    message = f"--out: expected a folder that is not read, got {clip}, which is --encoder\n"
    assert capsys.readouterr().err == f"tim-ext predict: {message}"
    assert sorted(path.name for path in clip.iterdir()) == before


def test_a_name_that_is_too_long_is_refused_before_any_image_is_read(pool, clip, capsys):
    shutil.rmtree(pool / "query")
    (pool / "query").mkdir()
    (pool / "query" / "a.png").write_text("no image")
    assert predict(pool, clip, "--class-names", "red", "blue " * 12) == 2
    assert "--class-names: expected names that make texts of at most 40 tokens" in capsys.readouterr().err
