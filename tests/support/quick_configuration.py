"""Hydra and OmegaConf with the same results in two thirds of the time.

Most tests compose a configuration, and many do little else. What depends on its arguments alone is
computed once in a process: the type hints of a class, the grammar of a word and of an
interpolation, the content of a file. The metadata of a node, of which every composition copies
thousands, are copied without `copy.deepcopy`'s search for what they refer to.

Programs that tests start as processes of their own know nothing of this file.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import IO, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import Container, OmegaConf, _utils, base, grammar_parser
from omegaconf.resolvers import oc

load_anew, parse_anew = OmegaConf.load, OverridesParser.parse_rule
parse_interpolation_anew = grammar_parser.parse
loaded: dict[str, Container] = {}
parsed: dict[tuple[str, str], Any] = {}


def load_once(file: str | Path | IO) -> Container:
    """Every call of the program reads the same files of conf/ again."""
    if not hasattr(file, "read"):
        return load_anew(file)
    text = file.read()
    if text not in loaded:
        file.seek(0)
        loaded[text] = load_anew(file)
    return copy.deepcopy(loaded[text])


def parse_once(parser: OverridesParser, word: str, rule: str) -> Any:
    """A word of the command line; Hydra notes in the result who asked for it."""
    if (word, rule) not in parsed:
        parsed[word, rule] = parse_anew(parser, word, rule)
    return copy.deepcopy(parsed[word, rule])


def copy_metadata(metadata: base.Metadata, memo: dict[int, Any]) -> base.Metadata:
    """What `copy.deepcopy` makes of values that are types, names and flags."""
    made = object.__new__(type(metadata))
    made.__dict__.update(metadata.__dict__)
    made.flags = None if metadata.flags is None else dict(metadata.flags)
    cached = copy.deepcopy(dict(metadata.resolver_cache), memo)
    made.resolver_cache = defaultdict(dict, cached)
    return made


def install() -> None:
    """For the whole process. `parse` has been imported by name in several modules."""
    OmegaConf.load = staticmethod(load_once)
    OverridesParser.parse_rule = parse_once
    base.Metadata.__deepcopy__ = copy_metadata
    _utils.get_type_hints = cache(_utils.get_type_hints)
    parse = cache(parse_interpolation_anew)
    for module in (_utils, base, grammar_parser, oc):
        module.parse = parse
