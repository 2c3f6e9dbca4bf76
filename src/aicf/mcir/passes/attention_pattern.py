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
    """Options of the pass: `anchors`, the nodes whose tensors exist outside the region (all when None), `parameters`, the model's
    weights, and `narrow` (see `Settings`). Valid before: a graph in topological order. Valid after: the graph untouched, one
    region per attention."""

    anchors: Collection[Node] | None = None
    parameters: Collection[Node] = ()
    narrow: bool = False

    def __call__(self, graph: Graph) -> MCModule:
        settings = Settings(self.anchors, self.parameters, graph.readers, graph.unknown, graph.sources, self.narrow)
        return _module(recognise(graph.nodes, graph.outputs, settings), graph.sources)


def run_attention_pattern_pass(semantic_graph: Graph) -> MCModule:
    """All attention regions of a graph (specification, section 14)."""
    return AttentionPatternPass()(semantic_graph)


def detect_attention_pattern(ops: list[Node]) -> list[ExecutionRegion]:
    """The attention regions among operators given in topological order (section 9.3); nodes without users count as returned."""
    return [r for r in _module(recognise(list(ops))).regions if isinstance(r, ExecutionRegion)]


Sources = Mapping[Node, Collection[Node]]


def _module(results: Iterable[Recognised | Refusal], sources: Sources = MappingProxyType({})) -> MCModule:
    module = MCModule()
    for item in results:
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
    meaning = stacked(seen)
    b = MCIRBuilder()
    region = b.execution_region(name)
    q, k, v = roles(meaning)
    origins = Origins(seen.loads, seen.extents, sources)
    parts = parts_of(seen, origins.traced)
    pattern = "scaled_dot_product_attention" if meaning.softmax_like else "score_map_attention"
    region.attrs["pattern"] = pattern if meaning.values else "reduction_of_scores"
    region.attrs["has_mask"] = has_mask(parts)
    region.attrs["q_name"], region.attrs["k_name"], region.attrs["v_name"] = q, k, v
    operations = [
        "score_matmul",
        *(["mask"] if has_mask(parts) else []),
        *(["softmax"] if meaning.softmax_like else ["score_map"]),
    ]
    reduced = ["value_matmul"] if meaning.values else [r.op for r in meaning.cascade]
    region.attrs["operations"] = (*operations, *dict.fromkeys(reduced))
    region.attrs["sizes"] = axis_sizes(meaning)
    region.attrs["axes"] = region_axes(meaning, region.attrs["pattern"])
    region.notes["source"] = str(meaning.value.location or "hand-built graph")
    if parts:
        region.notes["mask"] = _words(seen, origins, parts)
    keep = keep_of(parts)
    if keep is not None:
        region.notes["keeps"] = show(keep)
    scores = (f"{a.name} = sum over {a.over.name} of {show(a.row)} * {show(a.key)}" for a in meaning.scores)
    region.notes["scores"] = "\n".join(scores)
    cascade = (f"{r.name} = {r.op} over {meaning.stream.name} of {show(r.body)}" for r in meaning.cascade)
    region.notes["cascade"] = "\n".join(cascade)
    results = (f"{e.node.name}[{', '.join(map(show, e.at))}] = {show(e.expr)}" for e in meaning.outputs)
    region.notes["results"] = "\n".join(results)
    names = (*(n for n in dict.fromkeys((q, k, v)) if n in meaning.loads), *(n for n in meaning.loads if n not in (q, k, v)))
    region.inputs = [_value(meaning.loads[n], n) for n in names]
    region.outputs = [_value(e.node, e.node.name) for e in meaning.outputs]
    region.meaning = meaning
    return region


def _value(node: Node, name: str) -> MCValue:
    shape = tuple(int(d.value) if isinstance(d, Const) else d for d in node.type.shape)
    return MCValue(name=name, shape=shape, dtype=mc_dtype(node.type.dtype))


def axis_sizes(meaning: Recognised) -> dict[str, Expr]:
    """The size symbols of a region's axes, and what they are in the sizes of the source graph: N rows, M streamed positions, n_b
    for batch variable b. One kernel serves every length, as lengths are symbols also where the source has numbers."""
    e = meaning.extents
    rows = {} if is_one(e[meaning.row]) else {"N": e[meaning.row]}  # without a row axis in the graph there is one row
    return {**rows, "M": e[meaning.stream], **{f"n_{v.name}": e[v] for v in meaning.batch}}


def region_axes(meaning: Recognised, pattern: str) -> dict[str, RegionAxis]:
    """The axes of a region under the names of their extents."""
    e = meaning.extents
    words = vocabulary(pattern)
    rows = e[meaning.row] if is_one(e[meaning.row]) else index("N")
    made = {
        words.streamed[1]: RegionAxis(words.streamed[0], AxisRole.STREAM, meaning.stream, index("M")),
        words.row[1]: RegionAxis(words.row[0], AxisRole.ROW, meaning.row, rows),
    }
    for k, v in enumerate(dict.fromkeys(a.over for a in meaning.scores)):
        made[words.contracted[1] + suffix(k)] = RegionAxis(words.contracted[0] + suffix(k), AxisRole.CONTRACTED, v, e[v])
    for k, v in enumerate(meaning.columns):
        made[words.column[1] + suffix(k)] = RegionAxis(words.column[0] + suffix(k), AxisRole.COLUMN, v, e[v])
    for v in meaning.batch:
        made[f"batch_{v.name}"] = RegionAxis(f"batch_{v.name}", AxisRole.BATCH, v, index(f"n_{v.name}"))
    return made


def suffix(k: int) -> str:
    """The end of the k-th name of a kind: none, 2, 3, …"""
    return "" if k == 0 else str(k + 1)


def roles(meaning: Recognised) -> tuple[str, str, str]:
    """The tensors that play Q, K and V: row and key operand of the first score contraction, and what is summed."""

    def first(e: Expr) -> str:
        return next((x.tensor for x in walk(e) if isinstance(x, Load)), "")

    values = ""
    for r in meaning.cascade:
        for x in walk(r.body):
            if isinstance(x, Load) and any(c in variables(i) for i in x.index for c in meaning.columns):
                values = values or x.tensor
    if not values and meaning.values:
        # Values of one column, whose index is no variable: what the last sum reads along the stream alone.
        streamed = [x for r in meaning.cascade if r.op == "sum" for x in walk(r.body) if isinstance(x, Load)]
        alone = [x.tensor for x in streamed if any(meaning.stream in variables(i) for i in x.index)]
        values = next((t for t in reversed(alone) if t not in {first(a.key) for a in meaning.scores}), alone[-1] if alone else "")
    return first(meaning.scores[0].row), first(meaning.scores[0].key), values


__all__ = ["AttentionPatternPass", "detect_attention_pattern", "region_of", "roles", "run_attention_pattern_pass"]
