"""Every legal schedule of a problem on a CPU: what an exhaustive search tries, the cost model's reluctance left aside.

The model compares a short list; here are also tiles that are too large for a cache, two register blocks at a time, and keys cut
into parts although there are work items for all threads.
"""

from __future__ import annotations

import math
from typing import Any

from aicf.schedule import cpu
from aicf.schedule.cost import choose
from aicf.schedule.problem import Problem
from aicf.schedule.schedule import Schedule
from aicf.schedule.target import CpuTarget

TILES_M = (1, 2, 4, 8, 16, 32, 64, 128)  # register blocks in a tile of rows
TILES_N = (1, 2, 4, 8, 16)  # and of keys
BLOCKS = (1, 2)  # register blocks worked on together
SPLITS = (1, 2, 4, 8, 16)
IDLE = 8  # work items per thread from which on cut keys only add work


def legal(problem: Problem, target: CpuTarget) -> list[Schedule]:
    """The grid, the model's own choice first, each schedule once."""
    schedules = {s.brief: s for s in (choose(problem, target), *_grid(problem, target))}
    return list(schedules.values())


def _grid(p: Problem, t: CpuTarget) -> list[Schedule]:
    block = cpu.register_tile(t, cpu.uses_matrix_unit(p, t))
    made: list[Schedule] = []
    for rows in sorted({min(p.rows, block.rows * x) for x in BLOCKS}):
        for m in _lengths(rows, TILES_M, p.rows):
            for n in _lengths(block.columns if p.rows > block.rows else cpu.lanes(t), TILES_N, p.keys):
                turns, units = math.ceil(p.keys / n), p.items * math.ceil(p.rows / m)
                most = turns if units < IDLE * cpu.threads(p, t) else 1
                shapes: list[dict[str, Any]] = [{"kv_split": s} for s in SPLITS if s <= most]
                if turns > 1:  # with one key tile both orders are the same
                    shapes.append({"order": "kv_major"})
                for shape in shapes:
                    given = {"order": "q_major", "tile_m": m, "tile_n": n, "rows": rows, **shape}
                    made.append(choose(p, t, given))
    return made


def _lengths(unit: int, multiples: tuple[int, ...], extent: int) -> list[int]:
    """Multiples of `unit`, up to the first that holds the extent."""
    lengths: list[int] = []
    for x in multiples:
        lengths.append(unit * x)
        if unit * x >= extent:
            break
    return lengths
