"""The build_ext command: decides what to build, says so in one line, and notes it in the package."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sysconfig
from pathlib import Path

from cuda_toolkit import driver_of, plan_cuda
from setuptools.command.build_ext import build_ext
from tim_ext_build import OLDEST_TORCH, ROOT, release

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:  # metadata and source distributions need no torch
    torch, no_torch = None, error

PACKAGE = ROOT / "tim_ext"


class BuildNative(cpp_extension.BuildExtension if torch else build_ext):  # type: ignore[misc]
    def finalize_options(self) -> None:
        if torch:
            self.plan()
        super().finalize_options()

    def plan(self) -> None:
        """Drops `_cuda` where it cannot be built, and adds torch's directories to what remains."""
        libraries = {library.name: library for library in self.distribution.ext_modules}
        wish = os.environ.get("TIM_EXT_CUDA", "auto")
        plan = plan_cuda(wish, "tim_ext._cuda" in libraries, torch.version.cuda)
        self.reason, self.cuda = plan.reason, torch.version.cuda if plan.toolkit else None
        if plan.toolkit:
            cpp_extension.CUDA_HOME = str(plan.toolkit)
            os.environ["TORCH_CUDA_ARCH_LIST"] = plan.architectures
        else:
            libraries.pop("tim_ext._cuda", None)
        self.distribution.ext_modules = list(libraries.values())
        for library in self.distribution.ext_modules:
            device = "cuda" if library.name == "tim_ext._cuda" else "cpu"
            library.library_dirs += cpp_extension.library_paths(device)
            for flags in library.extra_compile_args.values():  # as system headers: no warnings about them
                for path in cpp_extension.include_paths(device):
                    flags += ["-isystem", path]
            library.extra_compile_args["cxx"] += [f"-ffile-prefix-map={Path(torch.__file__).parent}=torch"]

    def run(self) -> None:
        self.check_requirements()
        cuda = "CUDA library _cuda" if self.cuda else "no CUDA library"
        print(f"tim_ext: building CPU library _C (torch {torch.__version__} headers); {cuda}: {self.reason}")
        with contextlib.suppress(OSError):
            for stale in PACKAGE.glob("_*.abi3.so"):
                stale.unlink()
        super().run()
        built_in = Path(self.get_ext_fullpath("tim_ext._C")).parent
        info = {
            "torch_version": str(torch.__version__),
            "cuda": self.cuda,
            "architectures": os.environ.get("TORCH_CUDA_ARCH_LIST") if self.cuda else None,
            "driver": driver_of(self.cuda) if self.cuda else None,
            "reason": self.reason,
        }
        (built_in / "_build_info.json").write_text(json.dumps(info, indent=2) + "\n")
        # Python started in the source tree finds ./tim_ext before the installed package, so the libraries
        # go there as well, unless the tree is read-only.
        if not self.inplace:
            with contextlib.suppress(OSError):
                for path in [*built_in.glob("_*.abi3.so"), built_in / "_build_info.json"]:
                    self.copy_file(str(path), str(PACKAGE))

    def check_requirements(self) -> None:
        oldest = ".".join(map(str, OLDEST_TORCH))
        compiler = os.environ.get("CXX", "c++").split()[0]
        if not torch:
            raise SystemExit(f"tim_ext: the build needs torch >= {oldest} ({no_torch}): pip install torch")
        if release(torch.__version__) < OLDEST_TORCH:
            raise SystemExit(f"tim_ext: torch {torch.__version__} is too old, the build needs >= {oldest}")
        if shutil.which(compiler) is None:
            raise SystemExit(f"tim_ext: no C++ compiler: {compiler} not found. Install g++, or set CXX")
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            raise SystemExit("tim_ext: Python.h not found. Install Python's headers (Debian: python3-dev)")
