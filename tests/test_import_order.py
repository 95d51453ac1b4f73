"""The rooms of src/fedbench import each other in one order, and no modules import in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
# A room may import itself and those of earlier lines.
ORDER = ["core", "parallel models data partitions", "config", "algorithms", "training", "runs"]
ORDER += ["train", "report cli api", "__main__"]
FLOOR = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms.split()}

FILES = {file.relative_to(SOURCE).with_suffix("").parts: file for file in SOURCE.rglob("*.py")}
MODULES = {
    ".".join(parts).removesuffix(".__init__"): ast.parse(file.read_text())
    for parts, file in FILES.items()
    if parts[0] == "fedbench"
}


def imports(nodes: list[ast.AST]) -> set[str]:
    """The modules of fedbench that import statements name."""
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner or {str(node.module)}
    return found & MODULES.keys()


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""  # fedbench itself holds the version


def test_no_room_imports_a_later_one_or_its_neighbour():
    pairs = {
        (room(name), room(other))
        for name, tree in MODULES.items()
        for other in imports(list(ast.walk(tree)))
        if room(name) and room(other) and room(name) != room(other)
    }
    assert not {(own, other) for own, other in pairs if FLOOR[own] <= FLOOR[other]}


def test_no_modules_import_in_a_circle():
    graph = {name: imports(tree.body) for name, tree in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_block_hides_an_import():
    hiding = {room(name) for name, tree in MODULES.items() if "TYPE_CHECKING" in ast.dump(tree)}
    assert not hiding
