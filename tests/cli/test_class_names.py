"""`--class-names` and `--prompt`: what is refused before an encoder is opened, or by one without texts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.drawings import CLASSES, Image, draw, write_folders

from tim_ext.cli.main import main

for needed in ("safetensors", "tqdm"):
    pytest.importorskip(needed)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    folder = write_folders(tmp_path_factory.mktemp("folders"))
    (folder / "one" / "rings").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "nothing.txt").write_text("\n \n")
    (folder / "latin.txt").write_bytes(b"rings\nstr\xefpes\n")
    (folder / "nul.txt").write_bytes(b"rings\nstri\0pes\n")
    (folder / "single.txt").write_text("rings\n")
    Image.fromarray(draw("rings", 0)).save(folder / "one" / "rings" / "r.png")
    return folder


def refusal(folders: Path, capsys, *more: object) -> str:
    given = ["predict", "--query", folders / "query", "--out", folders / "out", "--encoder", "glyphs"]
    assert main(list(map(str, [*given, *more]))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("tim-ext predict: ").rstrip().replace(str(folders), "HERE")


ALONE = [
    ([], "--support: expected labelled images, or --class-names, got neither"),
    (["--class-names"], "--class-names: expected names, or --support whose folders have them, got neither"),
    (["--prompt", "a {}"], "--prompt: expected --class-names with it, got none"),
    (["--class-names", "a", "b", "--prompt", "a photo"],
     "--prompt: expected {} in the place of the name, got 'a photo'"),
    (["--class-names", "cat"], "--class-names: expected two names or more, or a file of names, got 'cat'"),
    (["--class-names", "cat", "dog", "cat"], "--class-names: expected every name once, got 'cat' again"),
    (["--class-names", "cat", "cat=tabby cat"], "--class-names: expected every name once, got 'cat' again"),
    (["--class-names", "cat", ""], "--class-names: expected NAME or NAME=TEXT, got ''"),
    (["--class-names", "cat", "=dog"], "--class-names: expected NAME or NAME=TEXT, got '=dog'"),
    (["--class-names", "cat", "dog="], "--class-names: expected NAME or NAME=TEXT, got 'dog='"),
    (["--class-names", "@{}/no.txt"],
     "--class-names: expected a file of names, got '@HERE/no.txt', which is none"),
    (["--class-names", "{}/nothing.txt"],
     "--class-names: expected two names or more, or a file of names, got 'HERE/nothing.txt'"),
    (["--class-names", "{}/single.txt"],
     "--class-names: expected two names or more, or a file of names, got 'HERE/single.txt'"),
    (["--class-names", "{}/latin.txt"], "HERE/latin.txt, line 2: expected UTF-8, got the byte 0xef"),
    (["--class-names", "{}/nul.txt"], "HERE/nul.txt, line 2: expected text, got a NUL character"),
    (["--class-names", "cat", "dog"],
     "--class-names: expected an encoder with a text side, the folder of a CLIP or SigLIP model as "
     "--encoder, got 'glyphs', which is for images alone"),
    (["--class-names", "cat", "dog", "--class-prior", "cat=1"],
     "--class-prior: expected a share of every class, got none of 'dog'"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "message"), ALONE, ids=[str(k) for k in range(len(ALONE))])
def test_names_alone(folders, capsys, more, message):
    # the prompt has braces that are not a path's
    given = [text.replace("{}/", f"{folders}/") for text in more]
    assert refusal(folders, capsys, *given) == message


@pytest.mark.parametrize(
    ("support", "names", "message"),
    [
        ("support", ["rings", "stripes"],
         "--class-names: expected the names of all folders in --support, got none of 'zigzag'"),
        ("support", [*CLASSES, "dots"], "--class-names: expected an encoder with a text side"),
        ("one", ["rings", "dots"], "--class-names: expected an encoder with a text side"),
        ("one", [],
         "--support: expected two folders or more in HERE/one, one for each class, got one, 'rings'"),
        ("empty", ["rings", "dots"],
         "--support: expected a folder or more in HERE/empty, one for each class, got none"),
        ("no", ["rings", "dots"], "--support: expected a folder, got HERE/no, which is not one"),
    ],
)  # fmt: skip
def test_beside_labelled_images(folders, capsys, support, names, message):
    more = ["--support", folders / support, "--class-names", *names]
    assert refusal(folders, capsys, *more).startswith(message)


def test_without_transformers(folders, tmp_path, capsys, monkeypatch):
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).touch()
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    about = '{"size": 32, "crop_size": 32, "resample": 3, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}'
    (tmp_path / "preprocessor_config.json").write_text(about)
    monkeypatch.setitem(sys.modules, "transformers", None)
    more = ["--class-names", "cat", "dog", "--encoder", tmp_path]
    assert refusal(folders, capsys, *more) == "transformers is not installed: pip install 'tim_ext[clip]'"
