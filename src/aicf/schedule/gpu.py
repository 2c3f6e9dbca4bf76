"""Time and memory of a streaming region on a GPU: a block of warps per row tile, K and V tiles through shared memory.

Tile lengths are powers of two, as Triton's blocks must be. The limits: shared memory of a block holds the query tile and `stages`
tiles of K and V; registers hold the accumulators, a tile of scores (fp32) and its copy in the operands' type.

Which matrix instruction a tile gets decides most: one with many rows runs at the full rate, but only tiles with as many rows get
it. Warps share a tile by rows; where the values are wider than the tile has rows they share it by columns, and the weights of all
warps meet in shared memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aicf.scalar import is_half
from aicf.schedule.problem import Problem
from aicf.schedule.schedule import Schedule
from aicf.schedule.target import GpuTarget, Mma

BASE_OPS = 4  # scale, maximum, subtract, sum
# Per thread: addresses, loop counters, row statistics, what is in flight. Fitted to what Triton 3.9 and ptxas 12.9 allot where
# MMA reads shared memory (tests/backends/triton/test_offline.py compares them); where it does not, the operands' fragments are
# counted one by one, and less is left.
OTHER_REGISTERS = 112
OTHER_BESIDE_FRAGMENTS = 44
MASK_REGISTERS = 16  # beside MMA that reads shared memory: positions that a mask compares, the state of a second loop
OTHER_ON_AMD = 66  # the same for LLVM's AMDGPU: 25 kernels for gfx942 take between 0.89 and 1.14 of what is counted with it
FRAGMENTS_FP32 = 256  # scores of a thread times their width, that FMAs do without spilling
MMA_ROWS = 16  # the fewest rows of a matrix instruction, whatever the target
LATENCY_SECONDS = 1e-6  # from the start of a block until its first tile has arrived, and for its last store
LAUNCH_SECONDS = 4e-6
BARRIER_CLOCKS = 30.0  # waiting for the other warps, or for copies: once per tile
EXCHANGES = 4  # more of it where warps share a tile by columns: a row's maximum and sum, its weights written and read
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


@dataclass(frozen=True)
class Sharing:
    """How the warps of a block share a tile. `mma`: the matrix instruction for 16 bits, None in fp32. `rows`: rows that
    are computed, more than the tile has where instructions or warps outnumber them. `readers`: how often a tile of K and V is
    read from shared memory. `exchanged`: warps share a tile by columns, and exchange weights through shared memory."""

    mma: Mma | None
    rows: int
    readers: int
    exchanged: bool


def sharing(p: Problem, t: GpuTarget, tile_m: int, tile_n: int, warps: int) -> Sharing:
    """How a tile is shared. Triton gives warps rows where the second product has at least as many rows as columns."""
    widest = max((max(16, power(w)) for w in p.value_widths), default=16)
    amd = t.warp == 64
    mma = t.mma_for(min(tile_m, tile_n) if amd else tile_m, warps)
    if not is_half(p.dtype):
        if amd:  # which has matrix instructions of the same shapes for fp32, at the rate of its FMAs
            return Sharing(None, max(tile_m, mma.rows * warps), warps, False)
        return Sharing(None, tile_m, warps, tile_m < max(widest, MMA_ROWS * warps))
    if mma.shared:
        rows = math.ceil(tile_m / mma.rows) * mma.rows
        return Sharing(mma, rows, rows // mma.rows, False)
    along = amd or tile_m >= widest
    return Sharing(mma, max(tile_m, mma.rows * (warps if along else 1)), warps if along else 1, not along)


def use(p: Problem, t: GpuTarget, tile_m: int, tile_n: int, warps: int, stages: int) -> Use:
    """Shared memory and registers of a block, widths padded to powers of two, at least 16.

    Shared memory: e (B_q d + c B_k (d + d_v)) bytes; c copies of K and V are `stages` where MMA reads shared memory while
    the next tile arrives, `stages` - 1 where a tile has gone to registers by then; and what else is loaded per score (a mask, a
    bias), which goes to registers on arrival. On AMD the query tile goes to registers before the others come.
    Registers: (B_q d_v + k B_q B_k) / threads + others, with k = 1.5 where the operands have 16 bits (fp32 scores and their
    16-bit copy) and 1 where they have 32; where MMA takes operands from registers, a warp's fragments of a tile of K and of V
    too, and half of those of its query rows. On AMD it takes them from registers always: all of its query rows, and the next tile
    is there too, on its way to shared memory."""
    width = sum(max(16, power(w)) for w in p.widths)
    value_width = sum(max(16, power(w)) for w in p.value_widths)
    shares = sharing(p, t, tile_m, tile_n, warps)
    asynchronous = shares.mma is not None and shares.mma.shared
    amd, tensor_memory = t.warp == 64, asynchronous and t.arch == "sm_100"
    copies = stages if asynchronous else max(1, stages - 1)
    queries = p.bytes * tile_m * width
    shared = p.bytes * copies * tile_n * (width + value_width)
    shared += (1 if amd else stages - 1) * tile_m * tile_n * sum(p.score_loads)
    if shares.exchanged:
        shared += p.bytes * tile_m * tile_n
    shared = max(queries, shared) if amd else queries + shared
    if tensor_memory:
        # Barriers, and what two warp groups exchange to reduce and rescale rows.
        shared += tile_m * value_width // 2 if warps > 4 else 1024
    copy = 1.5 if p.bytes == 2 else 1.0
    threads = warps * t.warp
    scores = shares.rows * tile_n / threads
    registers = math.ceil(shares.rows * value_width / threads + copy * scores)
    # What is loaded per score is alive until the scores are there. With ptxas so is another copy of the scores between a second
    # exponential (a soft cap's tanh) and the softmax's own.
    registers += math.ceil(scores * ((p.exps > 1 and not amd) + len(p.score_loads)))
    # A thread has every fourth column of a product's tile (AMD: every second), and holds what belongs to those keys.
    registers += sum(tile_n // (2 if amd else 4) * max(1, size // 4) for size in p.key_loads)
    if tensor_memory:
        # Accumulators live in tensor memory; scores pass through registers twice on the way there.
        registers += math.ceil(copy * scores)
    if amd:
        elements = shares.rows * width + (warps + 1) * tile_n * (width + value_width)
        registers += OTHER_ON_AMD + elements * p.bytes // (4 * threads)
    elif asynchronous or shares.mma is None:
        registers += OTHER_REGISTERS + (MASK_REGISTERS if asynchronous and p.edges else 0)
    else:
        columns, rows = (tile_n // warps, tile_m) if shares.exchanged else (tile_n, shares.rows // warps)
        fragments = 2 * columns * max(width, value_width) + rows * width // 2
        registers += OTHER_BESIDE_FRAGMENTS + fragments * p.bytes // (4 * t.warp)
    resident = min(
        t.shared_per_sm // max(shared, 1),
        t.registers_per_sm // (min(registers, t.registers_per_thread) * threads),
        t.threads_per_sm // threads,
    )
    return Use(shared, registers, resident)


def register_limit(t: GpuTarget, warps: int) -> int:
    """The most registers that a thread is given so that a block still runs; 0 where the compiler is not told. Without it ptxas
    keeps to what lets more blocks run, and spills for that."""
    if t.warp == 64:
        return 0
    return min(t.registers_per_thread, t.registers_per_sm // (warps * t.warp))


def problems(p: Problem, t: GpuTarget, tile_m: int, tile_n: int, warps: int, stages: int) -> list[str]:
    """Which limits a block breaks, with the numbers."""
    taken, excess = use(p, t, tile_m, tile_n, warps, stages), list[str]()
    if taken.shared > t.shared_per_block:
        excess.append(f"{taken.shared} bytes of shared memory, a block of {t.name} has {t.shared_per_block}")
    if taken.registers > t.registers_per_thread:
        excess.append(f"{taken.registers} registers a thread, {t.name} has {t.registers_per_thread}")
    if not excess and taken.resident < 1:
        excess.append(f"{taken.registers} registers in {warps * t.warp} threads, an SM of {t.name} has {t.registers_per_sm}")
    for name, length in (("tile_m", tile_m), ("tile_n", tile_n)):
        if length != power(length) or length < MMA_ROWS:
            excess.append(f"{name} {length}: on a GPU it is a power of two of at least {MMA_ROWS}")
    if warps != power(warps):
        excess.append(f"{warps} warps: on a GPU it is a power of two")
    if is_half(p.dtype) and warps * MMA_ROWS > max(tile_m, 4 * MMA_ROWS):
        excess.append(f"{warps} warps for {tile_m} rows: a warp takes at least {MMA_ROWS}")
    return excess


def crowded(p: Problem, t: GpuTarget, tile_m: int, tile_n: int, warps: int) -> bool:
    """Whether fp32 tiles are so large that they spill. NVIDIA has no MMA in full fp32: a thread multiplies with FMAs, whole rows
    of both operands in its registers. Such tiles run, if slowly, so that they are not offered but can be given."""
    if t.warp == 64:
        return False
    width = power(max(*p.widths, *p.value_widths, MMA_ROWS))
    return p.bytes == 4 and max(tile_m, tile_n) > MMA_ROWS and tile_m * tile_n * width > warps * t.warp * FRAGMENTS_FP32


def candidates(p: Problem, t: GpuTarget) -> list[tuple[int, int, int, int]]:
    """(tile_m, tile_n, warps, stages) to be compared."""
    most_m, most_n = max(MMA_ROWS, power(p.rows)), max(MMA_ROWS, power(p.keys))
    return [
        (m, n, warps, stages)
        for m in (16, 32, 64, 128, 256)
        for n in (16, 32, 64, 128, 256)
        for warps in (4, 8)
        for stages in (1, 2, 3, 4)
        if m <= most_m and n <= most_n and (stages == 1 or t.async_copy) and not crowded(p, t, m, n, warps)
    ]


def compute_clocks(p: Problem, t: GpuTarget, tile_m: int, tile_n: int, warps: int) -> tuple[float, float]:
    """(clocks of the two contractions, clocks of exponentials and other operations) for one tile of scores on one SM. A
    contraction is as fast as its matrix instruction, or as shared memory gives it K and V."""
    shares = sharing(p, t, tile_m, tile_n, warps)
    flops = t.fp32_flops if shares.mma is None else shares.mma.flops
    both = p.width + p.value_width
    mma = max(2.0 * shares.rows * tile_n * both / flops, shares.readers * tile_n * both * p.bytes / t.shared_rate)
    if shares.exchanged:
        mma += 2 * tile_m * tile_n * p.bytes / t.shared_rate
    other = shares.rows * tile_n * (p.exps / t.exps + (BASE_OPS + p.score_ops) / (t.fp32_flops / 2))
    return mma, other


def estimate(p: Problem, s: Schedule, t: GpuTarget) -> float:
    """Predicted seconds of the streaming form."""
    clock = t.ghz * 1e9
    both = p.width + p.value_width
    taken = use(p, t, s.tile_m, s.tile_n, s.warps, s.stages)
    tiles, turns = math.ceil(p.rows / s.tile_m), math.ceil(p.keys / s.tile_n)
    shares = sharing(p, t, s.tile_m, s.tile_n, s.warps)
    mma, other = compute_clocks(p, t, s.tile_m, s.tile_n, s.warps)
    # Two blocks on one SM, or a warp group that computes while another one's MMA runs, overlap the two; else they add up.
    overlapped = taken.resident >= 2 or (shares.mma is not None and shares.mma.shared and s.warps >= 8)
    compute = max(mma, other) + 0.25 * min(mma, other) if overlapped else mma + other
    arriving = s.tile_n * (both * p.bytes + s.tile_m * sum(p.score_loads))
    load = arriving / (t.l2_bandwidth / t.sms) * clock
    turn = max(compute, load) if s.stages > 1 else compute + load / max(1, taken.resident)
    turn += BARRIER_CLOCKS * (1 + (EXCHANGES if shares.exchanged else 0))
    turn += s.tile_m * (p.value_width + ROW_OPS) / (t.fp32_flops / 2)  # rescaled accumulators, row statistics
    units = p.items * s.kv_split * (tiles if s.order == "q_major" else 1)
    inner = math.ceil(turns / s.kv_split) * p.share(s.tile_m, s.tile_n) * (1 if s.order == "q_major" else tiles)
    waves = math.ceil(units / t.sms)
    seconds = waves * inner * turn / clock + math.ceil(units / (t.sms * max(1, taken.resident))) * LATENCY_SECONDS
    once = p.bytes * both * (p.items * p.rows + p.items / p.groups * p.keys) + p.rows * p.keys * sum(p.score_loads)
    # Blocks of one item follow each other: K and V of the items that run together are read again only where L2 cannot hold them.
    together = min(p.items, math.ceil(t.sms * max(1, taken.resident) / (units / p.items))) / p.groups
    again = p.bytes * both * p.keys * max(1.0, together)
    device = once + (again * (waves - 1) if again > t.l2 else 0.0)
    if s.order == "kv_major" and turns > 1:
        device += p.items * turns * p.rows * 2 * 4 * (p.value_width + p.states)
    seconds = max(seconds, device / t.bandwidth)
    if s.kv_split > 1:
        seconds += 2 * s.kv_split * p.items * p.rows * (p.value_width + p.states) * 4 / t.bandwidth + LAUNCH_SECONDS
    return seconds + LAUNCH_SECONDS


def _passes(p: Problem) -> int:
    """How often the unfused graph moves its score matrix: each op reads and writes it."""
    return 2 + 2 * (1 + math.ceil(p.score_ops)) + 2 * p.exps


def score_traffic(p: Problem) -> float:
    """Bytes of the score matrix that the unfused graph moves."""
    return _passes(p) * p.items * p.rows * p.keys * p.bytes


def estimate_unfused(p: Problem, t: GpuTarget) -> float:
    """Predicted seconds of the unfused graph: two matrix products and passes over the score matrix in device memory, op by op."""
    clock = t.ghz * 1e9
    scores = p.items * p.rows * p.keys
    flops = t.mma_flops if is_half(p.dtype) else t.fp32_flops
    waste = math.ceil(p.rows / MMA_ROWS) * MMA_ROWS / p.rows
    products = 2.0 * scores * (p.width + p.value_width) * waste / (flops * t.sms * clock)
    rate = t.bandwidth if scores * p.bytes > t.l2 / 2 else t.l2_bandwidth
    operands = p.items * p.bytes * (p.rows + p.keys / p.groups) * (p.width + p.value_width) / t.bandwidth
    operands += scores * sum(p.score_loads) / rate
    element = scores * p.exps / (t.exps * t.sms * clock)
    ops = 4 + math.ceil(p.score_ops)
    return products + _passes(p) * scores * p.bytes / rate + element + operands + ops * LAUNCH_SECONDS
