"""The sizes that a schedule is chosen for, and the traffic of the two streaming orders."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from aicf.scalar import BYTES, DType


@dataclass(frozen=True)
class Problem:
    """One streaming region with numbers for its sizes.

    `rows` and `keys`: extents of the row axis and the streamed axis in one item; `items`: independent items (batch * heads);
    `groups`: items that share one K and V (GQA). `widths`: extents of the contractions that make scores, one per contraction;
    `value_widths`: widths of the accumulated values, empty when only row statistics are wanted. `dtype`: of the operands in
    memory. `exps` and `score_ops`: exponentials, and other operations per score beyond scale, maximum, subtraction and sum.
    `score_loads`: bytes of each element that is loaded for every score (a mask or a bias that depends on row and key);
    `key_loads`: of each that is loaded for every key (a document's number, a padding mask).
    `skipped`: share of the scores that lie in provably empty tiles, were the tiles small; `edges`: boundaries of that region
    that a row crosses, on average (causal 1, sliding window 2, none 0); `ended`: how many of them end a row's keys, so that a
    block of rows leaves out what lies past its own end (causal 1, sliding window 1); `retried`: what was skipped has to be looked
    at again (a finite fill value), so that key-major order skips nothing. `states`: scalars carried per row. `threads`: worker
    threads to use (CPU). `row_items`: how many items are rows of one product with the values in the source, and items only
    because each has keys of its own (relative positions).
    """

    rows: int
    keys: int
    items: int = 1
    groups: int = 1
    widths: tuple[int, ...] = (64,)
    value_widths: tuple[int, ...] = (64,)
    dtype: DType = "f32"
    exps: int = 1
    score_ops: float = 0.0
    score_loads: tuple[int, ...] = ()
    key_loads: tuple[int, ...] = ()
    skipped: float = 0.0
    edges: float = 0
    ended: float = 0
    retried: bool = False
    states: int = 2
    threads: int = 1
    row_items: int = 1

    def __post_init__(self) -> None:
        if min(self.rows, self.keys, self.items, self.groups, self.threads, self.row_items) < 1:
            raise ValueError(f"sizes must be at least 1: {self}")
        if not self.widths or min((*self.widths, *self.value_widths)) < 1:
            raise ValueError(f"widths must be at least 1, and there must be one: {self}")
        if not 0.0 <= self.skipped < 1.0:
            raise ValueError(f"the share of skipped scores is {self.skipped}, it must be at least 0 and below 1")
        if self.edges < 0:
            raise ValueError(f"there are {self.edges} mask edges, there cannot be fewer than 0")
        if not 0 <= self.ended <= self.edges:
            raise ValueError(f"{self.ended} mask edges end a row, of {self.edges} there are")
        if min((1, *self.score_loads, *self.key_loads)) < 1:
            raise ValueError(f"elements that are loaded have {self.score_loads} and {self.key_loads} bytes, at least 1 is needed")

    @property
    def width(self) -> int:
        """All score contractions' widths together."""
        return sum(self.widths)

    @property
    def value_width(self) -> int:
        return sum(self.value_widths)

    @property
    def state_bytes(self) -> int:
        """Bytes of all rows' state (f32), which key-major order keeps in memory."""
        return 4 * self.items * self.rows * (self.value_width + self.states)

    @property
    def bytes(self) -> int:
        """Bytes of one operand element in memory."""
        return BYTES[self.dtype]

    def under(self, order: str) -> Problem:
        """The problem as it is in an order."""
        if order == "kv_major" and self.retried:
            return replace(self, skipped=0.0, edges=0, ended=0)
        return self

    def share(self, tile_m: int = 0, tile_n: int = 0) -> float:
        """The share of scores that is computed with these tiles: an edge of the mask cuts tiles, which are then computed whole;
        for a diagonal that is (B_q + B_k) / (2 N_k) more."""
        return min(1.0, 1.0 - self.skipped + self.edges * (tile_m + tile_n) / (2 * self.keys))

    def block_share(self, tile_m: int, tile_n: int, rows: int, columns: int) -> float:
        """The share of scores that blocks of `rows` compute, `columns` at a time, inside such tiles: edges that end a row cut
        blocks instead of tiles."""
        whole = (self.edges - self.ended) * (tile_m + tile_n) + self.ended * (rows + columns)
        return min(1.0, 1.0 - self.skipped + whole / (2 * self.keys))

    @property
    def shape_class(self) -> str:
        """What problems have in common that the same schedule is good for: extents by their nearest power of two, and everything
        that is not an extent. A text."""
        p = self
        extents = f"rows {_near(p.rows)}, keys {_near(p.keys)}, items {_near(p.items)}, kept {_near(1 / (1 - p.skipped))}"
        body = f"groups {p.groups}, widths {p.widths}, values {p.value_widths}, {p.dtype}, exps {p.exps}, ops {p.score_ops:g}"
        loads = f"loads {p.score_loads} a score, {p.key_loads} a key"
        edges = f"edges {int(p.edges > 0)}, ended {int(p.ended > 0)}"
        return f"{extents}, {body}, {loads}, {edges}, states {p.states}, threads {p.threads}"

    @property
    def flops(self) -> float:
        """Multiplications and additions of the contractions that are computed, over all items."""
        return 2.0 * self.items * self.rows * self.keys * (self.width + self.value_width) * self.share()


def _near(x: float) -> int:
    """The nearest power of two."""
    return 1 << round(math.log2(x))


def q_major_bytes(p: Problem, tile_m: int) -> float:
    """Global traffic of one item with rows outside: N_q (d + d_v) + ceil(N_q / B_q) N_k (d + d_v) elements."""
    both = p.width + p.value_width
    return p.bytes * (p.rows * both + math.ceil(p.rows / tile_m) * p.keys * both * p.share(tile_m))


def kv_major_bytes(p: Problem, tile_n: int) -> float:
    """Global traffic of one item with keys outside: N_k (d + d_v) elements, and per key tile the rows' operand and the state
    (f32, `states` scalars and d_v values a row) read and written; with one key tile there is nothing to spill."""
    p = p.under("kv_major")
    both = p.width + p.value_width
    turns = math.ceil(p.keys / tile_n)
    if turns == 1:
        return p.bytes * (p.keys + p.rows) * both
    state = 2 * 4 * (p.value_width + p.states)
    return p.bytes * (p.keys * both + p.rows * p.value_width) + turns * p.share(0, tile_n) * p.rows * (p.width * p.bytes + state)
