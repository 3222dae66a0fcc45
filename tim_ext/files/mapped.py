"""Files mapped into memory, and whether they are still as long as when they were mapped.

Memory behind the end of a file that was cut off since ends the process with SIGBUS when it is read, without a
word. So whoever reads a pool in pieces calls `check_mapped` before each: what remains is a file that is cut
off while a piece is being read.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor


class _Mapping(NamedTuple):
    memory: weakref.ref[mmap.mmap]
    address: int
    size: int
    path: str


_mappings: list[_Mapping] = []


def map_file(file: BinaryIO) -> mmap.mmap:
    """The file as memory. Pages that are written to become private, so no write reaches the file; and no
    memory is set apart for all of them, which the kernel would refuse for a file larger than the memory."""
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)  # named since Python 3.13
    memory = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    _mappings[:] = [one for one in _mappings if one.memory() is not None]
    _mappings.append(_Mapping(weakref.ref(memory), address, len(memory), str(file.name)))
    return memory


def check_mapped(tensor: Tensor) -> None:
    """Refuses a tensor in a file of `map_file` that has become shorter. Costs a microsecond or two.

    A file that was replaced by another of its name is still there as it was.
    """
    if not _mappings or tensor.device.type != "cpu":
        return
    address = tensor.data_ptr()
    for one in tuple(_mappings):
        if one.address <= address < one.address + one.size:
            memory: Any = one.memory()
            size = one.size if memory is None else memory.size()  # of the file, now
            if size < one.size:
                raise ValueError(
                    f"{one.path}: expected {one.size} bytes, as when it was opened, got {size}: "
                    "the file was cut off while it was read"
                )
