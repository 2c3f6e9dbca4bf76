"""Schedules as values: printed, given in part, refused when they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aicf.schedule import FIXED, VALUES, Schedule, ScheduleError, check, decisions, partial, with_threads


def test_the_fixed_policy_is_the_specification(golden: Callable[[str, str], None]):
    assert (FIXED.name, FIXED.tile_m, FIXED.tile_n, FIXED.tile_k, FIXED.stream_axis) == ("spec", 128, 64, 64, "sequence")
    assert FIXED.order == "q_major"
    places = {"Q_tile": "shared", "K_tile": "shared", "V_tile": "shared", "score_frag": "register", "output_acc": "register"}
    assert {value: FIXED.space(value) for value in places} == places
    assert FIXED.space("state") == "register" and FIXED.space("O_tile") == "global"
    assert check(FIXED) == []
    golden("fixed.txt", f"{FIXED}\n")


def test_a_part_can_be_given_as_text():
    given = Schedule.parse("tile_m=128, tile_n=64,order=q_major, residency.K_tile=register")
    assert given == {"tile_m": 128, "tile_n": 64, "order": "q_major", "residency": {"K_tile": "register"}}
    assert partial({"tile_m": 128, "residency": {"V_tile": "shared"}}) == {"tile_m": 128, "residency": {"V_tile": "shared"}}
    assert Schedule.parse("") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tile_m", "`tile_m`: write name=value, for example tile_m=128"),
        ("tile_m=", "`tile_m=`: write name=value, for example tile_m=128"),
        ("tile_m=0", "tile_m=0: it is a whole number of at least 1"),
        ("tile_m=-4", "tile_m=-4: it is a whole number of at least 1"),
        ("tile_m=many", "tile_m=many: it is a whole number of at least 1"),
        ("tile_n=6.5", "tile_n=6.5: it is a whole number of at least 1"),
        ("order=k_major", "order='k_major': it is one of q_major, kv_major"),
        ("tiles=4", "a schedule has no 'tiles'; what can be given: tile_m, tile_n"),
        ("residency.Q=shared", "residency of 'Q': the values are Q_tile, K_tile"),
        ("residency.Q_tile=cache", "residency.Q_tile=cache: it is one of global, shared, register"),
    ],
)
def test_what_cannot_be_given_is_said(text: str, message: str):
    with pytest.raises(ScheduleError) as caught:
        Schedule.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [6.5, None, [1], 0])
def test_counts_from_a_mapping_are_checked_too(value: Any):
    with pytest.raises(ScheduleError, match="a whole number of at least 1"):
        partial({"tile_m": value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile_n": 0}, "tile_n is 0, it must be at least 1"),
        ({"rows": 129}, "rows 129 is more than tile_m 128"),
        ({"order": "keys"}, "order 'keys' is none of q_major, kv_major"),
        ({"order": "kv_major", "kv_split": 2}, "kv_split 2 under kv_major"),
        ({"residency": FIXED.residency[1:]}, "residency does not say where Q_tile lives"),
        ({"residency": (*FIXED.residency[:-1], ("O_tile", "disk"))}, "O_tile in 'disk' memory"),
        ({"residency": tuple((v, "global") for v in VALUES)}, "the score matrix would be stored"),
        ({"mapping": (("b", "grid"),)}, "loop b runs per 'grid'"),
    ],
)
def test_an_inconsistent_schedule_cannot_be_made(change: dict[str, Any], message: str):
    with pytest.raises(ScheduleError) as caught:
        replace(FIXED, **change)
    assert message in str(caught.value)


def test_decisions_leave_reasons_out():
    other = replace(FIXED, reasons=(), name="mine")
    assert decisions(other) == decisions(FIXED)
    assert decisions(with_threads(FIXED, 4)) != decisions(FIXED)
    assert FIXED.reason("tiles").startswith("fixed by the specification")
