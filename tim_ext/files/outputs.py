"""Where commands write: one rule for all of them, applied before any work.

- No output is an input, by whatever name: a link, a hard link, another spelling of the path.
- A folder that is read is not the folder to write to.
- A link stays a link; what it names is written.
- Folders that are missing are made; a file that is there is replaced when the new one is complete.
- A directory where a file is to be, or the reverse, is refused; so is a folder that cannot be written to.

Every refusal names the option.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .atomic import target_of

Inputs = Mapping[str, Any]  # as the user calls it, such as "--support": a path, several, or None


def output_file(option: str, path: Path, inputs: Inputs) -> Path:
    """The file to write for `path`, at the end of all links; its folder is there."""
    target = _file(option, path)
    _refuse_inputs(option, [(path, target)], inputs)
    _make_folder(option, target.parent)
    return target


def output_folder(option: str, folder: Path, names: Sequence[str], inputs: Inputs) -> Path:
    """The folder to write to; it is there. `names`: of the files to be written, or patterns of them."""
    target = Path(os.path.realpath(folder))
    if os.path.lexists(target) and not target.is_dir():
        raise UserError(f"{option}: expected a folder, got {folder}, which is none")
    place = _identity(target)
    for name, path in _paths(inputs):
        if place is not None and _identity(path) == place:
            raise UserError(f"{option}: expected a folder that is not read, got {folder}, which is {name}")
    there = [(folder / path.name, _file(option, path)) for path in _existing(target, names)]
    _refuse_inputs(option, there, inputs)
    _make_folder(option, target)
    return folder


def check_outside(option: str, folder: Path, name: str, other: Path) -> None:
    """Refuses a folder in another one whose folders mean something."""
    if Path(os.path.realpath(other)) in Path(os.path.realpath(folder)).parents:
        raise UserError(f"{option}: expected a folder outside {name}, got {folder} in {other}")


def _file(option: str, path: Path) -> Path:
    try:
        return target_of(path)
    except IsADirectoryError:
        raise UserError(f"{option}: expected a file, got the directory {path}") from None
    except OSError as error:
        raise UserError(f"{option}: expected a file, got {path} ({error.strerror})") from error


def _refuse_inputs(option: str, outputs: Sequence[tuple[Path, Path]], inputs: Inputs) -> None:
    """`outputs`: as the user sees them, and what will be replaced. Only what is there can be an input."""
    there = {identity: path for path, target in outputs if (identity := _identity(target)) is not None}
    if not there:
        return
    for name, path in _paths(inputs):
        found = there.get(_identity(path) or (-1, -1))
        if found is not None:
            kind = "the same file as" if isinstance(inputs[name], (str, os.PathLike)) else "a file of"
            raise UserError(f"{option}: expected a file that is not read, got {found}, {kind} {name}")


def _existing(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        if "*" in name:
            yield from sorted(folder.glob(name))
        elif os.path.lexists(folder / name):
            yield folder / name


def _paths(inputs: Inputs) -> Iterator[tuple[str, Path]]:
    for name, value in inputs.items():
        several: Iterable[Any] = [value] if isinstance(value, (str, os.PathLike)) else value or ()
        for path in several:
            yield name, Path(path)


def _identity(path: Path) -> tuple[int, int] | None:
    """The same for all names of a file, links among them; None without a file."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # the reader will say what is wrong with an input
        return None
    return status.st_dev, status.st_ino


def _make_folder(option: str, folder: Path) -> None:
    """Makes the folder, and a file in it for a moment: now rather than after hours of work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{option}: expected a folder to write to, got {folder} ({error.strerror or error})"
        ) from error
