"""Kernel IR as text: one statement a line, spaces and tile lengths spelled out."""

from __future__ import annotations

from collections.abc import Iterator

from aicf.kernel.ir import (
    Contract,
    Fill,
    Kernel,
    LoadTile,
    Loop,
    Map,
    Parallel,
    Reduce,
    Retry,
    RowBlock,
    Stmt,
    StoreTile,
    Stream,
    Tile,
)
from aicf.scalar import Const, Expr, show


def print_kernel(kernel: Kernel) -> str:
    """The whole kernel as text. Deterministic; the cache and the golden tests rely on it."""
    out: list[str] = [f"kernel {kernel.name}"]
    out += [f"  # {line}" for line in kernel.header]
    for t in kernel.tensors:
        unit = "" if t.unit is None else f" unit {t.unit}"
        out.append(f"  {t.role:7s} {t.name} {t.dtype}[{', '.join(map(show, t.shape))}]{unit}")
    if kernel.sizes:
        out.append(f"  sizes   {', '.join(kernel.sizes)}")
    out += [f"  scalar  {s.name} {s.dtype}" for s in kernel.scalars]
    out += [f"  axis    {a.name} < {show(a.extent)} tile {a.tile}" for a in kernel.axes]
    for c in kernel.checks:
        low = f"-{show(c.extent, 7)}" if c.wraps else "0"
        what = f"dimension {c.dim} of {c.tensor}" if c.tensor else "computed"
        turns = f", for {', '.join(_loop(v) for v in c.loops)}" if c.loops else ""
        out.append(f"  check   {low} <= {show(c.value)} < {show(c.extent)}, {what}{turns}")
    for s in kernel.summaries:
        outer = "".join(f"{v.var.name}, " for v in s.outer)
        tiles = ", ".join(f"{a} tile" for a in s.axes)
        turns = f", for {', '.join(_loop(v) for v in s.outer)}" if s.outer else ""
        out.append(f"  summary {s.param}[{outer}{tiles}] = {s.op} over {', '.join(s.axes)} of {show(s.value)}{turns}")
    out += _body(kernel, kernel.body, 1)
    return "\n".join(out) + "\n"


def print_statement(kernel: Kernel, statement: Stmt) -> str:
    """The first line of a statement, for messages; works for ill-formed statements too."""
    return next(_body(kernel, (statement,), 0))


def _tile(kernel: Kernel, tile: Tile, blocked: dict[str, int]) -> str:
    lengths = {axis.name: axis.tile for axis in kernel.axes} | blocked
    dims = ", ".join(f"{a}:{lengths.get(a, '?')}" for a in tile.axes)
    return f"{tile.name}[{dims}] : {tile.dtype} {tile.space}"


def _body(kernel: Kernel, body: tuple[Stmt, ...], depth: int, blocked: dict[str, int] | None = None) -> Iterator[str]:
    pad = "  " * depth
    rows = blocked or {}
    for s in body:
        match s:
            case Fill():
                yield f"{pad}{_tile(kernel, s.tile, rows)} = {show(s.value)}"
            case LoadTile():
                yield f"{pad}{_tile(kernel, s.tile, rows)} = load {s.tensor}[{', '.join(map(show, s.at))}]"
            case Map():
                yield f"{pad}{_tile(kernel, s.tile, rows)} = map {show(s.expr)}"
            case Reduce():
                plus = f"{s.tile.name} {'+' if s.op == 'sum' else s.op} " if s.accumulate else ""
                yield f"{pad}{_tile(kernel, s.tile, rows)} = {plus}reduce {s.op} over {s.axis} of {show(s.expr)}"
            case Contract():
                old = s.tile.name + (f" * {s.rescale.name}" if s.rescale else "") + " + " if s.accumulate else ""
                yield (
                    f"{pad}{_tile(kernel, s.tile, rows)} = {old}contract "
                    f"{s.a.name}[{', '.join(s.a.axes)}], {s.b.name}[{', '.join(s.b.axes)}] over {s.over}"
                )
            case StoreTile():
                yield f"{pad}store {s.tensor}[{', '.join(map(show, s.at))}] = {show(s.expr)}"
            case RowBlock():
                yield f"{pad}rows {s.axis} step {s.step}{' per warp' if s.unit == 'warp' else ''}{_ends(s)}:"
                yield from _body(kernel, s.body, depth + 1, {**rows, s.axis: s.step})
            case Retry():
                yield f"{pad}retry {s.flag.name} = 1, again with 0 if any {s.axis}: {show(s.again)}:"
                yield from _body(kernel, s.body, depth + 1, rows)
            case Stream():
                step = next((axis.tile for axis in kernel.axes if axis.name == s.axis), "?")
                flight = f" stages {s.stages}" if s.stages != 1 else ""
                yield f"{pad}stream {s.axis}0 in {show(s.lo)} .. {show(s.hi)} step {step}{flight}:"
                for phase in s.phases:
                    yield f"{pad}  {phase.name}{_when(phase.when)}{' (whole)' if phase.whole else ''}:"
                    yield from _body(kernel, phase.body, depth + 2, rows) if phase.body else [f"{pad}    skip"]
            case Parallel():
                loops = ", ".join(_loop(v) for v in s.loops)
                warps = f" of {s.warps} warps" if s.unit == "block" else ""
                warps += f" of {s.registers} registers" if s.registers else ""
                yield f"{pad}parallel {loops} per {s.unit}{warps}:"
                yield from _body(kernel, s.body, depth + 1, rows)


def _loop(v: Loop) -> str:
    return f"{v.var.name} < {show(v.extent)}" + (f" step {v.step}" if v.step != 1 else "")


def _ends(s: RowBlock) -> str:
    return "".join(f", {axis} before {show(end)}" for axis, end in s.ends)


def _when(e: Expr) -> str:
    return "" if isinstance(e, Const) and e.value is True else f" when {show(e)}"
