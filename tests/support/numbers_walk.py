"""Runs tiny experiments with one key of the configuration changed, and finds the keys that nobody
declared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from safetensors.torch import save_file

from fedbench.config.validate import check, config_folder
from fedbench.parallel.group import Group
from fedbench.train import assemble, prepare
from support import experiments
from support import identity_cases as declared


def write_files(folder: Path) -> dict[str, str]:
    """The files that some keys name."""
    rng = np.random.default_rng(0)
    for name in ("ARRAYS", "OTHER_ARRAYS"):
        x, y = rng.random((60, 28, 28, 1), dtype=np.float32), np.arange(60) % 10
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    for name, step in (("SPLIT", 1), ("OTHER_SPLIT", 7)):  # both of all 60 examples
        lists = [[step * place % 60 for place in range(20 * k, 20 * (k + 1))] for k in range(3)]
        (folder / f"{name}.json").write_text(json.dumps(lists))
    for name, seed in (("ROOT", 0), ("COPY_OF_ROOT", 0), ("OTHER_ROOT", 1)):
        draw = np.random.default_rng(seed)
        (folder / name / "mnist").mkdir(parents=True)
        for part, size in (("train", 60), ("test", 20)):
            images = draw.integers(0, 256, (size, 28, 28), dtype=np.uint8)
            np.savez(
                folder / name / "mnist" / f"{part}.npz", images=images, labels=np.arange(size) % 10
            )
    network = prepare(experiments.config(*declared.TINY, "seed=5")).model
    save_file(network.state_dict(), folder / "WEIGHTS.safetensors")
    return {file.stem: str(file) for file in folder.iterdir()}


def long_key(words: str, key: str) -> str:
    """`beta` of `modifier=[ecgr]` is algo.modifiers.ecgr.beta."""
    return (
        f"algo.modifiers.{words[10:-1]}.{key}"
        if words.startswith("modifier=") and "." not in key
        else key
    )


def cases() -> Iterator[tuple[str, str, Any]]:
    """Words that choose, a key, another value: both the id and the numbers must change."""
    for key, value in declared.SCALARS.items():
        yield "", key, value
    for words, changes in declared.CHOSEN.items():
        for key, value in changes.items():
            yield words, long_key(words, key), value


class Walk:
    """Composes each choice once: Hydra takes longer than a tiny run."""

    def __init__(self, files: dict[str, str]):
        self.files, self.composed, self.seen = files, {}, {}

    def compose(self, words: str) -> tuple[dict[str, Any], dict[str, str]]:
        if words not in self.composed:
            GlobalHydra.instance().clear()
            chosen = {
                word.partition("=")[0]: self._named(word)
                for word in [*declared.TINY, *words.split()]
            }
            if "model" in words or "data=npz" in words:
                chosen.pop("model.hidden", None)
            if "data=" in words:
                chosen = {
                    key: word
                    for key, word in chosen.items()
                    if key not in ("data.source", "data.test_size")
                }
                chosen |= {} if "npz" in words else {"data.source": "data.source=synthetic"}
            if "partition=" in words and "dirichlet" not in words:
                chosen.pop("partition.alpha")
            if "partition=file" in words:
                chosen.pop("partition.clients")
            with initialize_config_dir(str(config_folder()), version_base="1.3"):
                composed = compose("config", overrides=[*chosen.values()], return_hydra_config=True)
            names = dict(composed.hydra.runtime.choices)
            plain = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
            self.composed[words] = OmegaConf.to_container(plain, resolve=False), names
        return self.composed[words]

    def _named(self, word: str) -> str:
        key, _, value = word.partition("=")
        return f"{key}={self.files.get(value, value)}"

    def parts(self, words: str, key: str = "", value: Any = None):
        content, names = self.compose(words)
        plain = OmegaConf.create(content)
        if key:
            OmegaConf.update(
                plain,
                key,
                self.files.get(value, value) if isinstance(value, str) else value,
                merge=False,
            )
        return prepare(check(plain, names))

    def run(self, words: str, key: str = "", value: Any = None) -> tuple[str, str]:
        """The id, and everything that a run measures."""
        place = (words, key, str(value))
        if place not in self.seen:
            made = self.parts(words, key, value)
            federation = assemble(Group(), made)
            rows = []
            for record in federation.rounds():
                score = record.score
                shown = {
                    name: number for name, number in record.numbers.items() if name != "seconds"
                }
                rows.append(
                    [
                        record.round,
                        shown,
                        score and [score.accuracy, score.loss, score.spread, score.others],
                    ]
                )
            self.seen[place] = made.id, f"{experiments.state_digest(federation)} {rows}"
        return self.seen[place]


def leaves(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Every key that a person can set; a long key that a short one fills is that short one."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "_target_" and not str(value).startswith("${"):
            yield f"{prefix}{key}"


def undeclared(walk: Walk) -> list[str]:
    """Keys of the composed configurations that stand in no table."""
    found = []
    everywhere = {*declared.SCALARS, *declared.CANNOT, *declared.FINER}
    everywhere |= {key for words, key, *_ in declared.SOMETIMES if not words}
    everywhere |= set(declared.ELSEWHERE)
    for words, changes in {"": {}, **declared.CHOSEN, **declared.LARGE}.items():
        own = {long_key(words, key) for key in changes}
        own |= {key for chosen, key, *_ in declared.SOMETIMES if chosen == words}
        found += [
            f"{words} {key}"
            for key in leaves(walk.compose(words)[0])
            if key not in everywhere | own
        ]
    return found
