"""Imports point downwards: a room needs only those before it (docs/decisions/rooms.md)."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FROM_THE_GROUND_UP = [
    ["utils", "starts"],
    ["groups", "checkpoint"],
    ["common"],
    ["text"],
    ["grpo"],
    ["dapo"],
    ["recording", "clips"],
    ["presets"],
    ["envs"],
    ["console"],
    ["zoo"],
    ["compare", "lecture"],
    ["cli"],
]
FLOORS = {room: floor for floor, rooms in enumerate(FROM_THE_GROUND_UP) for room in rooms}


def room_of(path: Path) -> str:
    first, *more = path.relative_to(ROOT).parts
    return "envs" if first == "envs" else more[0].removesuffix(".py")


def test_imports_point_downwards() -> None:
    files = [path for folder in ("sb3_grpo", "envs") for path in (ROOT / folder).rglob("*.py")]
    # The front door, and what makes the checkout a package
    files = [path for path in files if room_of(path) not in ("__init__", "__main__", "_layout")]
    assert {room_of(path) for path in files} == {*FLOORS}
    upwards = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sb3_grpo."):
                room = node.module.split(".")[1]
                if FLOORS[room] > FLOORS[room_of(path)]:
                    upwards.append(f"{path.relative_to(ROOT)} imports {node.module}")
    assert upwards == []
