"""What Hydra composes from some words, as text: values, interpolations, types and flags.

`python -m support.compositions` prints it as Hydra alone makes it. Tests compose with
`quick_configuration.py`, and compare.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import Node, OmegaConf

from fedbench.core.files import config_folder

TIMES = "resolver_cache"  # of a node: what `${now:...}` has come to


def described(*words: str) -> list[str]:
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            composed = compose("config", overrides=list(words), return_hydra_config=True)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    resolved = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
    return [*lines("", composed), OmegaConf.to_yaml(resolved, resolve=True)]


def lines(place: str, node: Node) -> Iterator[str]:
    """Of a node and all that are in it."""
    content = node._value()
    inner: Iterable = []
    if isinstance(content, dict):
        content, inner = "{}", content.items()
    elif isinstance(content, list):
        content, inner = "[]", enumerate(content)
    facts = {name: fact for name, fact in vars(node._metadata).items() if name != TIMES}
    yield f"{place} {type(node).__name__} {content!r} {facts}"
    for key, value in inner:
        yield from lines(f"{place}.{key}", value)


if __name__ == "__main__":
    print(json.dumps([described(*words) for words in json.load(sys.stdin)]))
