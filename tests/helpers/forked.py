"""Scripts in processes forked from a server that has imported torch: a tenth of the time of a new Python.

Not for what happens when Python or torch starts or ends. This module imports neither torch nor tim_ext, so
that an environment is in force before tim_ext is imported.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def run_script(
    code: str, *arguments: str, timeout: float = 200, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `python -c code arguments`, with these variables in the environment."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdout", "stderr")]
        process = multiprocessing.get_context("forkserver").Process(
            target=_run, args=(code, list(arguments), environment, list(map(str, streams)))
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(code, timeout)
        printed = [stream.read_text() if stream.exists() else "" for stream in streams]
    return subprocess.CompletedProcess(code, process.exitcode or 0, *printed)


def _run(code: str, arguments: list[str], environment: dict[str, str], streams: list[str]) -> None:
    os.environ.update(environment)
    for number, path in enumerate(streams, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
