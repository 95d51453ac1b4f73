"""What a person reads before and after a run, and what a reader of its numbers must know."""

from __future__ import annotations

from typing import Any

import numpy as np
from omegaconf import OmegaConf

from fedbench.partitions.picture import save_picture
from fedbench.partitions.statistics import class_counts, heterogeneity
from fedbench.runs.folder import label, split_label, versions
from fedbench.runs.parts import Parts
from fedbench.runs.source import source_commit
from fedbench.training.federation import Federation


def is_done(parts: Parts, force: bool) -> bool:
    """Whether the run is finished. One that is damaged is told, and kept until it is finished
    again.
    """
    if force:
        return False
    damage = parts.folder.damage()
    if damage:
        print(
            f"this run was finished, but {damage}; it is run again: {parts.folder.path}", flush=True
        )
        parts.folder.set_aside()
    return parts.folder.finished() is not None


def prepare_folder(parts: Parts, force: bool) -> None:
    """Write what is known before training."""
    folder, config, data = parts.folder, parts.config, parts.data
    if force:
        folder.clear()
    folder.write("config.yaml", _yaml({**config.shown, "choices": config.names}))
    folder.write("partition.json", _index_lists(parts.shards))
    if parts.split.local_tests is not None:
        folder.write("local_test.json", _index_lists(parts.split.local_tests))
    counts = class_counts(data.train_y, data.classes, parts.shards)
    folder.write("partition.csv", _class_table(counts))
    save_picture(
        folder.path / "partition.png", counts, f"{split_label(config)}, seed {config.scalars.seed}"
    )


def _yaml(tree: dict[str, Any]) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(tree))


def _index_lists(clients: list[np.ndarray]) -> str:
    return "[" + ",\n".join(str(own.tolist()) for own in clients) + "]\n"


def _class_table(counts: np.ndarray) -> str:
    """For every client, how many training examples of each class it has."""
    header = ",".join(["client", *(f"class_{number}" for number in range(counts.shape[1]))])
    rows = [",".join(map(str, [client, *own])) for client, own in enumerate(counts.tolist())]
    return "\n".join([header, *rows]) + "\n"


def announce(parts: Parts, workers: int) -> None:
    """Say what is about to run."""
    config, data, model = parts.config, parts.data, parts.flat
    last = ", ".join(layer.name for layer in model.layers[-2:])
    examples = f"{len(data.train_y):,} training and {len(data.test_y):,} test examples"
    scale = f"  scale {config.scalars.scale}" if config.scalars.scale else ""
    print(f"{label(config)}  seed {config.scalars.seed}  id {parts.id}{scale}")
    told = (
        data.note if data.source in data.note else "; ".join(filter(None, [data.source, data.note]))
    )
    print(f"data: {_data_name(parts)} ({told}), {examples}")
    print(f"model: {model.size:,} parameters in {len(model.layers)} layers (the last two: {last})")
    held_out = sum(map(len, parts.split.local_tests or []))
    own_tests = f", {held_out:,} examples held out as the clients' own tests" if held_out else ""
    print(f"clients: {len(parts.shards)}, partition {parts.partition_hash()}{own_tests}")
    for caveat in parts.algorithm.caveats:
        print(f"note: {caveat}")
    threads = config.scalars.runtime.threads
    print(f"software: {_software()}")
    print(
        f"running on {parts.device}, {_counted(workers, 'worker')}, {_counted(threads, 'thread')}"
        " each",
        flush=True,
    )


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' if number > 1 else ''}"


def _software() -> str:
    """Versions, and the commit of the code, where there is one."""
    source = source_commit()
    commit = f"commit {source['commit'][:10]}" if source["commit"] else "no commit known"
    changes = {
        True: " with uncommitted changes",
        False: "",
        None: " (git cannot tell whether with changes)",
    }
    told = commit + (changes[source["dirty"]] if source["commit"] else "")
    return ", ".join([*(f"{name} {version}" for name, version in versions().items()), told])


def summary_facts(
    parts: Parts, federation: Federation, workers: int, wall_time: float
) -> dict[str, Any]:
    """What stands beside the results in summary.json."""
    data, scalars, algorithm = parts.data, parts.config.scalars, parts.algorithm
    return {
        "label": label(parts.config),
        "id": parts.id,
        "seed": scalars.seed,
        "rounds": federation.done,
        "scoring": algorithm.scoring,
        "caveats": algorithm.caveats,
        "data": _data_facts(parts),
        "partition_hash": parts.partition_hash(),
        "partition": {"draws": parts.split.tries, "moved_to_reach_min_samples": parts.split.moved},
        "heterogeneity": heterogeneity(data.train_y, data.classes, parts.shards),
        "parameters": federation.model.size,
        "scale": scalars.scale,
        "device": parts.device,
        "workers": workers,
        "threads": scalars.runtime.threads,
        "versions": versions(),
        **{f"git_{key}": value for key, value in source_commit().items()},
        "wall_time": round(wall_time, 3),
        "train_seconds": round(federation.totals.seconds, 3),
    }


def _data_facts(parts: Parts) -> dict[str, Any]:
    data = parts.data
    return {
        "name": _data_name(parts),
        "source": data.source,
        "note": data.note,
        "subset": parts.config.data.subset,  # what was asked for; null = everything
        "train_examples": len(data.train_y),
        "test_examples": len(data.test_y),
        "classes": data.classes,
        "fingerprint": data.fingerprint(),
    }


def _data_name(parts: Parts) -> str:
    """The dataset's own name, unless somebody took one from the environment."""
    config = parts.config
    given, shown = config.tree["data"].get("name"), config.shown["data"].get("name")
    return parts.data.name if given == shown else shown


def report(parts: Parts, skipped: bool) -> None:
    """The result in words; the folder is the last line, for other programs."""
    summary = parts.folder.finished()
    if skipped:
        print("this run is finished already (force=true runs it again)")
    if summary["status"] == "diverged":
        facts = summary["diverged"]
        layer = (
            f", layer {facts['layer']}" if facts.get("layer") else ""
        )  # runs of earlier versions do not name one
        print(f"diverged in round {facts['round']}: {facts['cause']}{layer}")
    else:
        note = (
            f" on a {summary['data']['note']}" if summary["data"]["source"] == "synthetic" else ""
        )
        best = f"best {100 * summary['best_accuracy']:.2f} % (round {summary['best_round']})"
        print(
            f"accuracy{note}: final {100 * summary['final_accuracy']:.2f} %, {best}, scored:"
            f" {summary['scoring']}"
        )
    print(f"run: {parts.folder.path}", flush=True)
