"""Automatic mixed precision."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

PRECISIONS = {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(device: torch.device, amp: str) -> AbstractContextManager[object]:
    dtype = PRECISIONS[amp]
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def make_scaler(device: torch.device, amp: str) -> torch.amp.GradScaler:
    """float16 has few small numbers: gradients are scaled up. It does nothing for the others."""
    return torch.amp.GradScaler(device.type, enabled=amp == "float16")
