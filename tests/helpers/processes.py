"""Python in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tim_ext


def run_python(
    *arguments: str, where: Path = Path(tim_ext.__file__).parents[1], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Python in a new process, with the package that lies in `where`."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(where)} | environment,
        capture_output=True,
        text=True,
    )
