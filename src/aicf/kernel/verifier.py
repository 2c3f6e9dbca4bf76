"""Is a kernel well formed? Every problem is reported at once, with the statement as printed and what is wrong with it.

Checked: names are unique and bound where they are used; tiles are defined before use, in scope and always the same; axes are
known and walked by one loop, or whole; axes and types of operands agree; loads and stores have the rank of their tensor; each
out tensor is stored once on every path of an item, and no two items write the same elements; streams start on a tile boundary
and one of their phases is sure to hold. What depends on run-time values (does a `whole` phase have a tail? is an index in
range?) the interpreter checks. An index that holds an element of a tensor may be any number: it has to be clamped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aicf.kernel.indices import is_clamped, of_a_tensor
from aicf.kernel.ir import (
    Axis,
    Check,
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
    Summary,
    TensorParam,
    Tile,
)
from aicf.kernel.printer import print_statement
from aicf.scalar import Call, Const, DType, Expr, Load, Var, integer_const, is_float, is_int, poly, show, variables, walk


class KernelError(ValueError):
    """A kernel that is not well formed; `problems` says all that is wrong."""

    def __init__(self, kernel: Kernel, problems: list[str]) -> None:
        place = f", {kernel.header[0]}," if kernel.header else ""
        super().__init__(f"kernel {kernel.name}{place} is not well formed:\n" + "\n".join(f"  {p}" for p in problems))
        self.problems = problems


def check_kernel(kernel: Kernel) -> None:
    """Raise KernelError when `verify_kernel` finds anything."""
    problems = verify_kernel(kernel)
    if problems:
        raise KernelError(kernel, problems)


def verify_kernel(kernel: Kernel) -> list[str]:
    """All that is wrong with `kernel`, one sentence each; empty when it is well formed."""
    verifier = _Verifier(kernel)
    verifier.declarations()
    verifier.bodies()
    return verifier.problems


@dataclass(frozen=True)
class _Scope:
    """What a statement sees. `walked`: axes with a loop around; `streamed`: those whose loop is a stream. `loops`: for each
    enclosing loop that runs more than once, the variable names that tell its turns apart and how it is called in messages.
    `rows`: for each blocked axis, the tiles that exist outside its blocks."""

    bound: dict[str, DType]
    tiles: dict[str, Tile] = field(default_factory=dict[str, Tile])
    walked: frozenset[str] = frozenset()
    loops: tuple[tuple[frozenset[str], str], ...] = ()
    rows: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    in_retry: bool = False
    streamed: frozenset[str] = frozenset()

    def inside(self) -> _Scope:
        """A copy whose tiles end with it."""
        return replace(self, tiles=dict(self.tiles))


Stores = dict[str, tuple[int, int]]  # per out tensor: the fewest and most stores on a path


@dataclass
class _Verifier:
    kernel: Kernel
    problems: list[str] = field(default_factory=list[str])
    tensors: dict[str, TensorParam] = field(default_factory=dict[str, TensorParam])
    axes: dict[str, Axis] = field(default_factory=dict[str, Axis])
    ready: set[str] = field(default_factory=set[str])  # scratch tensors that have been written
    here: set[str] = field(default_factory=set[str])  # scratch tensors written in the present Parallel

    def problem(self, where: Stmt | Summary | str, what: str) -> None:
        if isinstance(where, str):
            text = where
        elif isinstance(where, Summary):
            text = f"summary {where.param}"
        else:
            text = f"`{print_statement(self.kernel, where)}`"
        self.problems.append(f"{text}: {what}")

    # ------------------------------------------------------------------------------------------ declarations

    def declarations(self) -> None:
        k = self.kernel
        seen: set[str] = set()
        for name in (*(t.name for t in k.tensors), *k.sizes, *(s.name for s in k.scalars)):
            if name in seen:
                self.problem(f"parameter {name}", "declared twice")
            seen.add(name)
        sizes: dict[str, DType] = dict.fromkeys(k.sizes, "i64")
        for t in k.tensors:
            self.tensors[t.name] = t
            for e in t.shape:
                self.names(f"tensor {t.name}", e, sizes)
            if t.unit is not None and not 0 <= t.unit < len(t.shape):
                self.problem(f"tensor {t.name}", f"unit {t.unit} is no dimension of a tensor of rank {len(t.shape)}")
        for a in k.axes:
            if a.name in self.axes or a.name in seen:
                self.problem(f"axis {a.name}", "the name is declared twice")
            self.axes[a.name] = a
            self.names(f"axis {a.name}", a.extent, sizes)
            if a.tile < 1:
                self.problem(f"axis {a.name}", f"tile length {a.tile}, it must be at least 1")
        bound: dict[str, DType] = {**sizes, **{s.name: s.dtype for s in k.scalars}}
        for c in k.checks:
            self.check(c, bound)
        for s in k.summaries:
            self.summary(s, bound)

    def check(self, c: Check, bound: dict[str, DType]) -> None:
        where = f"check of `{show(c.value)}`"
        param = self.tensors.get(c.tensor)
        if param is None:
            if c.tensor:
                self.problem(where, f"there is no tensor {c.tensor}")
        elif not 0 <= c.dim < len(param.shape):
            self.problem(where, f"{c.tensor} has no dimension {c.dim}, its rank is {len(param.shape)}")
        inner = dict(bound)
        for v in c.loops:
            self.names(where, v.extent, bound)
            if v.var.name in inner:
                self.problem(where, f"{v.var.name} is bound already")
            if v.step < 1:
                self.problem(where, f"step {v.step} of {v.var.name} must be at least 1")
            inner[v.var.name] = v.var.dtype
        for e, known in ((c.value, inner), (c.extent, bound)):
            self.names(where, e, known)
            if not is_int(e.dtype):
                self.problem(where, f"`{show(e)}` is {e.dtype}, it must be an integer")
        self.loads(where, c.value, _Scope(bound))

    def summary(self, s: Summary, bound: dict[str, DType]) -> None:
        param = self.tensors.get(s.param)
        if param is None or param.role != "scratch":
            self.problem(s, f"{s.param} is not declared as a scratch tensor")
        elif len(param.shape) != len(s.outer) + len(s.axes):
            count = f"{len(s.outer)} outer variables and {len(s.axes)} axes"
            self.problem(s, f"{s.param} has rank {len(param.shape)}, but there are {count}")
        elif param.dtype != s.value.dtype:
            self.problem(s, f"the value is {s.value.dtype}, {s.param} is {param.dtype}")
        if not 1 <= len(s.axes) <= 2:
            self.problem(s, f"it has {len(s.axes)} axes, a summary has one or two")
        inner: dict[str, DType] = dict(bound)
        for a in s.axes:
            if a not in self.axes:
                self.problem(s, f"there is no axis {a}")
            inner[a] = "i64"
        for v in s.outer:
            self.names(s, v.extent, bound)
            inner[v.var.name] = v.var.dtype
        self.names(s, s.value, inner)
        self.loads(s, s.value, _Scope(bound))
        self.ready.add(s.param)

    def names(self, where: Stmt | Summary | str, e: Expr, bound: dict[str, DType]) -> None:
        """Every variable of `e` is in `bound` with its type."""
        for v in sorted(variables(e), key=lambda v: v.name):
            if v.name not in bound:
                self.problem(where, f"`{show(e)}` uses {v.name}, which is not bound here")
            elif bound[v.name] != v.dtype:
                self.problem(where, f"`{show(e)}` takes {v.name} for {v.dtype}, it is {bound[v.name]}")

    # ------------------------------------------------------------------------------------------ bodies

    def bodies(self) -> None:
        k = self.kernel
        bound: dict[str, DType] = {**dict.fromkeys(k.sizes, "i64"), **{s.name: s.dtype for s in k.scalars}}
        total: Stores = {}
        for s in k.body:
            if not isinstance(s, Parallel):
                self.problem(s, "stands outside a parallel statement; a kernel's body is parallel statements only")
                continue
            self.here = set()
            total = _then(total, self.parallel(s, _Scope(bound)))
        for t in k.tensors:
            if t.role != "out":
                continue
            least, most = total.get(t.name, (0, 0))
            if most == 0:
                self.problem(f"out tensor {t.name}", "is never stored")
            elif least == 0:
                self.problem(f"out tensor {t.name}", "is not stored on every path: a phase leaves it out")
            elif most > 1:
                self.problem(f"out tensor {t.name}", f"may be stored {most} times")

    def body(self, body: tuple[Stmt, ...], scope: _Scope) -> Stores:
        total: Stores = {}
        for s in body:
            total = _then(total, self.statement(s, scope))
        return total

    def statement(self, s: Stmt, scope: _Scope) -> Stores:
        match s:
            case Fill():
                self.expression(s, s.value, (), scope, tiles=False)
                self.same_type(s, s.value, s.tile)
                self.define(s, s.tile, scope)
            case LoadTile():
                self.access(s, s.tensor, s.at, s.tile.axes, scope)
                self.readable(s, s.tensor, s.at, scope)
                self.define(s, s.tile, scope)
            case Map():
                self.expression(s, s.expr, s.tile.axes, scope)
                self.same_type(s, s.expr, s.tile)
                self.define(s, s.tile, scope)
            case Reduce():
                if s.axis in s.tile.axes:
                    self.problem(s, f"the result still has the axis {s.axis} that is reduced")
                self.available(s, s.axis, scope)
                self.expression(s, s.expr, (*s.tile.axes, s.axis), scope)
                self.same_type(s, s.expr, s.tile)
                self.accumulates(s, s.tile, s.accumulate, scope)
                self.define(s, s.tile, scope, adds=s.accumulate)
            case Contract():
                self.contract(s, scope)
            case StoreTile():
                return self.store(s, scope)
            case RowBlock():
                return self.rows(s, scope)
            case Stream():
                return self.stream(s, scope)
            case Retry():
                return self.retry(s, scope)
            case Parallel():
                self.problem(s, "a parallel statement inside another")
        return {}

    def contract(self, s: Contract, scope: _Scope) -> None:
        for operand in (s.a, s.b, *((s.rescale,) if s.rescale is not None else ())):
            self.operand(s, operand, scope)
        for operand in (s.a, s.b):
            if s.over not in operand.axes:
                self.problem(s, f"operand {operand.name} does not have the axis {s.over} that is contracted")
        shared = [x for x in s.a.axes if x in s.b.axes and x != s.over]
        if shared:
            self.problem(s, f"both operands have axis {shared[0]}; they may share {s.over} only")
        left = [x for x in s.a.axes if x != s.over]
        rest = [*left, *(x for x in s.b.axes if x != s.over)]
        if not shared and sorted(rest) != sorted(s.tile.axes):
            self.problem(s, f"the result has axes [{', '.join(s.tile.axes)}], the operands leave [{', '.join(rest)}]")
        if s.tile.dtype not in ("f32", "f64", "i32", "i64"):
            self.problem(s, f"accumulates in {s.tile.dtype}; it must be f32, f64, i32 or i64")
        elif is_float(s.a.dtype) != is_float(s.tile.dtype) or is_float(s.b.dtype) != is_float(s.tile.dtype):
            self.problem(s, f"operands are {s.a.dtype} and {s.b.dtype}, the result is {s.tile.dtype}")
        if s.rescale is not None:
            if not s.accumulate:
                self.problem(s, "rescales an old value without accumulating")
            if not set(s.rescale.axes) <= set(left):
                extra = next(x for x in s.rescale.axes if x not in left)
                self.problem(s, f"rescale {s.rescale.name} has axis {extra}, which {s.a.name} does not leave")
            if s.rescale.dtype != s.tile.dtype:
                self.problem(s, f"rescale {s.rescale.name} is {s.rescale.dtype}, the result is {s.tile.dtype}")
        self.accumulates(s, s.tile, s.accumulate, scope)
        self.define(s, s.tile, scope, adds=s.accumulate)

    def store(self, s: StoreTile, scope: _Scope) -> Stores:
        if len(set(s.axes)) != len(s.axes):
            self.problem(s, f"axes [{', '.join(s.axes)}] are not unique")
        for a in s.axes:
            self.available(s, a, scope)
        self.access(s, s.tensor, s.at, s.axes, scope)
        self.expression(s, s.expr, s.axes, scope)
        param = self.tensors.get(s.tensor)
        if param is None:
            return {}
        if param.role == "in":
            self.problem(s, f"{s.tensor} is an input")
        if is_float(s.expr.dtype) != is_float(param.dtype):
            self.problem(s, f"the value is {s.expr.dtype}, {s.tensor} is {param.dtype}; say how to convert with a cast")
        used = {v.name for e in s.at for v in variables(e)}
        for names, what in scope.loops:
            if not names & used and (param.role != "scratch" or what.startswith("loop ")):
                self.problem(s, f"every turn of {what} writes the same elements")
        for a in s.axes:
            if a not in used and not _single(self.kernel.axis(a).extent):
                self.problem(s, f"axis {a} is not in the index, so its lanes write the same element")
        self.covers(s, param, scope)
        if param.role == "scratch":
            self.ready.add(s.tensor)
            self.here.add(s.tensor)
            return {}
        if scope.in_retry:
            self.problem(s, "stores an out tensor inside a retry, where it may run twice")
        return {s.tensor: (1, 1)}

    def covers(self, s: StoreTile, param: TensorParam, scope: _Scope) -> None:
        """Where an index is a bare axis position, the axis covers the dimension."""
        for dim, (extent, e) in enumerate(zip(param.shape, s.at, strict=False)):
            if isinstance(e, Var) and e.name in self.axes and e.name in s.axes and self.axes[e.name].extent is not extent:
                covered = show(self.axes[e.name].extent)
                self.problem(s, f"axis {e.name} covers {covered} of dimension {dim}, whose extent is {show(extent)}")

    def rows(self, s: RowBlock, scope: _Scope) -> Stores:
        self.available(s, s.axis, scope)
        axis = self.axes.get(s.axis)
        if s.axis in scope.rows:
            self.problem(s, f"axis {s.axis} is blocked already")
        if axis is not None and not 1 <= s.step <= axis.tile:
            self.problem(s, f"step {s.step} must be from 1 to the tile length {axis.tile}")
        if s.unit not in ("thread", "warp"):
            self.problem(s, f"works per {s.unit}, a block of rows is a thread's or a warp's")
        if len({a for a, _ in s.ends}) != len(s.ends):
            self.problem(s, "an axis is ended twice")
        for name, end in s.ends:
            if name not in scope.streamed:
                self.problem(s, f"ends axis {name}, which no stream around it walks")
            elif name == s.axis:
                self.problem(s, f"ends its own axis {name}")
            self.expression(s, end, (), scope, tiles=False)
            if not is_int(end.dtype):
                self.problem(s, f"`{show(end)}` is {end.dtype}, an end must be an integer")
        inner = scope.inside()
        turns = (frozenset({s.axis}), f"the blocks of {s.axis}")
        return self.body(s.body, replace(inner, rows={**scope.rows, s.axis: frozenset(scope.tiles)}, loops=(*scope.loops, turns)))

    def stream(self, s: Stream, scope: _Scope) -> Stores:
        axis = self.axes.get(s.axis)
        if axis is None:
            self.problem(s, f"there is no axis {s.axis}")
            return {}
        if s.axis in scope.walked:
            self.problem(s, f"axis {s.axis} is walked by an enclosing loop already")
        old = sorted(t.name for t in scope.tiles.values() if s.axis in t.axes)
        if old:
            self.problem(s, f"tile {old[0]} has axis {s.axis} from outside the stream; its lanes would change their meaning")
        for e in (s.lo, s.hi):
            self.expression(s, e, (), scope, tiles=False)
            if not is_int(e.dtype):
                self.problem(s, f"`{show(e)}` is {e.dtype}, a bound must be an integer")
        if not _multiple(s.lo, axis.tile):
            write = f"x // {axis.tile} * {axis.tile}"
            self.problem(s, f"`{show(s.lo)}` is not seen to be a multiple of the tile length; write it as {write}")
        last = s.phases[-1].when if s.phases else None
        if not (isinstance(last, Const) and last.value is True):
            self.problem(s, "no phase is sure to hold: the last one must hold always (when true)")
        if axis.origin.name in scope.bound:
            self.problem(s, f"{axis.origin.name} is bound already")
        turns = (frozenset({axis.name, axis.origin.name}), f"stream {s.axis}0")
        inner = replace(
            scope,
            bound={**scope.bound, axis.origin.name: "i64"},
            walked=scope.walked | {s.axis},
            streamed=scope.streamed | {s.axis},
            loops=scope.loops if _single(axis.extent) else (*scope.loops, turns),
        )
        found: list[Stores] = []
        for phase in s.phases:
            self.expression(s, phase.when, (), inner, tiles=False)
            if phase.when.dtype != "bool":
                self.problem(s, f"phase {phase.name}: `{show(phase.when)}` is {phase.when.dtype}, it must be bool")
            if phase.name == "empty" and phase.body:
                self.problem(s, "the empty phase has a body")
            found.append(self.body(phase.body, inner.inside()))
        return _either(found)

    def retry(self, s: Retry, scope: _Scope) -> Stores:
        if s.flag.name in scope.bound or s.flag.name in self.axes:
            self.problem(s, f"{s.flag.name} is bound already")
        if not is_int(s.flag.dtype):
            self.problem(s, f"the flag is {s.flag.dtype}, it must be an integer")
        self.available(s, s.axis, scope)
        inner = replace(scope, bound={**scope.bound, s.flag.name: s.flag.dtype}, in_retry=True)  # tiles live on after it
        stores = self.body(s.body, inner)
        self.expression(s, s.again, (s.axis,), scope)
        if s.again.dtype != "bool":
            self.problem(s, f"`{show(s.again)}` is {s.again.dtype}, it must be bool")
        return stores

    def parallel(self, s: Parallel, scope: _Scope) -> Stores:
        if s.unit not in ("thread", "block"):
            self.problem(s, f"runs per {s.unit}, an item is a thread's or a block's")
        elif s.unit == "thread" and s.warps != 1:
            self.problem(s, f"a thread has no {s.warps} warps")
        bound, walked, loops = dict(scope.bound), set[str](), list[tuple[frozenset[str], str]]()
        for v in s.loops:
            self.names(s, v.extent, scope.bound)
            if v.var.name in bound or v.var.name in self.axes:
                self.problem(s, f"{v.var.name} is bound already")
            if v.step < 1:
                self.problem(s, f"step {v.step} of {v.var.name} must be at least 1")
            bound[v.var.name] = v.var.dtype
            names = {v.var.name}
            axis = next((a for a in self.axes.values() if a.origin is v.var), None)
            if axis is not None:
                names.add(axis.name)
                walked.add(axis.name)
                self.walks(s, v, axis)
            if not (isinstance(v.extent, Const) and v.extent.value <= v.step):
                loops.append((frozenset(names), f"loop {v.var.name}"))
        return self.body(s.body, _Scope(bound, {}, frozenset(walked), tuple(loops)))

    def walks(self, s: Parallel, loop: Loop, axis: Axis) -> None:
        if loop.step != axis.tile:
            self.problem(s, f"{loop.var.name} steps by {loop.step}, axis {axis.name} has tiles of {axis.tile}")
        if loop.extent is not axis.extent:
            self.problem(s, f"{loop.var.name} runs to {show(loop.extent)}, axis {axis.name} to {show(axis.extent)}")

    # ------------------------------------------------------------------------------------------ parts

    def available(self, s: Stmt, name: str, scope: _Scope) -> None:
        """`name` is an axis with a current tile: walked by a loop around, or whole in one tile."""
        axis = self.axes.get(name)
        if axis is None:
            self.problem(s, f"there is no axis {name}")
        elif name not in scope.walked and not (isinstance(axis.extent, Const) and axis.extent.value <= axis.tile):
            fits = f"its extent {show(axis.extent)} is not known to fit one tile of {axis.tile}"
            self.problem(s, f"no loop around walks axis {name}, and {fits}")

    def define(self, s: Stmt, tile: Tile, scope: _Scope, adds: bool = False) -> None:
        if len(set(tile.axes)) != len(tile.axes):
            self.problem(s, f"the axes of {tile.name} are not unique")
        for a in tile.axes:
            self.available(s, a, scope)
        if tile.name in scope.bound or tile.name in self.axes or tile.name in {a.origin.name for a in self.axes.values()}:
            self.problem(s, f"the name {tile.name} means a size, scalar or position already")
        known = scope.tiles.get(tile.name)
        if known is not None and known != tile:
            self.problem(s, f"{tile.name} is written as {_typed(tile)}, it was defined as {_typed(known)}")
        for axis, outside in scope.rows.items():
            if tile.name in outside and axis not in tile.axes and not adds:
                self.problem(s, f"every block of {axis} overwrites {tile.name}, which lives outside and has no axis {axis}")
        scope.tiles[tile.name] = tile

    def operand(self, s: Stmt, tile: Tile, scope: _Scope) -> None:
        known = scope.tiles.get(tile.name)
        if known is None:
            self.problem(s, f"tile {tile.name} is not defined here")
        elif known != tile:
            self.problem(s, f"{tile.name} is read as {_typed(tile)}, it was defined as {_typed(known)}")

    def accumulates(self, s: Stmt, tile: Tile, accumulate: bool, scope: _Scope) -> None:
        if accumulate and tile.name not in scope.tiles:
            self.problem(s, f"accumulates into {tile.name}, which has no value yet")

    def same_type(self, s: Stmt, e: Expr, tile: Tile) -> None:
        if e.dtype != tile.dtype:
            self.problem(s, f"the value is {e.dtype}, {tile.name} is {tile.dtype}; say how to convert with a cast")

    def expression(self, s: Stmt, e: Expr, axes: tuple[str, ...], scope: _Scope, tiles: bool = True) -> None:
        """Variables of `e` are bound: sizes, scalars, loop variables, positions of `axes`, tiles (if allowed) over `axes`."""
        for v in sorted(variables(e), key=lambda v: v.name):
            kind: DType
            if v.name in scope.bound:
                kind = scope.bound[v.name]
            elif v.name in self.axes:
                kind = "i64"
                if v.name not in axes:
                    self.problem(s, f"`{show(e)}` uses position {v.name}, but there is no axis {v.name} here")
            elif v.name in scope.tiles and tiles:
                kind = scope.tiles[v.name].dtype
                extra = [a for a in scope.tiles[v.name].axes if a not in axes]
                if extra:
                    self.problem(s, f"`{show(e)}` uses tile {v.name}, whose axis {extra[0]} is not here")
            else:
                known = "a tile, which may not occur here" if v.name in scope.tiles else "not bound here"
                self.problem(s, f"`{show(e)}` uses {v.name}, which is {known}")
                continue
            if kind != v.dtype:
                self.problem(s, f"`{show(e)}` takes {v.name} for {v.dtype}, it is {kind}")
        self.loads(s, e, scope)

    def loads(self, s: Stmt | Summary | str, e: Expr, scope: _Scope) -> None:
        for node in walk(e):
            if isinstance(node, Call) and node.fn == "inside":
                self.problem(s, f"`{show(node)}` is to be clamped, and checked by the kernel")
            if isinstance(node, Load):
                self.rank(s, node.tensor, node.index)
                param = self.tensors.get(node.tensor)
                if param is not None and param.dtype != node.dtype:
                    self.problem(s, f"`{show(node)}` is taken for {node.dtype}, {node.tensor} is {param.dtype}")
                self.readable(s, node.tensor, node.index, scope)

    def access(self, s: Stmt, tensor: str, at: tuple[Expr, ...], axes: tuple[str, ...], scope: _Scope) -> None:
        self.rank(s, tensor, at)
        for e in at:
            self.expression(s, e, axes, scope, tiles=False)

    def rank(self, s: Stmt | Summary | str, tensor: str, at: tuple[Expr, ...]) -> None:
        param = self.tensors.get(tensor)
        for dim, (n, e) in enumerate(zip(() if param is None else param.shape, at, strict=False)):
            if of_a_tensor(e) and not is_clamped(e, n):
                what = f"comes from a tensor and may be outside of dimension {dim} of {tensor}"
                self.problem(s, f"index `{show(e)}` {what}: write max(0, min(x, {show(n)} - 1))")
        if param is None:
            self.problem(s, f"there is no tensor {tensor}")
        elif len(param.shape) != len(at):
            self.problem(s, f"{tensor} has rank {len(param.shape)}, the index has {len(at)} parts")
        for e in at:
            if not is_int(e.dtype):
                self.problem(s, f"index `{show(e)}` is {e.dtype}, it must be an integer")

    def readable(self, s: Stmt | Summary | str, tensor: str, at: tuple[Expr, ...], scope: _Scope) -> None:
        param = self.tensors.get(tensor)
        if param is None or param.role == "in":
            return
        if param.role == "out":
            self.problem(s, f"reads {tensor}, which is an output")
        elif tensor not in self.ready:
            self.problem(s, f"reads scratch {tensor} before anything is stored in it")
        elif tensor in self.here:  # written by this Parallel: an item may read only what it wrote itself
            used = {v.name for e in at for v in variables(e)}
            for names, what in scope.loops:
                if what.startswith("loop ") and not names & used:
                    self.problem(s, f"reads scratch {tensor} that other items of {what} write meanwhile")


def _then(a: Stores, b: Stores) -> Stores:
    return {t: (a.get(t, (0, 0))[0] + b.get(t, (0, 0))[0], a.get(t, (0, 0))[1] + b.get(t, (0, 0))[1]) for t in {**a, **b}}


def _either(branches: list[Stores]) -> Stores:
    names = {t for stores in branches for t in stores}
    least = {t: min(stores.get(t, (0, 0))[0] for stores in branches) for t in names}
    return {t: (least[t], max(stores.get(t, (0, 0))[1] for stores in branches)) for t in sorted(names)}


def _typed(tile: Tile) -> str:
    return f"{tile.dtype}[{', '.join(tile.axes)}] {tile.space}"


def _multiple(e: Expr, n: int) -> bool:
    """Is `e` seen to be a multiple of `n`?"""
    match e:
        case Call(fn="min" | "max", args=(a, b)):
            return _multiple(a, n) and _multiple(b, n)
        case Call(fn="where", args=(_, a, b)):
            return _multiple(a, n) and _multiple(b, n)
        case _:
            pass
    if not is_int(e.dtype):
        return False
    terms = poly(e)
    if set(terms) == {(e,)}:
        return n == 1
    return all(c % n == 0 or any(_multiple(x, n) for x in m if x is not integer_const(0)) for m, c in terms.items())


def _single(extent: Expr) -> bool:
    """An axis of one element: nothing else can be written in its place."""
    return isinstance(extent, Const) and extent.value == 1
