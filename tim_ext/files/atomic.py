"""Files that are whole or not there: a draft next to the file, on the disk, then renamed."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast


@contextmanager
def open_draft(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that takes the name `path` when the block ends, and is removed if the block raises.

    A reader, and whoever comes after a crash, finds the old content or the new, never a part of it. The
    folder of the file is made if need be. A symbolic link stays one: the file that it names is replaced.
    """
    path = target_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:  # it names the draft, which nobody knows
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield cast(BinaryIO, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name
    finally:
        os.close(folder)


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """`open_draft` for content at hand; text as UTF-8."""
    with open_draft(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def target_of(path: str | os.PathLike[str]) -> Path:
    """The file that writing to `path` replaces or makes, at the end of all links.

    Raises OSError if there is something else than a file: a directory cannot be replaced, and a device, to
    which root could, must not be.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # to be made; or mkdir will say what is in the way
        return target
    if stat.S_ISLNK(mode):  # of a circle of links, realpath returns one
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return target


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def remove_leftovers(folder: Path) -> None:
    """What a process left that was killed while it wrote."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
