"""What a file says that it holds, against the memory there is: before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def available_memory() -> int:
    """Bytes that can be had without pushing others out, by the kernel's own estimate, and free swap."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            sizes = dict(line.split(":") for line in lines)
        return sum(int(sizes[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):  # another system than Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_fits(size: int) -> None:
    """Refuses to read so many bytes into memory if there is less of it."""
    available = available_memory()
    if size > available:
        raise ValueError(
            f"expected at most {_gigabytes(available)}, the memory that is free, got {_gigabytes(size)}"
        )


@contextmanager
def within_memory(where: str) -> Iterator[None]:
    """One sentence for what numpy, pyarrow and torch raise when memory is refused after all."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"{where}: expected what fits into the free memory, got more") from error
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise ValueError(f"{where}: expected what fits into the free memory, got more") from error


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GB"
