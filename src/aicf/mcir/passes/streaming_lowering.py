"""StreamingLoweringPass: from the meaning of a region to the stream that computes it tile by tile.

    ExecutionRegion(attention)               ExecutionRegion(attention)
                                     ->      └── StreamingRegion(attention_stream)
                                                 └── TileRegion(q_tile_loop)
                                                     load_tile(Q) load_tile(K) load_tile(V)
                                                     compute_score  update_softmax  accumulate_output
                                                     store_tile(O)

The cascade of reductions is derived into a one-pass program (`aicf.streaming.derive`): its carried extrema and row sums become
`update_softmax`, its sums with streamed values `accumulate_output`, its finalizers the programs of `store_tile`. `add_stream`
makes the nodes; `passes.schedule` says how they run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aicf.mcir.builder import MCIRBuilder
from aicf.mcir.lowered import lowered_region
from aicf.mcir.module import MCModule
from aicf.mcir.nodes import MCNode
from aicf.mcir.passes.attention_pattern import suffix
from aicf.mcir.passes.schedule import SPEC_POLICY, TilePolicy, apply_schedule, prove_phases
from aicf.mcir.passes.vocabulary import GENERAL, Vocabulary, vocabulary
from aicf.mcir.payloads import (
    Accumulation,
    RunningExtremum,
    RunningSum,
    ScoreProduct,
    Shift,
    StateUpdate,
    TileLoad,
    TileStore,
    reference_of,
)
from aicf.mcir.regions import ExecutionRegion, Region
from aicf.mcir.types import MCNodeOp, mc_dtype
from aicf.mcir.values import MCValue
from aicf.scalar import (
    Call,
    Const,
    Expr,
    Load,
    Var,
    cast,
    index,
    is_float,
    show,
    substitute,
    var,
    variables,
    walk,
)
from aicf.semantic import Node
from aicf.semantic.refusal import Refusal, Refused, refused
from aicf.streaming.derive import derive
from aicf.streaming.recognise import Recognised, RegionOutput
from aicf.streaming.stream_program import Base, StreamProgram, Sum
from aicf.streaming.verify import check_program

NO_DOUBLES = "it computes in float64; kernels accumulate in float32. Use float32, float16 or bfloat16"
MAX_WIDTH = 2048  # head dims of score contractions and values that kernels are generated for


def run_streaming_lowering_pass(module: MCModule, policy: TilePolicy = SPEC_POLICY) -> MCModule:
    """All regions of `module` lowered; regions that cannot be become refusals of the returned module.

    Valid before: a module of detected regions. Valid after: every region has one stream, or is gone with a reason.
    """
    result = MCModule(refusals=list(module.refusals))
    for region in module.regions:
        try:
            result.regions.append(lower_attention_to_streaming(region, policy))
        except Refused as no:
            result.refusals.append(replace(refused(detected_meaning(region).value, no.reason, no.guilty), node=None))
    return result


def detected_meaning(region: Region) -> Recognised:
    """The recognised meaning that a region carries. Raises Refused for one that was written by hand or read from text."""
    if not isinstance(region, ExecutionRegion) or region.meaning is None:
        raise Refused(f"region {region.name} was not made by the attention pattern pass: it carries no meaning to lower")
    return region.meaning


def lower_attention_to_streaming(
    region: Region, policy: TilePolicy = SPEC_POLICY, *, strict: bool = False, program: StreamProgram | None = None
) -> Region:
    """Adds the StreamingRegion and its TileRegion to `region`, scheduled by `policy`, and returns it. `strict`: see
    `prove_tiles`. `program`: what `derived` gave for the region, when that is known already.

    Raises Refused, leaving the region as it was, when the cascade has no one-pass form or a shape is out of reach.
    """
    add_stream(region, program or derived(detected_meaning(region), strict))
    rows = getattr(policy, "rows", 0)
    phases, _ = prove_phases(lowered_region(region), policy, strict=strict, rows=rows)
    return apply_schedule(region, policy, phases)


def add_stream(region: Region, program: StreamProgram) -> Region:
    """Adds the stream of `program` to a detected region: all nodes, with the specification's tile lengths (a contraction is
    whole) and nothing proved of tiles yet. Returns the region."""
    meaning = detected_meaning(region)
    words = vocabulary(str(region.attrs["pattern"]))
    names = _Names(meaning, program, region.attrs["sizes"], words)
    b = MCIRBuilder()
    stream = b.streaming_region(words.stream, stream_axis=words.streamed[0])
    widths = [int(a.width.value) for a in meaning.scores if isinstance(a.width, Const)]
    tile = b.tile_region(words.tile, SPEC_POLICY.tile_m, SPEC_POLICY.tile_n, max(widths, default=SPEC_POLICY.tile_k))
    tile.nodes.extend(_Nodes(b, meaning, program, names).all())
    updates = (n for n in tile.nodes if isinstance(n.payload, StateUpdate | Accumulation))
    stream.attrs["carried"] = tuple(v for n in updates for v in n.outputs)
    stream.subregions.append(tile)
    region.subregions.append(stream)
    return region


def derived(meaning: Recognised, strict: bool = False) -> StreamProgram:
    """The one-pass program of a region (`strict`: see `derive`). Raises Refused with the derivation's reason."""
    outputs = {f"out{k}": e.expr for k, e in enumerate(meaning.outputs)}
    scores = [var(a.name, a.row.dtype if is_float(a.row.dtype) else "f32") for a in meaning.scores]
    program = derive(meaning.cascade, outputs, meaning.stream, scores=scores, payload=meaning.columns, strict=strict)
    if isinstance(program, Refusal):
        raise Refused(str(program), program.where, guilty=_maker(meaning, program.where, program.name))
    program = _counting(program, meaning.extents[meaning.stream])
    _check(meaning, program)
    check_program(program, meaning.columns, meaning.value.location)
    return program


def _maker(meaning: Recognised, e: Expr | None, reduction: str = "") -> Node | None:
    """The source's op that makes `e`, else the one that `reduction` comes from; None where neither is known."""
    if meaning.places is None:
        return None
    made = None if e is None else meaning.places.maker(e)
    return made or meaning.places.reductions.get(reduction)


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


def _check(meaning: Recognised, program: StreamProgram) -> None:
    states = {x.name for x in (*program.bases, *program.sums)} | {b.ref.name for b in program.bases}
    for k, e in enumerate(meaning.outputs):
        if not any(v.name in states for v in variables(finalizer(program, f"out{k}"))):
            raise Refused(f"{e.node.name} is the same whatever the scores are: nothing is left to stream", guilty=e.node)
    for a in meaning.scores:
        _width(a.width, "the head dim of the scores")
        if variables(a.row) & {meaning.stream} or variables(a.key) & {meaning.row}:
            raise Refused(f"the operands of {a.name} are not one per row and one per key")
    for b in program.bases:
        if variables(b.body) & set(meaning.columns):
            why = f"it takes the {b.op} of numbers that differ per value column: {show(b.body)}"
            raise Refused(why, guilty=_maker(meaning, b.body))
    for s in program.sums:
        if not is_float(s.dtype):
            guilty = _maker(meaning, s.body, s.name)
            raise Refused(f"the sum {s.name} is kept in {s.dtype}; integer sums are not streamed", guilty=guilty)
        if len(s.payload) > 1:
            raise Refused(
                f"the values have {len(s.payload)} axes that the scores don't have; kernels are derived for one (reshaped into "
                "one axis, such values stream)"
            )
        for c in s.payload:
            _width(meaning.extents[c], "the value width")
        if variables(s.weight) & set(meaning.columns):
            why = f"the weights of the values differ per value column: {show(s.weight)}"
            raise Refused(why, guilty=_maker(meaning, s.weight, s.name))
        if s.value is not None and variables(s.value) & {meaning.row, *program.scores}:
            raise Refused(f"the summed values depend on the row: {show(s.value)}", guilty=_maker(meaning, s.value, s.name))
    for e in (*(b.body for b in program.bases), *(s.body for s in program.sums), *(a.row for a in meaning.scores)):
        wide = next((n for n in walk(e) if n.dtype == "f64"), None)
        if wide is not None:
            raise Refused(NO_DOUBLES, guilty=_maker(meaning, wide) or _double(meaning))
    if any(x.type.dtype == "f64" for x in (*meaning.loads.values(), *(e.node for e in meaning.outputs))):
        raise Refused(NO_DOUBLES, guilty=_double(meaning))


def _double(meaning: Recognised) -> Node | None:
    """The first op of a region that is in float64, or the tensor that it reads."""
    seen = (*meaning.loads.values(), *meaning.inside, *(e.node for e in meaning.outputs))
    return next((n for n in seen if n.type.dtype == "f64" and n.op != "input"), None)


def _width(e: Expr, what: str) -> int:
    if not isinstance(e, Const):
        raise Refused(f"{what} is {show(e)}, which is not known at compile time", unknown=e)
    if not 1 <= int(e.value) <= MAX_WIDTH:
        raise Refused(f"{what} is {e.value}; kernels are generated for 1 to {MAX_WIDTH}")
    return int(e.value)


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


# ------------------------------------------------------------------------------------------------ names


class _Names:
    """The names of a stream's values, and the substitution that puts them into the program's expressions.

    `sizes`: the region's size symbols. Symbols of the source graph that expressions read are added; one that has the name of
    another by chance gets a name of its own.
    """

    def __init__(self, meaning: Recognised, program: StreamProgram, sizes: dict[str, Expr], words: Vocabulary) -> None:
        self.meaning, self.program, self.sizes, self.words = meaning, program, sizes, words
        self.values: dict[str, str] = {}  # a name of the program -> the value's
        for k, a in enumerate(meaning.scores):
            self.values[a.name] = words.scores[0] + suffix(k)
        for k, base in enumerate(program.bases):
            self.values[base.name] = f"{words.extremum}_{base.op}" + suffix(k)
        sums = words.sums if program.bases else GENERAL.sums
        for k, s in enumerate(x for x in program.sums if not x.payload):
            self.values[s.name] = sums + suffix(k)
        for k, s in enumerate(x for x in program.sums if x.payload):
            self.values[s.name] = words.accumulator[0] + suffix(k)
        self._put: dict[Expr, Expr] = {}
        for a in program.scores:
            self._put[a] = var(self.values[a.name], a.dtype)
        for x in (*program.bases, *program.sums):
            self._put[x.state] = var(self.values[x.name], x.dtype)
        for base in program.bases:
            self._put[base.ref] = self.reference(base)
            self._put[base.old] = self.old(base)

    def reference(self, base: Base) -> Var:
        return var(f"{self.values[base.name]}_ref", base.dtype)

    def old(self, base: Base) -> Var:
        return var(f"{self.values[base.name]}_old", base.dtype)

    def put(self, e: Expr) -> Expr:
        """`e` with the names of this module's values, and its own size symbols declared."""
        bound = {v.name for v in self.meaning.extents}
        for v in sorted(variables(e), key=lambda v: v.name):
            if v.dtype == "i64" and v.name not in bound and v not in self._put and v.name not in self.values:
                self._declare(v)
        return substitute(e, self._put)

    def _declare(self, symbol: Var) -> None:
        """Makes a size symbol of the source graph one of the kernel's."""
        name = symbol.name
        while self.sizes.get(name, symbol) is not symbol:
            name += "_source"
        self.sizes[name] = symbol
        if name != symbol.name:
            self._put[symbol] = index(name)


# ------------------------------------------------------------------------------------------------ nodes


class _Nodes:
    """Builds the nodes of one tile."""

    def __init__(self, b: MCIRBuilder, meaning: Recognised, program: StreamProgram, names: _Names) -> None:
        self.b, self.meaning, self.program, self.names, self.words = b, meaning, program, names, names.words
        self.lengths = {meaning.row.name: SPEC_POLICY.tile_m, meaning.stream.name: SPEC_POLICY.tile_n}
        self.lengths |= {
            v.name: int(e.value) for v, e in meaning.extents.items() if isinstance(e, Const) and v.name not in self.lengths
        }
        self.values: dict[str, MCValue] = {}

    def all(self) -> Iterable[MCNode]:
        """Loads, scores, states, accumulators, stores, in the order of a tile's life."""
        row_sums = [s for s in self.program.sums if not s.payload]
        wide_sums = [s for s in self.program.sums if s.payload]
        yield from self.loads(wide_sums)
        yield from self.scores()
        if self.program.bases or row_sums:
            yield self.states(row_sums)
        for k, s in enumerate(wide_sums):
            yield self.accumulate(k, s)
        for k, e in enumerate(self.meaning.outputs):
            yield self.store(k, e)

    def loads(self, wide: list[Sum]) -> Iterable[MCNode]:
        i, j = self.meaning.row.name, self.meaning.stream.name
        for k, a in enumerate(self.meaning.scores):
            yield self._load(self.words.row_operand, k, a.row, (i, a.over.name))
            yield self._load(self.words.streamed_operand, k, a.key, (j, a.over.name))
        self.value_tiles: dict[Expr, MCValue] = {}
        for s in wide:
            assert s.value is not None
            if s.value not in self.value_tiles:
                (e,) = s.payload
                made = self._load(self.words.values, len(self.value_tiles), s.value, (j, e.name))
                self.value_tiles[s.value] = made.outputs[0]
                yield made

    def _load(self, words: tuple[str, str], k: int, element: Expr, axes: tuple[str, str]) -> MCNode:
        """The k-th load of a kind: `words` are its value's name and its node's."""
        name, node = f"{words[0]}{suffix(k)}_tile", words[1] + suffix(k)
        plain = self.names.put(element)
        while isinstance(plain, Call) and plain.fn == "cast" and is_float(plain.args[0].dtype):
            plain = plain.args[0]
        op = MCNodeOp.LOAD_TILE.value
        if isinstance(plain, Load) and is_float(plain.dtype):
            tile = self._value(name, axes, mc_dtype(plain.dtype), "shared")
            return self.b.node(node, op, outputs=[tile], payload=TileLoad(index=plain.index), source=plain.tensor)
        tile = self._value(name, axes, "fp32", "shared")
        made = self.b.node(node, op, outputs=[tile], payload=TileLoad(element=self.names.put(element)))
        source = next((x.tensor for x in walk(element) if isinstance(x, Load)), None)
        if source is not None:
            made.attrs["source"] = source
        return made

    def _value(self, name: str, axes: tuple[str, ...], dtype: str, residency: str) -> MCValue:
        shape = tuple(self.lengths[a] for a in axes)
        made = self.values[name] = self.b.value(name, shape, dtype, residency, axes)
        return made

    def scores(self) -> Iterable[MCNode]:
        for k, a in enumerate(self.meaning.scores):
            end = suffix(k)
            axes = (self.meaning.row.name, self.meaning.stream.name)
            frag = self._value(self.names.values[a.name], axes, "fp32", "register")
            operands = (self.words.row_operand, self.words.streamed_operand)
            inputs = [self.values[f"{name}{end}_tile"] for name, _ in operands]
            yield self.b.node(self.words.scores[1] + end, self.words.contract.value, inputs, [frag], ScoreProduct(a.over.name))

    def _frags(self, *expressions: Expr) -> list[MCValue]:
        """The score tiles that expressions read, at least the first."""
        used = {v.name for e in expressions for v in variables(e)}
        frags = [self.values[self.names.values[a.name]] for a in self.meaning.scores]
        return [f for f in frags if f.name in used] or frags[:1]

    def states(self, row_sums: list[Sum]) -> MCNode:
        row = (self.meaning.row.name,)
        outputs = [self._value(self.names.values[x.name], row, "fp32", "register") for x in (*self.program.bases, *row_sums)]
        # A softmax has a running maximum; sums alone are states like any others.
        op, name = (self.words.update, self.words.states) if self.program.bases else (GENERAL.update, GENERAL.states)
        update = StateUpdate(tuple(map(self._extremum, self.program.bases)), tuple(map(self._sum, row_sums)))
        bodies = [*(b.body for b in update.extrema), *(s.weight for s in update.sums)]
        return self.b.node(name, op.value, self._frags(*bodies), outputs, update)

    def _extremum(self, base: Base) -> RunningExtremum:
        put = self.names.put
        init = None if base.init is None else put(base.init)
        name = self.names.values[base.name]
        return RunningExtremum(name, base.op, put(base.body), init, self.names.reference(base), self.names.old(base))

    def _sum(self, s: Sum) -> RunningSum:
        put = self.names.put
        shift = None if s.shift is None else Shift(self.names.values[s.shift.partner], put(s.shift.distance))
        return RunningSum(self.names.values[s.name], put(s.weight), None if s.scale is None else put(s.scale), shift)

    def accumulate(self, k: int, s: Sum) -> MCNode:
        assert s.value is not None
        acc = self._value(self.names.values[s.name], (self.meaning.row.name, s.payload[0].name), "fp32", "register")
        made = Accumulation(self._sum(s))
        inputs = [*self._frags(made.sum.weight), self.value_tiles[s.value]]
        return self.b.node(self.words.accumulator[1] + suffix(k), self.words.accumulate.value, inputs, [acc], made)

    def store(self, k: int, e: RegionOutput) -> MCNode:
        """Reads the states that its program needs; the first of them that has the output's axes stands among the inputs."""
        expr = finalizer(self.program, f"out{k}")
        for b in self.program.bases:  # a reference that a finalizer uses is the final one
            expr = substitute(expr, {b.ref: reference_of(b.op, b.state)})
        axes = (self.meaning.row.name, *(c.name for c in e.columns))
        used = {v.name for v in variables(expr)}
        states = [self.values[self.names.values[x.name]] for x in (*self.program.sums, *self.program.bases) if x.name in used]
        # A result that is free of states (0 times one) still waits for the end of the stream.
        states = states or [self.values[self.names.values[x.name]] for x in (*self.program.sums, *self.program.bases)][:1]
        states.sort(key=lambda v: -len(v.axes))
        inputs = [v for v in states if v.axes == axes][:1] or states[:1]
        name, node = self.words.outputs
        tile = self._value(f"{name}{suffix(k)}_tile", axes, mc_dtype(e.node.type.dtype), "global")
        payload = TileStore(tuple(map(self.names.put, e.at)), self.names.put(expr))
        return self.b.node(node + suffix(k), MCNodeOp.STORE_TILE.value, inputs, [tile], payload, target=e.node.name)


__all__ = [
    "add_stream",
    "derived",
    "detected_meaning",
    "finalizer",
    "lower_attention_to_streaming",
    "run_streaming_lowering_pass",
]  # fmt: skip
