"""MCIR as text, in three depths: what a person looks at to see that the score matrix is gone.

    outline   the region tree and its steps           load_tile(Q), compute_score, ...
    plain     regions, nodes and values               Node(score, op=compute_score) / outputs: score_frag[128,64]:fp32@register
    verbose   plain, and every fact                   payloads, axes, schedule, phases; notes for people as comments

The text depends on the module alone: attributes print in insertion order, nothing prints an address. The verbose text of a module
is the module: `parser.parse_module` reads it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

from aicf.mcir.axes import RegionAxis
from aicf.mcir.module import MCModule, Refusal
from aicf.mcir.nodes import MCNode
from aicf.mcir.payloads import (
    Accumulation,
    RunningExtremum,
    RunningSum,
    ScoreProduct,
    StateUpdate,
    TileLoad,
    TileStore,
)
from aicf.mcir.phases import Phases
from aicf.mcir.regions import Region, TileRegion
from aicf.mcir.types import MC_DTYPES, Dim, scalar_dtype
from aicf.mcir.values import MCValue
from aicf.scalar import Call, Const, DType, Expr, Load, Reduce, Var, number, show, spell

_TITLE = {"execution": "ExecutionRegion", "streaming": "StreamingRegion", "tile": "TileRegion"}
# What the plain dump shows of a region; the verbose dump shows all of it.
_PLAIN_ATTRS: dict[str, tuple[str, ...]] = {
    "execution": ("pattern", "has_mask"),
    "streaming": ("stream_axis",),
    "tile": ("tile_m", "tile_n", "tile_k"),
}


def dump_module(module: MCModule, outline: bool = False, verbose: bool = False) -> str:
    """The text of `module`, without a newline at its end. Works on modules that the verifier refuses, too."""
    if outline:
        return "\n".join("\n".join(_outline(region, 0)) for region in module.regions)
    parts = ["\n".join(_region(region, 0, name_types(region) if verbose else None)) for region in module.regions]
    if verbose:
        parts += ["\n".join(_refusal(refusal)) for refusal in module.refusals]
    return "\n\n".join(parts)


def show_value(value: MCValue) -> str:
    """A value with its type and place: `Q_tile[128,64]:fp16@shared`."""
    return f"{value.name}{_shape(value.shape)}:{value.dtype}@{value.residency}"


def show_node(node: MCNode, verbose: bool = False, types: Types | None = None) -> list[str]:
    """A node's lines, unindented. `types`: of the names in its expressions; the others are written with theirs."""
    lines = [f"Node({node.name}, op={node.op})"]
    if node.inputs:
        lines.append("  inputs: " + ", ".join(value.name for value in node.inputs))
    if node.outputs:
        lines.append("  outputs: " + ", ".join(map(show_value, node.outputs)))
    if verbose:
        lines += ["  " + line for line in _attrs(node.attrs)]
        lines += ["  " + line for line in _payload(node, types or {})]
    return lines


Types = Mapping[str, DType]


def name_types(region: Region) -> dict[str, DType]:
    """The types of the names in the expressions of a region: its tensors, values, references and summaries. Expressions print
    without them, and are read with them."""
    types: dict[str, DType] = {}
    for value in (*region.inputs, *region.outputs):
        _add_type(types, value)
    for node in region.nodes:
        for value in node.outputs:
            _add_type(types, value)
        if isinstance(node.payload, StateUpdate):
            types |= {v.name: v.dtype for x in node.payload.extrema for v in (x.reference, x.old)}
    if isinstance(region, TileRegion) and region.phases is not None:
        types |= {x.name: x.value.dtype for x in region.phases.summaries}
    for sub in region.subregions:
        types |= name_types(sub)
    return types


def _add_type(types: dict[str, DType], value: MCValue) -> None:
    if value.dtype in MC_DTYPES:
        types[value.name] = scalar_dtype(value.dtype)


def _outline(region: Region, depth: int) -> Iterator[str]:
    pad = "  " * depth
    yield f"{pad}{_title(region)}"
    for node in region.nodes:
        tensor = node.attrs.get("source", node.attrs.get("target"))
        yield f"{pad}  {node.op}" + ("" if tensor is None else f"({_text(tensor)})")
    for sub in region.subregions:
        yield from _outline(sub, depth + 1)


def _region(region: Region, depth: int, types: Types | None) -> Iterator[str]:
    """The lines of a region; with `types` all of them, else what the specification shows."""
    pad = "  " * depth
    yield f"{pad}{_title(region)}"
    if types is not None:
        if region.inputs:
            yield f"{pad}  inputs: " + ", ".join(map(show_value, region.inputs))
        if region.outputs:
            yield f"{pad}  outputs: " + ", ".join(map(show_value, region.outputs))
        yield from (f"{pad}  {line}" for line in _attrs(region.attrs))
        if isinstance(region, TileRegion) and region.phases is not None:
            yield from (f"{pad}  {line}" for line in _phases(region.phases, types))
        for key, note in region.notes.items():
            yield from (f"{pad}  # {line}" for line in _entry(key, note))
    else:
        plain = {k: v for k, v in region.attrs.items() if k in _PLAIN_ATTRS.get(region.kind, ())}
        yield from (f"{pad}  {line}" for line in _attrs(plain))
    for node in region.nodes:
        yield ""
        yield from (f"{pad}  {line}" for line in show_node(node, types is not None, types))
    for sub in region.subregions:
        yield ""
        yield from _region(sub, depth + 1, types)


# ------------------------------------------------------------------------------------------------ payloads


def _payload(node: MCNode, types: Types) -> Iterator[str]:
    """What a node computes, one fact a line."""
    axes = [f"{v.name}[{', '.join(v.axes)}]" for v in node.outputs if v.axes]
    if axes:
        yield f"axes: {', '.join(axes)}"
    match node.payload:
        case None:
            pass
        case TileLoad():
            if node.payload.index is not None:
                yield f"index: {_spelt(node.payload.index, types)}"
            if node.payload.element is not None:
                yield f"element: {spell(node.payload.element, types)}"
        case ScoreProduct():
            yield f"over: {node.payload.over}"
        case StateUpdate():
            for x in node.payload.extrema:
                yield from _extremum(x, types)
            for x in node.payload.sums:
                yield from _sum(x, types)
        case Accumulation():
            yield from _sum(node.payload.sum, types)
        case TileStore():
            yield f"index: {_spelt(node.payload.index, types)}"
            yield f"program: {spell(node.payload.program, types)}"


def _extremum(x: RunningExtremum, types: Types) -> Iterator[str]:
    yield f"{x.op} {x.state}:"
    yield f"  body: {spell(x.body, types)}"
    if x.init is not None:
        yield f"  init: {spell(x.init, types)}"
    yield f"  reference: {x.reference.name}"
    yield f"  old: {x.old.name}"


def _sum(x: RunningSum, types: Types) -> Iterator[str]:
    yield f"sum {x.state}:"
    yield f"  weight: {spell(x.weight, types)}"
    if x.rescale is not None:
        yield f"  rescale: {spell(x.rescale, types)}"
    if x.shift is not None:
        yield f"  partner: {x.shift.partner}"
        yield f"  distance: {spell(x.shift.distance, types)}"


def _phases(p: Phases, types: Types) -> Iterator[str]:
    yield f"phases: tiles of {p.tile_m} x {p.tile_n}" + (f" in blocks of {p.rows}" if p.rows else "")
    yield f"  empty: {spell(p.empty, types)}"
    yield f"  full: {spell(p.full, types)}"
    for condition, value in p.decided:
        yield f"  {'holds' if value else 'fails'}: {spell(condition, types)}"
    yield from (f"  low: {spell(e, types)}" for e in p.low)
    yield from (f"  high: {spell(e, types)}" for e in p.high)
    if p.end is not None:
        yield f"  end: {spell(p.end, types)}"
    if p.fill is not None:
        yield f"  fill: {number(p.fill)}"
    for x in p.summaries:
        outer = "".join(f"{v.name}, " for v in x.outer)
        yield f"  {x.op} {x.name}[{outer}{', '.join(f'{v.name} tile' for v in x.axes)}]: {spell(x.value, types)}"


def _spelt(expressions: Iterable[Expr], types: Types) -> str:
    return ", ".join(spell(e, types) for e in expressions) or "none"


def _refusal(refusal: Refusal) -> Iterator[str]:
    yield f"Refused({refusal.name})"
    yield from (f"  {line}" for line in _entry("reason", refusal.reason))
    yield f"  guilty: {refusal.guilty or 'unknown place'}"
    yield f"  source: {refusal.source or 'unknown place'}"
    yield f"  unfused bytes: {show(refusal.unfused_bytes)}"


def _title(region: Region) -> str:
    return f"{_TITLE.get(region.kind, f'Region<{region.kind}>')}({region.name})"


def _shape(shape: Iterable[Dim] | None) -> str:
    return "[?]" if shape is None else f"[{','.join(map(_text, shape))}]"


def _attrs(attrs: Mapping[str, Any]) -> Iterator[str]:
    """One line for all plain attributes, then one line or block for each that is not plain."""
    plain = {key: value for key, value in attrs.items() if _is_plain(value)}
    if plain:
        yield "attrs: " + ", ".join(f"{key}={_text(value)}" for key, value in plain.items())
    for key, value in attrs.items():
        if key not in plain:
            yield from _entry(key, value)


def _is_plain(value: object) -> bool:
    return value is None or (isinstance(value, (str, bool, int, float)) and "\n" not in str(value))


def _entry(key: str, value: object) -> Iterator[str]:
    if key == "carried" and isinstance(value, tuple):
        value = tuple(getattr(x, "name", x) for x in cast("tuple[object, ...]", value))  # their types stand where they are made
    lines = _lines(value)
    if len(lines) == 1 and not isinstance(value, Mapping):
        yield f"{key}: {lines[0]}"
    elif lines:
        yield f"{key}:"
        yield from (f"  {line}" for line in lines)
    else:
        yield f"{key}: none"


def _lines(value: object) -> list[str]:
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return [line for key, item in items for line in _entry(_text(key), item)]
    if isinstance(value, (set, frozenset)):
        members = sorted(map(_text, cast("frozenset[object]", value)))
        return [", ".join(members)] if members else []
    if isinstance(value, (list, tuple)) and not _is_text_of_its_own(cast("object", value)):
        return _items(cast("Sequence[object]", value))
    return _text(cast("object", value)).splitlines()


def _items(values: Sequence[object]) -> list[str]:
    """Words on one line; anything larger one item after the other."""
    if values and all(value is None or isinstance(value, (str, int, float, Enum)) for value in values):
        return ", ".join(map(_text, values)).splitlines()
    return [line for value in values for line in _lines(value)]


def _is_text_of_its_own(value: object) -> bool:
    """A named tuple or another subclass that says how it prints."""
    return type(value).__str__ is not object.__str__


def _text(value: object) -> str:
    if isinstance(value, MCValue):
        return show_value(value)
    if isinstance(value, RegionAxis):
        return f"{value.role} {value.name}, {value.variable.name} < {show(value.extent)}"
    if isinstance(value, Region):
        return "\n".join(_region(value, 0, name_types(value)))
    if isinstance(value, MCNode):
        return "\n".join(show_node(value, True))
    if isinstance(value, (Const, Var, Load, Call, Reduce)):
        return show(value)
    if isinstance(value, Enum):
        return str(value.value)
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"  # its own text would hold an address
    return str(value)
