"""The native libraries: `_C` (CPU) always, `_cuda` where torch and the machine have CUDA.

Both use torch's stable ABI and Python's limited API: one build serves every torch from OLDEST_TORCH
(tim_ext/version.py) on, and Python >= 3.10.
How they are built: build_backend/. Everything else about the package: pyproject.toml.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_backend"))
from build_native import BuildNative  # noqa: E402
from tim_ext_build import OLDEST_TORCH  # noqa: E402

# No -march: kernels choose their instruction set at run time. No -ffast-math: it changes global state.
# -fno-wrapv and -g0 undo flags that Python itself was compiled with.
CXX_FLAGS = ["-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fno-wrapv", "-g0"]
CXX_FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", f"-ffile-prefix-map={ROOT}=."]
TORCH_TARGET_VERSION = "0x{:02x}{:02x}000000000000".format(*OLDEST_TORCH)  # a byte each: 0x020a.. is 2.10
NVCC_FLAGS = ["-O3", "-std=c++17", "-Xcompiler=-fvisibility=hidden"]
NVCC_FLAGS += ["--threads=0"]  # architectures side by side: the largest file would end the build alone


def files(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def native_library(name: str, sources: list[str], libraries: list[str], *macros: str) -> Extension:
    return Extension(
        f"tim_ext.{name}",
        sources=["csrc/module.cpp", *sources],
        depends=files("csrc/**/*.h", "csrc/**/*.cuh"),
        include_dirs=[str(ROOT / "csrc")],
        libraries=libraries,  # found where torch loaded them: no rpath
        define_macros=[
            ("TORCH_TARGET_VERSION", TORCH_TARGET_VERSION),
            *((macro, None) for macro in macros),
        ],
        extra_compile_args={"cxx": [*CXX_FLAGS], "nvcc": [*NVCC_FLAGS]},
        py_limited_api=True,
    )


libraries = [
    native_library("_C", files("csrc/ops.cpp", "csrc/common/*.cpp", "csrc/cpu/**/*.cpp"), ["torch_cpu"])
]
cuda_sources = files("csrc/cuda/**/*.cpp", "csrc/cuda/**/*.cu")
if cuda_sources:
    cuda_sources += files("csrc/common/*.cpp")
    libraries.append(native_library("_cuda", cuda_sources, ["torch_cpu", "torch_cuda", "cudart"], "USE_CUDA"))

setup(
    ext_modules=libraries,
    cmdclass={"build_ext": BuildNative},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
