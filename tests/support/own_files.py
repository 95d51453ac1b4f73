"""A user's own folder of classes, for --config-dir, in a process that outlives many of them."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

from fedbench.config import own_code


def write(folder: Path, **files: str) -> None:
    """`write(folder, helper="...", modifier__clip="...")`: helper.py and modifier/clip.yaml."""
    for name, content in files.items():
        suffix = ".yaml" if "__" in name else ".py"
        file = (folder / name.replace("__", "/")).with_suffix(suffix)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(content))


def forget(folder: Path) -> None:
    """As in a new process: nothing of the folder was imported."""
    own = []
    for name, module in sys.modules.items():
        spec = getattr(module, "__spec__", None)
        inside = getattr(spec, "submodule_search_locations", None) or []
        places = [getattr(module, "__file__", None), *inside]
        if any(place and Path(place).is_relative_to(folder) for place in places):
            own.append(name)
    for name in own:
        del sys.modules[name]
        own_code._sources.pop(name, None)
    for cache in folder.rglob("__pycache__"):
        # Python notices a changed file by its second and its size.
        for file in cache.iterdir():
            file.unlink()
    if str(folder) in own_code._folders:
        own_code._folders.remove(str(folder))
        sys.path.remove(str(folder))
