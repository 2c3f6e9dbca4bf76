"""From a recognised region to the cost model's question, and its answer: a schedule, and whether to stream at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from aicf.mcir.passes.streaming_lowering import Tiling, tiling
from aicf.scalar import BYTES, Call, Expr, Load, Var, evaluate, fingerprint, integer, is_float, unknown, variables, walk
from aicf.schedule.cost import Prediction, choose, predict
from aicf.schedule.problem import Problem
from aicf.schedule.schedule import Schedule
from aicf.schedule.target import CpuTarget, Target, host_target, named_target
from aicf.semantic.types import product
from aicf.streaming.recognise import Recognised
from aicf.streaming.stream_program import StreamProgram

ASSUMED = 1024  # the value of a size symbol of which nothing is known
# What is hidden by a mask that compares tensors of the rows with tensors of the keys (documents), of which nothing is known: most
# of the scores, a run of keys left for each row. Large tiles cost a dense mask a few percent less, such a mask half again.
ASSUMED_SKIPPED, ASSUMED_EDGES = 0.75, 2
# What is assumed that a dense mask tensor hides, of which nothing is known: as much as a causal mask.
DENSE_SKIPPED, DENSE_EDGES = 0.5, 1
FEW_SCORES = 64  # rows or keys below which a mask is not looked into
MOST_ROWS, MOST_SCORES = 64, 1 << 20  # that are looked at to know how much a mask hides
EXPONENTIALS = ("exp", "exp2", "expm1", "tanh", "sigmoid", "softplus", "erf", "log", "pow", "sin", "cos")


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
    found: Recognised, program: StreamProgram, target: Target | str | None, fixed: Mapping[str, Any] | str | None,
    threads: int | None, hints: Mapping[str, int], measured: Search = _nothing,
) -> Decision:  # fmt: skip
    """The schedule of a region on a target, and whether streaming is expected to be faster than the unfused form.

    `fixed`: decisions of the user's, kept. `hints`: likely values of size symbols; unknown ones are taken for 1024. `measured`:
    what a search found for a problem; it is used where the user decided nothing. Raises ScheduleError for decisions that cannot
    be and KeyError for an unknown target.
    """
    machine = host_target() if target is None else named_target(target) if isinstance(target, str) else target
    workers = threads or getattr(machine, "cores", 1)
    problem = problem_of(found, program, workers, hints)
    # What is only assumed to be skipped chooses tiles, but is no reason to stream. On a GPU small tiles cost much more.
    uncertain = _assumed(found, tiling(found, program, 32, 32)) is not None
    sure = replace(problem, skipped=0.0, edges=0, ended=0) if uncertain else problem
    problem = problem if isinstance(machine, CpuTarget) else sure
    meaning = meaning_of(found, program)
    best = None if fixed else measured(problem, machine, meaning)
    schedule = choose(problem, machine, fixed) if best is None else _tuned(problem, machine, best)
    prediction = predict(sure, machine, schedule, of_all=uncertain)
    return Decision(schedule, prediction.fuse, str(prediction), problem, meaning, prediction)


def meaning_of(found: Recognised, program: StreamProgram) -> str:
    """What is computed, whatever its tensors are called: a hash of the program, its tensors numbered as they appear."""
    names: dict[str, str] = {}
    for e in _expressions(program):
        for x in unknown(e, ()):
            if isinstance(x, Load) and x.tensor in found.loads:
                names.setdefault(x.tensor, f"tensor {len(names)}")
    return fingerprint(program, names=names)


def _expressions(program: StreamProgram) -> Iterator[Expr]:
    """All expressions of a program, in its order."""
    for b in program.bases:
        yield from (b.body, *([] if b.init is None else [b.init]))
    for s in program.sums:
        shift = s.shift.distance if s.shift is not None else None
        yield from (e for e in (s.body, s.weight, s.value, s.scale, shift) if e is not None)
        yield from (e for _, e in s.stabilisers)
    yield from program.finalize.values()


def _tuned(problem: Problem, machine: Target, best: Measured) -> Schedule:
    made = choose(problem, machine, best.decisions)
    because = [(name, why.replace("given", "tuned", 1)) for name, why in made.reasons]
    return replace(made, name="tuned", reasons=(*because, ("tuned", str(best))))


def problem_of(found: Recognised, program: StreamProgram, threads: int, hints: Mapping[str, int]) -> Problem:
    """The numbers that the cost model needs of a region."""

    def number(e: Expr) -> int:
        return max(1, integer(e, {v.name: hints.get(v.name, ASSUMED) for v in variables(e)}))

    rows, keys = number(found.extents[found.row]), number(found.extents[found.stream])
    items = 1
    for v in found.batch:
        items *= number(found.extents[v])
    widths = tuple(number(a.width) for a in found.atoms)
    shared = next((x for x in walk(found.atoms[0].key) if isinstance(x, Load)), None)
    own = items
    if shared is not None and shared.tensor in found.loads:
        own = max(1, number(product(found.loads[shared.tensor].type.shape)) // (keys * widths[0]))
    tiled = tiling(found, program, 32, 32)
    skipped, edges = _skipped(found, program, tiled, rows, keys, dict(hints))
    bodies = [*(b.body for b in program.bases), *(s.weight for s in program.sums)]
    calls = {x for e in bodies for x in walk(e) if isinstance(x, Call)}
    per_score = [x for x in calls if variables(x) & {*program.atoms, found.stream}]
    return Problem(
        rows=rows, keys=keys, items=items, groups=max(1, items // own), widths=widths,
        value_widths=tuple(number(found.extents[s.payload[0]]) for s in program.sums if s.payload),
        dtype=shared.dtype if shared is not None else "f32",
        exps=max(1, sum(1 for x in per_score if x.fn in EXPONENTIALS)),
        score_loads=_loads(bodies, lambda v: {found.row, found.stream} <= v),
        key_loads=_loads(bodies, lambda v: found.stream in v and found.row not in v),
        score_ops=float(max(0, sum(1 for x in per_score if x.fn not in EXPONENTIALS and x.dtype != "i64") - 2)),
        skipped=skipped, edges=edges, ended=min(edges, len(tiled.high)), retried=tiled.fill is not None,
        states=max(1, len(program.bases) + sum(1 for s in program.sums if not s.payload)), threads=threads,
    )  # fmt: skip


def _loads(bodies: Iterable[Expr], wanted: Callable[[frozenset[Var]], bool]) -> tuple[int, ...]:
    """Bytes of the elements that are read at a place whose variables are `wanted`."""
    loads = dict.fromkeys(x for e in bodies for x in walk(e) if isinstance(x, Load))
    return tuple(BYTES[x.dtype] for x in loads if wanted(variables(x)))


def _skipped(
    found: Recognised, program: StreamProgram, tiled: Tiling, rows: int, keys: int, hints: dict[str, int]
) -> tuple[float, float]:
    """The share of scores in provably empty tiles were tiles small, and the number of edges that a row crosses, which make larger
    tiles compute more: counted score by score, on some rows. When emptiness depends on tensors: (0, 0), or what is assumed of
    them."""
    if min(rows, keys) < FEW_SCORES:
        return 0.0, 0
    assumed = _assumed(found, tiled)
    if assumed is not None:
        return assumed
    empty = _empty_scores(found, program, rows, keys, hints)
    if empty is None:
        return 0.0, 0
    edges = (empty[:, 1:] != empty[:, :-1]).sum(axis=1).mean()
    return min(0.999, float(empty.mean())), round(float(edges), 2)


def _assumed(found: Recognised, tiled: Tiling) -> tuple[float, float] | None:
    """What is assumed to be skipped, and its edges, where the mask's empty tiles follow from tensors that say something of the
    rows; None where they do not. Numbers that are added to every score are seldom a mask: nothing is assumed of them."""
    read = {x.tensor for x in walk(tiled.empty) if isinstance(x, Load)}
    of_rows = [r for r in tiled.summaries if r.param in read and found.row in r.axes]
    if any(len(r.axes) == 1 for r in of_rows):
        return ASSUMED_SKIPPED, ASSUMED_EDGES
    masks = [r for r in of_rows if not all(is_float(x.dtype) for x in walk(r.value) if isinstance(x, Load))]
    return (DENSE_SKIPPED, DENSE_EDGES) if masks else None


def _empty_scores(found: Recognised, program: StreamProgram, rows: int, keys: int, hints: dict[str, int]) -> np.ndarray | None:
    """Which scores of some rows (evenly spaced, as many as there are keys to look at) are masked, by the proof for tiles of one;
    None when that depends on tensors."""
    empty = tiling(found, program, 1, 1).empty
    if any(isinstance(x, Load) for x in walk(empty)):
        return None
    looked_at = min(rows, MOST_ROWS, max(1, MOST_SCORES // keys))
    env: dict[str, Any] = {v.name: np.int64(hints.get(v.name, ASSUMED)) for v in variables(empty)}
    env |= {v.name: np.int64(0) for v in found.batch}
    env |= {"N": np.int64(rows), "M": np.int64(keys), found.stream.name + "0": np.arange(keys)[None, :]}
    env[found.row.name + "0"] = np.unique(np.linspace(0, rows - 1, looked_at).astype(np.int64))[:, None]
    holds = evaluate(empty, env)
    return np.broadcast_to(np.asarray(holds, dtype=bool), (len(env[found.row.name + "0"]), keys))
