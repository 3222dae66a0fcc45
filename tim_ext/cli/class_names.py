"""Classes that are known by their names: the options, and what is said of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..files.label_files import read_lines
from ..images.image_text import PLACE, PROMPTS
from ..images.labelling import FEW, Labelled
from ..images.reading import shown

OPTION = "--class-names"


class Names(NamedTuple):
    texts: dict[str, str]  # what the encoder reads, by class; empty: the classes are the folders
    prompts: Sequence[str]

    def text(self, name: str) -> str:
        return self.texts.get(name) or spoken(name)


def spoken(name: str) -> str:
    return name.replace("_", " ")


def add_class_names(add: Any) -> None:
    add.add_argument(
        OPTION,
        nargs="*",
        action="extend",
        metavar="NAME",
        help="the classes by their names, read by the text side of --encoder, in the place of --support or "
        "beside it: NAME, or NAME=TEXT if it is to read another text, or FILE or @FILE with one of them per "
        "line. The folders of --support must be among them; without values they are the classes, and may be "
        "empty",
    )
    shown_prompts = " ".join(f'"{prompt}"' for prompt in PROMPTS)
    add.add_argument(
        "--prompt",
        nargs="+",
        action="extend",
        metavar="TEXT",
        help=f"what names are put into, at {PLACE}; the mean over all is taken ({shown_prompts})",
    )


def read_class_names(options: argparse.Namespace) -> Names | None:
    given, prompts = options.class_names, options.prompt
    if given is None:
        if prompts is not None:
            raise UserError(f"--prompt: expected {OPTION} with it, got none")
        return None
    for prompt in prompts or ():
        if PLACE not in prompt:
            raise UserError(f"--prompt: expected {PLACE} in the place of the name, got {prompt!r}")
    if not given and options.support is None:
        raise UserError(f"{OPTION}: expected names, or --support whose folders have them, got neither")
    texts: dict[str, str] = {}
    for item in _items(given):
        name, assigned, text = item.partition("=")
        if not name or (assigned and not text):
            raise UserError(f"{OPTION}: expected NAME or NAME=TEXT, got {item!r}")
        if name in texts:
            raise UserError(f"{OPTION}: expected every name once, got {name!r} again")
        texts[name] = text or spoken(name)
    if given and len(texts) < 2:
        raise UserError(f"{OPTION}: expected two names or more, or a file of names, got {' '.join(given)!r}")
    return Names(texts, PROMPTS if prompts is None else prompts)


def files_of_names(options: argparse.Namespace) -> list[Path]:
    """The files among the values of the option."""
    given = options.class_names or []
    paths = [Path(value[1:]) for value in given if value.startswith("@")]
    return paths + ([Path(given[0])] if len(given) == 1 and Path(given[0]).is_file() else [])


def _items(given: Sequence[str]) -> list[str]:
    items: list[str] = []
    for value in given:
        if len(given) == 1 and Path(value).is_file():
            items += read_lines(Path(value))
        elif not value.startswith("@"):
            items.append(value.strip())
        elif Path(value[1:]).is_file():
            items += read_lines(Path(value[1:]))
        else:
            raise UserError(f"{OPTION}: expected a file of names, got {value!r}, which is none")
    return items


def describe_names(names: Names | None, labelled: Labelled, encoder: str) -> list[str]:
    """Lines to print, if any: what was done with the names, and whether there were too few images for it."""
    if names is None:
        return []
    classes, images = len(labelled.names), len(labelled.found.paths)
    prompts = "one prompt" if len(names.prompts) == 1 else f"{len(names.prompts)} prompts"
    lines = [
        f"{classes} class names in {prompts} each, read by {shown(encoder)}; images and texts were each "
        "taken from their own centre"
    ]
    if labelled.by_nearest:
        lines.append(
            f"few images for names alone, {images:,} of {classes} classes: below {FEW} per class the nearest "
            "text is mostly better, and they were labelled by it; --set iterations=100 uses the method all "
            "the same"
        )
    return lines


def as_sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."
