"""Options that several commands have: the same shape and the same messages in all of them."""

from __future__ import annotations

import argparse

import pytest

from tim_ext.cli import label, predict
from tim_ext.cli.main import main
from tim_ext.cli.options import add_class_prior, read_class_prior

CLASSES = ["a", "b", "c=d"]


def class_prior(*given: str) -> list[float] | None:
    parser = argparse.ArgumentParser()
    add_class_prior(parser, "here")
    return read_class_prior(parser.parse_args(["--class-prior", *given] if given else []), CLASSES)


def test_class_prior_in_words_and_in_a_file(tmp_path):
    assert class_prior() is None
    assert class_prior("b=0.25", "c=d=0.25", "a=0.5") == [0.5, 0.25, 0.25]
    assert class_prior("a=2", "b=1", "c=d=1") == [0.5, 0.25, 0.25]  # counts
    path = tmp_path / "prior=.csv"
    path.write_text("label,proportion\nb,1\na,2\nc=d,1\n")
    assert class_prior(str(path)) == [0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a=1", "b=1"], "expected a share of every class, got none of 'c=d'"),
        (["a=1", "e=1"], "expected a class out of 'a', 'b', 'c=d', got 'e'"),
        (["a=1", "a=2"], "expected every class once, got 'a' again"),
        *(
            ([f"a={share}"], f"expected a share > 0 of 'a', got '{share}'")
            for share in ("0", "-1", "nan", "inf", "many")
        ),
    ],
)
def test_both_shapes_of_class_prior_refuse_alike(tmp_path, lines, message):
    with pytest.raises(ValueError, match=rf"\A--class-prior: {message}\Z"):
        class_prior(*lines)
    path = tmp_path / "prior.csv"
    path.write_text("".join(line.replace("=", ",") + "\n" for line in lines))
    with pytest.raises(ValueError, match=rf"\A{path}(, line \d)?: {message}\Z"):
        class_prior(str(path))


def test_class_prior_that_is_neither(tmp_path):
    with pytest.raises(
        ValueError, match=r"--class-prior: expected a CSV file or NAME=SHARE .*, got 'none.csv'"
    ):
        class_prior("none.csv")
    with pytest.raises(ValueError, match=r"--class-prior: expected NAME=SHARE, got 'none.csv'"):
        class_prior("a=1", "none.csv")


def test_label_and_predict_name_the_method_alike():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    label.add_command(commands)
    predict.add_command(commands)
    said = []
    for command in commands.choices.values():
        options = {action.dest: action for action in command._actions}
        said.append([(options[name].choices, options[name].default) for name in ("method", "class_prior")])
    assert said == 2 * [[(["robust", "adm", "gd", "alpha-tim"], "robust"), (None, None)]]


def test_predict_names_the_new_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--support", "a", "--query", "b", "--solver", "gd"])
    assert ended.value.code == 2
    assert "--solver: expected --method, the new name" in capsys.readouterr().err
