"""The grid of an exhaustive search holds the model's own choice and only schedules that can be."""

from __future__ import annotations

import pytest

from aicf.schedule import CpuTarget, Problem, check, choose
from aicf.schedule.grid import legal
from aicf.schedule.target import AMX, AVX2, AVX512, NEON

PROBLEMS = (
    Problem(rows=128, keys=128, items=32, threads=2),
    Problem(rows=2048, keys=2048, items=8, skipped=0.4, edges=1, threads=2),
    Problem(rows=4, keys=8192, items=2, groups=4, dtype="bf16", threads=2),
    Problem(rows=1, keys=1, threads=1),
)


@pytest.mark.parametrize("target", [AVX2, AVX512, AMX, NEON], ids=lambda t: t.name)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.rows}x{p.keys}")
def test_the_models_choice_is_first_and_everything_is_legal_once(problem: Problem, target: CpuTarget):
    schedules = legal(problem, target)
    assert schedules[0].brief == choose(problem, target).brief
    assert len({s.brief for s in schedules}) == len(schedules)
    assert [check(s) for s in schedules] == [[]] * len(schedules)


def test_both_orders_cut_keys_and_tiles_beyond_the_caches_are_there():
    schedules = legal(PROBLEMS[1], AVX2)
    assert {s.order for s in schedules} == {"q_major", "kv_major"}
    assert max(s.tile_m for s in schedules) > max(128, choose(PROBLEMS[1], AVX2).tile_m)
    few = legal(PROBLEMS[2], AVX2)
    assert {s.kv_split for s in few} == {1, 2, 4, 8, 16}
    assert all(s.kv_split == 1 for s in legal(Problem(rows=64, keys=64, items=64, threads=2), AVX2))
