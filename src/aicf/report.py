"""A report: every attention of a model, whether it streams, and why or why not.

    12 attentions in 1 graph: 12 streamed

    attention_1 to attention_12, streamed
      from      modeling_bert.py:155 in eager_attention_forward
      mask      padding
      ...

Regions that say the same (the layers of a model) are shown once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from aicf.driver import STAGES, RegionResult, StoredTensor
from aicf.semantic import Graph, print_graph


@dataclass
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


@dataclass
class Report:
    """Every attention that was seen, in the order of the program. `graphs`: the captured graphs; `breaks`: why there is more than
    one of them, in PyTorch's words."""

    graphs: list[GraphReport] = field(default_factory=list[GraphReport])
    breaks: list[str] = field(default_factory=list[str])

    @property
    def regions(self) -> list[RegionResult]:
        return [r for g in self.graphs for r in g.regions]

    def dump(self, stage: str) -> str:
        """All graphs (stage "semantic") or all streamed regions at another of STAGES.

        Raises ValueError for a stage that does not exist, and when nothing streams and so nothing reached the stage.
        """
        if stage not in STAGES:
            raise ValueError(f"no stage {stage!r}: the stages are {', '.join(STAGES)}")
        if stage == "semantic":
            return "\n".join(print_graph(g.graph, locations=True) for g in self.graphs if g.graph is not None)
        streamed = [r for r in self.regions if r.status == "streamed"]
        if not streamed:
            raise ValueError(f"nothing streams, so there is no {stage}: the report (aicf explain) says why")
        if len(streamed) == 1:
            return streamed[0].dump(stage)
        return "\n".join(f"; ---- {r.name}\n{r.dump(stage)}" for r in streamed)

    def __str__(self) -> str:
        lines = [self._summary()]
        lines += [f"graph break: {b}" for b in self.breaks]
        for k, g in enumerate(self.graphs):
            if g.problem:
                lines.append(f"graph {k + 1} is left to PyTorch as a whole: {g.problem}")
        for _, group in groupby(self.regions, key=_look):
            lines += ["", *_lines(list(group))]
        dropped = sorted({reason for g in self.graphs for _, reason in g.boundaries if "dropout" in reason})
        lines += ["", *dropped] if dropped and not self.regions else []
        return "\n".join(lines) + "\n"

    def _summary(self) -> str:
        found = self.regions
        counts = {s: sum(r.status == s for r in found) for s in ("streamed", "declined", "refused")}
        graphs = f"{len(self.graphs)} graph{'s' if len(self.graphs) != 1 else ''}"
        if not found:
            hidden = opaque(self.graphs)
            return f"no attention found in {graphs}" + (f"; not followed: {', '.join(hidden)}" if hidden else "")
        said = ", ".join(f"{n} {s}" for s, n in counts.items() if n)
        return f"{len(found)} attention{'s' if len(found) != 1 else ''} in {graphs}: {said}"


def opaque(graphs: Sequence[GraphReport]) -> list[str]:
    """The ops in which an attention may hide: those that are not followed, PyTorch's or somebody else's."""
    end = " is not followed"
    return sorted({why.removesuffix(end) for g in graphs for _, why in g.boundaries if why.endswith(end)})


def _look(r: RegionResult) -> tuple[object, ...]:
    """What a reader sees of a region, but for its name."""
    return (r.status, r.reason, str(r.source), r.mask, str(r.schedule), str(r.tiles), r.bytes_unfused, r.bytes_streamed,
            tuple((s.bytes, s.reason) for s in r.stored))  # fmt: skip


def _lines(group: Sequence[RegionResult]) -> list[str]:
    r = group[0]
    name = r.name if len(group) == 1 else f"{r.name} … {group[-1].name} ({len(group)} alike)"
    lines = [f"{name}: {r.status}"]
    if r.source is not None:
        lines.append(f"  from       {r.source}")
    if r.reason:
        lines.append(f"  {'why' if r.status == 'streamed' else 'why not'}{' ' * (8 if r.status == 'streamed' else 4)}{r.reason}")
    if r.mask:
        lines.append(f"  mask       {r.mask}")
    if r.assumes:
        lines.append(f"  assumed    {r.assumes}")
    if r.schedule is not None and r.status == "streamed":
        first, *rest = str(r.schedule).splitlines()
        lines.append(f"  {first.replace('schedule', 'schedule  ', 1)}")
        lines += [f"  {line}" for line in rest]
        lines.append(f"  kernel     for {r.specialised}")
    if r.tiles is not None:
        total = sum(r.tiles.values())
        share = f" ({100 * r.tiles.get('empty', 0) // total} % skipped)" if total else ""
        given = ", with the tensors of this call" if r.of_call else ""
        lines.append(f"  tiles      {', '.join(f'{n} {kind}' for kind, n in r.tiles.items())}{share}{given}")
        if r.tiles["partial"] and r.row_ends():
            lines[-1] += f"; in partial ones each {r.row_ends()} rows end where their last key does"
    elif r.assumes:
        lines.append("  tiles      skipped as far as the mask's tensors allow, which is known when it runs")
    if r.bytes_unfused is not None:
        lines.append(f"  memory     score-shaped tensors take {size_text(r.bytes_unfused)} unfused{_working_memory(r)}")
    lines += [f"  stored     {stored_text(s)}" for s in r.stored]
    return lines


def stored_text(s: StoredTensor) -> str:
    """A tensor of the size of the scores that is written and read all the same."""
    size = "" if s.bytes is None else f", {size_text(s.bytes)}"
    place = f" (from {s.source})" if s.source is not None and s.source.file else ""
    why = s.reason or "it is not followed"
    return f"{s.name}{size}, is as large as the scores and is not computed in the tiles{place}: {why}"


def _working_memory(r: RegionResult) -> str:
    """What takes the place of the score-shaped tensors, as the end of a sentence."""
    if r.status != "streamed" or r.bytes_streamed is None or r.schedule is None:
        return ""
    on_gpu = "block" in dict(r.schedule.mapping).values()
    workers = "a block" if on_gpu else f"{r.schedule.threads} thread{'s' if r.schedule.threads != 1 else ''}"
    said = f"; the tiles of {workers} take {size_text(r.bytes_streamed)}"
    if r.bytes_unfused is None or r.bytes_streamed <= r.bytes_unfused:
        return said
    return f"{said}, more at these sizes, and no more at greater ones (time decides what is streamed)"


def size_text(n: int) -> str:
    """Bytes as people read them."""
    value, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
