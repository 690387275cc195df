"""Imports point downwards (CONTRIBUTING.md), and no two files import each other."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FROM_THE_BOTTOM_UP = [
    ["utils", "starts"],
    ["groups", "checkpoint"],
    ["common"],
    ["text"],
    ["grpo"],
    ["dapo"],
    ["presets"],
    ["envs"],
    ["console"],
    ["hub"],
    ["zoo"],
    ["classroom"],
    ["cli"],
]
LEVELS = {package: level for level, packages in enumerate(FROM_THE_BOTTOM_UP) for package in packages}
# The front door
OUTSIDE = ("__init__", "__main__")


def files() -> list[Path]:
    found = [path for folder in ("sb3_grpo", "envs") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if package_of(module_of(path)) not in OUTSIDE]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "sb3_grpo" else ("sb3_grpo", *parts)).removesuffix(".__init__")


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imported(path: Path) -> Iterator[str]:
    """Modules of this package that a file imports, at its top or later, for types or to run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "sb3_grpo")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sb3_grpo":
            yield node.module


def test_imports_point_downwards() -> None:
    assert {package_of(module_of(path)) for path in files()} == {*LEVELS}
    upwards = []
    for path in files():
        level = LEVELS[package_of(module_of(path))]
        for module in imported(path):
            # From the package itself come only its public names, for programs
            if LEVELS.get(package_of(module), len(LEVELS)) > level and not (
                module == "sb3_grpo" and level >= LEVELS["console"]
            ):
                upwards.append(f"{path.relative_to(ROOT)} imports {module}")
    assert upwards == []


def test_no_circles() -> None:
    graph = {module_of(path): {*imported(path)} for path in files()}
    # Raises CycleError, which names the circle
    assert [*TopologicalSorter(graph).static_order()]
