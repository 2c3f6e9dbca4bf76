"""Time and memory of a streaming region on a CPU, in cycles of one core.

An item's rows are worked on in blocks of `rows` at a time, against a packed tile of keys: two contractions with the
accumulators in registers, an exponential per score, and one visit of the block's accumulator. The model adds what does not
overlap and takes the larger of what does. Constants are instruction counts of the generated code's loops, not fits to one
machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aicf.scalar import is_half
from aicf.schedule.problem import Problem
from aicf.schedule.schedule import Schedule
from aicf.schedule.target import CpuTarget

# Cycles for one vector of scores: exp is a range reduction (3), a polynomial of degree 6 (6), an exponent insert (2) and a
# selection for the special values (1), two started per cycle, but each chain waits on its latency.
EXP_CYCLES = 8.0
OP_CYCLES = 0.5  # another operation on a vector, two started per cycle
BASE_OPS = 4  # scale, maximum, subtract, sum
MASK_CYCLES = 3.0  # per vector of scores in a tile that an edge of the mask crosses: position, comparison, selection
ROW_CYCLES = 12.0  # per row and key tile: its share of two transposing reductions, and of the rescale factors
ACC_CYCLES = (
    2.3  # per vector of the accumulator and key tile: load, rescale, store, and its part of a register tile's start and end
)
BLOCK_CYCLES = 60.0  # per block and key tile: loops, addresses, the edges of the contractions' pipelines
TILE_CYCLES = 150.0  # per key tile: which phase, loop set-up
COPY_CYCLES = 1.0  # per vector copied (or converted) into the packed tile
TRANSPOSE_CYCLES = 2.5  # per vector transposed into it
# Per line of K and V read again: asking for it ahead, and what is left of its way from L2, or from a farther cache.
NEAR_CYCLES, FAR_CYCLES = 4.0, 12.0
# Of the time that queries and accumulators take to come from L3, when they are more than L2 holds: this share is waited for, the
# rest is hidden, since a block's are asked for ahead. Memory is not fast enough to hide any of it.
SPILL_SHARE = 0.4
WORKING_BYTES = 2 << 20  # that a thread may keep, however much faster more would be
L2_BYTES = 32.0  # per cycle, from L2 to L1
# Bytes on their way to a core at a time: 48 lines that an L2 cache keeps asked for. What a block of rows asks for beyond them,
# of the next tile, is waited for.
IN_FLIGHT = 48 * 64
# Two streams that advance side by side share that. Of what a product asks for beyond its half this share is waited for.
BESIDE_SHARE = 0.6
CACHE_SHARE = 0.75  # of a cache that tiles may fill: the rest is for streams, stacks and other data
PANEL_SHARE = 0.75  # of L1
DRAM_CORES = 4  # cores that together saturate the memory
CALL_SECONDS = 10e-6  # calling a compiled kernel, waking its threads
OP_SECONDS = 6e-6  # calling one op of a framework
PAGE_SECONDS = 0.7e-6  # the first touch of a fresh page of 4 KiB: the fault, and the kernel's zeroing
FRESH_BYTES = 1 << 25  # from this size on an allocator asks the kernel for fresh pages (glibc's largest mmap threshold)
FMA_SHARE = 0.95  # of the FMA rate that the inner loops reach: loop control and loads take issue slots (aicf bench)
UNKNOWN_GHZ = 2.5


@dataclass(frozen=True)
class RegisterTile:
    """A block of `rows` x `columns` accumulators (f32), `vectors` registers wide."""

    rows: int
    columns: int
    vectors: int
    reason: str


def lanes(t: CpuTarget) -> int:
    """f32 elements in a vector."""
    return t.vector_bits // 32


def uses_matrix_unit(p: Problem, t: CpuTarget) -> bool:
    return t.matrix_flops > 0 and is_half(p.dtype)


def register_tile(t: CpuTarget, matrix: bool = False) -> RegisterTile:
    """The accumulator block of the contractions' inner loop.

    Of the blocks whose accumulators hide the FMA's latency (at least FMA rate * latency of them), that fit the registers
    together with a row of B and the present A, and that do not run out of load ports (at most 3 of 4 loads), the one that moves
    the fewest bytes from L1 per FMA: (m + n) / (m n). Equal ones: the wider.
    """
    if matrix:  # 8 tile registers of 16 x 16: 2 x 2 accumulators, 2 of A, 2 of B
        return RegisterTile(
            32, 32, 2, "2 x 2 matrix tiles of 16 x 16 accumulators, with 2 of A and 2 of B: 8 of 8 tile registers"
        )
    n_lanes = lanes(t)
    hide = t.fma_per_cycle * t.fma_latency
    best: tuple[float, int, int, int] | None = None
    for vectors in range(1, 5):
        for rows in range(1, t.registers):
            if t.lane_broadcast:
                if rows % n_lanes:
                    continue
                a_registers = a_loads = rows // n_lanes
            else:
                a_registers, a_loads = 1, rows
            used = rows * vectors + vectors + a_registers
            loads = (a_loads + vectors) / t.load_per_cycle
            if used > t.registers or rows * vectors < hide or loads > 0.75 * rows * vectors / t.fma_per_cycle:
                continue
            columns = vectors * n_lanes
            found = ((rows + columns) / (rows * columns), -columns, rows, used)
            if best is None or found < best:
                best = found
    if best is None:  # too few registers to hide the latency: as many accumulators as there are
        rows = max(1, (t.registers - 2) // 2)
        return RegisterTile(rows, 2 * n_lanes, 2, f"{t.registers} registers cannot hide the latency of {hide} FMAs")
    _, negative, rows, used = best
    columns = -negative
    vectors = columns // n_lanes
    reason = (
        f"{rows} x {columns} accumulators: {rows * vectors} FMAs in flight cover {t.fma_per_cycle} a cycle "
        f"for {t.fma_latency} cycles; {used} of {t.registers} registers"
    )
    return RegisterTile(rows, columns, vectors, reason)


def depth_limit(t: CpuTarget, tile: RegisterTile) -> int:
    """The longest contraction for which a row panel of A and a column panel of B stay in L1: k_c = C_A N_1 C_1 / (m_r e) with
    C_A = floor((W_1 - 1) / (1 + n_r / m_r)) ways (Low et al., Analytical Modeling Is Enough for High-Performance BLIS)."""
    sets = t.l1d // (t.l1_ways * 64)
    ways = max(1, math.floor((t.l1_ways - 1) / (1 + tile.columns / tile.rows)))
    return max(tile.columns, ways * sets * 64 // (tile.rows * 4))


def working_set(p: Problem, tile_m: int, tile_n: int, rows: int) -> int:
    """Bytes that an item keeps: the query tile, accumulators and row state (f32), a packed key and value tile, a block's
    scores. One block of rows packs nothing, but what it asks for ahead is as much."""
    row = p.width + p.value_width + p.states
    return 4 * (tile_m * row + tile_n * (p.width + p.value_width) + 2 * rows * tile_n)


def candidates(p: Problem, t: CpuTarget) -> tuple[list[int], list[int], RegisterTile]:
    """(tile_m, tile_n, register tile) to be compared: multiples of the register tile, tile_n up to `depth_limit`, tile_m up to
    the rows. One block of rows reads keys as they lie, so that a vector of them is enough: it waits less for memory, and in a
    cache it would only be slower."""
    block = register_tile(t, uses_matrix_unit(p, t))
    deepest = depth_limit(t, block)
    ns = [block.columns * x for x in (1, 2, 4, 8, 16) if x == 1 or block.columns * x <= deepest]
    read = p.keys * (p.width + p.value_width) * p.bytes * max(1, p.items // p.groups)
    if p.rows <= block.rows and not uses_matrix_unit(p, t) and read > CACHE_SHARE * t.l3:
        ns = [min(lanes(t), block.columns), *(n for n in ns if n > lanes(t))]
    ns = [n for k, n in enumerate(ns) if k == 0 or ns[k - 1] < p.keys]
    rows = min(block.rows, p.rows)
    ladder = [rows * x for x in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)]
    ms = [m for k, m in enumerate(ladder) if k == 0 or ladder[k - 1] < p.rows]
    return ms, ns, block


def fits(p: Problem, t: CpuTarget, tile_m: int, tile_n: int, rows: int) -> bool:
    """Whether a tile is worth comparing: what every block of rows uses, the packed keys and values, stays in L2, and all of it
    in what a thread may keep."""
    return working_set(p, rows, tile_n, rows) <= CACHE_SHARE * t.l2 and working_set(p, tile_m, tile_n, rows) <= WORKING_BYTES


def threads(p: Problem, t: CpuTarget) -> int:
    return min(p.threads, t.cores)


def _rate(p: Problem, t: CpuTarget) -> float:
    """FMAs of f32 elements per cycle at the most."""
    return FMA_SHARE * (t.matrix_flops / 2 if uses_matrix_unit(p, t) else t.fma_per_cycle * lanes(t))


def _up(x: int, step: int) -> int:
    return math.ceil(x / step) * step


def block_cycles(p: Problem, t: CpuTarget, rows: int, tile_n: int, packed: bool = True) -> float:
    """One register block of rows against one tile of keys, from `packed` panels or as it lies in memory."""
    block = register_tile(t, uses_matrix_unit(p, t))
    width = lanes(t)
    columns = _up(tile_n, block.columns if packed else width)
    fmas = rows * (columns * p.width + tile_n * sum(_up(v, width) for v in p.value_widths))
    compute = fmas / _rate(p, t)
    if not uses_matrix_unit(p, t):
        in_flight = rows * block.vectors
        compute *= max(1.0, t.fma_per_cycle * t.fma_latency / in_flight)
        a_loads = math.ceil(rows / width) if t.lane_broadcast else rows
        loads = fmas / width * (a_loads + block.vectors) / (rows * block.vectors) / t.load_per_cycle
        compute = max(compute, loads)
    panel = 4 * tile_n * (p.width + p.value_width)
    if packed and panel > PANEL_SHARE * t.l1d:
        compute = max(compute, panel / L2_BYTES)
    scores = rows * tile_n / width * (p.exps * EXP_CYCLES + (BASE_OPS + p.score_ops) * OP_CYCLES)
    return compute + scores + rows * (ROW_CYCLES + p.value_width / width * ACC_CYCLES) + BLOCK_CYCLES


def _stream_rate(p: Problem, t: CpuTarget, size: float, sharing: int) -> float:
    """Bytes per cycle at which one core passes over `size` bytes again and again: from L2, L3 or memory, by what holds them;
    `sharing` items use the same bytes."""
    together = size * min(threads(p, t), max(1, p.items // sharing))
    if size <= CACHE_SHARE * t.l2:
        return L2_BYTES
    if together <= CACHE_SHARE * t.l3:
        return t.bytes_per_cycle_l3
    return _dram_rate(p, t)


def _dram_rate(p: Problem, t: CpuTarget) -> float:
    """Bytes per cycle of memory for each of the working cores."""
    n = threads(p, t)
    return t.bytes_per_cycle_dram * min(n, DRAM_CORES) / n


def estimate(p: Problem, s: Schedule, t: CpuTarget) -> float:
    """Predicted seconds of the streaming form."""
    hz = (t.ghz or UNKNOWN_GHZ) * 1e9
    width = lanes(t)
    both = p.width + p.value_width
    turns = math.ceil(p.keys / s.tile_n)
    tiles = math.ceil(p.rows / s.tile_m)
    last = p.rows - (tiles - 1) * s.tile_m
    blocks = (tiles - 1) * math.ceil(s.tile_m / s.rows) + math.ceil(last / s.rows)
    share = p.share(s.tile_m, s.tile_n)
    rows = min(s.rows, p.rows)
    last_keys = p.keys - (turns - 1) * s.tile_n
    packed = s.space("K_tile") != "register"
    per_pass = (turns - 1) * block_cycles(p, t, rows, s.tile_n, packed) + block_cycles(p, t, rows, last_keys, packed)
    columns = register_tile(t, uses_matrix_unit(p, t)).columns
    item = p.block_share(s.tile_m, s.tile_n, rows, columns) * blocks * per_pass
    # A tile that an edge crosses is masked as a whole, but for the blocks of rows that end before it.
    crossed = min(p.keys * share, p.edges * (s.tile_m + s.tile_n) - p.ended * s.tile_m / 2)
    item += p.rows * crossed / width * MASK_CYCLES
    # A pass over K and V: what is on its way overlaps with computing. The first comes from memory, shared by the group.
    operands = p.keys * both * p.bytes
    pack = p.keys / width * p.width * TRANSPOSE_CYCLES + turns * TILE_CYCLES
    pack += p.keys / width * p.value_width * COPY_CYCLES if packed else 0.0
    rate = _stream_rate(p, t, operands, p.groups)
    if packed:
        hidden = turns * math.ceil(blocks / tiles) * IN_FLIGHT
    else:  # K and V are asked for side by side, a product ahead
        one = (s.tile_n * w * p.bytes for w in (*p.widths, *p.value_widths))
        hidden = operands - BESIDE_SHARE * turns * sum(max(0.0, x - IN_FLIGHT / 2) for x in one)
    dram = 1 / p.groups / _dram_rate(p, t) + (1 - 1 / p.groups) / rate
    first = pack + max(0.0, operands - hidden) * dram
    line = NEAR_CYCLES if share * operands <= CACHE_SHARE * t.l2 else FAR_CYCLES
    again = pack + operands / 64 * line + max(0.0, operands - hidden) / rate
    passes = tiles - 1 if s.order == "q_major" else 0
    item = max(item + share * (first + passes * again), share * operands * (dram + passes / rate))
    if s.order == "kv_major" and turns > 1:
        state = 4 * (p.value_width + p.states)
        rate = _stream_rate(p, t, p.rows * (p.width * p.bytes + state), 1)
        item += share * turns * p.rows * (p.width * p.bytes + 2 * state) / rate
        # Every visit of a tile of rows packs its queries, and takes its state out of memory and puts it back.
        item += share * turns * (p.rows * (p.width + 2 * state / 4) / width * COPY_CYCLES + tiles * TILE_CYCLES)
    if working_set(p, s.tile_m, s.tile_n, s.rows) > CACHE_SHARE * t.l2:
        floats = 4 * min(s.tile_m, p.rows)  # bytes of one number a row
        rate = min(t.bytes_per_cycle_l3, _stream_rate(p, t, floats * both, 1))
        waited = SPILL_SHARE if rate == t.bytes_per_cycle_l3 else 1.0
        item += share * waited * tiles * turns * floats * (p.width + 2 * p.value_width) / rate
    item += p.rows * both * p.bytes / _dram_rate(p, t)
    units = p.items * s.kv_split * (tiles if s.order == "q_major" else 1)
    n = threads(p, t)
    cycles = math.ceil(units / n) * item * p.items / units
    if s.kv_split > 1:  # each part writes its state, the combination reads all of them
        state_bytes = 2 * 4 * s.kv_split * p.rows * p.items * (p.value_width + p.states)
        vectors = s.kv_split * p.rows * p.items * (p.value_width / width * ACC_CYCLES + ROW_CYCLES)
        cycles += (state_bytes / t.bytes_per_cycle_l3 + vectors) / n
    return cycles / hz + CALL_SECONDS * (2 if s.kv_split > 1 else 1)


def _passes(p: Problem) -> int:
    """How often the unfused graph moves its score matrix. The first product writes it, scale and every score op read and write
    it, softmax reads it twice and writes it, the last product reads it. A write fetches the line first."""
    return 2 + 3 * (1 + math.ceil(p.score_ops)) + 4 * p.exps + 1


def score_traffic(p: Problem) -> float:
    """Bytes of the score matrix that the unfused graph moves."""
    return _passes(p) * p.items * p.rows * p.keys * p.bytes


def estimate_unfused(p: Problem, t: CpuTarget) -> float:
    """Predicted seconds of the unfused graph: two matrix products and passes over the whole score matrix, op by op."""
    hz = (t.ghz or UNKNOWN_GHZ) * 1e9
    n = threads(p, t)
    width = lanes(t)
    scores = p.items * p.rows * p.keys
    # A product of few rows or columns wastes the rest of the register block.
    block = register_tile(t, uses_matrix_unit(p, t))
    rows = p.rows * p.row_items
    waste = _up(rows, block.rows) / rows
    products = scores * (p.width + p.value_width) * waste / _rate(p, t) / n
    element = scores / width * (p.exps * EXP_CYCLES + (BASE_OPS + p.score_ops) * OP_CYCLES) / n
    ops = 1 + math.ceil(p.score_ops)
    matrix = scores * p.bytes
    rate = t.bytes_per_cycle_l3 if matrix <= CACHE_SHARE * t.l3 else _dram_rate(p, t)
    if matrix / n <= CACHE_SHARE * t.l2:
        rate = L2_BYTES
    traffic = (_passes(p) * matrix) / rate / n
    read = p.rows + p.keys / max(p.groups, p.row_items)
    operands = p.items * p.bytes * read * (p.width + p.value_width) / _dram_rate(p, t) / n
    fresh = PAGE_SECONDS * (1 + ops + p.exps) * matrix / 4096 / n if matrix >= FRESH_BYTES else 0.0
    return (products + element + traffic + operands) / hz + fresh + (3 + ops) * OP_SECONDS
