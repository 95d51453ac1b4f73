"""Figures as files, and in words."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from fedbench.core.files import write_atomically
from fedbench.report.output.figures.style import looks

SAID_IN_FULL = 4  # lines of a panel; of more, the highest and the lowest are named


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.png and `stem`.svg; the same figure gives the same bytes."""
    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    dots, shapes = io.BytesIO(), io.BytesIO()
    with looks():  # straight to the canvas: Figure.savefig draws everything twice
        FigureCanvasAgg(figure).print_png(dots, metadata={"Software": None})
        resolution = figure.dpi
        FigureCanvasSVG(figure).print_svg(shapes, metadata={"Date": None})
        figure.dpi = resolution  # the SVG's canvas leaves its own
    write_atomically(png, dots.getvalue())
    write_atomically(svg, compact(shapes.getvalue().decode()))
    return png, svg


def compact(svg: str) -> str:
    """The same drawing in a third of the bytes: a page embeds dozens of them.

    Coordinates keep a hundredth of a point; what names the program that drew it goes, and so do
    turns by nothing, long lists of fonts, names that nothing refers to, and the style of a marker
    where its definition has the same. A style that is used often gets a name.
    """
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", svg)
    svg = re.sub(r"font-family: [^;\"]*sans-serif", "font-family: sans-serif", svg)
    svg = re.sub(r"-?\d+\.\d{3,}(?![\d%])", lambda found: f"{float(found[0]):.2f}", svg)
    svg = re.sub(r"\s+", " ", svg)
    svg = re.sub(r' style="[^"]*"', lambda found: re.sub(r"([:;]) ", r"\1", found[0]), svg)
    styles = dict(re.findall(r'<path id="(\w+)" d="[^"]*"( style="[^"]*")', svg))
    svg = re.sub(
        r'(<use xlink:href="#(\w+)"[^>]*?)( style="[^"]*")',
        lambda found: found[1] if styles.get(found[2]) == found[3] else found[0],
        svg,
    )
    used = set(re.findall(r"#([\w.]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = re.sub(r"> <", "><", svg).strip() + "\n"
    return _with_named_styles(svg)


def _with_named_styles(svg: str) -> str:
    """What is drawn alike has a class in place of a style."""
    counts = Counter(re.findall(r' style="([^"]*)"', svg))
    often = [style for style, count in counts.items() if count > 2]
    if not often or "</style>" not in svg:
        return svg
    names = {style: f"s{number}" for number, style in enumerate(often)}
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    svg = svg.replace("</style>", f"{rules}</style>", 1)
    return re.sub(
        r' style="([^"]*)"',
        lambda found: f' class="{names[found[1]]}"' if found[1] in names else found[0],
        svg,
    )


def describe(figure: Figure) -> str:
    """What is to be seen, for those who cannot: panels, what they show against what, where lines
    end, and the notes.
    """
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    sentences = [f"{len(panels)} panels." if len(panels) > 1 else ""]
    x, y = next((axes.get_xlabel() for axes in reversed(panels) if axes.get_xlabel()), ""), ""
    titles: dict[str, list[str]] = {}  # of the panels that are alike in words
    for axes in panels:
        y = axes.get_ylabel() or y  # the grid has names at its left and lower edges only
        titles.setdefault(_contents(axes, axes.get_xlabel() or x, y), []).append(axes.get_title())
    for contents, named in titles.items():
        sentences.append(
            f"{'; '.join(filter(None, named))}: {contents}." if any(named) else f"{contents}."
        )
    note = figure.get_supxlabel().replace("\n", " ")
    return " ".join(sentence for sentence in [*sentences, note] if sentence).replace(r"\$", "$")


def _contents(axes: Axes, x: str, y: str) -> str:
    ends = _ends(axes)
    if not axes.has_data():
        return ", ".join(text.get_text() for text in axes.texts)
    if not ends:
        return f"{y or 'values'} by {x}" if x else y
    named = {name: f"{name} {value:.4g}" for name, value in ends.items()}
    if len(named) > SAID_IN_FULL:
        high, low = max(ends, key=lambda name: ends[name]), min(ends, key=lambda name: ends[name])
        listed = f"{len(named)} series, at the end {named[high]} is highest and {named[low]} lowest"
    else:
        listed = "at the end " + ", ".join(named.values())
    return f"{y} by {x}; {listed}" if x else f"{y}; {listed}"


def _ends(axes: Axes) -> dict[str, float]:
    """The last value of every labelled line, series of points or group of bars."""
    series: list[tuple[object, Any]] = [(line.get_label(), line.get_ydata()) for line in axes.lines]
    for container in axes.containers:
        if hasattr(container, "patches"):
            series.append((container.get_label(), [bar.get_height() for bar in container.patches]))
        elif isinstance(container, ErrorbarContainer) and container.lines[0] is not None:
            series.append((container.get_label(), container.lines[0].get_ydata()))
    ends = {}
    for name, values in series:
        finite = [value for value in np.asarray(values, dtype=float) if np.isfinite(value)]
        if not str(name).startswith("_") and finite:
            ends[str(name)] = finite[-1]
    return ends
