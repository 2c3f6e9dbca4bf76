"""Schedules as values: printed, given in part, refused when they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aicf.schedule import VALUES, Schedule, ScheduleError, check, decisions, partial
from aicf.schedule.schedule import Space

PLACES: tuple[tuple[str, Space], ...] = (
    ("Q_tile", "shared"), ("K_tile", "shared"), ("V_tile", "shared"), ("score_frag", "register"), ("state", "register"),
    ("output_acc", "register"), ("O_tile", "global"),
)  # fmt: skip
GIVEN = Schedule(
    tile_m=128, tile_n=64, tile_k=64, rows=128, residency=PLACES, mapping=(("b", "block"), ("h", "block"), ("i0", "block")),
    name="given", reasons=(("tiles", "by hand"),),
)  # fmt: skip


def test_a_schedule_is_complete_and_prints_all_of_it(golden: Callable[[str, str], None]):
    assert GIVEN.space("state") == "register" and GIVEN.space("O_tile") == "global"
    assert check(GIVEN) == []
    golden("given.txt", f"{GIVEN}\n")


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
        ({"residency": GIVEN.residency[1:]}, "residency does not say where Q_tile lives"),
        ({"residency": (*GIVEN.residency[:-1], ("O_tile", "disk"))}, "O_tile in 'disk' memory"),
        ({"residency": tuple((v, "global") for v in VALUES)}, "the score matrix would be stored"),
        ({"mapping": (("b", "grid"),)}, "loop b runs per 'grid'"),
    ],
)
def test_an_inconsistent_schedule_cannot_be_made(change: dict[str, Any], message: str):
    with pytest.raises(ScheduleError) as caught:
        replace(GIVEN, **change)
    assert message in str(caught.value)


def test_decisions_leave_reasons_out():
    other = replace(GIVEN, reasons=(), name="mine")
    assert decisions(other) == decisions(GIVEN)
    assert decisions(replace(GIVEN, threads=4)) != decisions(GIVEN)
    assert GIVEN.reason("tiles") == "by hand"
