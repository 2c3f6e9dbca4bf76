"""What every module must satisfy, checked between passes. All faults of a module are reported together.

The rules hold for what is there: a hand-written module that leaves out producers, consumers or a region's inputs is
accepted, one that states them wrongly is not. The checks are a flat list of small functions, each of which yields faults:

    _check_names      regions and nodes are named, names are unambiguous among siblings
    _check_kind       kinds are known and nest as execution > streaming > tile
    _check_attrs      stream axis, tile sizes, carried states
    _check_node       op known, number of operands, source and target, residency legal for the op
    _check_shapes     shapes and element types agree along a node's edges
    _check_value      shape, element type and residency are defined
    _check_scopes     values are used only where they exist, written once, producers and consumers true
    payload_faults    what nodes compute, the axes, the schedule and the proofs about tiles agree (`payload_verifier`)
    _check_meaning    an execution region has Q, K, V and an output; after lowering a stream that stores each output once
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from aicf.mcir.module import MCModule
from aicf.mcir.nodes import MCNode
from aicf.mcir.payload_verifier import payload_faults
from aicf.mcir.printer import show_node, show_value
from aicf.mcir.regions import Region, walk
from aicf.mcir.types import MC_DTYPES, Dim, MCNodeOp, RegionKind, Residency
from aicf.mcir.values import MCValue
from aicf.scalar import Call, Const, Load, Reduce, Var, is_int, show


@dataclass(frozen=True)
class Problem:
    """One fault: the path of the region, node or value, what is wrong and what to do, the lines of IR it is in, and the line of
    the user's program that the region comes from."""

    where: str
    what: str
    lines: tuple[str, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        source = (f"    from {self.source}",) if self.source else ()
        return "\n".join([f"{self.where}: {self.what}", *(f"    | {line}" for line in self.lines), *source])


class ValidationError(ValueError):
    """A module breaks the rules of MCIR. `problems` lists every fault."""

    def __init__(self, problems: Sequence[Problem], after: str | None = None) -> None:
        self.problems = list(problems)
        count = "1 fault" if len(self.problems) == 1 else f"{len(self.problems)} faults"
        when = "" if after is None else f" after pass {after}"
        super().__init__(f"invalid MCIR{when}: {count}\n" + "\n".join(f"  {p}".replace("\n", "\n  ") for p in self.problems))


def validate_module(module: MCModule, *, lowered: bool = True, after: str | None = None) -> None:
    """Raise ValidationError with all faults of `module`, or return.

    With `lowered` false a region that has no stream yet is accepted: that is what detection gives. A region that the lowering
    refused says so in its attribute `refusal` and then needs no stream either. `after` names the pass to blame.
    """
    problems = list(find_problems(module, lowered=lowered))
    if problems:
        raise ValidationError(problems, after)


def is_lowered(module: MCModule) -> bool:
    """Whether any region of `module` has been given a stream; before that it holds detected meaning only."""
    return any(region.subregions for region in module.regions)


def find_problems(module: MCModule, *, lowered: bool = True) -> Iterator[Problem]:
    """Every fault of `module`, outermost first. What `validate_module` raises."""
    yield from _check_names("module", module.regions, "region")
    for region in module.regions:
        source = region.notes.get("source", "")
        yield from (replace(problem, source=source) for problem in _check_top(region, lowered))


def _check_top(region: Region, lowered: bool) -> Iterator[Problem]:
    if region.kind != "execution" and region.kind in _NESTING:
        yield Problem(_named(region), f"a {region.kind} region stands at the top; only execution regions may")
    yield from _check_region(region, _named(region))
    yield from _check_scopes(region)
    if region.kind == "execution":
        yield from _check_meaning(region, lowered)
        yield from (Problem(*fault) for fault in payload_faults(region))


# ------------------------------------------------------------------------------------------------ regions

_NESTING: dict[str, tuple[str, ...]] = {
    RegionKind.EXECUTION.value: ("streaming",),
    RegionKind.STREAMING.value: ("tile", "streaming"),
    RegionKind.TILE.value: ("tile",),
}


def _named(thing: Region | MCNode | MCValue) -> str:
    if thing.name:
        return thing.name
    kind = f"{thing.kind} region" if isinstance(thing, Region) else "node" if isinstance(thing, MCNode) else "value"
    return f"<unnamed {kind}>"


def _check_region(region: Region, path: str) -> Iterator[Problem]:
    yield from _check_kind(region, path)
    yield from _check_attrs(region, path)
    yield from _check_names(path, region.nodes, "node")
    yield from _check_names(path, region.subregions, "region")
    for value in (*region.inputs, *region.outputs):
        yield from _check_value(value, f"{path}.{_named(value)}")
    for node in region.nodes:
        at = f"{path}/{_named(node)}"
        yield from _check_node(node, at)
        good = True
        for value in (*node.inputs, *node.outputs):
            for problem in _check_value(value, f"{at}.{_named(value)}"):
                good = False
                yield problem
        if good:
            yield from _check_shapes(node, at)
            if region.kind == "tile":
                yield from _check_score_tile(region, node, at)
    for sub in region.subregions:
        yield from _check_region(sub, f"{path}/{_named(sub)}")


def _check_names(path: str, things: Sequence[Region] | Sequence[MCNode], what: str) -> Iterator[Problem]:
    for number, thing in enumerate(things, 1):
        if not thing.name:
            yield Problem(path, f"{what} {number} has no name; every {what} needs a non-empty name")
    for name, count in Counter(t.name for t in things if t.name).items():
        if count > 1:
            yield Problem(path, f"{count} {what}s are named {name!r}; names must differ so that a dump is unambiguous")


def _check_kind(region: Region, path: str) -> Iterator[Problem]:
    if region.kind not in _NESTING:
        yield Problem(path, f"unknown region kind {region.kind!r}; it must be one of {', '.join(_NESTING)}")
        return
    for sub in region.subregions:
        if sub.kind in _NESTING and sub.kind not in _NESTING[region.kind]:
            allowed = " or ".join(_NESTING[region.kind])
            yield Problem(
                path, f"the {region.kind} region holds the {sub.kind} region {_named(sub)}; it may hold only {allowed} regions"
            )


def _check_attrs(region: Region, path: str) -> Iterator[Problem]:
    if region.kind == "streaming":
        axis = region.attrs.get("stream_axis")
        if not isinstance(axis, str) or not axis:
            yield Problem(path, f"stream_axis is {axis!r}; a streaming region must name the axis that it streams")
    if region.kind == "tile":
        for key in ("tile_m", "tile_n", "tile_k"):
            length = region.attrs.get(key)
            if not isinstance(length, int) or isinstance(length, bool) or length <= 0:
                yield Problem(path, f"{key} is {length!r}; a tile length is a positive integer")
    if "carried" in region.attrs:
        yield from _check_carried(region, path)


def _check_carried(region: Region, path: str) -> Iterator[Problem]:
    """States that live from one streamed tile to the next are written inside the stream and kept on chip."""
    written = {id(v) for r in walk(region) for n in r.nodes for v in n.outputs}
    for value in region.attrs["carried"]:
        if not isinstance(value, MCValue):
            yield Problem(path, f"carried holds {value!r}; carried states are MCValues")
            continue
        if id(value) not in written:
            yield Problem(path, f"the carried state {_named(value)} is written by no node of the stream")
        if value.residency == "global":
            yield Problem(path, f"the carried state {_named(value)} lives in global memory; a stream carries its states on chip")


# ------------------------------------------------------------------------------------------------ nodes


@dataclass(frozen=True)
class _OpRule:
    """How many operands an op takes and gives (least, most; None: any number), and where they may live."""

    inputs: tuple[int, int | None]
    outputs: tuple[int, int | None]
    reads: tuple[str, ...] = ("shared", "register")
    writes: tuple[str, ...] = ("shared", "register")
    keys: tuple[str, ...] = field(default=())


_ANY = tuple(r.value for r in Residency)
_RULES: dict[str, _OpRule] = {
    MCNodeOp.LOAD_TILE.value: _OpRule((0, 1), (1, 1), reads=("global", "shared"), keys=("source",)),
    MCNodeOp.COMPUTE_SCORE.value: _OpRule((2, None), (1, None)),
    MCNodeOp.UPDATE_SOFTMAX.value: _OpRule((1, None), (1, None)),
    MCNodeOp.ACCUMULATE_OUTPUT.value: _OpRule((2, None), (1, None)),
    MCNodeOp.STORE_TILE.value: _OpRule((1, None), (0, 1), writes=("global",), keys=("target",)),
    MCNodeOp.INIT_STATE.value: _OpRule((0, None), (1, None)),
    MCNodeOp.UPDATE_STATE.value: _OpRule((1, None), (1, None)),
    # Partial states of a split stream meet in global memory.
    MCNodeOp.COMBINE_STATE.value: _OpRule((1, None), (1, None), reads=_ANY, writes=_ANY),
    MCNodeOp.MAP_TILE.value: _OpRule((1, None), (1, None)),
    MCNodeOp.CONTRACT_TILE.value: _OpRule((2, None), (1, None)),
    MCNodeOp.ACCUMULATE_STATE.value: _OpRule((2, None), (1, None)),
}


def _check_node(node: MCNode, path: str) -> Iterator[Problem]:
    shown = tuple(show_node(node))
    if not node.op:
        yield Problem(path, "the node has no op; it must be one of " + ", ".join(_RULES), shown)
        return
    rule = _RULES.get(str(node.op))
    if rule is None:
        yield Problem(path, f"unknown op {node.op!r}; it must be one of " + ", ".join(_RULES), shown)
        return
    for what, values, (least, most) in (("input", node.inputs, rule.inputs), ("output", node.outputs, rule.outputs)):
        if len(values) < least or (most is not None and len(values) > most):
            want = f"exactly {least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
            yield Problem(path, f"{node.op} has {len(values)} {what}s; it needs {want}", shown)
    for key in rule.keys:
        tensor = node.attrs.get(key)
        if not isinstance(tensor, str) or not tensor:
            yield Problem(path, f"{node.op} names no {key}: give the tensor's name as attribute {key}=...", shown)
    for what, values, legal in (("reads", node.inputs, rule.reads), ("writes", node.outputs, rule.writes)):
        for value in values:
            if value.residency in _ANY and value.residency not in legal:
                yield Problem(
                    path,
                    f"{node.op} {what} {_named(value)} in {value.residency} memory; it {what} {' or '.join(legal)} memory",
                    (*shown, show_value(value)),
                )


def _check_value(value: MCValue, path: str) -> Iterator[Problem]:
    if not value.name:
        yield Problem(path, "a value has no name; every value needs a non-empty name")
    if not isinstance(value.shape, tuple):  # pyright: ignore[reportUnnecessaryIsInstance] - modules come from hand-written code
        yield Problem(path, f"the shape is {value.shape!r}; it must be a tuple of dimensions")
    else:
        for dim in value.shape:
            if not _is_dim(dim):
                yield Problem(
                    path, f"the shape has the dimension {dim!r}; dimensions are positive integers or integer expressions"
                )
    if value.dtype not in MC_DTYPES:
        yield Problem(path, f"the dtype is {value.dtype!r}; it must be one of {', '.join(MC_DTYPES)}")
    if value.residency not in _ANY:
        yield Problem(path, f"the residency is {value.residency!r}; it must be one of {', '.join(_ANY)}")


def _is_dim(dim: object) -> bool:
    if isinstance(dim, bool):
        return False
    if isinstance(dim, int):
        return dim > 0
    return isinstance(dim, (Const, Var, Load, Call, Reduce)) and is_int(dim.dtype)


# ------------------------------------------------------------------------------------------------ shapes along edges


def _dim(dim: Dim) -> Dim:
    return dim.value if isinstance(dim, Const) and isinstance(dim.value, int) else dim


def _dims(value: MCValue) -> tuple[Dim, ...]:
    return tuple(map(_dim, value.shape))


def _show_dims(dims: Sequence[Dim]) -> str:
    return f"[{','.join(str(d) if isinstance(d, int) else show(d) for d in dims)}]"


def _check_shapes(node: MCNode, path: str) -> Iterator[Problem]:
    """The shapes that the op's default meaning ties together. Leading (batch) dimensions of a tile take part in none of it.
    What a payload says is checked by its axes (`payload_verifier`)."""
    if len(node.inputs) < _least_inputs(node) or node.payload is not None:
        return
    lines = tuple(show_node(node)) + tuple(f"  {show_value(v)}" for v in node.inputs)
    faults: list[str] = []
    match str(node.op):
        case "load_tile":
            for value, out in zip(node.inputs, node.outputs, strict=False):
                if len(value.shape) < len(out.shape):
                    faults.append(f"{_named(out)} has more dimensions than {_named(value)}, which it is loaded from")
        case "compute_score":
            faults += _contraction(node.inputs[0], node.inputs[1], node.outputs[:1], transposed=True)
        case "accumulate_output":
            faults += _contraction(node.inputs[0], node.inputs[1], node.outputs[:1], transposed=False)
            for out in node.outputs:
                if out.dtype not in ("fp32", "fp64"):
                    faults.append(f"{_named(out)} accumulates in {out.dtype}; an accumulator is fp32 or fp64")
        case "update_softmax":
            rows = _dims(node.inputs[0])[:-1]
            for out in node.outputs:
                if _dims(out) != rows and _dims(out) != _dims(node.inputs[0]):
                    faults.append(
                        f"{_named(out)} has shape {_show_dims(out.shape)}; a state of {_named(node.inputs[0])} has one entry "
                        f"per row, {_show_dims(rows)}"
                    )
        case "store_tile":
            for out in node.outputs:
                if _dims(out) != _dims(node.inputs[0]):
                    faults.append(
                        f"{_named(out)} has shape {_show_dims(out.shape)} but {_named(node.inputs[0])}, which it is stored from, "
                        f"has {_show_dims(node.inputs[0].shape)}"
                    )
        case _:
            pass
    for fault in faults:
        yield Problem(path, fault, lines)


def _least_inputs(node: MCNode) -> int:
    rule = _RULES.get(str(node.op))
    return 0 if rule is None else rule.inputs[0]


def _contraction(a: MCValue, b: MCValue, outputs: Sequence[MCValue], *, transposed: bool) -> Iterator[str]:
    """a[m, k] with b[n, k] (transposed) or b[k, n] gives [m, n]."""
    if len(a.shape) < 2 or len(b.shape) < 2:
        short = a if len(a.shape) < 2 else b
        yield f"{_named(short)} has shape {_show_dims(short.shape)}; a contraction needs tiles of two dimensions"
        return
    (m, k), (x, y) = _dims(a)[-2:], _dims(b)[-2:]
    n, over = (x, y) if transposed else (y, x)
    if k != over:
        yield (
            f"{_named(a)}{_show_dims(a.shape)} and {_named(b)}{_show_dims(b.shape)} disagree in the contracted dimension: "
            f"{_show_dims((k,))[1:-1]} against {_show_dims((over,))[1:-1]}"
        )
    for out in outputs:
        if _dims(out)[-2:] != (m, n):
            yield f"{_named(out)} has shape {_show_dims(out.shape)}; its operands give {_show_dims((m, n))}"


def _check_score_tile(region: Region, node: MCNode, path: str) -> Iterator[Problem]:
    """Scores come tile_m by tile_n: a larger tile would be the score matrix coming back."""
    lengths = (region.attrs.get("tile_m"), region.attrs.get("tile_n"))
    if str(node.op) != "compute_score" or not node.outputs or not all(isinstance(n, int) for n in lengths):
        return
    got = _dims(node.outputs[0])[-2:]
    if got != lengths:
        yield Problem(
            path,
            f"{_named(node.outputs[0])} has shape {_show_dims(node.outputs[0].shape)}; in this region scores are tiles of "
            f"tile_m x tile_n, [{lengths[0]},{lengths[1]}]",
            tuple(show_node(node)),
        )


# ------------------------------------------------------------------------------------------------ scopes


def _check_scopes(top: Region) -> Iterator[Problem]:
    """A value is read where a node before it, an enclosing region, a region's inputs or the stream's carried states give it."""
    uses: dict[int, list[str]] = {}
    writers: dict[int, list[str]] = {}
    values: dict[int, MCValue] = {}
    for region in walk(top):
        for node in region.nodes:
            for value in node.inputs:
                uses.setdefault(id(value), []).append(node.name)
                values[id(value)] = value
            for value in node.outputs:
                writers.setdefault(id(value), []).append(node.name)
                values[id(value)] = value
    yield from _scope(top, _named(top), {})
    for key, value in values.items():
        yield from _check_links(top, value, writers.get(key, []), uses.get(key, []))


def _carried(region: Region) -> list[MCValue]:
    return [v for v in region.attrs.get("carried", ()) if isinstance(v, MCValue)]


def _scope(region: Region, path: str, outer: dict[str, MCValue]) -> Iterator[Problem]:
    scope = dict(outer)
    for value in (*region.inputs, *_carried(region)):
        scope[value.name] = value
    for node in region.nodes:
        at = f"{path}/{_named(node)}"
        for value in node.inputs:
            if not value.name:
                continue
            known = scope.get(value.name)
            if known is None:
                yield Problem(at, f"{value.name} is used but nothing before gives it in this scope", tuple(show_node(node)))
            elif known is not value:
                what = f"{value.name} is not the value of that name in scope, {show_value(known)}; names must be unambiguous"
                yield Problem(at, what, tuple(show_node(node)))
        for value in node.outputs:
            known = scope.get(value.name)
            if known is not None and known is not value and value.name:
                yield Problem(at, f"{value.name} is already the name of {show_value(known)}; names must be unambiguous")
            scope[value.name] = value
    for sub in region.subregions:
        yield from _scope(sub, f"{path}/{_named(sub)}", scope)
        scope.update({value.name: value for value in sub.outputs})


def _check_links(top: Region, value: MCValue, writers: list[str], users: list[str]) -> Iterator[Problem]:
    at = f"{top.name}.{_named(value)}"
    carried = any(value is state for region in walk(top) for state in _carried(region))
    if len(writers) > 1 and not carried:
        yield Problem(at, f"the value is written by {' and '.join(writers)}; only states listed as carried are written again")
    if writers and value.producer is not None and value.producer not in writers:
        yield Problem(at, f"the value names {value.producer!r} as its producer, but {' and '.join(writers)} writes it")
    # A tensor of the source graph has consumers there that this module does not see; links of tiles are all here.
    if writers and value.consumers:
        for name in value.consumers:
            if name not in users:
                yield Problem(at, f"the value names {name!r} as a consumer, but no node of that name reads it")
        for name in dict.fromkeys(users):
            if name not in value.consumers:
                yield Problem(at, f"the node {name!r} reads the value but is not among its consumers")


# ------------------------------------------------------------------------------------------------ meaning


def _check_meaning(region: Region, lowered: bool) -> Iterator[Problem]:
    path = _named(region)
    nodes = [node for _, node in _nodes(region, path)]
    if str(region.attrs.get("pattern", "")).endswith("attention"):
        yield from _check_attention_inputs(region, path, nodes)
    stored = Counter(str(node.attrs.get("target")) for node in nodes if str(node.op) == "store_tile" and node.attrs.get("target"))
    refused = bool(region.attrs.get("refusal"))
    if lowered and not refused:
        if not any(sub.kind == "streaming" for sub in region.subregions):
            yield Problem(
                path, "the region has no streaming region; lowering gives it at least one, or a refusal with its reason"
            )
        elif not stored:
            yield Problem(path, "the region has no output: no store_tile writes a tensor")
    elif not lowered and not refused and not region.outputs and not region.subregions:
        yield Problem(path, "the region has no output; detection must name the tensor that it computes")
    for name, count in stored.items():
        if count > 1:
            yield Problem(path, f"the output {name} is stored by {count} store_tile nodes; every output is stored exactly once")
    if region.subregions:
        for value in region.outputs:
            if value.name and value.name not in stored:
                yield Problem(path, f"the output {value.name} is never stored; every output is stored exactly once")
    yield from _check_sources(region, path)


def _check_attention_inputs(region: Region, path: str, nodes: Sequence[MCNode]) -> Iterator[Problem]:
    """Q, K and V exist: by the attributes q_name, k_name, v_name, or as inputs, or as what the tiles load."""
    keys = ("q_name", "k_name", "v_name")
    if any(key in region.attrs for key in keys):
        names = [value.name for value in region.inputs]
        for key in keys:
            name = region.attrs.get(key)
            if not isinstance(name, str) or not name:
                yield Problem(path, f"{key} is missing: the attention region does not say which tensor is {key[0].upper()}")
            elif names and name not in names:
                yield Problem(path, f"{key} is {name!r}, which is not among the region's inputs ({', '.join(names)})")
        return
    loaded = {str(node.attrs.get("source")) for node in nodes if str(node.op) == "load_tile" and node.attrs.get("source")}
    given = loaded if not region.inputs else {value.name for value in region.inputs}
    if len(given) < 3:
        have = ", ".join(sorted(given)) or "nothing"
        yield Problem(path, f"an attention region needs Q, K and V; it has {have}. Set q_name, k_name and v_name")


def _check_sources(region: Region, path: str) -> Iterator[Problem]:
    """Where a region names its inputs, tiles load nothing else (`captures` lists further tensors of the score program)."""
    if not region.inputs:
        return
    captures = region.attrs.get("captures", ())
    known = {value.name for value in (*region.inputs, *region.outputs)}
    known |= {item.name if isinstance(item, MCValue) else str(item) for item in captures}
    for at, node in _nodes(region, path):
        source = node.attrs.get("source")
        if str(node.op) == "load_tile" and isinstance(source, str) and source and source not in known:
            what = f"the tile is loaded from {source!r}, which {path} neither takes nor captures ({', '.join(sorted(known))})"
            yield Problem(at, what, tuple(show_node(node)))


def _nodes(region: Region, path: str) -> Iterator[tuple[str, MCNode]]:
    """Every node of `region` and below with its path."""
    for node in region.nodes:
        yield f"{path}/{_named(node)}", node
    for sub in region.subregions:
        yield from _nodes(sub, f"{path}/{_named(sub)}")
