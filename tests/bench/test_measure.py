"""The benchmark's own truth: every contender computes the case, wrong ones are caught, and figures come out of rows as stated."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aicf.backends.llvm.rates import CHAINS, CHUNK, ROUNDS, fma_work, read_work
from aicf.bench import cases, contenders, results
from aicf.bench import measure as measure_module
from aicf.bench.cases import CASES, Case, Size
from aicf.bench.measure import Entry, Row, measure, take_time
from aicf.bench.timing import clock_for, interleaved
from aicf.frontends.torch.run.rest import has_compiler

SMALL = Size(2, 4, 96, 16)  # enough numbers for the largest error to tell something
BY_NAME = {c.name: c for c in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_eager_sdpa_and_aicf_compute_the_case(case: Case):
    row = measure(case, SMALL, torch.float32, 1, names=["eager", "sdpa", "aicf"], budget=0.0, fuse="always")
    assert row.status == "streamed" and row.schedule
    for name, entry in row.entries.items():
        if name == "sdpa" and case.sdpa is None:
            assert entry.missing and entry.seconds is None
        else:
            assert entry.missing == "" and entry.seconds and entry.error is not None and entry.error <= 1


@pytest.mark.parametrize("name", ["sink", "documents", "gqa", "differential"])
def test_flex_and_inductor_compute_the_case(name: str):
    if not has_compiler():
        pytest.skip("Inductor needs a C++ compiler")
    row = measure(BY_NAME[name], Size(2, 4, 128, 16), torch.float32, 1, names=["compile", "flex"], budget=0.0)
    assert [(e.missing, e.seconds is not None) for e in row.entries.values()] == [("", True)] * 2


def test_without_a_compiler_inductors_contenders_are_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contenders, "has_compiler", lambda: False)
    row = measure(BY_NAME["dense"], SMALL, torch.float32, 1, names=["eager", "compile", "flex"], budget=0.0)
    assert {n: e.missing for n, e in row.entries.items()} == {
        "eager": "", "compile": contenders.NO_COMPILER, "flex": contenders.NO_COMPILER,
    }  # fmt: skip


def test_a_contender_that_computes_something_else_is_not_timed():
    wrong = replace(BY_NAME["causal"], sdpa=BY_NAME["dense"].sdpa)
    row = measure(wrong, SMALL, torch.float32, 1, names=["eager", "sdpa"], budget=0.0)
    assert row.entries["sdpa"].seconds is None and row.entries["sdpa"].missing.startswith("wrong: max error ")
    assert row.entries["eager"].seconds is not None


def test_a_contender_that_fails_is_not_timed():
    def fails(tensors: cases.Tensors) -> cases.Call:
        raise RuntimeError("no such kernel\nand more")

    row = measure(replace(BY_NAME["dense"], sdpa=fails), SMALL, torch.float32, 1, names=["sdpa"], budget=0.0)
    assert row.entries["sdpa"].missing == "RuntimeError: no such kernel"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_parts_of_a_case_are_the_case(case: Case):
    tensors = cases.make_inputs(case, SMALL, torch.float64)
    whole = case.plain(*tensors.values())
    for b, g in cases.head_groups(case, tensors):
        own = case.plain(*cases.part(case, tensors, b, g).values())
        torch.testing.assert_close(own, whole[b : b + 1, g * case.share : (g + 1) * case.share], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("dense", 1.0), ("bias", 1.0), ("padding", 0.75),
        ("causal", (600 * 601 / 2) / 600**2), ("window", (256 * 257 / 2 + 344 * 256) / 600**2),
        ("prefix", (600 * 601 / 2 + 150 * 149 / 2) / 600**2),
    ],
)  # fmt: skip
def test_the_share_of_scores_that_a_mask_keeps(name: str, share: float):
    case = BY_NAME[name]
    tensors = cases.make_inputs(case, Size(2, 1, 600, 4), torch.float32)
    assert cases.kept(case, tensors) == pytest.approx(share, rel=1e-12)
    # The same count from the code itself: scores that are not filled leave a probability.
    assert cases.flop(case, tensors) == pytest.approx(2 * 2 * 600 * 600 * 8 * share, rel=1e-12)


def test_a_mask_is_counted_as_the_code_fills():
    case = BY_NAME["documents"]
    tensors = cases.make_inputs(case, Size(2, 1, 900, 4), torch.float64)
    seen = case.plain(tensors["q"], tensors["k"], torch.eye(900, dtype=torch.float64).expand(2, 1, -1, -1), tensors["ids"])
    assert cases.kept(case, tensors) == (seen > 0).double().mean().item()


def test_interleaved_gives_everybody_rounds_and_the_rest_by_time():
    ran: list[str] = []
    found = interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, budget=0.0, least=3)
    turns = "".join(ran).replace("a" * 3, "a")
    assert turns[0] == "a" and set(ran) == {"a", "b"}
    assert {n: len(times) for n, times in found.items()} == {n: ran.count(n) for n in "ab"}
    assert all(len(times) >= 3 for times in found.values())


def test_one_thread_is_timed_in_processor_time_and_waiting_is_not_counted():
    slept = interleaved({"sleep": lambda: time.sleep(0.05)}, 0.0, 2, clock_for(1))
    waited = interleaved({"sleep": lambda: time.sleep(0.05)}, 0.0, 2, clock_for(2))
    assert min(slept["sleep"]) < 0.05 <= min(waited["sleep"])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_loops_of_fmas_and_reads_run(threads: int):
    call, flop = fma_work(threads)
    call()
    assert flop >= 2.0 * threads * ROUNDS * CHAINS * 4 and flop % (2 * threads * ROUNDS * CHAINS) == 0
    call, size = read_work(threads, 3 * CHUNK + 5)
    call()
    assert size == 3 * CHUNK


# ------------------------------------------------------------------------------------------------ rows together


def row(case: str = "dense", n: int = 512, threads: int = 1, **seconds: float) -> Row:
    made = Row(case, 1, 8, n, 64, "f32", threads, flop=1e9, bytes=1000, peak=1e11)
    made.entries = {name: Entry(value) for name, value in seconds.items()}
    return made


def finding(rows: list[Row], what: str, against: str) -> results.Finding:
    return next(f for f in results.findings(rows) if (f.demand.what, f.demand.against) == (what, against))


def test_the_mean_is_geometric_and_the_worst_row_is_named():
    rows = [row(aicf=1.0, sdpa=2.0), row(n=2048, aicf=2.0, sdpa=1.0), row(n=128, aicf=1.0, sdpa=9.0), row("causal", aicf=1.0)]
    found = finding(rows, "dense fp32, N >= 512", "sdpa")
    assert (found.count, found.mean, found.worst, found.at, found.met) == (2, pytest.approx(1.0), 0.5, rows[1], False)
    assert finding(rows, "decode", "sdpa").met is None
    assert finding(rows, "dense and causal, N = 128", "sdpa").met is True


def test_one_row_below_the_floor_is_a_miss_whatever_the_mean():
    rows = [row("window", 2048, aicf=1.0, flex=9.0), row("alibi", 2048, aicf=1.0, flex=1.4)]
    found = finding(rows, "masked or score-mapped, N >= 2048", "flex")
    assert found.mean is not None and found.mean > 2.2 and found.met is False


def test_two_threads_are_compared_with_one_of_the_same_row():
    rows = [row(aicf=1.9), row(threads=2, aicf=1.0), row(n=2048, threads=2, aicf=1.0)]
    found = finding(rows, "two threads", "one thread")
    assert (found.count, found.mean, found.met) == (1, pytest.approx(1.9), True)


def test_the_limit_is_the_slower_of_computing_and_reading():
    computing = row(aicf=0.02)
    assert (computing.read_bound, computing.share) == (False, pytest.approx(0.5))
    reading = replace(row(aicf=0.02), bytes=10**9, bandwidth=1e11 / 1.25)
    assert (reading.read_bound, reading.share) == (True, pytest.approx(0.625))


def test_rows_survive_a_file(tmp_path: Path):
    rows = [row(aicf=1.0, sdpa=2.0), replace(row("causal"), status="declined: slow", bandwidth=1e9)]
    results.save(tmp_path / "rows.json", rows, {"torch": "x"})
    assert results.load(tmp_path / "rows.json") == rows
    newer = row(aicf=3.0)
    assert results.merged(rows, newer) == [newer, rows[1]]
    assert results.complete(rows, rows[0].key, ["aicf"]) and not results.complete(rows, rows[0].key, ["aicf", "flex"])
    assert math.isclose(results.load(tmp_path / "rows.json")[0].ratio("sdpa") or 0, 2.0)


def outrun(seconds: float) -> Row:
    """A row whose limit was measured as 1 second."""
    row = Row("dense", 1, 1, 8, 8, "f32", 1, flop=1e9, bytes=1, peak=1e9)
    row.entries["aicf"] = Entry(seconds)
    return row


def test_no_share_is_above_one():
    """Whatever disturbed the measurement of the limit; also in files of rows that were measured before."""
    assert [outrun(s).share for s in (2.0, 1.0, 0.5)] == [0.5, 1.0, 1.0]
    reading = replace(outrun(0.25), bandwidth=1.0, flop=1.0)
    assert reading.read_bound and reading.share == 1.0


def test_a_limit_that_a_call_outran_is_measured_again(monkeypatch: pytest.MonkeyPatch):
    """The loop is disturbed in its first rounds: the best of all rounds counts, and the entry keeps its own calls."""
    rounds: list[list[str]] = []

    def timed(calls: dict[str, Any], budget: float, clock: Any = None) -> dict[str, list[float]]:
        rounds.append(list(calls))
        slow = 3.0 if len(rounds) < 3 else 0.5
        return {name: [slow if name == "fma peak" else 1.0] for name in calls}

    monkeypatch.setattr(measure_module, "interleaved", timed)
    monkeypatch.setattr(measure_module, "_as_long_as", lambda *_: (lambda: None, 1))
    monkeypatch.setattr(measure_module, "fma_work", lambda threads: (lambda: None, 1e9))
    row = Row("dense", 1, 1, 8, 8, "f32", 1, flop=1e9, bytes=1)
    row.entries.update(aicf=Entry(), eager=Entry())
    take_time(row, {"aicf": lambda: None, "eager": lambda: None}, 1.0)
    assert rounds == [["aicf", "eager", "fma peak"], ["aicf", "fma peak"], ["aicf", "fma peak"]]
    assert row.peak == 2e9 and row.share == 0.5
    # More calls of one contender would be more chances at a quick one.
    assert (row.entries["aicf"].calls, row.entries["eager"].calls) == (1, 1)
