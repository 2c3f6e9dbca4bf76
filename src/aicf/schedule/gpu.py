"""Time and memory of a streaming region on a GPU: a block of warps per row tile, K and V tiles through shared memory.

Tile lengths are powers of two, as Triton's blocks must be. The limits: shared memory of a block holds the query tile and `stages`
tiles of K and V; registers hold the accumulators, a tile of scores (fp32) and its copy in the operands' type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aicf.scalar import is_half
from aicf.schedule.problem import Problem
from aicf.schedule.schedule import Schedule
from aicf.schedule.target import GpuTarget

BASE_OPS = 4  # scale, maximum, subtract, sum
# Per thread: addresses, loop counters, row statistics, what is in flight. Fitted to what Triton 3.9 and ptxas 12.9 allot: 107
# to 116
# over six kernels for sm_80 and sm_90, dense and causal (tests/backends/triton/test_offline.py compares them).
OTHER_REGISTERS = 112
# Fragments of the right-hand operand that MMA without shared-memory operands can hold beside all that; half of the rest counts.
FREE_FRAGMENTS = 64
MMA_ROWS = 16  # of one warp's MMA; 64 for a warp group
LATENCY_SECONDS = 1e-6  # from the start of a block until its first tile has arrived, and for its last store
LAUNCH_SECONDS = 4e-6
BARRIER_CLOCKS = 30.0  # per tile: waiting for copies and for the other warps
ROW_OPS = 16  # per row and tile: two reductions across the threads of a row, the rescale factor
SPLIT_FILL = 0.8  # blocks per SM from which cutting the keys does not pay


@dataclass(frozen=True)
class Use:
    """What one block takes: bytes of shared memory, registers of a thread, and how many blocks an SM can hold."""

    shared: int
    registers: int
    resident: int


def power(x: int) -> int:
    """The smallest power of two that is at least x."""
    return 1 << max(0, x - 1).bit_length()


def use(p: Problem, t: GpuTarget, tile_m: int, tile_n: int, warps: int, stages: int) -> Use:
    """Shared memory and registers of a block, widths padded to powers of two, at least 16.

    Shared memory: e (B_q d + c B_k (d + d_v)) bytes; c copies of K and V are `stages` where MMA reads shared memory while
    the next
    tile arrives, `stages` - 1 where a tile has gone to registers by then. AMD keeps the query tile in registers. Registers:
    (B_q d_v + k B_q B_k) / threads + others, with k = 1.5 where the operands have 16 bits (fp32 scores and their 16-bit
    copy) and 1 where they have 32; where MMA takes operands from registers, the fragments of a tile too."""
    width = sum(max(16, power(w)) for w in p.widths)
    value_width = sum(max(16, power(w)) for w in p.value_widths)
    copies = stages if t.mma_shared and p.bytes == 2 else max(1, stages - 1)
    shared = p.bytes * ((0 if t.warp == 64 else tile_m * width) + copies * tile_n * (width + value_width))
    # Where the warps do not all fit along the rows, the weights change layout between the products, through shared memory.
    turned = tile_m < 32 * warps if t.warp == 64 else tile_m < max(value_width, MMA_ROWS * warps)
    if turned and not (t.mma_shared and p.bytes == 2):
        shared += p.bytes * tile_m * tile_n
    if t.arch == "sm_100" and p.bytes == 2:
        # Barriers, and what two warp groups exchange to reduce and rescale rows.
        shared += tile_m * value_width // 2 if warps > 4 else 1024
    copy = 1.5 if p.bytes == 2 else 1.0
    threads = warps * t.warp
    registers = math.ceil((tile_m * value_width + copy * tile_m * tile_n) / threads) + OTHER_REGISTERS
    if p.exps > 1:
        # Between a second exponential (a soft cap's tanh) and the softmax's own another copy of the scores is alive.
        registers += math.ceil(tile_m * tile_n / threads)
    if t.arch == "sm_100" and p.bytes == 2:
        # Accumulators live in tensor memory; scores pass through registers twice on the way there.
        registers += math.ceil(copy * tile_m * tile_n / threads)
    elif not t.mma_shared and p.bytes == 2:
        fragments = tile_n * max(width, value_width) * p.bytes // (4 * t.warp)
        registers += max(0, fragments - FREE_FRAGMENTS) // 2
    resident = min(
        t.shared_per_sm // max(shared, 1),
        t.registers_per_sm // (min(registers, t.registers_per_thread) * threads),
        t.threads_per_sm // threads,
    )
    return Use(shared, registers, resident)


def problems(p: Problem, t: GpuTarget, tile_m: int, tile_n: int, warps: int, stages: int) -> list[str]:
    """Which limits a block breaks, with the numbers."""
    taken, found = use(p, t, tile_m, tile_n, warps, stages), list[str]()
    if taken.shared > t.shared_per_block:
        found.append(f"{taken.shared} bytes of shared memory, a block of {t.name} has {t.shared_per_block}")
    # ptxas keeps code for compute capability 8.9 and 12.0 within what lets three blocks of 128 threads run, and spills for it.
    most = min(t.registers_per_thread, 168) if t.threads_per_sm == 1536 and warps == 4 else t.registers_per_thread
    if taken.registers > most:
        found.append(f"{taken.registers} registers a thread, {t.name} has {most}")
    if not found and taken.resident < 1:
        found.append(f"{taken.registers} registers in {warps * t.warp} threads, an SM of {t.name} has {t.registers_per_sm}")
    for name, length in (("tile_m", tile_m), ("tile_n", tile_n)):
        if length != power(length) or length < MMA_ROWS:
            found.append(f"{name} {length}: on a GPU it is a power of two of at least {MMA_ROWS}")
    if warps != power(warps):
        found.append(f"{warps} warps: on a GPU it is a power of two")
    if warps * MMA_ROWS > max(tile_m, 4 * MMA_ROWS):
        found.append(f"{warps} warps for {tile_m} rows: a warp takes at least {MMA_ROWS}")
    return found


def crowded(p: Problem, t: GpuTarget, tile_m: int, tile_n: int) -> bool:
    """Whether fp32 tiles are so large that they spill. There is no MMA in full fp32: a thread multiplies with FMAs, whole rows of
    both operands in its registers. Such tiles run, if slowly, so that they are not offered but can be given."""
    width = max(sum(p.widths), sum(p.value_widths))
    return p.bytes == 4 and max(tile_m, tile_n) > MMA_ROWS and max(tile_m, tile_n) * power(width) > t.warp * FREE_FRAGMENTS


def candidates(p: Problem, t: GpuTarget) -> list[tuple[int, int, int, int]]:
    """(tile_m, tile_n, warps, stages) to be compared."""
    most_m, most_n = max(MMA_ROWS, power(p.rows)), max(MMA_ROWS, power(p.keys))
    return [
        (m, n, warps, stages)
        for m in (16, 32, 64, 128, 256)
        for n in (16, 32, 64, 128, 256)
        for warps in (4, 8)
        for stages in (1, 2, 3, 4)
        if m <= most_m and n <= most_n and (stages == 1 or t.async_copy) and not crowded(p, t, m, n)
    ]


def compute_clocks(p: Problem, t: GpuTarget, tile_m: int, tile_n: int) -> tuple[float, float]:
    """(clocks of the two contractions, clocks of exponentials and other operations) for one tile of scores on one SM."""
    flops = t.mma_flops if is_half(p.dtype) else t.fp32_flops
    rows = max(tile_m, 64) if t.mma_shared and is_half(p.dtype) else tile_m  # a warp group's MMA has 64 rows, used or not
    mma = 2.0 * rows * tile_n * (p.width + p.value_width) / flops
    other = tile_m * tile_n * (p.exps / t.exps + (BASE_OPS + p.score_ops) / (t.fp32_flops / 2))
    return mma, other


def estimate(p: Problem, s: Schedule, t: GpuTarget) -> float:
    """Predicted seconds of the streaming form."""
    clock = t.ghz * 1e9
    both = p.width + p.value_width
    taken = use(p, t, s.tile_m, s.tile_n, s.warps, s.stages)
    tiles, turns = math.ceil(p.rows / s.tile_m), math.ceil(p.keys / s.tile_n)
    mma, other = compute_clocks(p, t, s.tile_m, s.tile_n)
    # Two blocks on one SM, or a warp group that computes while another one's MMA runs, overlap the two; else they add up.
    overlapped = taken.resident >= 2 or (t.mma_shared and s.warps >= 8)
    compute = max(mma, other) + 0.25 * min(mma, other) if overlapped else mma + other
    load = s.tile_n * both * p.bytes / (t.l2_bandwidth / t.sms) * clock
    turn = max(compute, load) if s.stages > 1 else compute + load / max(1, taken.resident)
    turn += BARRIER_CLOCKS + s.tile_m * (p.value_width + ROW_OPS) / (t.fp32_flops / 2)  # rescaled accumulators, row statistics
    units = p.items * s.kv_split * (tiles if s.order == "q_major" else 1)
    inner = math.ceil(turns / s.kv_split) * p.share(s.tile_m, s.tile_n) * (1 if s.order == "q_major" else tiles)
    waves = math.ceil(units / t.sms)
    seconds = waves * inner * turn / clock + math.ceil(units / (t.sms * max(1, taken.resident))) * LATENCY_SECONDS
    once = p.bytes * both * (p.items * p.rows + p.items / p.groups * p.keys)
    again = p.bytes * both * p.keys * p.items / p.groups
    device = once + (again * max(0, math.ceil(waves) - 1) if again > t.l2 else 0.0)
    if s.order == "kv_major" and turns > 1:
        device += p.items * turns * p.rows * 2 * 4 * (p.value_width + p.states)
    seconds = max(seconds, device / t.bandwidth)
    if s.kv_split > 1:
        seconds += 2 * s.kv_split * p.items * p.rows * (p.value_width + p.states) * 4 / t.bandwidth + LAUNCH_SECONDS
    return seconds + LAUNCH_SECONDS


def estimate_unfused(p: Problem, t: GpuTarget) -> float:
    """Predicted seconds of the unfused graph: two matrix products and passes over the score matrix in device memory, op by op."""
    clock = t.ghz * 1e9
    scores = p.items * p.rows * p.keys
    flops = t.mma_flops if is_half(p.dtype) else t.fp32_flops
    waste = math.ceil(p.rows / MMA_ROWS) * MMA_ROWS / p.rows
    products = 2.0 * scores * (p.width + p.value_width) * waste / (flops * t.sms * clock)
    passes = 2 + 2 * (1 + math.ceil(p.score_ops)) + 2 * p.exps
    rate = t.bandwidth if scores * p.bytes > t.l2 / 2 else t.l2_bandwidth
    operands = p.items * p.bytes * (p.rows + p.keys / p.groups) * (p.width + p.value_width) / t.bandwidth
    element = scores * p.exps / (t.exps * t.sms * clock)
    ops = 4 + math.ceil(p.score_ops)
    return products + passes * scores * p.bytes / rate + element + operands + ops * LAUNCH_SECONDS
