"""Running a derived graph: its regions as wholes, and what is left between them op by op, none of it as large as the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aicf.scalar import integer, show, variables
from aicf.semantic import Graph, Node
from aicf.semantic.types import product


class TooLarge(Exception):
    """A derived graph that has to write what a region is there to avoid; the message names it."""


class Computed(Protocol):
    """What a plan asks of a region that streams."""

    @property
    def inputs(self) -> list[Node]: ...

    @property
    def outputs(self) -> list[Node]: ...


@dataclass(frozen=True)
class Plan:
    """`steps`, in order: single nodes, and regions by their number."""

    graph: Graph
    steps: tuple[Node | int, ...]

    @property
    def single(self) -> list[Node]:
        return [s for s in self.steps if isinstance(s, Node)]


def planned(graph: Graph, regions: Sequence[Computed], scores: int, hints: Mapping[str, int], results: Sequence[Node]) -> Plan:
    """How `graph` is run with `regions` as wholes. `scores`: the number of scores that there are; no single node may have as many
    elements, unless one of `results`, tensors of the source that are not of pairs, has them too. Raises TooLarge."""
    region_of = {n: k for k, r in enumerate(regions) for n in r.outputs}
    steps: list[Node | int] = []
    done: set[Node] = set(graph.inputs)
    stack: list[Node] = list(reversed(graph.outputs))
    while stack:
        n = stack[-1]
        if n in done:
            stack.pop()
            continue
        k = region_of.get(n)
        missing = [x for x in (n.inputs if k is None else regions[k].inputs) if x not in done]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        steps.append(n if k is None else k)
        done.update([n] if k is None else regions[k].outputs)
    limit = max([scores - 1, *(_elements(n, hints) for n in results)])
    for step in steps:
        if isinstance(step, Node) and step.op != "expand" and _elements(step, hints) > limit:
            place = f" (from {step.location})" if step.location else ""
            raise TooLarge(f"its gradient needs a tensor of the size of the scores, {step.op} {step.name} : {step.type}{place}")
    return Plan(graph, tuple(steps))


def _elements(n: Node, hints: Mapping[str, int]) -> int:
    size = product(n.type.shape)
    unknown = [v.name for v in variables(size) if v.name not in hints]
    if unknown:
        raise TooLarge(f"the size {show(size)} of {n.name} is not known")
    return integer(size, dict(hints))
