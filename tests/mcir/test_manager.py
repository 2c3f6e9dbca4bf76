"""The pass manager: order, verification between passes, snapshots."""

from __future__ import annotations

import pytest

from aicf.mcir import MCIRPassManager, MCModule, ValidationError, dump_module
from aicf.mcir.passes.manager import pass_name
from tests.mcir.handmade import stated_module, tile_of


def detect(graph: str) -> MCModule:
    module = stated_module()
    module.regions[0].subregions.clear()
    return module


def lower(module: MCModule) -> MCModule:
    return stated_module()


def run_spoil_pass(module: MCModule) -> MCModule:
    tile_of(module).attrs["tile_m"] = 0
    return module


def test_passes_run_in_order_and_leave_snapshots():
    manager = MCIRPassManager([detect, lower], record=True)
    module = manager.run("a graph")
    assert [s.after for s in manager.snapshots] == ["input", "detect", "lower"]
    assert manager.snapshots[0].text == "a graph"
    assert "StreamingRegion" not in manager.snapshots[1].text
    assert manager.snapshots[2].text == dump_module(module, verbose=True)


def test_snapshots_are_of_the_last_run_and_only_if_asked_for():
    manager = MCIRPassManager([detect], record=True)
    manager.run("one")
    manager.run("two")
    assert [s.after for s in manager.snapshots] == ["input", "detect"] and manager.snapshots[0].text == "two"
    quiet = MCIRPassManager([detect])
    quiet.run("one")
    assert quiet.snapshots == []


def test_the_pass_that_breaks_a_module_is_named():
    with pytest.raises(ValidationError, match=r"invalid MCIR after pass spoil: .*\n.*tile_m is 0"):
        MCIRPassManager([detect, lower, run_spoil_pass]).run("a graph")
    MCIRPassManager([detect, lower, run_spoil_pass], verify=False).run("a graph")


def test_a_module_that_comes_in_broken_is_not_blamed_on_a_pass():
    with pytest.raises(ValidationError, match=r"^invalid MCIR: 2 faults\n"):
        MCIRPassManager([lambda m: m]).run(run_spoil_pass(stated_module()))


class AttentionPatternPass:
    def __call__(self, graph: str) -> MCModule:
        return detect(graph)


def test_passes_of_either_form_have_one_name():
    assert pass_name(AttentionPatternPass()) == "attention_pattern"
    assert pass_name(run_spoil_pass) == "spoil"
