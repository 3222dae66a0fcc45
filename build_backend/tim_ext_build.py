"""PEP 517 backend: setuptools, plus torch as a build requirement only when it is not installed yet.

pip builds in an isolated environment, where a static requirement on torch means a second download of some
gigabytes. The library works with every torch from OLDEST_TORCH on, whichever one it was built with (stable
ABI), so a torch that is already installed serves. Its environment is the one `sys.executable` shows if asked
without pip's PYTHONPATH. Front ends that build with another interpreter (`python -m build`, uv) find no torch
there, and install one.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import setuptools
from setuptools import build_meta
from setuptools.build_meta import build_sdist as build_sdist
from setuptools.build_meta import get_requires_for_build_sdist as get_requires_for_build_sdist
from setuptools.build_meta import prepare_metadata_for_build_editable as prepare_metadata_for_build_editable
from setuptools.build_meta import prepare_metadata_for_build_wheel as prepare_metadata_for_build_wheel

ROOT = Path(__file__).resolve().parents[1]
# Not by import: tim_ext itself needs torch.
OLDEST_TORCH: tuple[int, int] = runpy.run_path(f"{ROOT}/tim_ext/version.py")["OLDEST_TORCH"]
OLDEST_SETUPTOOLS = (77, 0)  # reads the licence field of pyproject.toml


def release(version: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


if release(setuptools.__version__) < OLDEST_SETUPTOOLS:  # only without build isolation
    raise SystemExit(f"tim_ext: setuptools {setuptools.__version__} is too old: pip install -U setuptools")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return build_meta.get_requires_for_build_wheel(config_settings) + _torch_requirement()


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return build_meta.get_requires_for_build_editable(config_settings) + _torch_requirement()


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    _make_torch_importable()
    for stale in Path("build").glob("lib*"):  # setuptools would put deleted files back into the wheel
        shutil.rmtree(stale)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    _make_torch_importable()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _torch_requirement() -> list[str]:
    version = _installed_torch(_environment_path())
    if version and release(version) >= OLDEST_TORCH:
        return []
    oldest = ".".join(map(str, OLDEST_TORCH))
    if version:
        print(f"tim_ext: the installed torch {version} is older than {oldest}; building with a newer one")
    return [f"torch>={oldest}"]


def _make_torch_importable() -> None:
    if importlib.util.find_spec("torch") is None:
        sys.path.extend(path for path in _environment_path() if path not in sys.path)


def _environment_path() -> list[str]:
    """sys.path of the environment that the package will be installed into."""
    show_path = [sys.executable, "-E", "-c", "import sys; print('\\n'.join(sys.path[1:]))"]
    return subprocess.run(show_path, capture_output=True, text=True, check=True).stdout.splitlines()


def _installed_torch(path: list[str]) -> str | None:
    return next((d.version for d in importlib.metadata.distributions(name="torch", path=path)), None)
