"""The whole pipeline on one page: a semantic graph in, executable regions and reasons out.

    Semantic IR --AttentionPatternPass--> ExecutionRegion --StreamingLoweringPass--> StreamingRegion + TileRegion
                --lower_to_kernel--> Kernel IR --build--> code

Every attention that is seen ends as one of three: `streamed`; `declined`, when the cost model expects the unfused form to be
faster;
`refused`, when the meaning could not be kept or a limit is in the way. The last two have reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal

from aicf.backends.manifest import named_target, stages, target_names
from aicf.decide import Decision, decide
from aicf.kernel import Kernel, RowBlock, print_kernel, statements, written
from aicf.kernel.lowering import bound_kernel
from aicf.kernel.verifier import check_kernel
from aicf.mcir import AttentionPatternPass, MCModule, Refusal, dump_module, validate_module
from aicf.mcir.lowered import lowered_region
from aicf.mcir.passes.attention_pattern import region_of
from aicf.mcir.passes.schedule import apply_schedule, prove_phases
from aicf.mcir.passes.streaming_lowering import add_stream, derived, detected_meaning
from aicf.mcir.regions import Region
from aicf.runtime import tuned
from aicf.runtime.executable import ArrayRef, Executable, tile_counts
from aicf.runtime.launching import executable_for
from aicf.scalar import BYTES, Const, Expr, call, integer, integer_const, is_float, show, variables
from aicf.schedule.cost import Prediction
from aicf.schedule.gpu import register_limit
from aicf.schedule.schedule import Schedule, ScheduleError, partial
from aicf.schedule.target import CpuTarget, GpuTarget, Target, host_target
from aicf.semantic import Graph, Location, Node, Refused, check_graph, print_node
from aicf.semantic.types import product
from aicf.streaming.recognise import Recognised, Stored, with_less
from aicf.streaming.stream_program import StreamProgram
from aicf.streaming.tile_proofs import TileProof

Status = Literal["streamed", "declined", "refused"]
Kind = Literal["attention", "reduction"]
LARGE = 8 << 20  # bytes of scores that are only reduced, from which on computing them in tiles is thought of
MAX_THREADS = 4096  # far more than any machine has: a slip of the keyboard must not start a million threads


@dataclass(frozen=True)
class Options:
    """How to compile. `fuse`: "auto" lets the cost model decline, "always" streams whatever can be. `target`: a target's name or
    value, this machine when None. `schedule`: decisions to keep, by name. `threads`: workers per kernel (all cores when None).
    `strict`: NaN and infinities under a mask come out as in the source, so that no tile is skipped; else what a mask hides
    is assumed to be finite. Raises ValueError, naming the option and what it takes, for a value that it cannot have."""

    fuse: Literal["auto", "always"] = "auto"
    target: Target | str | None = None
    schedule: Mapping[str, Any] | str | None = None
    threads: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.fuse, str) and self.fuse in ("auto", "always")):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f'fuse={self.fuse!r}: it is "auto" (let the cost model decide) or "always"')
        if not isinstance(self.strict, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"strict={self.strict!r}: it is True or False")
        object.__setattr__(self, "threads", _checked_threads(self.threads))
        _checked_target(self.target)
        _checked_schedule(self.schedule)


def _checked_threads(threads: Any) -> int | None:
    whole = hasattr(threads, "__index__") and not isinstance(threads, bool)
    if threads is not None and not (whole and 1 <= index(threads) <= MAX_THREADS):
        raise ValueError(f"threads={threads!r}: give a whole number from 1 to {MAX_THREADS}, or None for PyTorch's own number")
    return None if threads is None else index(threads)


def _checked_target(target: Any) -> None:
    if isinstance(target, str):
        try:
            named_target(target)
        except KeyError as unknown:
            raise ValueError(f"target={target!r}: {unknown.args[0]}") from None
    elif target is not None and not isinstance(target, CpuTarget | GpuTarget):
        raise ValueError(f"target={target!r}: it is the name of a target ({', '.join(target_names())}), a Target or None")


def _checked_schedule(schedule: Any) -> None:
    if schedule is not None and not isinstance(schedule, str | Mapping):
        kind = type(schedule).__name__
        raise ValueError(f'schedule is a {kind}: give decisions, as "tile_m=128,order=q_major" or {{"tile_m": 128}}, or None')
    try:
        Schedule.parse(schedule) if isinstance(schedule, str) else partial(schedule or {})
    except ScheduleError as wrong:
        raise ValueError(f"schedule={schedule!r}: {wrong}") from None


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the size of the scores that the program computes and a region reads: it is written to memory, `bytes` of it
    (None when a size is not known), before the region runs. `reason`: why the region does not compute it."""

    name: str
    source: Location | None
    bytes: int | None
    reason: str


@dataclass
class RegionResult:
    """What became of one attention: its status and reason, its place in the user's program, the source nodes whose tensors it
    reads and makes, and, when streamed, its schedule and executable. `bytes_unfused`: the score-shaped tensors of the unfused
    form; `bytes_streamed`: the working memory of the streamed one. `specialised`: for what its kernel is made, and for what
    not. `unknown`: the size that is no number, but would have to be. `assumes`: what has to be so of the inputs for the result
    to be the source's, empty when nothing has. `tiles`: empty, partial and full tiles of a call, None when they depend on
    tensors that are not known; `of_call`: they do, and are those of a call that was explained. `program`: the derived one-pass
    program; `proof`: what is proved of the tiles; `decision`: what the cost model was asked, and its answer; `prediction`: the
    numbers of that. `rows_end`: how many rows a block has that ends its keys by itself inside of a partial tile; 0 where none
    does. `stored`: tensors of the size of the scores that it reads all the same, since it cannot compute them. `kind`: an
    "attention" sums values, a "reduction" of scores does not; attentions alone are what `require="streamed"` is about.
    `backward`: in words, how its gradients are computed and what is saved for that, where one is asked."""

    status: Status
    reason: str
    source: Location | None
    name: str
    mask: str | None = None
    inputs: list[Node] = field(default_factory=list[Node])
    outputs: list[Node] = field(default_factory=list[Node])
    size_names: list[str] = field(default_factory=list[str])
    executable: Executable | None = None
    schedule: Schedule | None = None
    tiles: dict[str, int] | None = None
    of_call: bool = False
    bytes_unfused: int | None = None
    bytes_streamed: int | None = None
    region: Region | None = None
    program: StreamProgram | None = None
    proof: TileProof | None = None
    decision: Decision | None = None
    nodes: tuple[Node, ...] = ()
    specialised: str = ""
    unknown: Expr | None = None
    assumes: str = ""
    stored: tuple[StoredTensor, ...] = ()
    prediction: Prediction | None = None
    rows_end: int = 0
    kind: Kind = "attention"
    backward: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """What a pickled report keeps: all but what only lives in the process that compiled."""
        gone = {"inputs": [], "outputs": [], "executable": None, "region": None, "decision": None, "nodes": (), "unknown": None}
        return {**self.__dict__, **gone}

    def __repr__(self) -> str:
        return f"<aicf {self.kind} {self.name}: {self.status}>"

    def refuse(self, reason: str, status: Literal["declined", "refused"] = "refused") -> None:
        """It does not stream after all: what was planned for it is no longer so."""
        self.status, self.reason = status, reason
        self.executable = self.schedule = self.tiles = self.bytes_streamed = None
        self.assumes = self.specialised = self.backward = ""
        self.stored = ()
        self.rows_end = 0

    def dump(self, stage: str) -> str:
        """The region at one of `aicf.backends.stages()`. ValueError for another stage, for stages that a region that is not
        streamed never reached, and for those of another kind of target."""
        if stage not in stages():
            raise ValueError(f"no stage {stage!r}: the stages are {', '.join(stages())}")
        if stage == "semantic" and self.nodes:
            return "\n".join(print_node(n, locations=True) for n in self.nodes) + "\n"
        if self.status == "streamed" and self.executable is None:
            raise ValueError(f"the {stage} of {self.name} was not saved with this report: dump it where the report is made")
        if self.region is None or self.executable is None:
            raise ValueError(f"{self.name} was {self.status} ({self.reason}), so there is no {stage} of it")
        if stage == "mcir":
            return dump_module(MCModule(regions=[self.region]), verbose=True) + "\n"
        kernel = self.executable.kernel
        if stage == "kernel":
            return print_kernel(kernel)
        return self.executable.dump(stage)

    def outline(self) -> str:
        """The MCIR outline of a streamed region."""
        return dump_module(MCModule(regions=[self.region] if self.region else []), outline=True)

    def count_tiles(self, sizes: Mapping[str, int], tensors: Mapping[str, Any]) -> dict[str, int]:
        """Empty, partial and full tiles of a call: `sizes` by source symbol, `tensors` as arrays by kernel name."""
        assert self.executable is not None
        return _known(self.proof, tile_counts(self.executable.kernel, self.executable.sizes(sizes), tensors))


@dataclass
class Compilation:
    """All attentions of a graph, in order."""

    graph: Graph
    regions: list[RegionResult]


def compile_graph(
    graph: Graph,
    options: Options | None = None,
    anchors: Collection[Node] | None = None,
    parameters: Collection[Node] = (),
    hints: Mapping[str, int] | None = None,
    fault: Callable[[Exception], str] | None = None,
    all_reductions: bool = False,
) -> Compilation:
    """Finds, derives, schedules and prepares every attention of `graph`.

    `anchors`: nodes whose tensors exist outside of regions (all when None); `parameters`: model weights; `hints`: likely
    values of size symbols, for the cost model only. Code is built when a region first runs. `fault`: what to say of a region
    on which the compiler itself fails, so that the others stream all the same (None: its error is raised). `all_reductions`:
    reductions of scores without values are regions also where the scores are few.
    """
    chosen = options or Options()
    check_graph(graph)
    module = AttentionPatternPass(anchors, parameters, all_reductions)(graph)
    results = [(_position(graph, r.name), _refused(r, hints or {})) for r in module.refusals]
    relied_on = {user for region in module.regions for user, _ in detected_meaning(region).leaks}
    for region in module.regions:
        meaning = detected_meaning(region)
        needed = meaning.values or any(n in relied_on for n in meaning.inside)
        if not needed and not all_reductions and chosen.fuse == "auto" and not _is_large(meaning, hints or {}):
            continue
        try:
            validate_module(MCModule(regions=[region]), lowered=False)
            result = _compiled(region, chosen, hints or {})
            less: Recognised | None = meaning
            while result.status != "streamed" and less is not None:
                less = with_less(less, f"a region that computes it in its tiles is {result.status} ({result.reason})")
                if less is not None:
                    other = _compiled(region_of(less, region.name, graph.sources), chosen, hints or {})
                    result = other if other.status == "streamed" else result
        except Exception as e:
            if fault is None:
                raise
            result = RegionResult("refused", fault(e), meaning.value.location, meaning.value.name)
            result.bytes_unfused = _number(meaning.unfused_bytes, hints or {})
        result.kind = "attention" if meaning.values else "reduction"
        if not needed and result.status != "streamed":
            continue  # PyTorch computes it as it would without us
        results.append((_position(graph, meaning.value.name), result))
    return Compilation(graph, [r for _, r in sorted(results, key=lambda t: t[0])])


def _is_large(meaning: Recognised, hints: Mapping[str, int]) -> bool:
    """Whether scores that are only reduced are worth a kernel of their own."""
    size = _number(meaning.unfused_bytes, hints)
    return size is not None and size >= LARGE


def _position(graph: Graph, name: str) -> int:
    return next((k for k, n in enumerate(graph.nodes) if n.name == name), 0)


def _refused(r: Refusal, hints: Mapping[str, int]) -> RegionResult:
    return RegionResult(
        "refused", _said(r.reason, r.guilty, r.source), r.source, r.name, bytes_unfused=_number(r.unfused_bytes, hints)
    )


def _said(reason: str, guilty: Location | None, source: Location | None) -> str:
    """A reason with the place of the op that is in the way, unless that is what would be streamed itself."""
    return reason if guilty is None or guilty == source else f"{reason} (at {guilty})"


def _number(e: Expr, hints: Mapping[str, int]) -> int | None:
    known = {v.name: hints[v.name] for v in variables(e) if v.name in hints}
    return integer(e, known) if len(known) == len(variables(e)) else None


def _compiled(region: Region, options: Options, hints: Mapping[str, int]) -> RegionResult:
    """One region through every level: meaning, stream, schedule, kernel, executable."""
    meaning = detected_meaning(region)
    result = RegionResult(
        "refused", "", meaning.value.location, meaning.value.name, region.notes.get("mask"), nodes=meaning.inside,
        bytes_unfused=_number(meaning.unfused_bytes, hints),
    )  # fmt: skip
    # WHY one pass is enough, and the nodes that make it.
    try:
        result.program = derived(meaning, options.strict)
    except Refused as no:
        result.reason = _said(no.reason, no.guilty.location if no.guilty else None, result.source)
        result.unknown = no.unknown
        return result
    streamed = lowered_region(add_stream(region, result.program))
    # HOW it runs: the cost model's decisions, proved and written into the region.
    machine = _machine(options.target)
    try:
        decision = decide(streamed, machine, options.schedule, options.threads, hints, tuned.find)
    except ScheduleError as no:  # no tile fits this machine, or the schedule asked for does not
        given = "the schedule that was given cannot be used here: " if options.schedule else ""
        result.reason = given + str(no)
        return result
    schedule = decision.schedule
    result.schedule, result.decision, result.prediction = schedule, decision, decision.prediction
    if options.fuse == "auto" and not decision.fuse:
        result.status, result.reason = "declined", f"{decision.reason}: not streamed"
        return result
    phases, result.proof = prove_phases(streamed, schedule, strict=options.strict, rows=schedule.rows)
    limit = register_limit(machine, schedule.warps) if isinstance(machine, GpuTarget) else 0
    apply_schedule(region, schedule, phases, registers=limit)
    # The kernel follows from the region, and code from the kernel.
    kernel, binding = bound_kernel(region)
    check_kernel(kernel)
    executable = executable_for(kernel, binding, machine, schedule.threads)
    result.status, result.reason = "streamed", decision.reason + ("" if decision.fuse else '; fuse="always" was given')
    result.region, result.executable = region, executable
    result.inputs = [meaning.loads[name] for name in binding.inputs.values()]
    outputs = {e.node.name: e.node for e in meaning.outputs}
    result.outputs = [outputs[name] for name in binding.outputs.values()]
    result.size_names = executable.symbols
    result.rows_end = max((s.step for s in statements(kernel.body) if isinstance(s, RowBlock) and s.ends), default=0)
    result.bytes_streamed = working_bytes(kernel) * schedule.threads
    result.tiles = _static_tiles(result, hints)
    result.specialised = _specialised(meaning)
    result.stored = tuple(_stored(s, hints) for s in meaning.stored)
    result.assumes = _assumed(result.proof)
    return result


def _stored(s: Stored, hints: Mapping[str, int]) -> StoredTensor:
    size = call("mul", product(s.node.type.shape), integer_const(BYTES[s.node.type.dtype]))
    return StoredTensor(s.node.name, s.node.location, _number(size, hints), s.reason)


def rescheduled(result: RegionResult, options: Options, hints: Mapping[str, int]) -> RegionResult:
    """A streamed region once more, under other options: how a search looks at one schedule after the other."""
    assert result.region is not None
    region = copy(result.region)
    region.subregions = []  # what lowering added to the meaning
    region.attrs = {**region.attrs, "sizes": dict(region.attrs["sizes"])}
    return _compiled(region, options, hints)


def _assumed(proof: TileProof) -> str:
    """What skipping rests on."""
    skips = not (isinstance(proof.empty, Const) and not proof.empty.value)
    said = "scores and values are finite where a mask hides them, so that such tiles can be skipped (strict=True assumes nothing)"
    return said if skips else ""


def _specialised(meaning: Recognised) -> str:
    """What a kernel is made for. Lengths, batches and heads are arguments of it."""
    widths = [f"head dim {show(s.width)}" for s in meaning.scores]
    widths += [f"value width {show(meaning.extents[c])}" for c in meaning.columns]
    types = sorted({n.type.dtype for n in meaning.loads.values() if is_float(n.type.dtype)})
    return f"{', '.join(dict.fromkeys([*widths, *types]))}; any length, batch and number of heads"


def _machine(target: Target | str | None) -> Target:
    """The target's value; this machine for None."""
    return host_target() if target is None else named_target(target) if isinstance(target, str) else target


def working_bytes(kernel: Kernel) -> int:
    """Bytes of tiles that one worker keeps."""
    tiles = {t.name: t for t in map(written, statements(kernel.body)) if t is not None}
    return sum(BYTES[t.dtype] * math.prod(kernel.axis(a).tile for a in t.axes) for t in tiles.values())


def _known(proof: TileProof | None, counts: dict[str, int]) -> dict[str, int]:
    """`counts` of the kernel's phases as they are said: a tile is full if no mask is needed in it."""
    if proof is None or not proof.undecided:
        return counts
    return {"empty": counts["empty"], "partial": counts["partial"] + counts["full"], "full": 0}


def _static_tiles(result: RegionResult, hints: Mapping[str, int]) -> dict[str, int] | None:
    """Tile counts when they follow from sizes alone."""
    executable = result.executable
    assert executable is not None
    kernel = executable.kernel
    if kernel.summaries or any(s not in hints for s in executable.symbols):
        return None
    try:
        return _known(result.proof, tile_counts(kernel, executable.sizes(hints), {}))
    except (KeyError, ValueError):
        return None


__all__ = ["ArrayRef", "Compilation", "Options", "RegionResult", "StoredTensor", "compile_graph"]
