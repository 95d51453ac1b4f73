"""Random words on the command line, right and wrong ones mixed: a run, or one line and nothing
written.
"""

from __future__ import annotations

import json
import os
import secrets
from functools import cache

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.numbers_walk import leaves

from fedbench.config.validate import config_folder

TINY = (
    "rounds=1",
    "client.epochs=1",
    "data.subset=60",
    "partition.clients=3",
    "runtime.workers=1",
)
GROUPS = ("algo", "partition", "attack", "model", "data", "scale", "runtime", "modifier", "logger")
# The other datasets are larger, and most need files. A stand-in and a model that fit are drawn more
# often than not.
DATA = (
    "model.hidden=[6,4]",
    "model.hidden=[6,4]",
    "data=mnist data.source=synthetic",
    "data=mnist data.source=synthetic model=mlp model.hidden=[6,4]",
    "data=cifar10 data.source=synthetic model=linear",
    (
        "data=qqp data.source=synthetic data.length=5 data.vocabulary=50 model.embedding=6"
        " model.hidden=4"
    ),
    "data=svhn",
)
# The valid ones among them are small: a run of a million rounds is allowed, too.
VALUES = (
    *(
        "-1",
        "0",
        "1",
        "2",
        "0.5",
        "1e-3",
        "nan",
        "-inf",
        "1e400",
        "1" + 30 * "0",
        "null",
        "true",
        "false",
        "abc",
    ),
    *(
        "''",
        "[]",
        "[1]",
        "[1,2]",
        "[a,b]",
        "{a:1}",
        "[[1]]",
        "'a=b'",
        "'\u00e4'",
        "${seed}",
        "${nope}",
        "1,2",
        "sgd",
        "=",
    ),
)
ODD_CHOICES = ("nope", "[]", "[ecgr]", "[3]", "null")
SLOW = (
    "runtime.threads",
    "runtime.workers",
)  # processes of their own, and W&B's: only when there is time


@cache
def keys(words: tuple[str, ...], slow: bool) -> list[str]:
    """Every key of the configuration that these choices make."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        composed = compose("config", overrides=list(words))
    return [
        key
        for key in leaves(OmegaConf.to_container(composed, resolve=False))
        if slow or key not in SLOW
    ]


def choices(group: str) -> list[str]:
    return sorted(str(file.stem) for file in (config_folder() / group).glob("[!_]*.yaml"))


@st.composite
def command_lines(draw, slow: bool) -> list[str]:
    words = [
        f"{group}={draw(st.sampled_from(choices(group)))}"
        for group in ("algo", "partition", "attack")
    ]
    words += draw(st.sampled_from(DATA)).split()
    words.append(f"logger={draw(st.sampled_from(['none', 'none', 'wandb'])) if slow else 'none'}")
    known = keys(tuple(words), slow)
    for _ in range(draw(st.integers(0, 3))):
        key, value = draw(st.sampled_from(known)), draw(st.sampled_from(VALUES))
        kind = draw(
            st.sampled_from(["set", "set", "set", "set", "misspell", "delete", "add", "choose"])
        )
        if kind == "choose":
            group = draw(st.sampled_from(GROUPS if slow else GROUPS[:-1]))
            words.append(f"{group}={draw(st.sampled_from([*choices(group), *ODD_CHOICES]))}")
        else:
            words.append(
                {"set": f"{key}={value}", "misspell": f"{key}x={value}", "delete": f"~{key}"}.get(
                    kind, f"+{key}={value}"
                )
            )
    return words


def check(fedbench, folder, words: list[str]) -> None:
    folder.mkdir()
    os.chdir(folder)
    run = fedbench(*TINY, *words, quiet=False)
    assert run.status in (0, 2), f"{words}\n{run.err}"
    if run.status == 2:
        assert run.err.startswith("fedbench: "), words
        assert run.err.count("\n") == 1, f"{words}\n{run.err}"
        assert list(folder.iterdir()) == [], words
    else:
        assert json.loads((run.folder / "summary.json").read_text())["status"] in (
            "finished",
            "diverged",
        ), words


def fuzz(fedbench, tmp_path, examples: int, fresh: int | None = None) -> None:
    """The same command lines every time, or, with a number that nobody drew before, others; those
    may be slower.
    """
    numbers = iter(range(10**6))

    @settings(
        max_examples=examples,
        derandomize=fresh is None,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(command_lines(slow=fresh is not None))
    def every(words: list[str]) -> None:
        check(fedbench, tmp_path / f"example{next(numbers)}", words)

    (every if fresh is None else seed(fresh)(every))()


@pytest.mark.heavy
def test_every_command_line_is_a_run_or_one_line(fedbench, tmp_path):
    fuzz(fedbench, tmp_path, 15)


@pytest.mark.heavy
def test_many_command_lines_are_runs_or_one_line(fedbench, tmp_path, capfd):
    fresh = int(os.environ.get("FUZZ_SEED") or secrets.randbelow(10**6))
    with capfd.disabled():
        print(f"\nFUZZ_SEED={fresh} draws these command lines again")
    fuzz(fedbench, tmp_path, 60, fresh)
