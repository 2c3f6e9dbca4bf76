"""MCIR as text, in three depths: what a person looks at to see that the score matrix is gone.

    outline   the region tree and its steps           load_tile(Q), compute_score, ...
    plain     regions, nodes and values               Node(score, op=compute_score) / outputs: score_frag[128,64]:fp32@register
    verbose   plain, and every attribute              the score program, carried states, axes, schedule, source places

The text depends on the module alone: attributes print in insertion order, nothing prints an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, cast

from aicf.mcir.module import MCModule, Refusal
from aicf.mcir.nodes import MCNode
from aicf.mcir.regions import Region
from aicf.mcir.types import Dim
from aicf.mcir.values import MCValue
from aicf.scalar import Call, Const, Load, Reduce, Var, show

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
    parts = ["\n".join(_region(region, 0, verbose)) for region in module.regions]
    if verbose:
        parts += ["\n".join(_refusal(refusal)) for refusal in module.refusals]
    return "\n\n".join(parts)


def show_value(value: MCValue) -> str:
    """A value with its type and place: `Q_tile[128,64]:fp16@shared`."""
    return f"{value.name}{_shape(value.shape)}:{value.dtype}@{value.residency}"


def show_node(node: MCNode, verbose: bool = False) -> list[str]:
    """A node's lines, unindented."""
    lines = [f"Node({node.name}, op={node.op})"]
    if node.inputs:
        lines.append("  inputs: " + ", ".join(value.name for value in node.inputs))
    if node.outputs:
        lines.append("  outputs: " + ", ".join(map(show_value, node.outputs)))
    if verbose:
        lines += ["  " + line for line in _attrs(node.attrs)]
    return lines


def _outline(region: Region, depth: int) -> Iterator[str]:
    pad = "  " * depth
    yield f"{pad}{_title(region)}"
    for node in region.nodes:
        tensor = node.attrs.get("source", node.attrs.get("target"))
        yield f"{pad}  {node.op}" + ("" if tensor is None else f"({_text(tensor)})")
    for sub in region.subregions:
        yield from _outline(sub, depth + 1)


def _region(region: Region, depth: int, verbose: bool) -> Iterator[str]:
    pad = "  " * depth
    yield f"{pad}{_title(region)}"
    if verbose:
        if region.inputs:
            yield f"{pad}  inputs: " + ", ".join(map(show_value, region.inputs))
        if region.outputs:
            yield f"{pad}  outputs: " + ", ".join(map(show_value, region.outputs))
        yield from (f"{pad}  {line}" for line in _attrs(region.attrs))
    else:
        plain = {k: v for k, v in region.attrs.items() if k in _PLAIN_ATTRS.get(region.kind, ())}
        yield from (f"{pad}  {line}" for line in _attrs(plain))
    for node in region.nodes:
        yield ""
        yield from (f"{pad}  {line}" for line in show_node(node, verbose))
    for sub in region.subregions:
        yield ""
        yield from _region(sub, depth + 1, verbose)


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
    if isinstance(value, Region):
        return "\n".join(_region(value, 0, True))
    if isinstance(value, MCNode):
        return "\n".join(show_node(value, True))
    if isinstance(value, (Const, Var, Load, Call, Reduce)):
        return show(value)
    if isinstance(value, Enum):
        return str(value.value)
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"  # its own text would hold an address
    return str(value)
