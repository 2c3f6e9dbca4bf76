"""The scripts in benchmarks/ run, at sizes that take no time; their figures are not looked at."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from benchmarks import costs


def test_the_power_of_a_power_law_is_found():
    assert costs.power([1, 2, 4], [5, 20, 80]) == pytest.approx(2)
    assert costs.power([10, 100, 1000], [7, 7, 7]) == pytest.approx(0)
    assert math.isnan(costs.power([1], [1])) and math.isnan(costs.power([1, 2], [0, 1]))


def test_growth_compiles_once_for_all_lengths(capsys: pytest.CaptureFixture[str]):
    found = costs.growth(1, [80, 128, 192], 0.0)
    assert {name: (f["compilations"], [r["n"] for r in f["rows"]]) for name, f in found.items()} == {
        "dense": (1, [80, 128, 192]), "window": (1, [80, 128, 192]),
    }  # fmt: skip
    assert capsys.readouterr().out.count("compiled 1 time for 3 lengths") == 2


def test_calls_of_every_kind_are_measured(capsys: pytest.CaptureFixture[str]):
    found = costs.call(1, 0.0)
    assert {"the executable", "the compiled function, rest eager", "SDPA"} <= set(found) and min(found.values()) > 0
