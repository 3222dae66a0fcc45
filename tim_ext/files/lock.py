"""One run at a time for one output: a lock that ends with the process that holds it, however that ends.

The kernel keeps the lock (flock), on a hidden file beside the output; the file says who holds it. SIGKILL,
a crash and a power cut leave the file and no lock, and a file without a lock is no obstacle. Of several
processes that write one output together, the first one holds the lock. On NFS it counts for all hosts;
where a file system has no locks, a line on stderr says so and the run goes on without.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError

SETTLE = 1.0  # seconds for the one who has just got the lock to write who it is
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

_held: set[int] = set()  # file descriptors of the locks of this process


@contextmanager
def only_run(option: str, out: Path) -> Iterator[None]:
    """Keeps the output, a file or a folder that exists, from all others until the block ends; refuses if one
    of them has it, and names that process. `option` is what chose the output."""
    place = Path(os.path.realpath(out))  # two names of one output are one output
    path = place / ".lock" if place.is_dir() else place.with_name(f".{place.name}.lock")
    try:
        handle = _acquire(path)
    except BlockingIOError:
        raise UserError(
            f"{option}: expected an output that no other run is writing, got {out}, which "
            f"{_holder(path)} is writing"
        ) from None
    except OSError as error:  # it names the lock, which nobody knows
        raise OSError(error.errno, error.strerror, str(out)) from error
    process = os.getpid()
    _held.add(handle)
    try:
        yield
    finally:
        if os.getpid() == process:  # not in a child that was forked
            # the file first: whoever has it open and gets the lock after this sees that it is gone
            path.unlink(missing_ok=True)
            _held.discard(handle)
            os.close(handle)


def _acquire(path: Path) -> int:
    """The descriptor of the file, locked; BlockingIOError if another has the lock."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(path, handle)
            if _is_at(path, handle):
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the one before has removed the file since it was opened here


def _lock(path: Path, handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        print(
            f"tim_ext: {path.parent}: its file system has no locks ({error.strerror}): "
            "nothing keeps a second run from the same output",
            file=sys.stderr,
            flush=True,
        )


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """What the holder of the lock says of itself."""
    end = time.monotonic() + SETTLE
    while True:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except OSError:  # it has just ended
            text = ""
        if text or time.monotonic() > end:
            return text or "another process"
        time.sleep(SETTLE / 100)


def _let_go() -> None:
    """A child that is forked must not keep the lock of a parent that dies: it closes its descriptors."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
