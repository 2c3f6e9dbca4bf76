"""A chart of benchmark rows as SVG (or whatever Matplotlib makes of the file's ending)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from aicf.bench.measure import Row
from aicf.cli.errors import CommandError

_COLOURS = {"eager": "#9a9a9a", "compile": "#d98c3f", "sdpa": "#4f86c6", "flex": "#6aa86a"}
_TITLES = {"eager": "eager", "compile": "torch.compile", "sdpa": "SDPA", "flex": "Flex Attention"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """How many times faster AICF is than each contender, a group of bars per row. Raises CommandError for nothing to draw."""
    shown = [r for r in rows if any(r.ratio(n) is not None for n in _COLOURS)]
    if not shown:
        raise CommandError("there is nothing to draw: no row has AICF and another contender")
    figure = Figure(figsize=(9.0, 1.2 + 0.62 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / len(_COLOURS)
    for k, (name, colour) in enumerate(_COLOURS.items()):
        found = [(place, r.ratio(name)) for place, r in enumerate(shown)]
        places = [place + (k + 0.5) * height - 0.4 for place, ratio in found if ratio is not None]
        ratios = [ratio for _, ratio in found if ratio is not None]
        bars = axes.barh(places, ratios, height, color=colour, label=_TITLES[name])
        axes.bar_label(bars, [f"{r:.2f}" for r in ratios], padding=2, fontsize=6)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("time over AICF's (right of the line: AICF is faster)")
    axes.set_yticks(range(len(shown)), [_label(r) for r in shown], fontsize=7)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.legend(fontsize=7, loc="lower right")
    try:
        # Text stays text, and the same rows make the same file.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "aicf"}):
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (ValueError, OSError) as e:
        raise CommandError(f"--chart {path}: {e}") from e


def _label(r: Row) -> str:
    return f"{r.case} {r.batch}x{r.heads}x{r.n}x{r.d} {r.dtype}, {r.threads} thr"
