"""A report: every attention of a model, whether it streams, and why or why not.

    12 attentions in 1 graph: 12 streamed

    attention_1 … attention_12 (12 alike): streamed
      from      modeling_bert.py:155 in eager_attention_forward
      mask      padding
      ...

Regions that say the same (the layers of a model) are shown once. `print(report)` shows everything, `report.brief()` a line for
each kind, `report.to_dict()` plain values; a notebook shows a table. A pickled report keeps what it says, not the code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aicf.backends.manifest import stages
from aicf.driver import RegionResult
from aicf.semantic import Graph, print_graph
from aicf.version import VERSION

from .html import table
from .record import region_record
from .text import brief_line, full_lines, groups
from .words import plural, size_text


@dataclass(repr=False)
class GraphReport:
    """What became of one captured graph. `problem`: why it was left alone as a whole, empty when it was not; `rest`: what runs
    everything outside of the regions ("nothing": there is nothing but views); `boundaries`: (name, reason) of results that were
    not followed; `seconds`: what finding and deriving took, PyTorch's own compilation not counted."""

    regions: list[RegionResult] = field(default_factory=list[RegionResult])
    graph: Graph | None = None
    problem: str = ""
    rest: str = ""
    boundaries: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    seconds: float = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "graph": None}

    def __repr__(self) -> str:
        left = f", left to PyTorch: {self.problem}" if self.problem else ""
        return f"<aicf GraphReport: {_counts(self.regions)}{left}>"


@dataclass(repr=False)
class Report:
    """Every attention that was seen, in the order of the program. `graphs`: the captured graphs; `breaks`: why there is more than
    one of them, in PyTorch's words."""

    graphs: list[GraphReport] = field(default_factory=list[GraphReport])
    breaks: list[str] = field(default_factory=list[str])

    @property
    def regions(self) -> list[RegionResult]:
        return [r for g in self.graphs for r in g.regions]

    @property
    def attentions(self) -> list[RegionResult]:
        """The regions that sum values: what `require="streamed"` is about."""
        return [r for r in self.regions if r.kind == "attention"]

    @property
    def summary(self) -> str:
        """The first line."""
        graphs = plural(len(self.graphs), "graph")
        if not self.regions:
            hidden = opaque(self.graphs)
            return f"no attention found in {graphs}" + (f"; not followed: {', '.join(hidden)}" if hidden else "")
        parts = {"attention": self.attentions, "score reduction": [r for r in self.regions if r.kind == "reduction"]}
        return "; ".join(f"{plural(len(r), what)} in {graphs}: {_counts(r)}" for what, r in parts.items() if r)

    def dump(self, stage: str) -> str:
        """All graphs (stage "semantic") or all streamed regions at another of `aicf.backends.stages()`.

        Raises ValueError for a stage that does not exist, when nothing streams and so nothing reached the stage, and for a report
        that was pickled, which keeps none.
        """
        if stage not in stages():
            raise ValueError(f"no stage {stage!r}: the stages are {', '.join(stages())}")
        if stage == "semantic":
            found = [g.graph for g in self.graphs if g.graph is not None]
            if not found and self.regions:
                raise ValueError("the graphs were not saved with this report: dump them where the report is made")
            return "\n".join(print_graph(g, locations=True) for g in found)
        streamed = [r for r in self.regions if r.status == "streamed"]
        if not streamed:
            raise ValueError(f"nothing streams, so there is no {stage}: the report (aicf explain) says why")
        if len(streamed) == 1:
            return streamed[0].dump(stage)
        return "\n".join(f"; ---- {r.name}\n{r.dump(stage)}" for r in streamed)

    def brief(self) -> str:
        """One line for each kind of region, and for what kept others from being seen."""
        return "\n".join([*self._head(), *(brief_line(group) for group in groups(self.regions))])

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for `json.dumps`. Sizes in bytes, times in seconds, None for what is not known."""
        return {
            "aicf": VERSION,
            "summary": self.summary,
            "graphs": [
                {"problem": g.problem or None, "rest": g.rest or None, "seconds": g.seconds, "not_followed": dict(g.boundaries)}
                for g in self.graphs
            ],
            "breaks": list(self.breaks),
            "regions": [region_record(r, k) for k, g in enumerate(self.graphs) for r in g.regions],
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __repr__(self) -> str:
        return f"<aicf Report: {self.summary}>"

    def _repr_html_(self) -> str:
        return table(self.summary, self.regions, str(self))

    def __str__(self) -> str:
        lines = self._head()
        for group in groups(self.regions):
            lines += ["", *full_lines(group)]
        dropped = sorted({reason for g in self.graphs for _, reason in g.boundaries if "dropout" in reason})
        lines += ["", *dropped] if dropped and not self.regions else []
        return "\n".join(lines) + "\n"

    def _head(self) -> list[str]:
        lines = [self.summary, *(f"graph break: {b}" for b in self.breaks)]
        left = [(k, g.problem) for k, g in enumerate(self.graphs, 1) if g.problem]
        return [*lines, *(f"graph {k} is left to PyTorch as a whole: {problem}" for k, problem in left)]


def _counts(regions: Sequence[RegionResult]) -> str:
    counts = {s: sum(r.status == s for r in regions) for s in ("streamed", "declined", "refused")}
    return ", ".join(f"{n} {s}" for s, n in counts.items() if n) or "no attention"


def opaque(graphs: Sequence[GraphReport]) -> list[str]:
    """The ops in which an attention may hide: those that are not followed, PyTorch's or somebody else's."""
    end = " is not followed"
    return sorted({why.removesuffix(end) for g in graphs for _, why in g.boundaries if why.endswith(end)})


__all__ = ["GraphReport", "Report", "opaque", "size_text"]
