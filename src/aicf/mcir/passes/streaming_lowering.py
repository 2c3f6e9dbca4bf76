"""StreamingLoweringPass: from an attention's meaning to the stream that computes it tile by tile.

    ExecutionRegion(attention)               ExecutionRegion(attention)
                                     ->      └── StreamingRegion(attention_stream)
                                                 └── TileRegion(q_tile_loop)
                                                     load_tile(Q) load_tile(K) load_tile(V)
                                                     compute_score  update_softmax  accumulate_output
                                                     store_tile(O)

The cascade of the region is derived into a one-pass program (`aicf.streaming.derive`): its carried extrema and row sums become
`update_softmax`, its sums with a payload `accumulate_output`, its finalizers the programs of `store_tile`. Which tiles the
mask leaves
empty or full is proved from the score program (`aicf.streaming.tiles`). Everything that the kernel will do is in the nodes'
attributes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from aicf.mcir.builder import MCIRBuilder
from aicf.mcir.module import MCModule, Refusal
from aicf.mcir.nodes import MCNode
from aicf.mcir.passes.attention_pattern import Semantics, place, roles, unfused_bytes
from aicf.mcir.regions import Region, StreamingRegion
from aicf.mcir.types import MCNodeOp, mc_dtype
from aicf.mcir.values import MCValue
from aicf.scalar import (
    Call,
    Const,
    Expr,
    Load,
    Var,
    call,
    cast,
    const,
    index,
    integer_const,
    is_float,
    show,
    substitute,
    var,
    variables,
    walk,
)
from aicf.streaming import tiles
from aicf.streaming.cascade import Atom
from aicf.streaming.derive import derive
from aicf.streaming.recognise import Exit, Recognised
from aicf.streaming.stream_program import Base, NotSeparable, StreamProgram, Sum
from aicf.streaming.verify import check_program

MAX_WIDTH = 2048  # head dims of score contractions and values that kernels are generated for


class TilePolicy(Protocol):
    """What the pass needs of a schedule: tile lengths along rows, keys and the contracted axis."""

    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def tile_k(self) -> int: ...


@dataclass(frozen=True)
class FixedPolicy:
    """The specification's fixed tiles (section 10.2)."""

    tile_m: int = 128
    tile_n: int = 64
    tile_k: int = 64


SPEC_POLICY = FixedPolicy()


class LoweringRefused(ValueError):
    """The region keeps its meaning only unfused; the message says why. `unknown`: the size that would have to be a number."""

    def __init__(self, reason: str, unknown: Expr | None = None) -> None:
        super().__init__(reason)
        self.unknown = unknown


@dataclass(frozen=True)
class Operand:
    """An operand of a contraction as a tile: `element` at the axes' positions, loaded from `source` when it is a plain element
    of one tensor (converted to fp32), computed from loads otherwise."""

    name: str
    axes: tuple[str, ...]
    element: Expr

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.axes)}] = {show(self.element)}"


@dataclass(frozen=True)
class Tiling:
    """What is proved of tiles, for tile lengths `tile_m` x `tile_n`: when a tile is empty (and may be skipped), when the mask
    holds everywhere in it (`full`, with the conditions that are then decided), the bounds of the stream, the finite fill whose
    absorption has to be checked at the end (None: nothing to check), and the per-tile summaries of per-token tensors that the
    conditions read. `undecided`: something that may be a mask is never proved to hold, so that no tile is known to be without.
    `end`: where the keys of a block of rows end inside of a tile, the rows' origin being the block's."""

    empty: Expr
    full: Expr
    decided: tuple[tuple[Expr, bool], ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    fill: float | None
    summaries: tuple[tiles.Request, ...]
    strict: bool = False
    undecided: bool = False
    end: Expr | None = None

    def __str__(self) -> str:
        lines = [f"empty when {show(self.empty)}", f"full when {show(self.full)}"]
        if self.low:
            lines.append("stream from " + ", ".join(map(show, self.low)))
        if self.high:
            lines.append("stream to " + ", ".join(map(show, self.high)))
        if self.fill is not None:
            lines.append(
                f"skipped tiles hold {self.fill:g}: done again without skipping when a row's maximum is within 104 of it"
            )
        for r in self.summaries:
            lines.append(f"{r.param} = {r.op} over each tile of {', '.join(v.name for v in r.axes)} of {show(r.value)}")
        return "\n".join(lines)


def run_streaming_lowering_pass(module: MCModule, policy: TilePolicy = SPEC_POLICY) -> MCModule:
    """All regions of `module` lowered; regions that cannot be become refusals of the returned module.

    Valid before: a module of detected regions. Valid after: every region has one stream, or is gone with a reason.
    """
    result = MCModule(refusals=list(module.refusals))
    for region in module.regions:
        try:
            result.regions.append(lower_attention_to_streaming(region, policy))
        except LoweringRefused as no:
            node = semantics(region).value
            result.refusals.append(Refusal(node.name, str(no), place(node), place(node), unfused_bytes(node)))
    return result


def semantics(region: Region) -> Recognised:
    """The recognised meaning that a region carries. Raises LoweringRefused for hand-built regions, which carry none."""
    held = region.attrs.get("semantics")
    if not isinstance(held, Semantics):
        raise LoweringRefused(f"region {region.name} was not made by the attention pattern pass: it has no semantics attribute")
    return held.found


def lower_attention_to_streaming(
    region: Region, policy: TilePolicy = SPEC_POLICY, *, strict: bool = False, program: StreamProgram | None = None
) -> Region:
    """Adds the StreamingRegion and its TileRegion to `region`, and returns it. `strict`: see `tiling`. `program`: what `derived`
    gave for the region, when that is known already.

    Raises LoweringRefused, leaving the region as it was, when the cascade has no one-pass form or a shape is out of reach.
    """
    found = semantics(region)
    region.subregions.append(_stream(found, program or derived(found, strict), policy, strict))
    return region


def derived(found: Recognised, strict: bool = False) -> StreamProgram:
    """The one-pass program of a region (`strict`: see `derive`). Raises LoweringRefused with the derivation's reason."""
    outputs = {f"out{k}": e.expr for k, e in enumerate(found.exits)}
    atoms = [var(a.name, a.row.dtype if is_float(a.row.dtype) else "f32") for a in found.atoms]
    program = derive(found.cascade, outputs, found.stream, atoms=atoms, payload=found.columns, strict=strict)
    if isinstance(program, NotSeparable):
        raise LoweringRefused(str(program))
    program = _counting(program, found.extents[found.stream])
    _check(found, program)
    check_program(program, found.columns)
    return program


COUNT_LIMIT = 1 << 24  # integers from here up are not all numbers of fp32


def _counting(program: StreamProgram, length: Expr) -> StreamProgram:
    """`program` with its counts of elements (sums of conditions) carried in fp32, which is exact for what a row can have."""
    if isinstance(length, Const) and length.value > COUNT_LIMIT:
        return program
    new: dict[str, Sum] = {}
    put: dict[Expr, Expr] = {}
    for s in program.sums:
        condition = s.body.args[0] if isinstance(s.body, Call) and s.body.fn == "cast" else None
        if is_float(s.dtype) or condition is None or condition.dtype != "bool" or s.payload or s.stabilisers:
            continue
        body = cast(condition, "f32")
        new[s.name] = replace(s, body=body, weight=body, dtype="f32")
        put[s.state] = cast(var(s.name, "f32"), s.dtype)
    finalize = {name: substitute(e, put) for name, e in program.finalize.items()}
    return replace(program, sums=tuple(new.get(s.name, s) for s in program.sums), finalize=finalize)


def _check(found: Recognised, program: StreamProgram) -> None:
    states = {x.name for x in (*program.bases, *program.sums)} | {b.ref.name for b in program.bases}
    for k, e in enumerate(found.exits):
        if not any(v.name in states for v in variables(finalizer(program, f"out{k}"))):
            raise LoweringRefused(f"{e.node.name} is the same whatever the scores are: nothing is left to stream")
    for a in found.atoms:
        _width(a.width, "the head dim of the scores")
        if variables(a.row) & {found.stream} or variables(a.key) & {found.row}:
            raise LoweringRefused(f"the operands of {a.name} are not one per row and one per key")
    for b in program.bases:
        if variables(b.body) & set(found.columns):
            raise LoweringRefused(f"it takes the {b.op} of other numbers for every column: {show(b.body)}")
    for s in program.sums:
        if not is_float(s.dtype):
            raise LoweringRefused(f"the sum {s.name} is kept in {s.dtype}; integer sums are not streamed")
        if len(s.payload) > 1:
            raise LoweringRefused(
                f"the values have {len(s.payload)} axes that the scores don't have; kernels are derived for one (reshaped into "
                "one axis, such values stream)"
            )
        for c in s.payload:
            _width(found.extents[c], "the value width")
        if variables(s.weight) & set(found.columns):
            raise LoweringRefused(f"what the values are weighed with is another number for every column: {show(s.weight)}")
        if s.value is not None and variables(s.value) & {found.row, *program.atoms}:
            raise LoweringRefused(f"the summed values depend on the row: {show(s.value)}")
    for e in (*(b.body for b in program.bases), *(s.body for s in program.sums), *(a.row for a in found.atoms)):
        if any(n.dtype == "f64" for n in walk(e)):
            raise LoweringRefused("it computes in float64; kernels accumulate in float32. Use float32, float16 or bfloat16")
    if any(x.type.dtype == "f64" for x in (*found.loads.values(), *(e.node for e in found.exits))):
        raise LoweringRefused("it computes in float64; kernels accumulate in float32. Use float32, float16 or bfloat16")


def _width(e: Expr, what: str) -> int:
    if not isinstance(e, Const):
        raise LoweringRefused(f"{what} is {show(e)}, which is not known at compile time", e)
    if not 1 <= int(e.value) <= MAX_WIDTH:
        raise LoweringRefused(f"{what} is {e.value}; kernels are generated for 1 to {MAX_WIDTH}")
    return int(e.value)


# ------------------------------------------------------------------------------------------------ the tree


def _stream(found: Recognised, program: StreamProgram, policy: TilePolicy, strict: bool) -> StreamingRegion:
    b = MCIRBuilder()
    stream = b.streaming_region("attention_stream", stream_axis="sequence")
    stream.attrs["order"] = getattr(policy, "order", "q_major")
    stream.attrs["program"] = program
    tile = b.tile_region("q_tile_loop", policy.tile_m, policy.tile_n, policy.tile_k)
    # On a GPU a block of rows is a warp's share of a tile, which ends as a whole; so do tiles whose keys are walked first.
    alone = "thread" in dict(getattr(policy, "mapping", ())).values() and stream.attrs["order"] == "q_major"
    rows = getattr(policy, "rows", 0) if alone else 0
    tile.attrs["phases"] = tiling(found, program, policy.tile_m, policy.tile_n, strict, rows)
    if not isinstance(policy, FixedPolicy):
        tile.attrs["schedule"] = policy
    tile.nodes.extend(_Nodes(b, found, program, policy).all())
    stream.subregions.append(tile)
    return stream


class _Nodes:
    """Builds the nodes of one tile."""

    def __init__(self, b: MCIRBuilder, found: Recognised, program: StreamProgram, policy: TilePolicy) -> None:
        self.b, self.found, self.program = b, found, program
        self.m, self.n = policy.tile_m, policy.tile_n
        self.widths = {v: int(e.value) for v, e in found.extents.items() if isinstance(e, Const)}
        self.values: dict[str, MCValue] = {}
        # A schedule says where values live; the fixed policy has the specification's places.
        self.places: dict[str, str] = dict(getattr(policy, "residency", ()))

    def all(self) -> Iterable[MCNode]:
        """Loads, scores, states, accumulators, stores, in the order of a tile's life."""
        row_sums = [s for s in self.program.sums if not s.payload]
        wide_sums = [s for s in self.program.sums if s.payload]
        yield from self.loads(wide_sums)
        scores = list(self.scores())
        yield from scores
        if self.program.bases or row_sums:
            yield self.states(row_sums)
        for k, s in enumerate(wide_sums):
            yield self.accumulate(k, s)
        for k, e in enumerate(self.found.exits):
            yield self.store(k, e)

    def loads(self, wide: list[Sum]) -> Iterable[MCNode]:
        i, j = self.found.row.name, self.found.stream.name
        for k, a in enumerate(self.found.atoms):
            end = "" if k == 0 else str(k + 1)
            yield self._load(f"q{end}", f"Q{end}_tile", a.row, (i, a.over.name), (self.m, self.widths[a.over]))
            yield self._load(f"k{end}", f"K{end}_tile", a.key, (j, a.over.name), (self.n, self.widths[a.over]))
        seen: dict[Expr, str] = {}
        for s in wide:
            assert s.value is not None
            if s.value in seen:
                continue
            end = "" if not seen else str(len(seen) + 1)
            seen[s.value] = f"V{end}_tile"
            (e,) = s.payload
            yield self._load(f"v{end}", f"V{end}_tile", s.value, (j, e.name), (self.n, self.widths[e]))
        self.value_tiles = seen

    def _load(self, short: str, name: str, element: Expr, axes: tuple[str, ...], shape: tuple[int, int]) -> MCNode:
        source = next((x for x in walk(element) if isinstance(x, Load)), None)
        dtype = "f32" if source is None else source.dtype
        tensor = name if source is None else source.tensor
        tile = self._value(name, shape, mc_dtype(dtype), "shared")
        return self.b.node(
            f"load_{short}", MCNodeOp.LOAD_TILE.value, outputs=[tile], source=tensor, operand=Operand(short, axes, element)
        )

    def _value(self, name: str, shape: tuple[int, ...], dtype: str, residency: str) -> MCValue:
        kind = name.rstrip("0123456789") if not name.endswith("_tile") else name[0] + "_tile"
        kind = "state" if kind in ("softmax_max", "softmax_min", "softmax_sum", "row_sum") else kind
        made = self.b.value(name, shape, dtype, residency=self.places.get(kind, residency))
        self.values[name] = made
        return made

    def scores(self) -> Iterable[MCNode]:
        for k, a in enumerate(self.found.atoms):
            end = "" if k == 0 else str(k + 1)
            frag = self._value("score_frag" + end, (self.m, self.n), "fp32", "register")
            inputs = [self.values[f"Q{end}_tile"], self.values[f"K{end}_tile"]]
            yield self.b.node(
                "score" + end,
                MCNodeOp.COMPUTE_SCORE.value,
                inputs,
                [frag],
                atom=a,
                contraction=f"{a.name} = q{end} . k{end} over {a.over.name}",
            )

    def frags(self) -> list[MCValue]:
        return [v for name, v in self.values.items() if name.startswith("score_frag")]

    def states(self, row_sums: list[Sum]) -> MCNode:
        softmax = bool(self.program.bases)
        outputs: list[MCValue] = []
        for k, base in enumerate(self.program.bases):
            outputs.append(self._value(f"softmax_{base.op}" + (str(k + 1) if k else ""), (self.m,), "fp32", "register"))
            self.values[base.name] = outputs[-1]
        for k, s in enumerate(row_sums):
            outputs.append(
                self._value(("softmax_sum" if softmax else "row_sum") + (str(k + 1) if k else ""), (self.m,), "fp32", "register")
            )
            self.values[s.name] = outputs[-1]
        op = MCNodeOp.UPDATE_SOFTMAX if softmax else MCNodeOp.UPDATE_STATE
        return self.b.node(
            "softmax" if softmax else "state", op.value, self.frags(), outputs,
            carried={b.name: _base_text(b) for b in self.program.bases} | {s.name: _sum_text(s) for s in row_sums},
            bases=Held(self.program.bases), sums=Held(tuple(row_sums)),
        )  # fmt: skip

    def accumulate(self, k: int, s: Sum) -> MCNode:
        end = "" if k == 0 else str(k + 1)
        assert s.value is not None
        acc = self._value("output_acc" + end, (self.m, self.widths[s.payload[0]]), "fp32", "register")
        self.values[s.name] = acc
        inputs = [self.frags()[0], self.values[self.value_tiles[s.value]]]
        return self.b.node(
            "accumulate" + end, MCNodeOp.ACCUMULATE_OUTPUT.value, inputs, [acc], carried={s.name: _sum_text(s)}, sums=Held((s,))
        )

    def store(self, k: int, e: Exit) -> MCNode:
        expr = finalizer(self.program, f"out{k}")
        shape = (self.m, *(self.widths[c] for c in e.columns))
        used = {v.name for v in variables(expr)}
        inputs = [self.values[s.name] for s in (*self.program.sums, *self.program.bases) if s.name in used]
        # A result that is free of states (0 times one) still waits for the end of the stream.
        inputs = inputs or [self.values[s.name] for s in (*self.program.sums, *self.program.bases)][:1]
        inputs.sort(key=lambda v: -len(v.shape))
        inputs = [v for v in inputs if v.shape == shape][:1] or inputs[:1]
        dtype = mc_dtype(e.node.type.dtype)
        end = "o" if k == 0 else f"o{k + 1}"
        tile = self.b.value(
            "O_tile" if k == 0 else f"O{k + 1}_tile", inputs[0].shape if inputs else shape, dtype, residency="global"
        )
        return self.b.node(
            f"store_{end}", MCNodeOp.STORE_TILE.value, inputs, [tile], target=e.node.name, program=expr, exit=Held((e,))
        )


class Held:
    """Compiler data on a node that prints through a neighbouring attribute."""

    def __init__(self, items: tuple[Base | Sum | Exit | Atom, ...]) -> None:
        self.items = items

    def __str__(self) -> str:
        return ", ".join(getattr(x, "name", getattr(getattr(x, "node", None), "name", "")) for x in self.items) or "none"


def _base_text(b: Base) -> str:
    start = show(b.init, among=b.dtype) if b.init is not None else "-inf" if b.op == "max" else "inf"
    return f"running {b.op} of {show(b.body)}, from {start}"


def _sum_text(s: Sum) -> str:
    rescale = f", rescaled by {show(s.scale)}" if s.scale is not None else ""
    return f"running sum of {show(s.body)}{rescale}"


def finalizer(program: StreamProgram, name: str) -> Expr:
    """An output in terms of carried states and row inputs only."""
    states = {x.name for x in (*program.bases, *program.sums)} | {b.ref.name for b in program.bases}
    values: dict[Expr, Expr] = {}
    for key, e in program.finalize.items():
        value = substitute(e, values)
        if key == name:
            return value
        if key not in states:
            values[var(key, e.dtype)] = value
    raise KeyError(name)


# ------------------------------------------------------------------------------------------------ tiles


def tiling(
    found: Recognised, program: StreamProgram, tile_m: int, tile_n: int, strict: bool = False, rows: int = 0
) -> Tiling:  # fmt: skip
    """What can be proved of tiles of `tile_m` rows by `tile_n` keys of this region's score programs, of which `rows` at a time
    are worked on (0: that is not asked for).

    A tile that the mask hides is empty if what it hides is finite: 0 times infinity is NaN. `strict` assumes nothing, so
    that no tile is empty, and all that the source computes is computed.
    """
    row, stream = found.row, found.stream
    box = tiles.tile_box({row: (index("N"), tile_m), stream: (index("M"), tile_n)}, found.batch)
    fills = tiles.Fills()
    empty = const(False, "bool") if strict else _empty(program, box, fills)
    never = isinstance(empty, Const) and not empty.value
    block_end: Expr | None = None
    if 0 < rows < tile_m and not never:
        cut = index(f"{stream.name}_cut")
        rest = tiles.rest_of(box, row, index("N"), rows, stream, cut)
        block_end = tiles.end_of_rows(_empty(program, rest, fills), cut)
    low, high = tiles.stream_bounds(empty, index(stream.name + "0"), tile_n)
    end = call("add", index(stream.name + "0"), integer_const(tile_n))
    full: Expr = call("le", end, index("M"))
    decided: list[tuple[Expr, bool]] = []
    undecided = False
    bounded: list[Expr] = []  # a tile that only some conditions leave whole may be cut by the stream's end
    for body in (*(b.body for b in program.bases), *(s.weight for s in program.sums)):
        for c, polarity in _mask_conditions(body, frozenset({row, stream})):
            holds = tiles.must(box, c if polarity else call("not", c))
            if isinstance(holds, Const) and not holds.value:
                bounded, undecided = high, True
            elif (c, polarity) not in decided:
                decided.append((c, polarity))
                full = call("and", full, holds)
    for h in bounded:
        full = call("and", full, call("le", end, h))
    used = {x.tensor for e in (empty, full) for x in walk(e) if isinstance(x, Load)}
    summaries = tuple(r for r in box.requests.values() if r.param in used)
    # Masks that are added: numbers with -inf among them, or what is multiplied with a large negative one.
    undecided |= any(is_float(r.value.dtype) or _lowest(r.value) for r in summaries)
    undecided |= not decided and any(_lowest(b.body) for b in program.bases)
    fill = None if never else fills.largest
    if block_end is not None:
        used |= {x.tensor for x in walk(block_end) if isinstance(x, Load)}
        summaries = tuple(r for r in box.requests.values() if r.param in used)
    return Tiling(empty, full, tuple(decided), tuple(low), tuple(high), fill, summaries, strict, undecided, block_end)


def _empty(program: StreamProgram, box: tiles.Box, fills: tiles.Fills) -> Expr:
    """When nothing in a box counts."""
    if not program.bases and not program.sums:
        return const(False, "bool")
    empty: Expr = const(True, "bool")
    for b in program.bases:
        empty = call("and", empty, tiles.masked(box, b.body, fills) if b.op == "max" else const(False, "bool"))
    for s in program.sums:
        loose = tiles.Fills()
        empty = call("and", empty, tiles.vanishes(box, s.body, loose))
        if loose.largest is not None:
            if s.stabilisers:
                fills.add(loose.largest)
            elif loose.largest > -104:  # exp(-104) is 0 in fp32; a larger fill counts
                empty = const(False, "bool")
    return empty


def _lowest(e: Expr) -> bool:
    """Whether a mask's fill is part of `e`."""
    return any(isinstance(x, Const) and is_float(x.dtype) and x.value <= tiles.FILL for x in walk(e))


def _mask_conditions(body: Expr, positions: frozenset[Var]) -> list[tuple[Expr, bool]]:
    """Conditions that select a mask's fill (or zero), with the value that they have where the score counts."""
    found: list[tuple[Expr, bool]] = []
    for x in walk(body):
        if isinstance(x, Call) and x.fn == "cast" and x.args[0].dtype == "bool" and is_float(x.dtype):
            c, yes, no = x.args[0], const(1.0, "f32"), const(0.0, "f32")
        elif isinstance(x, Call) and x.fn == "where" and is_float(x.dtype):
            c, yes, no = x.args
        else:
            continue
        if variables(c) & positions and _blank(yes) != _blank(no):
            found.append((c, _blank(no) > _blank(yes)))
    return found


def _blank(e: Expr) -> int:
    """2 for a fill, 1 for zero, 0 for anything else: of two branches, the blanker one is the mask's."""
    return 0 if not isinstance(e, Const) else 2 if e.value <= tiles.FILL else int(e.value == 0)


__all__ = [
    "SPEC_POLICY", "FixedPolicy", "Held", "LoweringRefused", "Operand", "TilePolicy", "Tiling", "derived", "finalizer",
    "lower_attention_to_streaming", "roles", "run_streaming_lowering_pass", "semantics", "tiling",
]  # fmt: skip
