"""Indices that come from the elements of tensors: where they are used they are clamped to the dimension that they index."""

from __future__ import annotations

from collections.abc import Mapping

from aicf.kernel.ir import Check, Kernel, Loop
from aicf.scalar import Call, Const, Expr, Load, call, integer_const, walk


def clamped(e: Expr, extent: Expr) -> Expr:
    """`e`, or the nearest number that is an index of `extent` elements: max(0, min(e, extent - 1))."""
    return call("max", integer_const(0), call("min", e, call("sub", extent, integer_const(1))))


def is_clamped(e: Expr, extent: Expr) -> bool:
    """Whether `e` has the form that `clamped` gives it."""
    last = call("sub", extent, integer_const(1))
    return isinstance(e, Const) or (
        isinstance(e, Call)
        and e.fn == "max"
        and any(a is integer_const(0) for a in e.args)
        and any(isinstance(a, Call) and a.fn == "min" and any(x is last for x in a.args) for a in e.args)
    )


def of_a_tensor(e: Expr) -> bool:
    """Whether an index holds an element of a tensor, so that it may be any number."""
    return any(isinstance(x, Load) for x in walk(e))


def checked_axes(kernel: Kernel, c: Check) -> list[str]:
    """The kernel's axes that a check runs along."""
    whole = {v.var.name: v.extent for v in c.loops if v.step == 1}
    return [a.name for a in kernel.axes if whole.get(a.name) is a.extent]


def checked_items(kernel: Kernel, c: Check) -> tuple[Loop, ...]:
    """The loops whose turns are a check's work items: axes by the tile, everything else by itself."""
    along = {name: kernel.axis(name) for name in checked_axes(kernel, c)}
    made = (Loop(along[v.var.name].origin, v.extent, along[v.var.name].tile) if v.var.name in along else v for v in c.loops)
    return tuple({v.var.name: v for v in made}.values())


class OutOfRange(IndexError):
    """A check that failed: `lowest` and `highest` of the indices that were looked at, of which one at least is wrong (0 where
    the lowest is no number below 0, or the highest none above it), and the `extent` of the dimension that they index."""

    def __init__(self, check: Check, lowest: int, highest: int, extent: int) -> None:
        self.check, self.extent = check, extent
        self.index = highest if highest >= extent else lowest
        super().__init__(self.told({}))

    def told(self, names: Mapping[str, str]) -> str:
        """What is wrong, tensors called by `names` where those have one."""
        held = dict.fromkeys(x.tensor for x in walk(self.check.value) if isinstance(x, Load))
        given = f" (taken from {', '.join(names.get(n, n) for n in held)})" if held else ""
        tensor = names.get(self.check.tensor, self.check.tensor)
        what = f"dimension {self.check.dim} of {tensor}" if tensor else "a tensor that is computed"
        return f"index {self.index}{given} is out of range for {what}, which has {self.extent} elements"
