"""The rooms of src/fedbench import each other in one order, and no modules import in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# A room may import itself and those of earlier lines.
ORDER = ["core", "parallel models data partitions", "config", "algorithms", "training", "runs"]
ORDER += ["train", "report cli api", "__main__"]
# The same inside of `report`; what is not in a room of it may import all of them.
REPORT_ORDER = ["experiments", "numbers", "judgement running", "output"]

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


def room(module: str, of: str = "fedbench") -> str:
    """The room of a package in which a module is; none of modules elsewhere."""
    inside = module.removeprefix(f"{of}.")
    return inside.split(".")[0] if inside != module else ""  # fedbench itself holds the version


@pytest.mark.parametrize(
    ("package", "order"), [("fedbench", ORDER), ("fedbench.report", REPORT_ORDER)]
)
def test_no_room_imports_a_later_one_or_its_neighbour(package, order):
    floor = {one: number for number, rooms in enumerate(order) for one in rooms.split()}
    top = len(order)  # of modules without a room: above all of them
    pairs = {
        (room(name, package), room(other, package))
        for name, tree in MODULES.items()
        for other in imports(list(ast.walk(tree)))
    }
    pairs = {(own, other) for own, other in pairs if own and other and own != other}
    assert len(pairs) > len(order)
    roomless = {(own, other) for own, other in pairs if own not in floor and other not in floor}
    upwards = {pair for pair in pairs if floor.get(pair[0], top) <= floor.get(pair[1], top)}
    assert not upwards - roomless


def test_no_modules_import_in_a_circle():
    graph = {name: imports(tree.body) for name, tree in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_block_hides_an_import():
    hiding = {room(name) for name, tree in MODULES.items() if "TYPE_CHECKING" in ast.dump(tree)}
    assert not hiding
