"""AttentionPatternPass: from a semantic graph to ExecutionRegions, one per attention found. Still semantics: nothing streams yet.

    %Scores = matmul(%Q, %K_T) … %Softmax = softmax(%Masked), %O = matmul(%Softmax, %V)
      ->  ExecutionRegion(attention_region)   Q, K, V -> O   operations: score_matmul, mask, softmax, value_matmul

What is found is decided by `aicf.streaming.recognise`, from what the elements mean and never from how the graph spells it. What
was seen and cannot be taken becomes a `Refusal` of the module: the op, the property that it broke, and the memory that the
unfused form will need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from aicf.mcir.axes import AxisRole, RegionAxis
from aicf.mcir.builder import MCIRBuilder
from aicf.mcir.module import MCModule
from aicf.mcir.passes.vocabulary import vocabulary
from aicf.mcir.regions import ExecutionRegion
from aicf.mcir.types import mc_dtype
from aicf.mcir.values import MCValue
from aicf.scalar import Const, Expr, Load, index, show, variables, walk
from aicf.semantic import Graph, Node, Refusal
from aicf.semantic.types import is_one
from aicf.streaming.describe import Words
from aicf.streaming.masks import Part, has_mask, keep_of, parts_of
from aicf.streaming.origins import Origins
from aicf.streaming.recognise import Recognised, Settings, recognise
from aicf.streaming.stack import stacked


@dataclass(frozen=True)
class AttentionPatternPass:
    """Options of the pass: `anchors`, the nodes whose tensors exist outside the region (all when None), and `parameters`, the
    model's weights. Valid before: a graph in topological order. Valid after: the graph untouched, one region per attention."""

    anchors: Collection[Node] | None = None
    parameters: Collection[Node] = ()

    def __call__(self, graph: Graph) -> MCModule:
        settings = Settings(self.anchors, self.parameters, graph.readers, graph.unknown, graph.sources)
        return _module(recognise(graph.nodes, graph.outputs, settings), graph.sources)


def run_attention_pattern_pass(semantic_graph: Graph) -> MCModule:
    """All attention regions of a graph (specification, section 14)."""
    return AttentionPatternPass()(semantic_graph)


def detect_attention_pattern(ops: list[Node]) -> list[ExecutionRegion]:
    """The attention regions among operators given in topological order (section 9.3); nodes without users count as returned."""
    return [r for r in _module(recognise(list(ops))).regions if isinstance(r, ExecutionRegion)]


Sources = Mapping[Node, Collection[Node]]


def _module(found: Iterable[Recognised | Refusal], sources: Sources = MappingProxyType({})) -> MCModule:
    module = MCModule()
    for item in found:
        if isinstance(item, Refusal):
            module.refusals.append(replace(item, node=None))  # a module holds no graph
            continue
        number = f"_{len(module.regions)}" if module.regions else ""
        kind = "attention" if item.values else "reduction"
        module.regions.append(region_of(item, f"{kind}_region{number}", sources))
    return module


def _words(seen: Recognised, origins: Origins, parts: list[Part]) -> str:
    try:
        return Words(seen.row, seen.stream, origins.name).parts(parts)
    except Exception:  # only words are lost by it, never a model's attentions
        return "a mask that AICF fails to put into words, which is an error to report"


def region_of(seen: Recognised, name: str, sources: Sources) -> ExecutionRegion:
    """The region that carries what was recognised."""
    found = stacked(seen)
    b = MCIRBuilder()
    region = b.execution_region(name)
    q, k, v = roles(found)
    origins = Origins(seen.loads, seen.extents, sources)
    parts = parts_of(seen, origins.traced)
    pattern = "scaled_dot_product_attention" if found.softmax_like else "score_map_attention"
    region.attrs["pattern"] = pattern if found.values else "reduction_of_scores"
    region.attrs["has_mask"] = has_mask(parts)
    region.attrs["q_name"], region.attrs["k_name"], region.attrs["v_name"] = q, k, v
    operations = [
        "score_matmul",
        *(["mask"] if has_mask(parts) else []),
        *(["softmax"] if found.softmax_like else ["score_map"]),
    ]
    reduced = ["value_matmul"] if found.values else [r.op for r in found.cascade]
    region.attrs["operations"] = (*operations, *dict.fromkeys(reduced))
    region.attrs["sizes"] = axis_sizes(found)
    region.attrs["axes"] = region_axes(found, region.attrs["pattern"])
    region.notes["source"] = str(found.value.location or "hand-built graph")
    if parts:
        region.notes["mask"] = _words(seen, origins, parts)
    keep = keep_of(parts)
    if keep is not None:
        region.notes["keeps"] = show(keep)
    scores = (f"{a.name} = sum over {a.over.name} of {show(a.row)} * {show(a.key)}" for a in found.scores)
    region.notes["scores"] = "\n".join(scores)
    region.notes["cascade"] = "\n".join(f"{r.name} = {r.op} over {found.stream.name} of {show(r.body)}" for r in found.cascade)
    results = (f"{e.node.name}[{', '.join(map(show, e.at))}] = {show(e.expr)}" for e in found.outputs)
    region.notes["results"] = "\n".join(results)
    names = (*(n for n in dict.fromkeys((q, k, v)) if n in found.loads), *(n for n in found.loads if n not in (q, k, v)))
    region.inputs = [_value(found.loads[n], n) for n in names]
    region.outputs = [_value(e.node, e.node.name) for e in found.outputs]
    region.meaning = found
    return region


def _value(node: Node, name: str) -> MCValue:
    shape = tuple(int(d.value) if isinstance(d, Const) else d for d in node.type.shape)
    return MCValue(name=name, shape=shape, dtype=mc_dtype(node.type.dtype))


def axis_sizes(found: Recognised) -> dict[str, Expr]:
    """The size symbols of a region's axes, and what they are in the sizes of the source graph: N rows, M streamed positions, n_b
    for batch variable b. One kernel serves every length, as lengths are symbols also where the source has numbers."""
    e = found.extents
    rows = {} if is_one(e[found.row]) else {"N": e[found.row]}  # without a row axis in the graph there is one row
    return {**rows, "M": e[found.stream], **{f"n_{v.name}": e[v] for v in found.batch}}


def region_axes(found: Recognised, pattern: str) -> dict[str, RegionAxis]:
    """The axes of a region under the names of their extents."""
    e = found.extents
    words = vocabulary(pattern)
    rows = e[found.row] if is_one(e[found.row]) else index("N")
    made = {
        words.streamed[1]: RegionAxis(words.streamed[0], AxisRole.STREAM, found.stream, index("M")),
        words.row[1]: RegionAxis(words.row[0], AxisRole.ROW, found.row, rows),
    }
    for k, v in enumerate(dict.fromkeys(a.over for a in found.scores)):
        made[words.contracted[1] + suffix(k)] = RegionAxis(words.contracted[0] + suffix(k), AxisRole.CONTRACTED, v, e[v])
    for k, v in enumerate(found.columns):
        made[words.column[1] + suffix(k)] = RegionAxis(words.column[0] + suffix(k), AxisRole.COLUMN, v, e[v])
    for v in found.batch:
        made[f"batch_{v.name}"] = RegionAxis(f"batch_{v.name}", AxisRole.BATCH, v, index(f"n_{v.name}"))
    return made


def suffix(k: int) -> str:
    """The end of the k-th name of a kind: none, 2, 3, …"""
    return "" if k == 0 else str(k + 1)


def roles(found: Recognised) -> tuple[str, str, str]:
    """The tensors that play Q, K and V: row and key operand of the first score contraction, and what is summed."""

    def first(e: Expr) -> str:
        return next((x.tensor for x in walk(e) if isinstance(x, Load)), "")

    values = ""
    for r in found.cascade:
        for x in walk(r.body):
            if isinstance(x, Load) and any(c in variables(i) for i in x.index for c in found.columns):
                values = values or x.tensor
    if not values and found.values:
        # Values of one column, whose index is no variable: what the last sum reads along the stream alone.
        streamed = [x for r in found.cascade if r.op == "sum" for x in walk(r.body) if isinstance(x, Load)]
        alone = [x.tensor for x in streamed if any(found.stream in variables(i) for i in x.index)]
        values = next((t for t in reversed(alone) if t not in {first(a.key) for a in found.scores}), alone[-1] if alone else "")
    return first(found.scores[0].row), first(found.scores[0].key), values


__all__ = ["AttentionPatternPass", "detect_attention_pattern", "region_of", "roles", "run_attention_pattern_pass"]
