"""Draw the README's picture: how label skew slows FedAvg down on the embedded digits.

    python scripts/readme_picture.py

It runs one sweep, `fedbench -m partition.alpha=0.1,0.5,5 seed=0,1,2,3,4`, reads the folders of the
runs as anybody could, and writes docs/images/label-skew.png. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import matplotlib
import pandas
import yaml

matplotlib.use("Agg")
from matplotlib import pyplot

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "label-skew.png"
ALPHAS = (0.1, 0.5, 5)
SEEDS = range(5)
COLOURS = {0.1: "#c44e52", 0.5: "#4c72b0", 5: "#55a868"}


def sweep(results: Path) -> list[Path]:
    """Run every alpha with every seed; returns the runs' folders."""
    command = [sys.executable, "-m", "fedbench", "-m", "logger=none", f"results={results}"]
    command.append("partition.alpha=" + ",".join(str(alpha) for alpha in ALPHAS))
    command.append("seed=" + ",".join(str(seed) for seed in SEEDS))
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(output, end="")
    prefix = "run: "
    lines = output.splitlines()
    return [Path(line.removeprefix(prefix)) for line in lines if line.startswith(prefix)]


def curves(folders: list[Path]) -> pandas.DataFrame:
    """A row for every run and round: alpha, seed, round, test_accuracy, ..."""
    tables = []
    for folder in folders:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        table = pandas.read_csv(folder / "metrics.csv")
        table["alpha"] = float(config["partition"]["alpha"])
        table["seed"] = config["seed"]
        tables.append(table)
    return pandas.concat(tables)


def draw(table: pandas.DataFrame, picture: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained")
    for alpha, runs in table.groupby("alpha"):
        accuracy = 100 * runs.pivot(index="round", columns="seed", values="test_accuracy")
        colour = COLOURS[alpha]
        axes.plot(accuracy.index, accuracy.mean(axis=1), color=colour, label=f"alpha = {alpha:g}")
        axes.fill_between(
            accuracy.index,
            accuracy.min(axis=1),
            accuracy.max(axis=1),
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.set_title("FedAvg on digits: mean and range of 5 seeds", fontsize=10)
    axes.set_xlim(1, table["round"].max())
    axes.set_ylim(0, 100)
    axes.xaxis.set_major_locator(pyplot.MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="Dirichlet", frameon=False, loc="lower right")
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="where runs go")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="the PNG file to write")
    arguments = parser.parse_args()
    table = curves(sweep(arguments.results))
    draw(table, arguments.picture)
    last = table[table["round"] == table["round"].max()]
    final = 100 * last.groupby("alpha")["test_accuracy"].agg(["mean", "std"])
    print(final.round(2).to_string())
    print(f"picture: {arguments.picture}")


if __name__ == "__main__":
    main()
