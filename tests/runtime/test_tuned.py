"""A tuned schedule is found again for the problem that it was made for, for its neighbours, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aicf.decide import meaning_of
from aicf.driver import Compilation, Options, compile_graph
from aicf.mcir.lowered import lowered_region
from aicf.runtime import tuned
from aicf.schedule import Problem, choose, host_target
from aicf.schedule.target import AVX2
from aicf.semantic import Graph, build_attention_semantic_graph

PROBLEM = Problem(rows=500, keys=1000, items=8, threads=2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))


def found(problem: Problem = PROBLEM) -> tuned.Tuned:
    return tuned.kept(choose(problem, AVX2, {"tile_m": 24, "tile_n": 32}), 99, 1e-3, 2e-3)


def test_what_is_stored_is_found_again():
    assert tuned.find(PROBLEM, AVX2, "meaning") is None
    assert tuned.store(PROBLEM, AVX2, "meaning", found())
    assert tuned.find(PROBLEM, AVX2, "meaning") == found()
    assert str(found()) == "the fastest of 99 measured, 2.00 times as fast as the cost model's choice"


@pytest.mark.parametrize("change", [{"rows": 600}, {"keys": 800}, {"items": 7}])
def test_sizes_of_the_same_class_find_it(change: dict[str, int]):
    tuned.store(PROBLEM, AVX2, "meaning", found())
    assert tuned.find(replace(PROBLEM, **change), AVX2, "meaning") == found()


@pytest.mark.parametrize("change", [{"rows": 2000}, {"threads": 1}, {"widths": (128,)}, {"dtype": "bf16"}, {"groups": 4}])
def test_other_problems_do_not(change: dict[str, object]):
    tuned.store(PROBLEM, AVX2, "meaning", found())
    assert tuned.find(replace(PROBLEM, **change), AVX2, "meaning") is None  # pyright: ignore[reportArgumentType]


def test_another_meaning_or_machine_does_not_but_another_clock_does():
    tuned.store(PROBLEM, AVX2, "meaning", found())
    assert tuned.find(PROBLEM, AVX2, "another") is None
    assert tuned.find(PROBLEM, replace(AVX2, l2=AVX2.l2 * 2), "meaning") is None
    assert tuned.find(PROBLEM, replace(AVX2, ghz=1.0), "meaning") == found()


def test_a_file_that_does_not_check_is_as_none(tmp_path: Path):
    tuned.store(PROBLEM, AVX2, "meaning", found())
    (file,) = tmp_path.rglob("*.schedule")
    file.write_bytes(file.read_bytes()[:-1] + b"]")
    assert tuned.find(PROBLEM, AVX2, "meaning") is None


def test_without_a_cache_nothing_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AICF_CACHE_DIR", "")
    assert not tuned.store(PROBLEM, AVX2, "meaning", found())
    assert tuned.find(PROBLEM, AVX2, "meaning") is None


# ------------------------------------------------------------------------------------------------ in the pipeline


def graph(mask: str | None = "causal") -> Graph:
    return build_attention_semantic_graph(dtype="f32", mask=mask)


SIZES = {"B": 1, "H": 8, "N": 512, "M": 512}


def compiled(g: Graph, **options: object) -> Compilation:
    return compile_graph(g, Options(fuse="always", threads=1, **options), hints=SIZES)  # pyright: ignore[reportArgumentType]


def tune(g: Graph) -> None:
    decision = compiled(g).regions[0].decision
    assert decision is not None
    tuned.store(decision.problem, host_target(), decision.meaning, found())


def test_a_later_compilation_uses_it_and_says_so():
    tune(graph())
    schedule = compiled(graph()).regions[0].schedule
    assert schedule is not None
    assert (schedule.name, schedule.tile_m, schedule.tile_n) == ("tuned", 24, 32)
    assert "because    tuned: the fastest of 99 measured" in str(schedule)
    assert schedule.reason("tile_m") == "tuned"


def test_a_users_own_decisions_come_first():
    tune(graph())
    schedule = compiled(graph(), schedule={"tile_m": 48}).regions[0].schedule
    assert schedule is not None and (schedule.name, schedule.tile_m) == ("chosen", 48)


def test_another_mask_or_target_does_not_use_it():
    tune(graph())
    for region in (*compiled(graph(None)).regions, *compiled(graph(), target="avx512").regions):
        assert region.schedule is not None and region.schedule.name == "chosen"


def test_meaning_does_not_depend_on_names():
    def meaning(prefix: str) -> str:
        g = graph()
        for node in g.nodes:
            node.name = prefix + node.name
        region = compiled(g).regions[0].region
        assert region is not None
        return meaning_of(lowered_region(region))

    assert meaning("") == meaning("layer_7_")
