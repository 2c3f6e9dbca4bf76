"""Choosing a schedule, and whether to stream at all: every possible one of a short list is predicted, the fastest is taken.

    choose(Problem(rows=4096, keys=4096, items=16), host_target())  ->  Schedule, with a reason for each decision

Deterministic: the same problem, target and given decisions make the same schedule. Decisions that the caller gives are kept, or
refused with the numbers that forbid them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aicf.schedule import cpu, gpu
from aicf.schedule.problem import Problem, kv_major_bytes, q_major_bytes
from aicf.schedule.schedule import Order, Schedule, ScheduleError, Space, Unit, partial
from aicf.schedule.target import CpuTarget, Target

# Predictions this close are taken for equal; the one with less memory wins.
EQUAL = 0.01
EQUAL_GPU = 0.02  # on a GPU, whose rates are published figures and not this machine's own
# Key-major order needs scratch for the state and gives fewer work items: it must be predicted this much faster.
KV_MAJOR_MARGIN = 0.10
KV_MAJOR_BYTES = 4 << 20  # of state, per thread: more memory than that is not taken unasked


@dataclass(frozen=True)
class _Option:
    """A schedule without reasons, its prediction and its memory (bytes of the working set, or of shared memory)."""

    schedule: Schedule
    seconds: float
    memory: int


def estimate(problem: Problem, schedule: Schedule, target: Target) -> float:
    """Predicted seconds of streaming `problem` under `schedule` on `target`."""
    problem = problem.under(schedule.order)
    if isinstance(target, CpuTarget):
        return cpu.estimate(problem, schedule, target)
    return gpu.estimate(problem, schedule, target)


def estimate_unfused(problem: Problem, target: Target) -> float:
    """Predicted seconds of the unfused graph, its score matrix in memory."""
    if isinstance(target, CpuTarget):
        return cpu.estimate_unfused(problem, target)
    return gpu.estimate_unfused(problem, target)


@dataclass(frozen=True)
class Prediction:
    """What the cost model expects of a call: seconds, and bytes moved between the processor and memory or the caches that cores
    share, streamed and unfused. `of_all`: what the mask hides is not known before a call, and nothing of it is counted on."""

    seconds: float
    unfused_seconds: float
    moved: int
    unfused_moved: int
    of_all: bool = False

    @property
    def fuse(self) -> bool:
        return self.seconds <= self.unfused_seconds

    def __str__(self) -> str:
        given = " if the mask hides nothing" if self.of_all else ""
        return f"predicted to take {_time(self.seconds)}{given}, unfused {_time(self.unfused_seconds)}"


def predict(problem: Problem, target: Target, schedule: Schedule | None = None, of_all: bool = False) -> Prediction:
    """What streaming `problem` under `schedule` (the best one when None) is expected to take, and the unfused graph."""
    chosen = choose(problem, target) if schedule is None else schedule
    p = problem
    each = q_major_bytes(p, chosen.tile_m) if chosen.order == "q_major" else kv_major_bytes(p, chosen.tile_n)
    scores = cpu.score_traffic(p) if isinstance(target, CpuTarget) else gpu.score_traffic(p)
    # The unfused products are taken to read their operands as often as rows in such tiles would.
    unfused = scores + p.items * q_major_bytes(replace(p, skipped=0.0, edges=0, ended=0), chosen.tile_m)
    return Prediction(
        estimate(p, chosen, target), estimate_unfused(p, target), round(p.items * each), round(unfused), of_all
    )  # fmt: skip


def choose(problem: Problem, target: Target, fixed: Mapping[str, Any] | str | None = None) -> Schedule:
    """The schedule predicted to be fastest among those that fit, with its reasons.

    `fixed`: decisions to keep, as text or mapping (see `Schedule.parse`). Raises ScheduleError when they cannot be, or do not
    fit.
    """
    given = Schedule.parse(fixed) if isinstance(fixed, str) else partial(fixed or {})
    if "threads" in given:
        problem = replace(problem, threads=given["threads"])
    if given.get("tile_k", max(problem.widths)) < max(problem.widths):
        raise ScheduleError(
            f"tile_k={given['tile_k']}: a score needs its whole contraction of {max(problem.widths)}; "
            "give at least that, or leave it out"
        )
    options = _cpu_options(problem, target, given) if isinstance(target, CpuTarget) else _gpu_options(problem, target, given)
    best = _fastest(options, EQUAL if isinstance(target, CpuTarget) else EQUAL_GPU)
    axis = "sequence" if problem.value_widths else "streamed"
    return replace(best.schedule, stream_axis=axis, reasons=_reasons(problem, target, best, options, given))


def _fastest(options: list[_Option], equal: float) -> _Option:
    """The fastest; of those about as fast the one with the least memory, then the fewest parts, then the smallest tiles."""
    straight = [o for o in options if o.schedule.order == "q_major"]
    limit = min((o.seconds for o in straight), default=math.inf) * (1 - KV_MAJOR_MARGIN)
    turned = [o for o in options if o.schedule.order == "kv_major" and (not straight or o.seconds < limit)]
    pool = turned or straight
    least = min(o.seconds for o in pool)
    close = [o for o in pool if o.seconds <= least * (1 + equal)]
    return min(
        close,
        key=lambda o: (o.schedule.kv_split, o.memory, o.schedule.tile_n, o.schedule.tile_m, o.schedule.warps, o.schedule.stages),
    )


def _orders(problem: Problem, given: Mapping[str, Any]) -> tuple[Order, ...]:
    if "order" in given:
        return (given["order"],)
    # Cut keys are parts of the streamed axis; under kv_major the outer loop walks the keys already.
    return ("q_major",) if given.get("kv_split", 1) > 1 else ("q_major", "kv_major")


def _splits(problem: Problem, given: Mapping[str, Any], order: Order, units: int, workers: int, tile_n: int) -> list[int]:
    """Into how many parts the keys may be cut: none while there are work items enough, and never below 4 tiles a part."""
    if "kv_split" in given:
        return [given["kv_split"]]
    if order == "kv_major" or units >= workers:
        return [1]
    most = max(1, min(math.ceil(workers / units), math.ceil(problem.keys / tile_n) // 4))
    return sorted({1, most, *(s for s in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if s < most)})


# ------------------------------------------------------------------------------------------------ CPU


def _spills_much(p: Problem, t: Target, given: Mapping[str, Any]) -> bool:
    """Whether key-major order, which nobody asked for, would keep more state in memory than it may."""
    return isinstance(t, CpuTarget) and "order" not in given and p.state_bytes > KV_MAJOR_BYTES * cpu.threads(p, t)


def _cpu_options(p: Problem, t: CpuTarget, given: Mapping[str, Any]) -> list[_Option]:
    ms, ns, block = cpu.candidates(p, t)
    orders: tuple[Order, ...] = ("q_major",) if _spills_much(p, t, given) else _orders(p, given)
    made: list[_Option] = []
    for m in [given["tile_m"]] if "tile_m" in given else ms:
        rows = given.get("rows", min(block.rows, m))
        for n in [given["tile_n"]] if "tile_n" in given else ns:
            free = "tile_m" not in given and "tile_n" not in given
            if free and not cpu.fits(p, t, m, n, rows) and (m, n) != (ms[0], ns[0]):
                continue
            for order in orders:
                units = p.items * (math.ceil(p.rows / m) if order == "q_major" else 1)
                for split in _splits(p, given, order, units, 2 * cpu.threads(p, t), n):
                    s = Schedule(
                        m, n, given.get("tile_k", max(p.widths)), rows, _cpu_residency(m, rows, order, given), order, split,
                        given.get("stages", 1), _mapping("thread", order, split), given.get("warps", 1), cpu.threads(p, t),
                    )  # fmt: skip
                    made.append(_Option(s, estimate(p, s, t), cpu.working_set(p, m, n, rows)))
    return made


def _cpu_residency(tile_m: int, rows: int, order: Order, given: Mapping[str, Any]) -> tuple[tuple[str, Space], ...]:
    kept: Space = "register" if rows >= tile_m else "shared"
    # One block of rows uses a tile of K and V once: it goes from memory to registers, a packed copy would not pay.
    read: Space = "register" if rows >= tile_m and order == "q_major" else "shared"
    return _places({"state": kept, "output_acc": kept, "K_tile": read, "V_tile": read}, given)


def _places(own: dict[str, Space], given: Mapping[str, Any]) -> tuple[tuple[str, Space], ...]:
    usual: dict[str, Space] = {
        "Q_tile": "shared", "K_tile": "shared", "V_tile": "shared", "score_frag": "register", "state": "register",
        "output_acc": "register", "O_tile": "global",
    }  # fmt: skip
    places: dict[str, Space] = {**usual, **own, **given.get("residency", {})}
    return tuple(places.items())


def _mapping(unit: Unit, order: Order, split: int) -> tuple[tuple[str, Unit], ...]:
    loops: tuple[str, ...] = ("b", "h", "i0") if order == "q_major" else ("b", "h")
    outer: tuple[tuple[str, Unit], ...] = tuple((loop, unit) for loop in (*loops, *(("part",) if split > 1 else ())))
    return (*outer, ("i", "warp")) if unit == "block" else outer


# ------------------------------------------------------------------------------------------------ GPU


def _gpu_options(p: Problem, t: gpu.GpuTarget, given: Mapping[str, Any]) -> list[_Option]:
    tiles = {
        (given.get("tile_m", m), given.get("tile_n", n), given.get("warps", w), given.get("stages", s)): None
        for m, n, w, s in gpu.candidates(p, t)
    }
    made: list[_Option] = []
    refused: list[str] = []
    for m, n, warps, stages in tiles:
        wrong = gpu.problems(p, t, m, n, warps, stages)
        if wrong:
            refused.append(f"tile_m {m}, tile_n {n}, warps {warps}, stages {stages} needs " + " and ".join(wrong))
            continue
        for order in _orders(p, given):
            units = p.items * (math.ceil(p.rows / m) if order == "q_major" else 1)
            for split in _splits(p, given, order, units, math.ceil(gpu.SPLIT_FILL * t.sms), n):
                s = Schedule(
                    m, n, given.get("tile_k", gpu.power(max(p.widths))), given.get("rows", max(gpu.MMA_ROWS, m // warps)),
                    _places({}, given), order, split, stages, _mapping("block", order, split), warps, 1,
                )  # fmt: skip
                made.append(_Option(s, estimate(p, s, t), gpu.use(p, t, m, n, warps, stages).shared))
    if not made:
        raise ScheduleError(
            f"nothing fits {t.name}: {min(refused, key=lambda text: (len(text), text))}. Give smaller tiles or fewer stages."
        )
    return made


# ------------------------------------------------------------------------------------------------ reasons


def _reasons(
    p: Problem, t: Target, best: _Option, options: list[_Option], given: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    s = best.schedule
    told: dict[str, str] = {}
    tiles = math.ceil(p.rows / s.tile_m)
    head = p.bytes * p.keys * (p.width + p.value_width)
    if p.value_widths:
        operands, keys, state, are = "K and V are", "keys", "accumulators and state", "are"
    else:
        operands, keys, state, are = "the streamed operand is", "streamed positions", "state", "is"
    times = "once" if tiles == 1 else f"{tiles} times"
    told["tile_m"] = f"{_bytes(head)} of {operands} read {times} an item; {_compare(best, options, 'tile_m')}"
    told["tile_n"] = _compare(best, options, "tile_n")
    told["tile_k"] = f"a score needs its whole contraction, {max(p.widths)}"
    if isinstance(t, CpuTarget):
        block = cpu.register_tile(t, cpu.uses_matrix_unit(p, t))
        told["tile_n"] += f"; panels up to {cpu.depth_limit(t, block)} {keys} stay in L1 ({_bytes(t.l1d)}, {t.l1_ways} ways)"
        few = "" if s.rows >= block.rows else f"a tile has {s.tile_m}; with more of them, "
        if s.rows == p.rows < block.rows:
            few = f"there are {p.rows}; with more of them, "
        told["rows"] = few + block.reason
        share = _bytes(cpu.CACHE_SHARE * t.l2)
        fits = "fits" if best.memory <= cpu.CACHE_SHARE * t.l2 else "is more than"
        told["working_set"] = (
            f"{_bytes(best.memory)} {fits} {cpu.CACHE_SHARE:g} of L2 ({share}); "
            f"the smallest of the schedules within {EQUAL:.0%} of the fastest"
        )
        kept = 4 * s.tile_m * (p.value_width + p.states)
        if s.space("output_acc") == "shared":
            told["residency"] = (
                f"{state} of {s.tile_m} rows {are} {_bytes(kept)}, the vector registers hold "
                f"{_bytes(t.registers * t.vector_bits // 8)}: a core-private buffer keeps them between blocks"
            )
        else:
            told["residency"] = f"the tile is one block of {s.rows} rows: its {state} stay{'s' * (are == 'is')} in registers"
        units = p.items * (tiles if s.order == "q_major" else 1)
        told["kv_split"] = _split_reason(p, best, options, units, 2 * s.threads, _count(s.threads, "thread"))
        kept_as = "one packed tile is in use" if s.space("K_tile") != "register" else "tiles are read as they lie"
        told["stages"] = f"the hardware prefetches; {kept_as}"
        told["threads"] = f"{p.threads} asked for, {_count(t.cores, 'core')}"
    else:
        used = gpu.use(p, t, s.tile_m, s.tile_n, s.warps, s.stages)
        told["rows"] = f"{s.tile_m} rows over {s.warps} warps"
        kept = "accumulators" if p.value_widths else state
        told["residency"] = (
            f"{used.shared} of {t.shared_per_block} bytes of shared memory; scores and {kept} in {used.registers} of "
            f"{t.registers_per_thread} registers a thread; {used.resident} blocks an SM"
        )
        mma, other = gpu.compute_clocks(p, t, s.tile_m, s.tile_n, s.warps)
        told["stages"] = (
            f"a tile takes {mma:.0f} clocks of {_instruction(p, t, s)} and {other:.0f} of exponentials; "
            f"{_compare(best, options, 'stages')}"
        )
        told["warps"] = _compare(best, options, "warps")
        units = p.items * (tiles if s.order == "q_major" else 1)
        told["kv_split"] = _split_reason(
            p, best, options, units, math.ceil(gpu.SPLIT_FILL * t.sms), f"{gpu.SPLIT_FILL:g} x {t.sms} SMs"
        )
    if given.get("kv_split", 1) == 1 and _spills_much(p, t, given):
        spilled = f"that state takes {_bytes(p.state_bytes)}, above its limit of {_bytes(KV_MAJOR_BYTES)} a thread"
    else:
        spilled = _compare(best, options, "order")
    told["order"] = (
        f"q_major moves {_bytes(p.items * q_major_bytes(p, s.tile_m))}, kv_major {_bytes(p.items * kv_major_bytes(p, s.tile_n))} "
        f"with its state spilled; {spilled}"
    )
    turned = min((o.seconds for o in options if o.schedule.order == "kv_major"), default=math.inf)
    if s.order == "q_major" and turned < best.seconds:
        told["order"] += f"; kv_major needs scratch memory, so it is chosen only if it is at least {KV_MAJOR_MARGIN:.0%} faster"
    for name in given:
        told[name] = "given"
    return tuple((name, told[name]) for name in sorted(told))


def _instruction(p: Problem, t: gpu.GpuTarget, s: Schedule) -> str:
    """What multiplies: a matrix instruction by name, or FMAs."""
    mma = gpu.sharing(p, t, s.tile_m, s.tile_n, s.warps).mma
    return "FMA" if mma is None else mma.name


def _compare(best: _Option, options: list[_Option], field: str) -> str:
    """What the best schedules with other values of one decision would take, in the same order: up to two below and two above."""
    by: dict[Any, float] = {}
    for o in options:
        if field != "order" and o.schedule.order != best.schedule.order:
            continue
        value = getattr(o.schedule, field)
        by[value] = min(by.get(value, math.inf), o.seconds)
    mine = getattr(best.schedule, field)
    values = sorted(by, key=lambda v: (str(type(v)), v))
    at = values.index(mine)
    near = [v for v in values[max(0, at - 2) : at + 3] if v != mine]
    first, *others = [f"{by[v] / best.seconds:.2f}x" for v in near] or [""]
    if not first:
        return "nothing else is possible"
    return ", ".join([f"{near[0]} would take {first} as long", *(f"{v} {x}" for v, x in zip(near[1:], others, strict=True))])


def _split_reason(p: Problem, best: _Option, options: list[_Option], units: int, enough: int, what: str) -> str:
    if units >= enough:
        keys = "keys" if p.value_widths else "streamed positions"
        return f"{units} work items are enough for {what} ({enough} would be): the {keys} are not cut"
    return f"{units} work item{'s' * (units != 1)} for {what}; {_compare(best, options, 'kv_split')}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _time(seconds: float) -> str:
    return f"{_digits(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{_digits(seconds * 1e6)} us"


def _bytes(count: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def _digits(x: float) -> str:
    """Three digits, or the whole part where that has more."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"
