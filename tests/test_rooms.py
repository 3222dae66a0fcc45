"""The rooms of the package, read from its source: imports point downwards, and files are short."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.paths import ROOT

FOLDERS = ("tim_ext", "python_train", "build_backend", "benchmarks", "tests")
MOST_LINES, MOST_FUNCTION_LINES = 450, 60

# A room imports from itself and from the lines above its own. "tim_ext" is the package's own file, which
# gathers what users import. `reference` and `transforms` are equations that
# users import too: solver/finetuning.py is written with them, and they check what they get as solver/ does.
LEVELS = (
    ("errors", "version"),
    ("solver", "reference", "transforms"),
    ("files", "tasks"),
    ("distributed", "baselines", "estimator"),
    ("evaluation", "images", "selftest"),
    ("tim_ext",),
    ("cli",),
)
TOGETHER = {"solver", "reference", "transforms"}
OUTSIDE = ("__main__", "examples")  # use the package as its users do
# what only an extra brings, or the tests
EXTRAS = {
    "PIL", "easyfsl", "efficientnet_lite_pytorch", "faiss", "hypothesis", "matplotlib", "open_clip",
    "pandas", "pyarrow", "pytest", "safetensors", "scipy", "sklearn", "tensorboard", "torchvision", "tqdm",
    "transformers",
}  # fmt: skip


class Import(NamedTuple):
    source: str  # module that imports
    target: str  # module that is imported
    name: str  # of what is taken from it, or ""
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target} {self.name}".rstrip()


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, and of the folders that are packages beside it, by its name."""
    found = {}
    for folder in ("tim_ext", "python_train", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports() -> list[Import]:
    """All imports of these modules from each other, in functions and under TYPE_CHECKING as well."""
    return [one for module, path in modules().items() for one in imports_of(module, path)]


def imports_of(module: str, path: Path) -> Iterator[Import]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules():
                    yield Import(module, alias.name, "", node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, path, node)
            for alias in node.names:
                if f"{base}.{alias.name}" in modules():
                    yield Import(module, f"{base}.{alias.name}", "", node.lineno)
                elif base in modules():
                    yield Import(module, base, alias.name, node.lineno)


def absolute(module: str, path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    up = node.level - (path.name == "__init__.py")
    package = module.split(".")[: -up or None]
    return ".".join([*package, *([node.module] if node.module else [])])


def room(module: str) -> str:
    """The folder or top module of the package that a module is in, the face itself, or a folder beside."""
    parts = module.split(".")
    return parts[1] if parts[0] == "tim_ext" and len(parts) > 1 else parts[0]


LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}


def may_import(source: str, target: str) -> bool:
    """Of two rooms of the package."""
    if source == target or source in OUTSIDE or {source, target} <= TOGETHER:
        return True
    return target in LEVEL and LEVEL[target] < LEVEL[source]


def assert_none(wrong: list[str]) -> None:
    assert not wrong, "\n".join(wrong)


def test_every_module_is_in_a_room() -> None:
    rooms = {room(module) for module in modules() if module.startswith("tim_ext")}
    assert rooms == {*LEVEL, *OUTSIDE}


def test_imports_point_downwards() -> None:
    inside = [one for one in imports() if one.source.startswith("tim_ext")]
    assert len(inside) > 100
    assert_none([str(one) for one in inside if not may_import(room(one.source), room(one.target))])


def test_only_the_program_imports_the_command_line() -> None:
    """Benchmarks measure the program; training has the same way to parse options, and nothing else of it."""
    allowed = {
        "__main__": "tim_ext.cli.main",
        "benchmarks": "tim_ext.cli.main",
        "python_train": "tim_ext.cli.parsing",
    }
    wrong = [
        str(one)
        for one in imports()
        if room(one.target) == "cli" != room(one.source) and one.target != allowed.get(room(one.source))
    ]
    assert_none(wrong)


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for one in imports():
        graph[one.source].add(one.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_private_name_leaves_its_room() -> None:
    wrong = [str(one) for one in imports() if is_private(one.name) and room(one.source) != room(one.target)]
    for module, path in modules().items():
        aliases = dict(module_aliases(module, path))
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                target = aliases.get(ast.unparse(node.value))
                if target is not None and room(target) != room(module):
                    wrong.append(f"{module}:{node.lineno} uses {target}.{node.attr}")
    assert_none(wrong)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def module_aliases(module: str, path: Path) -> Iterator[tuple[str, str]]:
    """What a file calls the modules it imports, and which they are."""
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            base = f"{absolute(module, path, node)}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if base + alias.name in modules():
                    yield alias.asname or alias.name, base + alias.name


def test_the_package_imports_no_extra(run_python) -> None:
    """But for what torch and numpy import by themselves."""
    script = "import json, sys, {}; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    loaded = [set(json.loads(run_python("-c", script.format(what)).stdout)) for what in ("torch", "tim_ext")]
    assert "tim_ext" in loaded[1]
    assert (loaded[1] - loaded[0]) & EXTRAS == set()


def python_files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_file_is_too_long_to_read() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert_none([f"{path.relative_to(ROOT)}: {n}" for path, n in lengths.items() if n > MOST_LINES])


def test_no_function_is_too_long_to_read() -> None:
    wrong = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = function_lines(node)
                if lines > MOST_FUNCTION_LINES:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines}")
    assert_none(wrong)


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` on, without the docstring."""
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines
