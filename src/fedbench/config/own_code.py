"""A user's own classes: where they are found, and the code that decides the numbers with them.

A `_target_` may name a class outside of fedbench, such as `mymethods.Clip`. Its code is part of a
run's identity, as the settings are: the file of its module, those of the packages that it lies in,
and the files of all modules that these import, directly or indirectly, anywhere in their source, by
a statement or by `import_module` and `__import__` with the name as a text. Left out are the
standard library, fedbench itself, and installed packages other than the one that the class is in.
Every file is read once, when the class is first asked for, so that the hash is that of the code in
memory.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from fedbench.core.errors import BadInput, nearest, one_line

_INSTALLED = ("site-packages", "dist-packages")
_FRAMEWORK = ("fedbench", "hydra_plugins")

_folders: list[str] = []  # that were added to the import path
# The source of every module that was looked at, as it was when the module was imported.
_sources: dict[str, tuple[ModuleSpec | None, bytes]] = {}


def add_folders(folders: Iterable[str]) -> None:
    """Put the folders of a user's own files first on the import path of this process."""
    for folder in folders:
        whole = os.path.abspath(folder)
        if whole not in _folders:
            _folders.append(whole)
            sys.path.insert(0, whole)
            importlib.invalidate_caches()


def own_folders() -> list[Path]:
    return [Path(folder) for folder in _folders]


# Finding a class


def class_named(name: Any, key: str) -> type:
    """The class that a `_target_` names. `key` is the setting, which messages begin with."""
    subject = f"{key}={name}"
    module_name, _, class_name = str(name).rpartition(".")
    if not module_name or not all(part.isidentifier() for part in str(name).split(".")):
        raise BadInput(f"{subject}: must be the name of a class")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise BadInput(f"{subject}: {_why_not(error, module_name)}") from error
    target = getattr(module, class_name, None)
    if not isinstance(target, type):
        classes = [word for word, value in vars(module).items() if isinstance(value, type)]
        suggestion = nearest(class_name, classes)
        close = f"; {suggestion}" if suggestion.startswith("did you mean") else ""
        raise BadInput(f"{subject}: must be the name of a class{close}")
    return target


def _why_not(error: BaseException, module_name: str) -> str:
    """Why a module could not be imported: it is not there, or its own code failed."""
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module_name}.".startswith(f"{missing}."):
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        places = [*_folders, *filter(None, given), "the installed packages"]
        hint = "" if _folders else "; --config-dir FOLDER adds a folder"
        return f"cannot import {module_name} (looked in {' and '.join(places)}{hint})"
    reason, where = one_line(error), "unknown place"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _is_installed(Path(frame.filename)) and not _is_framework_file(Path(frame.filename))
    ]
    if isinstance(error, SyntaxError):
        reason, where = error.msg, f"{error.filename}, line {error.lineno}"
    elif frames:
        where = f"{frames[-1].filename}, line {frames[-1].lineno}"
    return f"importing {module_name} raised {type(error).__name__}: {reason} ({where})"


# The code of a class


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """These modules and the own ones that they import, without fedbench's, each with a hash."""
    found: dict[str, bytes] = {}
    for name in modules:
        if not is_framework(name):
            if _file_of(name) is None:
                raise BadInput(f"{name}: must be a file, because its code is part of the run's id")
            found |= _with_imports(name)
    return {
        name: hashlib.blake2b(source, digest_size=6).hexdigest()
        for name, source in sorted(found.items())
    }


def code_on_disk(name: str, key: str) -> dict[str, str]:
    """`code_of` the module of the class that a `_target_` names, as its files are now.

    In a long session, such as a notebook, files are edited after they were imported. Own modules in
    memory that differ, or that may differ because something else imported them, are imported anew.
    """
    unknown = set(sys.modules) - set(_sources)
    module = class_named(name, key).__module__
    names = list(code_of([module]))
    files = {own: file for own in names if not _is_installed(file := _file_of(own))}
    if any(own in unknown or _is_edited(own, file) for own, file in files.items()):
        for own in files:
            sys.modules.pop(own, None)
            _sources.pop(own, None)
        importlib.invalidate_caches()
        class_named(name, key)
    return code_of([module])


def _is_edited(name: str, file: Path | None) -> bool:
    return file is None or file.read_bytes() != _sources[name][1]


def _with_imports(target: str) -> dict[str, bytes]:
    """The source of a module and of all own modules that it imports, directly or indirectly."""
    package = target.split(".")[0]
    found: dict[str, bytes] = {}
    waiting = list(_prefixes(target))
    while waiting:
        name = waiting.pop()
        top = name.split(".")[0]
        if name in found or (top != package and _is_installed(_file_of(top))):
            continue
        file = _file_of(name)
        if file is None or (top != package and _is_installed(file)):
            continue
        found[name] = _source(name, file)
        if file.suffix == ".py":
            waiting += _imports(found[name], name, is_package=file.name == "__init__.py")
    return found


def _source(name: str, file: Path) -> bytes:
    """A module's file as it was when the module was imported, or reloaded."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    known = _sources.get(name)
    if known is None or (known[0] is not None and known[0] is not spec):
        known = (spec, file.read_bytes())
    _sources[name] = (spec, known[1])
    return known[1]


def _imports(source: bytes, name: str, is_package: bool) -> list[str]:
    """The modules, other than the standard library's and fedbench's, that a source names."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # of a module that is imported later, if ever
        return []
    package = name if is_package else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call):
            given = _imported_by_call(node)
            base = given.lstrip(".")
            found.add(_absolute(base, len(given) - len(base), package))
    whole = {prefix for dotted in found for prefix in _prefixes(dotted)}
    skipped = (*sys.stdlib_module_names, *_FRAMEWORK, "")
    return [dotted for dotted in whole if dotted.split(".")[0] not in skipped]


def _absolute(name: str, level: int, package: str) -> str:
    """The whole name of a module that is `level` dots relative to a package."""
    parts = package.split(".")
    above = parts[: len(parts) - level + 1] if level else []
    return ".".join(filter(None, [*above, name]))


def _imported_by_call(call: ast.Call) -> str:
    """What `importlib.import_module("helper")` or `__import__("helper")` names; else nothing."""
    function, first = call.func, call.args[0] if call.args else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in ("import_module", "__import__") or not isinstance(first, ast.Constant):
        return ""
    return first.value if isinstance(first.value, str) else ""


def _prefixes(name: str) -> Iterator[str]:
    """`a.b.c` -> `a`, `a.b`, `a.b.c`: importing the last imports all of them."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _file_of(name: str) -> Path | None:
    """The file of a module, which need not have been imported yet; None if it has none."""
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
    else:
        spec = _spec_of(name)
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file).resolve() if file and os.path.isfile(file) else None


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module would be imported from. Unlike importlib's function, this imports nothing."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return PathFinder.find_spec(name)
    if parent in sys.modules:
        places = getattr(sys.modules[parent], "__path__", None)
    else:
        spec = _spec_of(parent)
        places = spec.submodule_search_locations if spec is not None else None
    return None if places is None else PathFinder.find_spec(name, list(places))


def _is_installed(file: Path | None) -> bool:
    """Whether a file belongs to the standard library or to an installed package."""
    if file is None:
        return False
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    inside = any(file.is_relative_to(folder) for folder in standard)
    return inside or str(file).startswith("<") or any(part in file.parts for part in _INSTALLED)


def is_framework(module: str) -> bool:
    """Whether a module is fedbench's own."""
    return module.split(".")[0] in _FRAMEWORK


def _is_framework_file(file: Path) -> bool:
    return file.is_relative_to(Path(__file__).parents[1])
