"""From a streamed region to the cost model's question, and its answer: a schedule, and whether to stream at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from aicf.mcir.axes import RegionAxis
from aicf.mcir.lowered import LoweredRegion
from aicf.mcir.passes.schedule import carried
from aicf.mcir.values import MCValue
from aicf.scalar import (
    BYTES,
    FUNCTIONS,
    Call,
    DType,
    Expr,
    Load,
    Var,
    evaluate,
    fingerprint,
    integer,
    is_float,
    substitute,
    unknown,
    variables,
    walk,
)
from aicf.schedule.cost import Prediction, choose, predict
from aicf.schedule.problem import Problem
from aicf.schedule.schedule import Schedule
from aicf.schedule.target import CpuTarget, Target, host_target, named_target
from aicf.streaming.tile_proofs import TileProof, prove_tiles

ASSUMED = 1024  # the value of a size symbol of which nothing is known
# What is hidden by a mask that compares tensors of the rows with tensors of the keys (documents), of which nothing is known: most
# of the scores, a run of keys left for each row. Large tiles cost a dense mask a few percent less, such a mask half again.
ASSUMED_SKIPPED, ASSUMED_EDGES = 0.75, 2
# What is assumed that a dense mask tensor hides, of which nothing is known: as much as a causal mask.
DENSE_SKIPPED, DENSE_EDGES = 0.5, 1
FEW_SCORES = 64  # rows or keys below which a mask is not looked into
MOST_ROWS, MOST_SCORES = 64, 1 << 20  # that are looked at to know how much a mask hides


class Measured(Protocol):
    """Decisions that a search found by measuring; as text, how it came to them."""

    @property
    def decisions(self) -> Mapping[str, Any]: ...


# (problem, target, meaning) -> what a search found for it
Search = Callable[[Problem, Target, str], Measured | None]


def _nothing(problem: Problem, target: Target, meaning: str) -> None:
    return None


@dataclass(frozen=True)
class Decision:
    """`fuse`: stream it; `reason` with the numbers; the schedule in any case. `meaning`: see `meaning_of`."""

    schedule: Schedule
    fuse: bool
    reason: str
    problem: Problem
    meaning: str
    prediction: Prediction


def decide(
    region: LoweredRegion, target: Target | str | None, fixed: Mapping[str, Any] | str | None, threads: int | None,
    hints: Mapping[str, int], measured: Search = _nothing,
) -> Decision:  # fmt: skip
    """The schedule of a streamed region on a target, and whether streaming is expected to be faster than the unfused form.

    `fixed`: decisions of the user's, kept. `hints`: likely values of size symbols; unknown ones are taken for 1024. `measured`:
    what a search found for a problem; it is used where the user decided nothing. Raises ScheduleError for decisions that cannot
    be and KeyError for an unknown target.
    """
    machine = host_target() if target is None else named_target(target) if isinstance(target, str) else target
    workers = threads or getattr(machine, "cores", 1)
    proof = prove_tiles(carried(region), 32, 32)
    problem = problem_of(region, proof, workers, hints)
    # What is only assumed to be skipped chooses tiles, but is no reason to stream. On a GPU small tiles cost much more.
    uncertain = _assumed(region, proof) is not None
    sure = replace(problem, skipped=0.0, edges=0, ended=0) if uncertain else problem
    problem = problem if isinstance(machine, CpuTarget) else sure
    meaning = meaning_of(region)
    best = None if fixed else measured(problem, machine, meaning)
    schedule = choose(problem, machine, fixed) if best is None else _tuned(problem, machine, best)
    prediction = predict(sure, machine, schedule, of_all=uncertain)
    return Decision(schedule, prediction.fuse, str(prediction), problem, meaning, prediction)


def meaning_of(region: LoweredRegion) -> str:
    """What is computed, whatever its tensors are called: a hash of what is loaded, carried and stored, the tensors numbered as
    they appear."""
    elements = [region.element(t) for t in region.loads]
    names: dict[str, str] = {}
    for e in (*elements, *_expressions(region)):
        for x in unknown(e, ()):
            if isinstance(x, Load) and x.tensor in region.tensors:
                names.setdefault(x.tensor, f"tensor {len(names)}")
    return fingerprint(
        [(t.tile.name, t.tile.axes, e) for t, e in zip(region.loads, elements, strict=True)],
        [(s.tile.name, s.row.name, s.streamed.name, s.over) for s in region.scores],
        [x.extremum for x in region.extrema],
        [(s.sum, None if s.values is None else s.values.name) for s in region.sums],
        [(s.axes, s.payload) for s in region.stores],
        names=names,
    )


def _expressions(region: LoweredRegion) -> Iterator[Expr]:
    """What is carried and stored, in order."""
    for x in region.extrema:
        yield from (x.extremum.body, *([] if x.extremum.init is None else [x.extremum.init]))
    for s in region.sums:
        shift = None if s.sum.shift is None else s.sum.shift.distance
        yield from (e for e in (s.sum.weight, s.sum.rescale, shift) if e is not None)
    for s in region.stores:
        yield from (*s.payload.index, s.payload.program)


def _tuned(problem: Problem, machine: Target, best: Measured) -> Schedule:
    made = choose(problem, machine, best.decisions)
    because = [(name, why.replace("given", "tuned", 1)) for name, why in made.reasons]
    return replace(made, name="tuned", reasons=(*because, ("tuned", str(best))))


def problem_of(region: LoweredRegion, proof: TileProof, threads: int, hints: Mapping[str, int]) -> Problem:
    """The numbers that the cost model needs of a region. `proof`: what holds of small tiles of it."""
    numbers = _Numbers(region, hints)
    rows, keys = numbers.length(region.row), numbers.length(region.stream)
    items = math.prod(numbers.length(a) for a in region.batch)
    widths = tuple(numbers.width(s.over) for s in region.scores)
    streamed = next(t for t in region.loads if t.tile is region.scores[0].streamed)
    shared = next((x for x in walk(region.element(streamed)) if isinstance(x, Load)), None)
    own = items
    dtype: DType = "f32"
    if shared is not None:
        dims = (d if isinstance(d, int) else numbers.of(d) for d in region.tensors[shared.tensor].shape)
        own, dtype = max(1, math.prod(dims) // (keys * widths[0])), shared.dtype
    skipped, edges = _skipped(region, proof, rows, keys, numbers)
    bodies = [*(x.extremum.body for x in region.extrema), *(s.sum.weight for s in region.sums)]
    calls = {x for e in bodies for x in walk(e) if isinstance(x, Call)}
    scores = {s.tile.name for s in region.scores} | {region.stream.variable.name}
    per_score = [x for x in calls if any(v.name in scores for v in variables(x))]
    row, stream = region.row.variable, region.stream.variable
    keyed = _variables(region, [s.streamed for s in region.scores])
    valued = _variables(region, [s.values for s in region.sums if s.values is not None])
    own_keys = [a for a in region.batch if a.variable in keyed and valued and a.variable not in valued]
    return Problem(
        rows=rows, keys=keys, items=items, groups=max(1, items // own), widths=widths,
        value_widths=tuple(numbers.width(s.state.axes[1]) for s in region.sums if s.values is not None),
        dtype=dtype,
        exps=max(1, sum(1 for x in per_score if _costly(x))),
        score_loads=_loads(bodies, lambda v: {row, stream} <= v),
        key_loads=_loads(bodies, lambda v: stream in v and row not in v),
        score_ops=float(max(0, sum(1 for x in per_score if not _costly(x) and x.dtype != "i64") - 2)),
        skipped=skipped, edges=edges, ended=min(edges, len(proof.high)), retried=proof.fill is not None,
        states=max(1, len(region.extrema) + sum(1 for s in region.sums if s.values is None)), threads=threads,
        row_items=math.prod(numbers.length(a) for a in own_keys),
    )  # fmt: skip


def _variables(region: LoweredRegion, tiles: Sequence[MCValue]) -> frozenset[Var]:
    """The variables that the elements of loaded tiles are read with."""
    return frozenset[Var]().union(*(variables(region.element(t)) for t in region.loads if t.tile in tiles))


def _costly(x: Call) -> bool:
    """Whether a function is of the price of an exponential."""
    return x.fn in FUNCTIONS and FUNCTIONS[x.fn].cost != "cheap"


class _Numbers:
    """Sizes as numbers: what is hinted, 1024 for symbols of which nothing is known."""

    def __init__(self, region: LoweredRegion, hints: Mapping[str, int]) -> None:
        self.region, self.hints = region, hints

    def of(self, e: Expr) -> int:
        """The value of an expression of sizes of the source graph, at least 1."""
        return max(1, integer(e, {v.name: self.hints.get(v.name, ASSUMED) for v in variables(e)}))

    def size(self, name: str) -> int:
        """The value of a size symbol of the region."""
        return self.of(self.region.sizes[name])

    def length(self, axis: RegionAxis) -> int:
        """The number of positions of an axis."""
        return self.of(substitute(axis.extent, {v: self.region.sizes[v.name] for v in variables(axis.extent)}))

    def width(self, variable: str) -> int:
        """The number of positions of the axis with that variable."""
        r = self.region
        return self.length(next(a for a in (*r.contracted, *r.columns) if a.variable.name == variable))


def _loads(bodies: Iterable[Expr], wanted: Callable[[frozenset[Var]], bool]) -> tuple[int, ...]:
    """Bytes of the elements that are read at a place whose variables are `wanted`."""
    loads = dict.fromkeys(x for e in bodies for x in walk(e) if isinstance(x, Load))
    return tuple(BYTES[x.dtype] for x in loads if wanted(variables(x)))


def _skipped(region: LoweredRegion, proof: TileProof, rows: int, keys: int, numbers: _Numbers) -> tuple[float, float]:
    """The share of scores in provably empty tiles were tiles small, and the number of edges that a row crosses, which make larger
    tiles compute more: counted score by score, on some rows. When emptiness depends on tensors: (0, 0), or what is assumed of
    them."""
    if min(rows, keys) < FEW_SCORES:
        return 0.0, 0
    assumed = _assumed(region, proof)
    if assumed is not None:
        return assumed
    empty = _empty_scores(region, rows, keys, numbers)
    if empty is None:
        return 0.0, 0
    edges = (empty[:, 1:] != empty[:, :-1]).sum(axis=1).mean()
    return min(0.999, float(empty.mean())), round(float(edges), 2)


def _assumed(region: LoweredRegion, proof: TileProof) -> tuple[float, float] | None:
    """What is assumed to be skipped, and its edges, where the mask's empty tiles follow from tensors that say something of the
    rows; None where they do not. Numbers that are added to every score are seldom a mask: nothing is assumed of them."""
    read = {x.tensor for x in walk(proof.empty) if isinstance(x, Load)}
    of_rows = [r for r in proof.summaries if r.param in read and region.row.variable in r.axes]
    if any(len(r.axes) == 1 for r in of_rows):
        return ASSUMED_SKIPPED, ASSUMED_EDGES
    masks = [r for r in of_rows if not all(is_float(x.dtype) for x in walk(r.value) if isinstance(x, Load))]
    return (DENSE_SKIPPED, DENSE_EDGES) if masks else None


def _empty_scores(region: LoweredRegion, rows: int, keys: int, numbers: _Numbers) -> np.ndarray | None:
    """Which scores of some rows (evenly spaced, as many as there are keys to look at) are masked, by the proof for tiles of one;
    None when that depends on tensors."""
    empty = prove_tiles(carried(region), 1, 1).empty
    if any(isinstance(x, Load) for x in walk(empty)):
        return None
    looked_at = min(rows, MOST_ROWS, max(1, MOST_SCORES // keys))
    row, stream = f"{region.row.variable.name}0", f"{region.stream.variable.name}0"
    env: dict[str, Any] = {v.name: np.int64(numbers.size(v.name)) for v in variables(empty) if v.name in region.sizes}
    env |= {a.variable.name: np.int64(0) for a in region.batch}
    env[stream] = np.arange(keys)[None, :]
    env[row] = np.unique(np.linspace(0, rows - 1, looked_at).astype(np.int64))[:, None]
    holds = evaluate(empty, env)
    return np.broadcast_to(np.asarray(holds, dtype=bool), (len(env[row]), keys))
