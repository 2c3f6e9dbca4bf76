"""A kernel's checks of indices as a kernel of their own: of each the lowest and the highest index, tile by tile, in tensors.

    check 0 <= I[i, j] < T_0, for i < N, j < M     ->     parallel i0 < N step 64, j0 < M step 64:
                                                            lowest_0[i0 // 64, j0 // 64] = min over i, j of I[i, j]
                                                            highest_0[i0 // 64, j0 // 64] = max …

The caller runs it before the kernel that it belongs to and reads what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from aicf.kernel import Kernel, Loop, Parallel, Reduce, Stmt, StoreTile, TensorParam, Tile
from aicf.kernel.indices import checked_axes, checked_items
from aicf.scalar import Expr, call, cast, integer_const, var


def check_kernel(kernel: Kernel, numbers: Sequence[int]) -> Kernel:
    """The kernel of the checks of `kernel` with these numbers; out tensors `lowest_k` and `highest_k` for each number k."""
    body: list[Parallel] = []
    params = [t for t in kernel.tensors if t.role == "in"]
    for k in numbers:
        c = kernel.checks[k]
        loops = checked_items(kernel, c)
        found: list[Stmt] = []
        ends: tuple[tuple[str, Literal["min", "max"]], ...] = (("lowest", "min"), ("highest", "max"))
        for name, op in ends:
            value: Expr = cast(c.value, "i64")
            axes = tuple(checked_axes(kernel, c))
            for n, a in reversed(list(enumerate(axes))):
                best = Tile(f"{name}_{k}_over_{a}", "i64", axes[:n], "register")
                found.append(Reduce(best, op, a, value))
                value = var(best.name, "i64")
            params.append(TensorParam(f"{name}_{k}", "i64", tuple(map(_turns, loops)), "out", len(loops) - 1 if loops else None))
            at = tuple(call("floordiv", v.var, integer_const(v.step)) for v in loops)
            found.append(StoreTile(f"{name}_{k}", at, (), value))
        body.append(Parallel(loops, tuple(found), "block", 1))
    return replace(
        kernel, name=f"{kernel.name}_checks", tensors=tuple(params), body=tuple(body), summaries=(), checks=(), scalars=()
    )


def _turns(loop: Loop) -> Expr:
    return call("floordiv", call("add", loop.extent, integer_const(loop.step - 1)), integer_const(loop.step))
