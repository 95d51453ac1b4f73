"""Run what is missing of every experiment in conf/experiment and write its table: `make reproduce-tables`.

    python scripts/reproduce_tables.py [--only digits/methods] [--results results]

For each experiment results/tables/<experiment>.md and .csv: mean and standard deviation of the accuracy over seeds,
one row for each combination of the other swept keys. Tables are built from the run folders alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fedbench.config import check, config_folder
from fedbench.main import build_parts


def experiments() -> list[str]:
    folder = config_folder() / "experiment"
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml"))


def jobs(experiment: str, results: str) -> Iterator[tuple[dict[str, str], Path]]:
    """Every job of an experiment: the swept keys with their values, and the folder of its run."""
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        base = [f"experiment={experiment}", f"results={results}"]
        swept = compose("config", overrides=base, return_hydra_config=True).hydra.sweeper.params
        values = [str(value).split(",") for value in swept.values()]
        for combination in itertools.product(*values):
            words = dict(zip(swept.keys(), combination, strict=True))
            overrides = [*base, *(f"{key}={value}" for key, value in words.items())]
            composed = compose("config", overrides=overrides, return_hydra_config=True)
            names = dict(composed.hydra.runtime.choices)
            keys = [key for key in composed if key != "hydra"]
            parts = build_parts(check(OmegaConf.masked_copy(composed, keys), names))
            yield words, parts.folder.path


def table(experiment: str, results: str) -> pd.DataFrame:
    rows = []
    for words, folder in jobs(experiment, results):
        summary = json.loads((folder / "summary.json").read_text()) if (folder / "summary.json").exists() else {}
        scores = {key: summary.get(key) for key in ("final_accuracy", "best_accuracy")}
        rows.append({**words, **scores, "status": summary.get("status", "missing"), "scored": summary.get("scoring")})
    frame = pd.DataFrame(rows)
    keys = [key for key in rows[0] if key not in ("seed", "final_accuracy", "best_accuracy", "status", "scored")]
    lines = []
    for values, group in frame.groupby(keys, sort=False):
        counted = {"runs": len(group), "diverged": int((group.status == "diverged").sum())}
        line = dict(zip(keys, values, strict=True)) | {"scored": group.scored.iloc[0]} | counted
        for name in ("final_accuracy", "best_accuracy"):
            line[f"{name} %"] = cell(group[name].dropna() * 100, len(group))
        lines.append(line)
    return pd.DataFrame(lines)


def cell(scores: pd.Series, runs: int) -> str:
    """Mean and standard deviation; `*` where a run diverged or is missing, with how many counted."""
    if scores.empty:
        return "*"
    spread = f" ± {scores.std(ddof=1):.2f}" if len(scores) > 1 else ""
    return f"{scores.mean():.2f}{spread}" + ("" if len(scores) == runs else f" * ({len(scores)} of {runs})")


def markdown(frame: pd.DataFrame) -> str:
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=experiments(), help="one experiment")
    parser.add_argument("--results", default="results")
    arguments = parser.parse_args()
    failed = []
    for experiment in [arguments.only] if arguments.only else experiments():
        words = [f"experiment={experiment}", f"results={arguments.results}"]
        if subprocess.run([sys.executable, "-m", "fedbench", *words], check=False).returncode:
            failed.append(experiment)
        frame = table(experiment, arguments.results)
        file = Path(arguments.results) / "tables" / experiment
        file.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(file.with_suffix(".csv"), index=False)
        command = f"fedbench experiment={experiment}"
        file.with_suffix(".md").write_text(f"# {experiment}\n\n`{command}`\n\n{markdown(frame)}")
        print(f"\n{file.with_suffix('.md').read_text()}\ntable: {file.with_suffix('.md')}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
