"""An experiment file of conf/experiment as an object: its axes, cells and jobs, and what is made of
them.
"""

from __future__ import annotations

import copy
import csv
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from fedbench.config.hydra_errors import CONFIGURATION_ERRORS, explain
from fedbench.config.own_code import add_folders
from fedbench.config.validate import config_folder
from fedbench.core.errors import BadInput, nearest, require
from fedbench.report.experiments.checks import read_study
from fedbench.report.experiments.spec import DECISIVE, PAPER, Scale, Study
from fedbench.report.experiments.spec import SCALES as SCALES
from fedbench.report.experiments.spec import SMOKE as SMOKE

PAPERS = ("fedpgvc", "fedpmvr", "ecgr", "fedncv", "fedgsnr")  # the order of a report
PRESET_OF_SMOKE = ("rounds", "data.subset", "data.source")  # what its preset sets
OWN = "Own studies"  # in place of a paper
FLAGS = ("", "star", "none", "over")
PUBLISHED = ("measure", "printed", "value", "std", "flag")  # columns beside the axes
REPLACING = ("data", "model")  # groups without which a cell is another experiment
SEARCH_PATH = "hydra.searchpath"  # the key under which Hydra looks for a user's files
STUDY = re.compile(r"^study:.*\n((?:[ #].*)?\n)*", re.MULTILINE)  # that section of a file
REFERENCE = ("algo=local", "algo=centralized")  # rows beside the federated methods


@dataclass(frozen=True)
class Cell:
    """One configuration, to be run with several seeds."""

    labels: dict[str, str]  # axis -> label
    overrides: tuple[str, ...]  # Hydra's words, without the seed
    seeds: tuple[int, ...]

    def matches(self, wanted: dict[str, Any]) -> bool:
        """Whether the labels are among the wanted ones: axis -> a label or a list of labels."""
        return matches(self.labels, wanted)


def matches(labels: Mapping[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether the labels of a cell are among the wanted ones: axis -> a label or a list of them."""
    lists = {axis: names if isinstance(names, list) else [names] for axis, names in wanted.items()}
    return all(labels.get(axis) in [str(name) for name in names] for axis, names in lists.items())


@dataclass(frozen=True)
class Published:
    """A number as the paper prints it, shown beside the measured one.

    `flag`: star = did not converge or not reached, over = more than that, none = no number to judge
    by: a dash, or seconds of another machine.
    """

    labels: dict[str, str]
    measure: str
    printed: str
    value: float | None
    std: float | None
    flag: str


@dataclass(frozen=True, kw_only=True)
class Experiment(Study):
    """What a file says: its study, and the settings of its runs, which are left to Hydra; it
    composes the same file.
    """

    name: str  # fedpgvc/table2
    # The file's settings beside the study: those of paper scale.
    base: dict[str, Any] = field(default_factory=dict)
    # The user's folders of configuration, `--config-dir`, of which one has the file.
    folders: tuple[str, ...] = ()
    # What its trials chose: by the labels of the tuned axes, the overrides.
    chosen: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    remarks_on_trials: list[str] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return find_file(self.name, self.folders)

    @property
    def is_own(self) -> bool:
        """Whether a user wrote it. It reproduces no paper, unless it names one."""
        return self.paper == OWN

    def scale_name(self, scale: str) -> str:
        """What a reader is told. A study that reproduces no paper has no paper's scale."""
        return "full" if self.is_own and scale == "paper" else scale

    def command(self, scale: str) -> str:
        options = "".join(f" --config-dir {shlex.quote(folder)}" for folder in self.folders)
        return f"fedbench{options} {' '.join(self._choice(scale))}"

    def _choice(self, scale: str) -> list[str]:
        """The words that choose the experiment and its scale. A user's own is run as it is."""
        chosen = [f"experiment={self.name}"]
        return chosen if self.is_own and scale == "paper" else [*chosen, f"scale={scale}"]

    def reduction(self, scale: str) -> str:
        """In words, what a scale leaves out; nothing is left out at `paper`."""
        return self.reduced(scale).reduction

    def reduced(self, scale: str) -> Scale:
        """What the file says of a scale; of `paper` nothing."""
        return self.scales.get(scale, Scale())

    def has_scale(self, scale: str) -> bool:
        """Whether there is anything to run. Only what a file describes can decide something."""
        described = scale != DECISIVE or scale in self.scales
        return described and bool(self.axes) and all(self.labels(axis, scale) for axis in self.axes)

    def labels(self, axis: str, scale: str) -> list[str]:
        """The labels of an axis that remain at this scale, in the file's order."""
        wanted = [keep[axis] for keep in (self.keep, self.reduced(scale).keep) if axis in keep]
        return [label for label in self.axes[axis] if all(label in names for names in wanted)]

    def words(self, labels: dict[str, str]) -> list[str]:
        """The overrides of a cell's labels, those of later axes last; those of a combination stand
        in place of its labels' own, and win.
        """
        cell = Cell(labels, (), ())
        together = next((one for one in self.combined if cell.matches(one.of)), None)
        lines = [
            self.axes[axis][label]
            for axis, label in labels.items()
            if together is None or axis not in together.of
        ]
        lines += [] if together is None else [together.overrides]
        return [word for line in lines for word in shlex.split(line)]

    def remarks_shown(self) -> list[str]:
        """The file's own, and of those that it shares with others the ones about its labels."""
        labels = {label for axis in self.axes for label in self.labels(axis, PAPER)}
        shared = [one.text for one in self.shared_remarks.values() if labels & set(one.labels)]
        return [*self.remarks, *shared]

    def cells(self, scale: str) -> list[Cell]:
        if not self.has_scale(scale):
            return []
        reduced = self.reduced(scale)
        skipped = [*self.skip, *reduced.skip]
        seeds = tuple(self.seeds if reduced.seeds is None else reduced.seeds)
        cells = []
        for chosen in itertools.product(*(self.labels(axis, scale) for axis in self.axes)):
            labels = dict(zip(self.axes, chosen, strict=True))
            words = [*shlex.split(reduced.overrides), *self.words(labels)]
            for axis, label in labels.items():
                words += shlex.split(reduced.extra.get(axis, {}).get(label, ""))
            if self.tune is not None:
                words += self.chosen.get(self.tuned_key(labels), ())
                words.append(f"data.validation={self.tune.validation}")
            last = {_key(word): word for word in words}  # Hydra takes a group only once
            own_seed = last.pop("seed", "").removeprefix(
                "seed="
            )  # an axis may say which seed goes with which label
            cell = Cell(labels, tuple(last.values()), (int(own_seed),) if own_seed else seeds)
            if not any(cell.matches(combination) for combination in skipped):
                cells.append(cell)
        return cells

    def tuned_key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The labels by which a cell shares the choice of its settings with others."""
        assert self.tune is not None
        return tuple(labels[axis] for axis in (self.tune.axis, *self.tune.per))

    def changed_by_scale(self, scale: str) -> set[str]:
        """The keys that a scale sets: in its preset, in general, and for single labels that it
        keeps.
        """
        if scale == "paper":
            return set()
        reduced = self.reduced(scale)
        lines = [reduced.overrides]
        for axis, words in reduced.extra.items():
            lines += [words[label] for label in self.labels(axis, scale) if label in words]
        preset = ("client.last_batch",) if scale == DECISIVE else PRESET_OF_SMOKE
        return {*preset, *(_key(word) for line in lines for word in shlex.split(line))}

    def replaced(self, labels: dict[str, str], scale: str) -> list[str]:
        """The words by which a scale makes a cell something else than its labels say: other data,
        another network.
        """
        reduced = self.reduced(scale)
        own = {_key(word) for word in self.words(labels)}
        general = [word for word in shlex.split(reduced.overrides) if _key(word) not in own]
        extra = [
            word
            for axis, label in labels.items()
            for word in shlex.split(reduced.extra.get(axis, {}).get(label, ""))
        ]
        return [word for word in [*general, *extra] if _key(word) in REPLACING] + [
            word for word in extra if _key(word) in own - set(REPLACING)
        ]

    def settings(self) -> str:
        """What the file asks of its runs, without the study: experiments that agree in it share
        their runs.
        """
        groups = [] if self.folders else _chosen_groups(self.name)
        return json.dumps([self.base, groups, self.folders], sort_keys=True)

    def choice(self, cell: Cell, group: str) -> str:
        """The file of a group, `data` or `model`, that the words of a cell name, else this file.

        Nothing when neither does: the group's default.
        """
        named = [] if self.folders else _chosen_groups(self.name)
        files = [str(one[f"override /{group}"]) for one in named if f"override /{group}" in one]
        files += [word.partition("=")[2] for word in cell.overrides if _key(word) == group]
        return files[-1] if files else ""

    def job(self, cell: Cell, seed: int, scale: str) -> list[str]:
        """The words of a run on the command line."""
        search = search_path(self.folders)
        return [*self._choice(scale), *cell.overrides, f"seed={seed}", *search]

    def published_numbers(self) -> list[Published]:
        if self.published is None:
            return []
        with open(self.file.parent / self.published, newline="", encoding="utf-8") as file:
            return [self._published(row) for row in csv.DictReader(file)]

    def _published(self, row: dict[str, str]) -> Published:
        value, std = (float(row[key]) if row[key] else None for key in ("value", "std"))
        labels = {axis: label for axis, label in row.items() if axis not in PUBLISHED}
        return Published(labels, row["measure"], row["printed"], value, std, row["flag"])


def _key(word: str) -> str:
    return word.partition("=")[0]


def experiments_folder() -> Path:
    return config_folder() / "experiment"


def names() -> list[str]:
    """All experiments, papers in order, tables before figures, by number."""
    return list(_names(experiments_folder()))


@cache
def _names(folder: Path) -> tuple[str, ...]:
    files = [file for file in folder.rglob("*.yaml") if file.stem[0] != "_"]
    return tuple(
        sorted((str(file.relative_to(folder).with_suffix("")) for file in files), key=_order)
    )


def _order(name: str) -> tuple[Any, ...]:
    paper, _, rest = name.rpartition("/")
    numbers = [int(digits) for digits in re.findall(r"\d+", rest)]
    place = PAPERS.index(paper) if paper in PAPERS else len(PAPERS)
    return place, paper, not rest.startswith("table"), numbers, rest


def not_experiments() -> dict[str, dict[str, str]]:
    """Of each paper the figures and tables that no run can repeat, with the reason."""
    name = "_not_experiments"
    return _content(name) if (experiments_folder() / f"{name}.yaml").is_file() else {}


def chosen(only: str | None, known: Sequence[str]) -> list[str]:
    """Those of the known experiments that `--only` names: one, or all of a folder."""
    if not only:
        return list(known)
    found = [name for name in known if name == only or name.startswith(f"{only.rstrip('/')}/")]
    if not found:
        folders = sorted({name.rpartition("/")[0] for name in known} - {""})
        raise BadInput(f"--only={only}: {nearest(only, [*known, *folders])}")
    return found


def load(name: str, folders: Sequence[str] = ()) -> Experiment:
    """An experiment of this package, or one in a user's folders of configuration."""
    if name in names():
        return _experiment(name, _merged(name))
    if find_file(name, folders).is_file():
        add_folders(folders)  # where the user's own classes are
        return _experiment(name, _composed(name, folders), absolute(folders))
    raise BadInput(f"experiment={name}: {nearest(name, [*names(), *own_names(folders)])}")


def _experiment(name: str, base: dict[str, Any], folders: tuple[str, ...] = ()) -> Experiment:
    study = read_study(base.pop("study"), name)
    study = replace(study, paper=study.paper or OWN, number=study.number or name)
    found = Experiment(**vars(study), name=name, base=base, folders=folders)
    if study.published is not None:
        _check_published(found, study.published)
    return found


def _check_published(experiment: Experiment, name: str) -> None:
    """The numbers of a paper are read when all runs are done: too late to find a mistake."""
    key = f"experiment={experiment.name}: study.published"
    file = experiment.file.parent / name
    require(file.is_file(), key, name, f"must be a file beside {experiment.file.name}")
    with open(file, newline="", encoding="utf-8") as lines:
        columns = next(csv.reader(lines), [])
    for column in (*PUBLISHED, *columns):
        known = column in (*PUBLISHED, *experiment.axes, "dataset") and column in columns
        require(known, key, name, f"must have the columns {', '.join(PUBLISHED)} and axes' names")


def _composed(name: str, folders: Sequence[str]) -> dict[str, Any]:
    """What Hydra makes of a user's file; raises BadInput where it can make nothing of it."""
    words = [f"experiment={name}", *search_path(folders)]
    try:
        composed = OmegaConf.to_container(compose_tree(words))
    except (UnicodeDecodeError, *CONFIGURATION_ERRORS) as error:
        raise BadInput(f"experiment={name}: {explain(error, words)}") from error
    assert isinstance(composed, dict)
    composed.setdefault("study", None)
    return {str(key): value for key, value in composed.items() if key != "hydra"}


def compose_tree(words: Sequence[str], folder: Path | None = None) -> DictConfig:
    """What Hydra composes of the words, with its own section `hydra`; from the program's files of
    configuration, or from others.
    """
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder or config_folder()), version_base="1.3"):
        return compose("config", overrides=list(words), return_hydra_config=True)


@contextmanager
def files_without_studies() -> Iterator[Path]:
    """The program's files of configuration, but with experiments that are the settings of runs
    alone.

    Of an experiment Hydra takes longer to read and to copy what it says of tables and claims than
    for all settings.
    """
    source = config_folder()
    with TemporaryDirectory(prefix="fedbench-conf-") as made:
        folder = Path(made)
        for entry in source.iterdir():
            if entry != experiments_folder():
                (folder / entry.name).symlink_to(entry.absolute())
        for file in experiments_folder().rglob("*.yaml"):
            copied = folder / file.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_text(STUDY.sub("", file.read_text(encoding="utf-8")), encoding="utf-8")
        yield folder


def search_path(folders: Sequence[str]) -> list[str]:
    """The word by which Hydra finds the files of these folders, too."""
    if not folders:
        return []
    places = ", ".join(f"'file://{Path(folder).absolute()}'" for folder in folders)
    return [f"{SEARCH_PATH}=[{places}]"]


def absolute(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(Path(folder).absolute()) for folder in folders)


def find_file(name: str, folders: Sequence[str] = ()) -> Path:
    """The file of an experiment: the package's, unless it lies in one of these folders."""
    places = [experiments_folder(), *(Path(folder) / "experiment" for folder in folders)]
    files = [place / f"{name}.yaml" for place in places]
    return next((file for file in files if file.is_file()), files[0])


def own_names(folders: Sequence[str]) -> list[str]:
    """The experiments in a user's folders of configuration."""
    return [name for folder in folders for name in _names(Path(folder) / "experiment")]


def _merged(name: str) -> dict[str, Any]:
    """The file over those that its defaults list names, as Hydra merges them."""
    content = copy.deepcopy(_content(name))
    merged: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            # Whether Hydra takes a bare name for one of this folder depends on who asks: names are
            # absolute here.
            merged = _over(merged, _merged(entry.removeprefix("/experiment/")))
    return _over(merged, content)


def _chosen_groups(name: str) -> list[dict[str, Any]]:
    """What the defaults lists of the file and of those below it choose: `override /data:
    emnist`.
    """
    groups: list[dict[str, Any]] = []
    for entry in _content(name).get("defaults", []):
        if isinstance(entry, dict):
            groups.append(entry)
        elif entry != "_self_":
            groups += _chosen_groups(entry.removeprefix("/experiment/"))
    return groups


def _content(name: str) -> dict[str, Any]:
    """What the file says; to be read, not changed."""
    return _parsed((experiments_folder() / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> dict[str, Any]:
    return yaml.load(
        text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )  # C's, where there is one, is faster


def _over(below: Any, above: Any) -> Any:
    """Maps are merged, everything else is replaced."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: _over(below.get(key), value) for key, value in above.items()}}
