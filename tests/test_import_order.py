"""The rooms of src/fedbench import each other in one order, and no modules import in a circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
# A room may import those of earlier lines, and itself.
ORDER = [
    {"core"},
    {"parallel", "models", "data", "partitions"},
    {"config"},
    {"algorithms"},
    {"training"},
    {"runs"},
    {"train"},
    {"study", "cli"},
    {"__main__"},
]
# To be emptied: imports against the order, and modules with a TYPE_CHECKING block.
KNOWN_IMPORTS = {
    ("algorithms", "training"),
    ("data", "config"),
    ("data", "models"),
    ("models", "data"),
    ("partitions", "data"),
}
KNOWN_BLOCKS = {"algorithms", "training"}


def modules() -> dict[str, ast.Module]:
    """Every module by its dotted name."""
    files = (SOURCE / "fedbench").rglob("*.py")
    names = {file: ".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files}
    return {
        name.removesuffix(".__init__"): ast.parse(file.read_text()) for file, name in names.items()
    }


def imports(tree: ast.Module, known: set[str], nested: bool = True) -> set[str]:
    """The modules of fedbench that a module imports, at its top or, if `nested`, anywhere."""
    found = set()
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedbench"):
            inner = {f"{node.module}.{name.name}" for name in node.names} & known
            found |= inner or {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.startswith("fedbench")}
    return found


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""  # fedbench itself: the version


def floor(room: str) -> int:
    return next(number for number, rooms in enumerate(ORDER) if room in rooms)


def test_no_room_imports_a_later_one_or_its_neighbour():
    found = modules()
    pairs = {
        (room(name), room(other))
        for name, tree in found.items()
        for other in imports(tree, set(found))
        if room(name) and room(other) and room(name) != room(other)
    }
    against = {(own, other) for own, other in pairs if floor(own) <= floor(other)}
    assert against <= KNOWN_IMPORTS


def test_no_modules_import_in_a_circle():
    found = modules()
    graph = {name: imports(tree, set(found), nested=False) for name, tree in found.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_block_hides_an_import():
    hiding = {room(name) for name, tree in modules().items() if "TYPE_CHECKING" in ast.dump(tree)}
    assert hiding - {"study"} <= KNOWN_BLOCKS
