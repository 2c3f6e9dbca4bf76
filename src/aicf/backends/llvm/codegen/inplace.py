"""Operands that Contracts read where they lie, in a tensor, because a packed copy would be used once.

k[j:64, d:64] : f32 register = load K[0, b, j, d]      across: memory runs along d, vectors are wanted along j
v[j:64, e:64] : f32 register = load V[0, b, j, e]      along: memory runs along e, so do the vectors
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from aicf.backends.llvm.codegen.roles import Roles, roles_along
from aicf.backends.llvm.codegen.values import held
from aicf.kernel import Contract, Kernel, LoadTile, Map, Reduce, StoreTile, statements, written
from aicf.scalar import Const, Expr, Var, affine, const, is_int, variables

Run = Literal["along", "across"]


def in_place(
    kernel: Kernel, chunks: Mapping[str, int], vectors: Mapping[str, str | None], lanes: int
) -> frozenset[str]:  # fmt: skip
    """The tiles in registers that need no copy: loaded as they are, and nothing but operand b of Contracts that can read the
    tensor. `chunks`: elements of a block of each axis; `vectors`: the vector axis of each tile."""
    loads: dict[str, list[LoadTile]] = {}
    uses: dict[str, list[tuple[Roles, str]]] = {}
    refused: set[str] = set()
    for s in statements(kernel.body):
        tile = written(s)
        match s:
            case LoadTile() if s.tile.space == "register":
                loads.setdefault(s.tile.name, []).append(s)
            case Contract():
                wide = is_int(s.tile.dtype) or "f64" in (s.tile.dtype, s.a.dtype, s.b.dtype)
                r = None if wide else roles_along(s, vectors.get(s.tile.name))
                refused |= {s.a.name, s.b.name} if r is None else {r.a.name}
                if r is not None:
                    uses.setdefault(r.b.name, []).append((r, s.over))
            case Map() | Reduce() | StoreTile():
                refused |= {v.name for v in variables(s.expr)}
            case _:
                pass
        if tile is not None and not isinstance(s, LoadTile):
            refused.add(tile.name)
    return frozenset(
        name
        for name, all_loads in loads.items()
        if name not in refused
        and all(run(kernel, load, r, over, chunks, lanes) for load in all_loads for r, over in uses.get(name, ()))
    )


def run(kernel: Kernel, s: LoadTile, r: Roles, over: str, chunks: Mapping[str, int], lanes: int) -> Run | None:
    """How memory runs through what a Contract wants of a tile; None where it has to be copied.

    Vectors are loaded whole: the axis along which memory runs has its full length always, in whole vectors.
    """
    tensor = kernel.tensor(s.tensor)
    if tensor.unit is None or held(tensor.dtype) != "float" or s.tile.dtype != "f32" or set(s.tile.axes) != {r.y, over}:
        return None
    runs: tuple[tuple[str, int, Run], ...] = ((r.y, chunks[r.y], "along"), (over, lanes, "across"))
    for axis, step, how in runs:
        position, length = kernel.axis(axis).position, kernel.axis(axis)
        other = kernel.axis(over if axis == r.y else r.y).position
        if (
            length.extent is const(length.tile, "i64")
            and length.tile % step == 0
            and all(coefficient(e, position) == (1 if d == tensor.unit else 0) for d, e in enumerate(s.at))
            and all(affine(e, (other,)) is not None for e in s.at)
            and coefficient(s.at[tensor.unit], other) == 0
        ):
            return how
    return None


def coefficient(e: Expr, v: Var) -> int | None:
    """The constant factor of `v` in `e`, None when there is none."""
    if v not in variables(e):
        return 0
    part = affine(e, (v,))
    return int(part[0][0].value) if part is not None and isinstance(part[0][0], Const) else None
