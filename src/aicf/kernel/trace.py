"""What a run of the interpreter moved: bytes per memory space and direction, live bytes, phases taken, retries.

The model, simple on purpose and the same for every target:

* a LoadTile reads global memory (the tensor) and writes its tile's space; a StoreTile reads the tiles of its expression and
  writes global memory;
* Fill, Map, Reduce and Contract read each operand tile once per execution from that tile's space and write the result to its
  own; an accumulating Reduce or Contract reads its old value too;
* an element `Load` in an expression reads global memory once per lane of the axes that its index depends on;
* only existing lanes count; the statements of a RowBlock run, and count, once per block of rows that has a row.

A tile is live from its first write to the end of the body that it was first written in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from aicf.kernel.ir import Space


@dataclass
class Trace:
    """Counts of one run, in bytes unless said otherwise.

    `read` and `written`: global memory by tensor name. `tile_read` and `tile_written`: tiles by space (a tile in space
    global counts here). `peak`: the most bytes of tiles live at once in one work item, by space. `phases`: how many streamed
    tiles took each phase, by (axis, phase). `stores`: for each out tensor, the smallest and largest number of times that one
    of its elements was written: (1, 1) when the kernel is right.
    """

    read: Counter[str] = field(default_factory=Counter[str])
    written: Counter[str] = field(default_factory=Counter[str])
    tile_read: Counter[Space] = field(default_factory=Counter[Space])
    tile_written: Counter[Space] = field(default_factory=Counter[Space])
    peak: Counter[Space] = field(default_factory=Counter[Space])
    phases: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    stores: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    items: int = 0
    retries: int = 0

    @property
    def global_bytes(self) -> int:
        """All traffic with tensors in global memory."""
        return sum(self.read.values()) + sum(self.written.values())

    def __str__(self) -> str:
        return "\n".join([
            f"items {self.items}, retries {self.retries}",
            f"global  read {_list(self.read)}; written {_list(self.written)}",
            f"tiles   read {_list(self.tile_read)}; written {_list(self.tile_written)}; peak {_list(self.peak)}",
            "phases  " + (", ".join(f"{a}0 {p} {n}" for (a, p), n in sorted(self.phases.items())) or "none"),
        ])  # fmt: skip


def _list(counts: Counter[str] | Counter[Space]) -> str:
    return ", ".join(f"{name} {count:,} B" for name, count in sorted(counts.items())) or "nothing"
