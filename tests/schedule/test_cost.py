"""The cost model: what it chooses fits, differs between machines, is explained, and moves the right way."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicf.mcir.passes.schedule import SPEC_POLICY
from aicf.schedule import (
    TARGETS,
    CpuTarget,
    GpuTarget,
    Problem,
    ScheduleError,
    Target,
    choose,
    cpu,
    decisions,
    estimate,
    estimate_unfused,
    gpu,
    kv_major_bytes,
    named_target,
    predict,
    q_major_bytes,
)

LONG = Problem(rows=4096, keys=4096, items=16, threads=8)
WIDE = Problem(rows=2048, keys=2048, items=8, widths=(128,), value_widths=(128,), threads=8)
CAUSAL = replace(LONG, skipped=0.5, edges=1)
DECODE = Problem(rows=1, keys=16384, items=8, groups=4, widths=(128,), value_widths=(128,), threads=8)
HALF = Problem(rows=4096, keys=4096, items=64, widths=(128,), value_widths=(128,), dtype="bf16")


def problems() -> st.SearchStrategy[Problem]:
    width = st.sampled_from([16, 32, 40, 64, 80, 96, 128, 192, 256])
    return st.builds(
        Problem,
        rows=st.integers(1, 5000),
        keys=st.integers(1, 5000),
        items=st.integers(1, 64),
        groups=st.sampled_from([1, 2, 8]),
        widths=st.lists(width, min_size=1, max_size=2).map(tuple),
        value_widths=st.lists(width, min_size=0, max_size=2).map(tuple),
        dtype=st.sampled_from(["f32", "bf16"]),
        exps=st.integers(1, 2),
        score_loads=st.sampled_from([(), (1,), (4, 2)]),
        score_ops=st.integers(0, 12).map(float),
        skipped=st.sampled_from([0.0, 0.5, 0.9]),
        edges=st.integers(0, 2),
        threads=st.integers(1, 16),
    )


# ------------------------------------------------------------------------------------------------ formulas


def test_register_blocks():
    """The micro-kernels that hand-written libraries use come out of the rule: 6 x 16 (AVX2), 14 x 32 (AVX-512), 8 x 12 (NEON)."""
    blocks = {name: cpu.register_tile(t) for name, t in TARGETS.items() if isinstance(t, CpuTarget)}
    assert {name: (b.rows, b.columns) for name, b in blocks.items()} == {
        "avx2": (6, 16), "avx512": (14, 32), "amx": (14, 32), "neon": (8, 12),
    }  # fmt: skip
    assert blocks["avx2"].reason == "6 x 16 accumulators: 12 FMAs in flight cover 2 a cycle for 4 cycles; 15 of 16 registers"
    matrix = cpu.register_tile(TARGETS["amx"], matrix=True)  # type: ignore[arg-type]
    assert (matrix.rows, matrix.columns) == (32, 32)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from([128, 256, 512]), st.integers(8, 64), st.integers(1, 4), st.integers(2, 8), st.booleans())
def test_register_blocks_hide_latency_and_fit(bits: int, registers: int, rate: int, latency: int, lane: bool):
    t = replace(
        TARGETS["avx2"], vector_bits=bits, registers=registers, fma_per_cycle=rate, fma_latency=latency, lane_broadcast=lane
    )
    assert isinstance(t, CpuTarget)
    block = cpu.register_tile(t)
    assert block.columns == block.vectors * bits // 32
    assert block.rows * block.vectors < registers
    assert block.rows * block.vectors >= rate * latency or "cannot hide" in block.reason


def test_contraction_depth_is_that_of_the_blis_model():
    """32 kB with 8 ways and 6 x 16: 170; 48 kB with 12 ways: one third of the ways holds the panel of A."""
    avx2 = TARGETS["avx2"]
    assert isinstance(avx2, CpuTarget)
    block = cpu.register_tile(avx2)
    assert cpu.depth_limit(avx2, block) == 170
    assert cpu.depth_limit(replace(avx2, l1d=48 * 1024, l1_ways=12), block) == 512


def test_traffic_formulas():
    p = Problem(rows=8192, keys=8192, widths=(128,), value_widths=(128,), dtype="bf16")
    assert q_major_bytes(p, 128) == 2 * (8192 * 256 + 64 * 8192 * 256) == pytest.approx(2 * 136e6, rel=0.01)
    assert kv_major_bytes(p, 128) == pytest.approx(2 * 338e6, rel=0.25)  # 4.1 leaves the output's own store out of its sum
    assert kv_major_bytes(p, 8192) == 2 * (8192 + 8192) * 256
    assert q_major_bytes(p, 8192) == kv_major_bytes(p, 8192)


def test_an_edge_of_the_mask_costs_whole_tiles():
    """For causal squares the share is that of counting tiles: sum over row tiles of the keys up to the tile's last row."""
    for n, m, k in ((1024, 64, 64), (1024, 128, 32), (512, 32, 128)):
        p = Problem(rows=n, keys=n, skipped=0.5, edges=1)
        counted = sum(m * math.ceil(min(i0 + m, n) / k) * k for i0 in range(0, n, m)) / n**2
        assert p.share(m, k) == pytest.approx(counted, abs=min(m, k) / (2 * n))
    assert Problem(rows=8, keys=8, skipped=0.5, edges=2).share(64, 64) == 1.0


def test_an_edge_that_ends_a_row_costs_blocks():
    """Blocks of rows compute the keys up to their own last row, in whole columns of the register block, whatever the tiles."""
    for n, rows, columns in ((1024, 8, 16), (1024, 6, 16), (512, 14, 32)):
        p = Problem(rows=n, keys=n, skipped=0.5, edges=1, ended=1)
        blocks = [(i0, min(rows, n - i0)) for i0 in range(0, n, rows)]
        counted = sum(r * math.ceil((i0 + r) / columns) * columns for i0, r in blocks) / n**2
        assert p.block_share(192, 128, rows, columns) == pytest.approx(counted, abs=columns / (2 * n))
    window = Problem(rows=4096, keys=4096, skipped=0.9, edges=2, ended=1)
    assert window.block_share(64, 64, 6, 16) - window.block_share(32, 32, 6, 16) == pytest.approx(64 / 8192)


@pytest.mark.parametrize(
    "change", [{"rows": 0}, {"threads": 0}, {"widths": ()}, {"widths": (0,)}, {"skipped": 1.0}, {"edges": -1}, {"ended": 1}]
)
def test_impossible_problems_are_refused(change: dict[str, object]):
    with pytest.raises(ValueError):
        replace(LONG, **change)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ choices


def legal(p: Problem, t: Target) -> None:
    s = choose(p, t)
    assert choose(p, t) == s  # deterministic
    assert math.isfinite(estimate(p, s, t)) and estimate(p, s, t) > 0
    assert s.tile_k >= max(p.widths)
    assert s.kv_split == 1 or s.kv_split * 4 * s.tile_n < p.keys + 4 * s.tile_n
    if isinstance(t, GpuTarget):
        assert gpu.problems(p, t, s.tile_m, s.tile_n, s.warps, s.stages) == []
    else:
        ms, ns, block = cpu.candidates(p, t)
        assert cpu.fits(p, t, s.tile_m, s.tile_n, s.rows) or (s.tile_m, s.tile_n) == (ms[0], ns[0])
        assert s.tile_n == ns[0] or s.tile_n <= cpu.depth_limit(t, block)
        # One block of rows reads keys as they lie: there are no panels to fill.
        assert s.tile_n % (block.columns if p.rows > block.rows else cpu.lanes(t)) == 0 and s.tile_m % s.rows == 0
        assert s.threads == min(p.threads, t.cores)
    # Nothing that was compared is predicted to be clearly faster.
    told = dict(s.reasons)
    assert {"tile_m", "tile_n", "tile_k", "rows", "residency", "order", "kv_split", "stages"} <= told.keys()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(problems(), st.sampled_from(["avx2", "avx512", "amx", "neon"]))
def test_what_is_chosen_for_a_cpu_fits(p: Problem, name: str):
    legal(p, named_target(name))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(problems(), st.sampled_from(["a100", "rtx4090", "h100", "b200", "rtx5090", "mi300x"]))
def test_what_is_chosen_for_a_gpu_fits(p: Problem, name: str):
    try:
        legal(p, named_target(name))
    except ScheduleError as e:
        # Only very wide operands fit nothing, and the message says by how much.
        assert "nothing fits" in str(e) and p.width + p.value_width > 256


@settings(deadline=None, derandomize=True, max_examples=40)
@given(problems(), st.sampled_from(["avx2", "avx512", "neon", "h100", "rtx4090"]), st.integers(2, 4))
def test_more_work_is_never_predicted_to_be_faster(p: Problem, name: str, factor: int):
    t = named_target(name)
    try:
        s = choose(p, t, {"kv_split": 1, "order": "q_major"})
    except ScheduleError:
        return
    base, slack = estimate(p, s, t), 1 - 1e-9
    for bigger in (
        replace(p, rows=p.rows * factor, skipped=0.0, edges=0),
        replace(p, items=p.items * factor),
        replace(p, score_ops=p.score_ops + factor),
        replace(p, exps=p.exps + 1),
    ):
        assert estimate(bigger, s, t) >= base * slack
        assert estimate_unfused(bigger, t) >= estimate_unfused(p, t) * slack
    keys = replace(p, keys=p.keys * factor, skipped=0.0, edges=0)
    assert estimate(keys, s, t) >= estimate(replace(p, skipped=0.0, edges=0), s, t) * slack


@settings(deadline=None, derandomize=True, max_examples=30)
@given(problems())
def test_a_better_cpu_is_never_predicted_to_be_slower(p: Problem):
    t = TARGETS["avx2"]
    assert isinstance(t, CpuTarget)
    s = choose(p, t)
    for better in (replace(t, l2=2 * t.l2), replace(t, l3=4 * t.l3), replace(t, ghz=6.0), replace(t, bytes_per_cycle_dram=8.0)):
        assert estimate(p, s, better) <= estimate(p, s, t) * (1 + 1e-9)


def test_machines_get_different_schedules(golden: Callable[[str, str], None]):
    chosen = {name: choose(WIDE if isinstance(t, CpuTarget) else HALF, t) for name, t in TARGETS.items()}
    texts = [f"{name}: {s}" for name, s in chosen.items()]
    golden("chosen.txt", "\n\n".join(texts) + "\n")
    tiles = {name: (s.tile_m, s.tile_n, s.rows, s.warps, s.stages) for name, s in chosen.items()}
    assert tiles["avx2"] != tiles["avx512"] != tiles["neon"]
    assert tiles["h100"] != tiles["rtx4090"]
    assert chosen["avx2"].space("output_acc") == "shared" and chosen["h100"].space("output_acc") == "register"
    assert dict(chosen["avx2"].mapping)["i0"] == "thread" and dict(chosen["h100"].mapping)["i0"] == "block"


def test_warp_group_instructions_are_priced_by_their_rows():
    """Hopper: a tile of 64 rows keeps its warp group's instruction busy; one of 16 takes another one, at a lower rate, and its
    warps exchange weights. So training sizes get 64 rows and more, causal or not."""
    h100 = TARGETS["h100"]
    assert isinstance(h100, GpuTarget)
    small, large = (gpu.sharing(HALF, h100, m, 64, 4) for m in (16, 64))
    assert small.mma is not None and small.mma.name == "HMMA" and small.exchanged
    assert large.mma is not None and large.mma.name == "HGMMA" and not large.exchanged
    per_row = [gpu.compute_clocks(HALF, h100, m, 64, 4)[0] / m for m in (16, 64)]
    assert per_row[0] > 1.5 * per_row[1]
    for rows in (2048, 4096, 16384):
        for width in (64, 128):
            for p in (HALF, replace(HALF, skipped=0.5, edges=1)):
                s = choose(replace(p, rows=rows, keys=rows, widths=(width,), value_widths=(width,)), h100)
                assert s.tile_m >= 64 and "clocks of HGMMA" in s.reason("stages")


def test_what_is_loaded_per_score_takes_memory_and_registers():
    """A dense mask or bias travels through shared memory with K and V, and is alive beside the scores."""
    for name in ("a100", "h100"):
        t = TARGETS[name]
        assert isinstance(t, GpuTarget)
        without, with_bias = (gpu.use(replace(HALF, score_loads=x), t, 64, 32, 4, 2) for x in ((), (2,)))
        assert with_bias.shared == without.shared + 2 * 64 * 32
        assert with_bias.registers == without.registers + 64 * 32 // 128
        numbered = gpu.use(replace(HALF, key_loads=(8,)), t, 64, 32, 4, 2)  # a 64-bit number for each of a thread's 8 keys
        assert (numbered.shared, numbered.registers) == (without.shared, without.registers + 2 * 8)
        s = choose(HALF, t)
        assert estimate(replace(HALF, score_loads=(2,)), s, t) >= estimate(HALF, s, t)


def test_problems_get_different_schedules(golden: Callable[[str, str], None]):
    named = {"long": LONG, "causal": CAUSAL, "decode": DECODE, "short": Problem(rows=64, keys=64, items=12, threads=8)}
    chosen = {name: choose(p, TARGETS["avx2"]) for name, p in named.items()}
    golden("problems.txt", "\n\n".join(f"{name}: {s}" for name, s in chosen.items()) + "\n")
    assert chosen["decode"].tile_m == chosen["decode"].rows == 1
    areas = {name: s.tile_m + s.tile_n for name, s in chosen.items()}
    assert areas["causal"] < areas["long"]  # smaller tiles waste less along the diagonal


def test_keys_are_cut_when_items_are_few():
    one = replace(DECODE, items=1, groups=1)
    s = choose(one, TARGETS["avx2"])
    assert s.kv_split > 1 and ("part", "thread") in s.mapping
    assert estimate(one, s, TARGETS["avx2"]) < estimate(one, replace(s, kv_split=1), TARGETS["avx2"])
    assert "1 work item for 8 threads" in s.reason("kv_split")
    assert choose(replace(one, items=64), TARGETS["avx2"]).kv_split == 1
    assert choose(replace(one, dtype="bf16", threads=1), TARGETS["h100"]).kv_split > 1
    assert choose(replace(one, threads=1), TARGETS["avx2"]).kv_split == 1


def test_kv_major_is_taken_where_a_window_is_narrow_and_state_is_small():
    """Key-major order works on a few rows at a time and skips what lies outside of their window, where a tile of rows computes
    all keys that any of them wants; it pays for that with the state's way to memory and back. So it is taken for wide rows with
    little state, and not where there is no window, where it is seen only afterwards (a finite fill), or where the state is a
    lot."""
    avx2 = TARGETS["avx2"]
    assert isinstance(avx2, CpuTarget)
    p = Problem(rows=2048, keys=2048, widths=(512,), skipped=0.88, edges=2, ended=1, threads=1)
    s = choose(p, avx2)
    assert s.order == "kv_major" and ("i0", "thread") not in s.mapping
    straight = choose(p, avx2, "order=q_major")
    assert estimate(p, s, avx2) < 0.9 * estimate(p, straight, avx2)
    assert straight.tile_m < choose(LONG, avx2).tile_m
    for other in (replace(p, retried=True), replace(p, skipped=0.0, edges=0, ended=0), replace(p, items=16), LONG):
        assert choose(other, avx2).order == "q_major", other


# ------------------------------------------------------------------------------------------------ what is given


def test_given_decisions_are_kept():
    s = choose(LONG, TARGETS["avx2"], "tile_m=96,tile_n=32,residency.output_acc=register,threads=3")
    assert (s.tile_m, s.tile_n, s.threads, s.space("output_acc")) == (96, 32, 3, "register")
    assert s.reason("tile_m") == s.reason("threads") == "given"
    tiles = {"tile_m": SPEC_POLICY.tile_m, "tile_n": SPEC_POLICY.tile_n, "tile_k": SPEC_POLICY.tile_k, "order": "q_major"}
    spec = choose(LONG, TARGETS["avx2"], tiles)
    assert (spec.tile_m, spec.tile_n, spec.tile_k, spec.order, spec.rows) == (128, 64, 64, "q_major", 6)
    assert decisions(choose(LONG, TARGETS["h100"], tiles))["tile_m"] == 128
    only_n = choose(LONG, TARGETS["avx2"], {"tile_n": 16})
    assert only_n.tile_n == 16 and only_n.tile_m == choose(LONG, TARGETS["avx2"], {"tile_n": 16, "tile_m": only_n.tile_m}).tile_m


def test_decisions_that_do_not_fit_are_refused_with_numbers():
    with pytest.raises(ScheduleError, match="nothing fits rtx4090: tile_m 256, tile_n 256") as caught:
        choose(HALF, TARGETS["rtx4090"], "tile_m=256,tile_n=256")
    assert "bytes of shared memory, a block of rtx4090 has 101376" in str(caught.value)
    with pytest.raises(ScheduleError, match="tile_m 96: on a GPU it is a power of two of at least 16"):
        choose(HALF, TARGETS["h100"], "tile_m=96")
    with pytest.raises(ScheduleError, match="tile_k=64: a score needs its whole contraction of 128"):
        choose(WIDE, TARGETS["avx2"], "tile_k=64")
    with pytest.raises(ScheduleError, match="rows 12 is more than tile_m 6"):
        choose(LONG, TARGETS["avx2"], "tile_m=6,rows=12")
    with pytest.raises(ScheduleError, match="kv_split 2 under kv_major"):
        choose(LONG, TARGETS["avx2"], "order=kv_major,kv_split=2")


# ------------------------------------------------------------------------------------------------ fusing at all


def test_long_sequences_stream_everywhere():
    for name, t in TARGETS.items():
        p = LONG if isinstance(t, CpuTarget) else HALF
        made = predict(p, t)
        assert made.fuse and made.seconds <= made.unfused_seconds, (name, made)
        # The unfused graph moves its score matrix several times.
        assert made.unfused_moved > 3 * p.items * p.rows * p.keys * p.bytes, (name, made)
        assert made.unfused_moved > made.moved, (name, made)


def test_streaming_is_declined_where_it_is_slower():
    """A value width that no cache holds beside its accumulators makes streaming reread V for every few rows."""
    made = predict(Problem(rows=512, keys=512, items=4, value_widths=(4096,), threads=2), TARGETS["avx2"])
    assert not made.fuse and "unfused" in str(made) and "ms" in str(made)
    slow = choose(LONG, TARGETS["avx2"], "tile_m=1,tile_n=1")
    assert not predict(LONG, TARGETS["avx2"], slow).fuse


@pytest.mark.parametrize("name", ["avx2", "h100"])
def test_reasons_hold_no_second_prediction(name: str):
    """Other decisions are compared by ratios: times under other assumptions than the prediction's would contradict it."""
    for decision, reason in choose(HALF, TARGETS[name]).reasons:
        assert not re.search(r"[0-9] (ms|us|s)\b", reason), (decision, reason)
