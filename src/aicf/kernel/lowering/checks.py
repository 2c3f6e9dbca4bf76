"""Indices that may be wrong: clamped where memory is read, and checked before a kernel computes anything.

    u = map s + T[inside(I[i, j], n), h]    ->    check -T_0 <= I[i, j] < T_0, dimension 0 of T, for i < N, j < M
                                                  u = map s + T[max(0, min(I[i, j], T_0 - 1)), h]

`inside` stands in a scalar expression wherever the source program reads by an index of which nothing is known. Positions that are
known to be in range never have one. All indices that hold an element of a tensor are clamped, whatever they are made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from aicf.kernel.indices import clamped, of_a_tensor
from aicf.kernel.ir import Check, Kernel, LoadTile, Loop, Parallel, Stmt, TensorParam, statements
from aicf.kernel.visit import expressions, with_bodies, with_expressions
from aicf.scalar import Call, Const, Expr, Load, call, load, rebuild, variables, walk
from aicf.scalar import Reduce as ReduceExpr
from aicf.scalar.expr import children


def checked(kernel: Kernel) -> Kernel:
    """`kernel` without `inside`: every index that comes from a tensor, or may be wrong, clamped, with the checks of those that
    the source program wants to be right."""
    if not any(_doubtful(e) for e in _all(kernel)):
        return kernel
    made = _Checks(kernel)
    body = tuple(made.statement(s) for s in kernel.body)
    summaries = tuple(replace(s, value=made.expression(s.value)) for s in kernel.summaries)
    assert all(isinstance(s, Parallel) for s in body)
    return replace(kernel, body=body, summaries=summaries, checks=(*kernel.checks, *made.found))


def _doubtful(e: Expr) -> bool:
    """Whether an expression reads at an index that holds an element of a tensor, or one that may be wrong."""
    return any(_is_inside(x) or (isinstance(x, Load) and any(map(of_a_tensor, x.index))) for x in walk(e))


def _is_inside(e: Expr) -> bool:
    return isinstance(e, Call) and e.fn == "inside"


def _of_a_tensor(e: Expr) -> bool:
    return of_a_tensor(e) or any(map(_is_inside, walk(e)))


def _all(kernel: Kernel) -> Iterator[Expr]:
    """All expressions of a kernel; a tile's load as the element that it loads."""
    yield from expressions(kernel.body)
    for s in statements(kernel.body):
        if isinstance(s, LoadTile):
            yield load(s.tensor, s.at, kernel.tensor(s.tensor).dtype)
    yield from (s.value for s in kernel.summaries)


class _Checks:
    """Rewrites a kernel's expressions, and collects what has to be checked."""

    def __init__(self, kernel: Kernel) -> None:
        self.tensors: dict[str, TensorParam] = {t.name: t for t in kernel.tensors}
        self.loops = _turns(kernel)
        self.constant = {*kernel.sizes, *(s.name for s in kernel.scalars)}
        self.found: dict[Check, None] = {}
        self.done: dict[Expr, Expr] = {}

    def statement(self, s: Stmt) -> Stmt:
        changed = with_expressions(s, self.expression, self.index)
        return with_bodies(changed, lambda body: tuple(map(self.statement, body)))

    def index(self, tensor: str, at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        made = self.expression(load(tensor, at, self.tensors[tensor].dtype))
        assert isinstance(made, Load)
        return made.index

    def expression(self, e: Expr) -> Expr:
        if not isinstance(e, Load):
            for part in _outermost(e):  # an element of what is computed from positions alone: no tensor is read
                self._check("", 0, part, part.args[1])
        for x in walk(e):
            if x not in self.done:
                self.done[x] = self._made(x)
        return self.done[e]

    def _made(self, x: Expr) -> Expr:
        match x:
            case Load():
                shape = self.tensors[x.tensor].shape
                for dim, e in enumerate(x.index):
                    for part in _outermost(e):
                        self._check(x.tensor, dim, part, shape[dim] if part is e else part.args[1])
                parts = zip(x.index, shape, strict=True)
                at = [clamped(self._plain(e), dim) if _of_a_tensor(e) else self.done[e] for e, dim in parts]
                return load(x.tensor, tuple(at), x.dtype)
            case Call(fn="inside"):
                return clamped(self.done[x.args[0]], self.done[x.args[1]])
            case _:
                return rebuild(x, tuple(self.done[c] for c in children(x)))

    def _plain(self, e: Expr) -> Expr:
        return self.done[e.args[0]] if isinstance(e, Call) and e.fn == "inside" else self.done[e]

    def _check(self, tensor: str, dim: int, e: Call, extent: Expr) -> None:
        value, wraps = _unwrapped(e.args[0], e.args[1])
        bound = {v.name for v in variables(value)} - self.constant
        if bound <= self.loops.keys():
            turns = tuple(loop for name, loop in self.loops.items() if name in bound)
            self.found.setdefault(Check(tensor, dim, self.done[value], extent, wraps, turns))


def _outermost(e: Expr) -> list[Call]:
    """The `inside` of an index, but for those that stand in indices of what it loads."""
    parts: dict[Call, None] = {}
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x in seen or isinstance(x, Load):
            continue
        seen.add(x)
        if isinstance(x, Call) and x.fn == "inside":
            parts[x] = None
        stack += children(x)
    return [*parts]


def _unwrapped(e: Expr, extent: Expr) -> tuple[Expr, bool]:
    """(the program's own index, whether negative ones count from the end)."""
    match e:
        case Call(fn="where", args=(Call(fn="lt", args=(x, Const() as zero)), y, z)) if z is x and zero.value == 0:
            return (x, True) if y is call("add", x, extent) else (e, False)
        case _:
            return e, False


def _turns(kernel: Kernel) -> dict[str, Loop]:
    """How often every variable of a kernel's expressions takes a value: loops outermost first, axes last."""
    loops: dict[str, Loop] = {}
    for s in kernel.summaries:
        loops.update((v.var.name, v) for v in s.outer)
    for s in kernel.body:
        if isinstance(s, Parallel):
            loops.update((v.var.name, v) for v in s.loops)
    for e in _all(kernel):
        loops.update((x.var.name, Loop(x.var, x.extent)) for x in walk(e) if isinstance(x, ReduceExpr))
    for a in kernel.axes:
        loops[a.origin.name] = Loop(a.origin, a.extent, a.tile)
    for a in kernel.axes:
        loops.pop(a.name, None)
        loops[a.name] = Loop(a.position, a.extent)
    return loops
