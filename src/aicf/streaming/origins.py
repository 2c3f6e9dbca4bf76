"""The tensors that a region reads, as their user knows them: elements in terms of what the program was given, and names.

    mul_1[b, 0, 0, j]   ->   (1 - f32(mask[b, j])) * -1e9        a tensor that the rest of the graph computes
    searchsorted[i]     ->   named "searchsorted(cu_seqlens)"    one that is not followed

For words only: what a kernel loads is decided where a region is recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aicf.scalar import Expr, Load, Var, substitute, walk
from aicf.semantic import Node
from aicf.semantic.ops import At
from aicf.semantic.refusal import Refused
from aicf.streaming.pull import Puller, output_index, step
from aicf.streaming.simplify import fold_comparisons

SHOWN = 2  # tensors named before the rest becomes "…"
LOOKED_AT = 64  # nodes looked at for the tensors that something is made of


@dataclass
class Origins:
    """What is known of a region's tensors: `loads`, the nodes by name; `extents` of its index variables; `sources`, what inputs
    that are not followed are computed from."""

    loads: Mapping[str, Node]
    extents: Mapping[Var, Expr]
    sources: Mapping[Node, Collection[Node]] = field(default_factory=dict[Node, Collection[Node]])
    met: dict[str, Node] = field(default_factory=dict[str, Node])

    def traced(self, e: Expr) -> Expr:
        """`e` with every element that it loads in terms of the tensors that the program was given."""
        return substitute(e, {x: self._element(x) for x in walk(e) if isinstance(x, Load)})

    def _element(self, e: Load) -> Expr:
        node = self.loads.get(e.tensor)
        if node is None:
            return e
        puller = Puller(_cut, dict(self.extents))
        try:
            element = fold_comparisons(puller.pull(node, e.index), puller.extents)
        except Refused:
            return e
        self.met.update(puller.loads)
        return element

    def name(self, tensor: str) -> str:
        """What people call a tensor: an input by its name, anything else by the op that makes it and what it is made of."""
        node = self.met.get(tensor) or self.loads.get(tensor)
        if node is None or (node.op == "input" and node not in self.sources):
            return tensor
        if node.op == "constant":
            return "a constant tensor"
        op = node.location.op.rpartition(".")[2] if node.location else ""
        if node.op == "reduce":  # what the user called may be more than this sum: a mean divides it, a norm takes its root
            op = str(node.attrs["op"])
        return f"{op.strip('_') or node.op}({', '.join(self._made_of(node))})"

    def _made_of(self, node: Node) -> list[str]:
        """The inputs that `node` is computed from, the first few of them."""
        names: dict[str, None] = {}
        seen: set[Node] = set()
        queue = [node]
        while queue:
            n = queue.pop(0)
            if n in seen:
                continue
            seen.add(n)
            before = [*n.inputs, *self.sources.get(n, ())]
            if not before and n.op == "input":
                names[n.name] = None
            if len(names) > SHOWN or len(seen) > LOOKED_AT:
                return [*[*names][:SHOWN], "…"]
            queue += before
        return [*names] or ["positions"]


def _cut(node: Node, at: At) -> bool:
    """Where an element is no longer written out: at sums and their like."""
    here = step(node, *output_index(node))
    return here is None or bool(here.bound)
