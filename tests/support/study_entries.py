"""Made-up entries of a report: ordinary ones, and one whose every text tries to break out."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from fedbench.report.judgement.outcomes import Claim, Comparison, Panel
from fedbench.report.output.model import LINKS, Entry, Grid, GridCell, GridRow, Picture, Setting

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
PIPE = "a|b"
SIGNS = r"50%_&#$ {x} ~^ \ `c`"
UMLAUTS = "Größe ± Übermaß"
LONG = "a_very_long_name_without_any_space_" * 6
HOSTILE = [SCRIPT, IMAGE, PIPE, SIGNS, UMLAUTS, LONG]
METHODS = [
    "FedAvg",
    "FedProx",
    "SCAFFOLD",
    "FedNova",
    "MOON",
    "FedPGVC (norm)",
    "FedPGVC (eq15)",
    "local",
]


def made_up(folder: Path) -> list[Entry]:
    """Two papers with tables and figures, an experiment without runs, and the hostile one."""
    entries = [
        table("fedpgvc/table2", "FedPGVC", "Table 2", "Best test accuracy (%), mean over seeds"),
        figure(folder),
        table(
            "fedpmvr/table1", "FedPMVR", "Table 1", "Rounds to reach the target", measure="Rounds"
        ),
        Entry(
            "fedpmvr/table10",
            "FedPMVR",
            "Table 10",
            "Nothing ran yet",
            "paper",
            "fedbench x",
            "",
            "",
            [0, 1],
            0,
            12,
        ),
        hostile(folder),
    ]
    entries[2].scale, entries[2].reduction, entries[2].stand_in = "paper", "", ""
    return entries


def table(name: str, paper: str, number: str, title: str, measure: str = "Accuracy") -> Entry:
    columns = [
        [data, alpha]
        for data in ("MNIST", "FMNIST", "CIFAR-100")
        for alpha in ("0.1", "0.5", "1.0")
    ]
    rows = [
        GridRow([method], [cell(place, column) for column in range(9)])
        for place, method in enumerate(METHODS)
    ]
    grid = Grid(
        f"{measure} by dataset and alpha",
        ["method"],
        columns,
        rows,
        "",
        ["dataset", "alpha"],
        measure,
    )
    return Entry(
        name=name,
        paper=paper,
        number=number,
        title=title,
        scale="decisive",
        command=f"fedbench experiment={name} scale=decisive",
        reduction="20 of 100 rounds, 10,000 of 60,000 training images, 1 of 3 seeds",
        stand_in="CIFAR-100 is a synthetic stand-in: the real one is not at hand",
        seeds=[0, 1, 2],
        done=70 + len(name),
        wanted=90,
        grids=[grid],
        claims=[
            Claim(
                "FedPGVC has the best accuracy in every column",
                "undecided",
                "against FedProx: +0.21 [-0.30, +0.72] points, 9 of 9 panels",
                "points",
                comparisons("FedAvg", "FedProx"),
                rests_on="3 seeds; decisive scale",
            ),
            Claim("FedPGVC beats FedAvg", "supported", "+1.50 points", main=True),
            Claim("SCAFFOLD fails on CIFAR-100", "contradicted", "-41.30 points", main=True),
            Claim("FedPGVC is fast", "supported in part", untested="FedBN; 7 of 8 panels"),
            Claim("FedPGVC is elegant", "not testable", "elegance has no unit"),
        ],
        footnotes={
            "a": "client.lr = 0.05 is our choice: the paper lists a grid",
            "b": "diverged with 1 of 3 seeds",
        },
        remarks=[
            "FedBN on networks without batch norm is FedAvg; the differences in the paper's table"
            " are noise."
        ],
        settings=[
            Setting(
                "client.lr",
                "0.05",
                "choice",
                "the paper lists a grid 0.05, 0.01, 0.2, 0.3 and does not say which",
            ),
            Setting("client.batch_size", "64", "paper", "section 6.1"),
            Setting("algo.mu", "0.2", "code", "released script uses 0.2"),
        ],
        runs=runs([run(method, seed) for method in METHODS for seed in (0, 1, 2)]),
    )


def comparisons(*others: str) -> list[Comparison]:
    """With an interval and a published difference, and one panel that decides nothing."""
    panels = [
        Panel("MNIST, alpha 0.1", "supported", 0.5, 0.1, 0.9, 0.01, 3, 1.2),
        Panel("CIFAR-100", "not testable", reason="this scale runs model=lenet instead"),
    ]
    return [
        Comparison("FedPGVC", other, "undecided", 0.21, -0.3, 0.72, 0.2, 0.61, 1.1, "", panels)
        for other in others
    ]


def cell(row: int, column: int) -> GridCell:
    value = 99.13 - 3.7 * row - 1.9 * column + (row * column) % 4
    difference = ((row * 7 + column * 5) % 11 - 5) * 0.8
    verdict = "match" if abs(difference) <= 1 else "near" if abs(difference) <= 3 else "miss"
    marks = [
        mark for mark, wanted in (("a", row % 3 == 0), ("b", column == 4 and row == 0)) if wanted
    ]
    if row == 4 and column > 5:
        return GridCell("-", f"{value:.2f} (±0.10)", "", "unmeasured")
    if row == 3 and column == 7:
        return GridCell(
            "*", "81.70", "", "miss", marks, None, "diverged in round 7 with seeds 0, 1, 2"
        )
    if row == 2 and column == 8:
        return GridCell("> 100", ">1K", "", "match", marks, 100.0, "not reached with 3 of 3 seeds")
    if row > 5:
        return GridCell(f"{value:.2f} ± 0.22", value=value, detail="seeds 0, 1, 2")
    printed = f"{value - difference:.2f} (±0.03)"
    return GridCell(
        f"{value:.2f} ± 0.22", printed, f"{difference:+.2f}", verdict, marks, value, "seeds 0, 1, 2"
    )


def runs(rows: list[tuple]) -> pd.DataFrame:
    return pd.DataFrame(
        [(*row, *[""] * (len(LINKS) - len(row))) for row in rows], columns=list(LINKS)
    )


def run(method: str, seed: int) -> tuple:
    path = f"runs/mnist-{method.lower().replace(' ', '_')}-dirichlet/{hash_of(method, seed)}"
    commit = "23f4677c0ffee23f4677c0ffee23f4677c0ffee0"
    return (
        f"MNIST, 0.5, {method}",
        seed,
        "finished",
        hash_of(method, seed),
        path,
        "9f8e7d6c5b4a",
        commit,
    )


def hash_of(method: str, seed: int) -> str:
    return f"{sum(map(ord, method)) * 7919 + seed:012x}"


def figure(folder: Path) -> Entry:
    picture = draw(folder, "figure3")
    entry = table("fedpgvc/figure3", "FedPGVC", "Figure 3", "Test accuracy by round")
    entry.grids, entry.claims, entry.footnotes, entry.wanted = [], [], {}, entry.done
    entry.pictures = [picture]
    return entry


def draw(folder: Path, name: str) -> Picture:
    shape, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for place, panel in enumerate(axes):
        for method in range(5):
            panel.plot(
                range(50), [95 - (40 + 9 * method) / (1 + turn * 0.2 + place) for turn in range(50)]
            )
        panel.set(title=f"alpha {place}", xlabel="round", ylabel="accuracy (%)")
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        shape.savefig(path, dpi=60)
    plt.close(shape)
    return Picture("Accuracy by round, mean over seeds", *paths, "Five curves rise and level off")


def hostile(folder: Path) -> Entry:
    """Every text of this entry contains all hostile ones."""
    bad = " ".join(HOSTILE)
    rows = [
        GridRow(
            [text, PIPE],
            [GridCell(text, text, text, "near", [text], float(place), bad), GridCell("*", "-")],
        )
        for place, text in enumerate(HOSTILE)
    ]
    grid = Grid(
        bad, [PIPE, SCRIPT], [[SIGNS, SCRIPT], [SIGNS, IMAGE]], rows, bad, [SIGNS, UMLAUTS], SIGNS
    )
    sides = comparisons(bad)
    sides[0].panels = [Panel(bad, "supported", 0.5, 0.1, 0.9, 0.01, 3)]
    problem = f"Traceback (most recent call last):\n  File {IMAGE}\n\nRuntimeError: {bad}"
    return Entry(
        **dict.fromkeys(("number", "title", "scale", "command", "reduction", "stand_in"), bad),
        name=f"hostile/{SCRIPT}",
        paper=IMAGE,
        seeds=[0],
        done=1,
        wanted=2,
        grids=[grid],
        pictures=[
            Picture(bad, folder / "none.png", folder / f"{SCRIPT.replace('/', '')}.svg", bad)
        ],
        claims=[Claim(bad, "contradicted", bad, bad, sides, rests_on=bad, repeats=bad)],
        footnotes=dict.fromkeys(HOSTILE, bad),
        remarks=[bad],
        settings=[Setting(bad, bad, "choice", bad)],
        runs=runs(
            [
                (bad, 0, "failed", IMAGE, f"runs/{IMAGE} 50%#?/1", SCRIPT, SCRIPT, bad),
                (bad, 1, "refused", "", "", "", "", bad),
                (bad, 2, "finished", "x", "javascript:alert(1)"),
            ]
        ),
        problems=[problem],
    )
