"""compute-sanitizer over a short part of the self-test, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from .checks import Finding

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck")
FOUND = 86  # exit code that says that the sanitizer has found something
LINES = 20  # of its report that are kept
MOST_SECONDS = 1800


def find_sanitizer(environment: Mapping[str, str] = os.environ) -> str | None:
    """On PATH, or in the toolkit that CUDA_HOME names."""
    toolkit = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    inside = str(Path(toolkit, "bin")) if toolkit else ""
    folders = os.pathsep.join(filter(None, [environment.get("PATH", ""), inside]))
    return shutil.which(PROGRAM, path=folders)


def check_with_sanitizer(device: int) -> Iterator[Finding]:
    program = find_sanitizer()
    for tool in TOOLS:
        about = Finding("sanitizer", tool)
        if program is None:
            message = f"{PROGRAM} is neither on PATH nor in CUDA_HOME"
            yield replace(about, state="skipped", message=message)
        else:
            yield _sanitized(program, tool, device, about)


def _sanitized(program: str, tool: str, device: int, about: Finding) -> Finding:
    """The kernels of small tasks; the process ends with what the self-test finds, or with FOUND."""
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, "-m", "tim_ext"]
    command += ["gpu-selftest", "--parts", "kernels", "--quick", "--device", str(device), "--no-report"]
    memory = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor is an allocation whose ends are known
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            env={**os.environ, **memory},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return replace(about, state="failed", message=f"not ready after {MOST_SECONDS} seconds")
    except OSError as error:
        return replace(about, state="failed", message=f"{program} does not start: {error.strerror}")
    if ended.returncode == 0:
        return about
    said = "\n".join([*ended.stdout.splitlines(), *ended.stderr.splitlines()][-LINES:])
    what = "found an error" if ended.returncode == FOUND else f"ended with exit code {ended.returncode}"
    return replace(about, state="failed", message=f"{tool} {what}:\n{said}")
