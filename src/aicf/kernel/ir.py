"""Kernel IR: loops over work items and tiles, a closed set of tile statements, named memory spaces.

    parallel b, h, i0 step 128:                       Parallel
      acc[i, e] : f32 register = 0                    Fill
      q[i, d]   : f32 shared = load Q[b, h, i, d]     LoadTile
      stream j0 in lo..hi step 64                     Stream, with phases (empty | full | partial)
        k[j, d] : f32 shared = load K[b, h, j, d]
        rows i step 6                                 RowBlock: a register block of the row axis
          s[i, j] = contract q, k over d              Contract
          t[i] = reduce max over j of s               Reduce
          p[i, j] = map exp(s - m)                    Map
          acc[i, e] = contract p, v over j, acc * a   Contract, accumulating, rescaled
      store O[b, h, i, e] = acc / l                   StoreTile

**Axes.** A tile axis has a name (`i`), an extent (`N`, an expression of sizes) and a tile length (128). Inside the loop that
walks it, the variable `i0` is the origin of the current tile and the variable `i` an element's *global* position, from `i0`
up to `i0 + 127`. Axes that no loop walks (`d`, `e`) start at 0 and are whole in every tile. Tiles carry axes by name, so
operands of a map broadcast by name.

**Indices.** An index that comes from the elements of a tensor is clamped to its dimension where it is used, and the kernel's
checks, which run before everything else, say whether it had to be (`Check`). Other indices are in range for all sizes.

**Tails.** Lanes whose position is at or past the axis' extent (or past the end of the stream's range) do not exist: loads read
no memory for them, a Reduce and a Contract leave them out, a StoreTile does not write them. A backend gets this by selection,
never by multiplying with zero. A phase marked `whole` promises that every lane of the streamed axis exists.

**Scalars in expressions.** In a Map, Reduce or StoreTile expression a `Var` names an axis position, a loop variable, a size, a
run-time scalar or an element of a tile; a `Load` reads one element of a parameter at any index. Values are computed in the
expression's own types, halves in f32. NaN propagates through `max` and `min`.

Nothing here is of one target: `space` says global, shared or register as the user's documents do; on a CPU shared is a
core-private buffer that is meant to stay in cache and register what a register block holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aicf.scalar import DType, Expr, Var, index, variables

Space = Literal["global", "shared", "register"]
Role = Literal["in", "out", "scratch"]
TileReduce = Literal["sum", "max", "min"]


@dataclass(frozen=True)
class TensorParam:
    """A tensor in global memory; `shape` in sizes. `unit` is the dimension known to have stride 1, None when unknown:
    all other strides are run-time values (0 for expanded dimensions)."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    role: Role = "in"
    unit: int | None = None


@dataclass(frozen=True)
class ScalarParam:
    """A number known when the kernel is called (a learned temperature, a value computed from sizes)."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Axis:
    """A named tile axis: elements 0 … extent-1, taken `tile` at a time."""

    name: str
    extent: Expr
    tile: int

    @property
    def position(self) -> Var:
        """The variable that is an element's global position."""
        return index(self.name)

    @property
    def origin(self) -> Var:
        """The variable that is the current tile's first position."""
        return index(self.name + "0")


@dataclass(frozen=True)
class Tile:
    """A tile value: its element type, axes in order, and memory space."""

    name: str
    dtype: DType
    axes: tuple[str, ...]
    space: Space


# ------------------------------------------------------------------------------------------------ statements


@dataclass(frozen=True)
class Fill:
    """tile = value (a scalar expression without axis positions)."""

    tile: Tile
    value: Expr


@dataclass(frozen=True)
class LoadTile:
    """tile[a, b] = tensor[at(a, b)], converted to the tile's type; missing lanes become 0."""

    tile: Tile
    tensor: str
    at: tuple[Expr, ...]


@dataclass(frozen=True)
class Map:
    """tile[axes] = expr, element by element. The tile may occur in its own expression."""

    tile: Tile
    expr: Expr


@dataclass(frozen=True)
class Reduce:
    """tile[rest] = op over `axis` of expr; with `accumulate`, op(tile, …)."""

    tile: Tile
    op: TileReduce
    axis: str
    expr: Expr
    accumulate: bool = False


@dataclass(frozen=True)
class Contract:
    """tile[x, y] = sum over `over` of a[x, over] * b[y, over] (axes found by name), in fp32 or wider.

    With `accumulate` the sum is added to tile; `rescale` names a tile of axes (x,) by which the old value is multiplied first.
    """

    tile: Tile
    a: Tile
    b: Tile
    over: str
    accumulate: bool = False
    rescale: Tile | None = None


@dataclass(frozen=True)
class StoreTile:
    """tensor[at(axes)] = expr for all existing lanes of `axes`, converted to the tensor's type."""

    tensor: str
    at: tuple[Expr, ...]
    axes: tuple[str, ...]
    expr: Expr


@dataclass(frozen=True)
class RowBlock:
    """The register blocks of row axis `axis`: the body runs for `step` rows at a time. Tiles of that axis that are first
    written inside the body live for one block only; the others are seen through the block's rows.

    `unit` says what works on a block: the item's thread, one block after the other, or each of its warps on its own.
    `ends` promises, for streamed axes, that lanes at or past a position contribute nothing to the block (under a causal
    mask: keys past its last row), so a backend may leave them out. The expression is evaluated with `axis`' origin at the
    block's first row."""

    axis: str
    step: int
    body: tuple[Stmt, ...]
    ends: tuple[tuple[str, Expr], ...] = ()
    unit: Literal["thread", "warp"] = "thread"


@dataclass(frozen=True)
class Phase:
    """One way to run a streamed tile, taken when `when` holds (an expression of loop variables, sizes and `Load`s of per-tile
    summaries) and no earlier phase's did. `whole`: all lanes of the streamed axis exist then. An empty body skips the tile."""

    name: Literal["empty", "full", "partial"]
    when: Expr
    whole: bool
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Stream:
    """for axis.origin from `lo` (a multiple of the tile length) below `hi`, step the tile length: the first phase that holds.
    `stages`: tiles in flight, where the target copies asynchronously."""

    axis: str
    lo: Expr
    hi: Expr
    phases: tuple[Phase, ...]
    stages: int = 1


@dataclass(frozen=True)
class Retry:
    """Run the body with `flag` = 1. If then `again` holds for any existing row of `axis` run it once more with `flag` = 0.

    The body is written so that the second run starts from nothing. This is how tiles are skipped under a finite fill
    value: skip, look whether what was skipped could have counted, and if it could, do it without skipping."""

    flag: Var
    axis: str
    again: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Loop:
    """A loop variable of `Parallel`: `var` from 0 below `extent` in steps of `step`."""

    var: Var
    extent: Expr
    step: int = 1


@dataclass(frozen=True)
class Parallel:
    """Independent work items, one per combination of the loop variables, last one fastest. `unit` says what runs one item: a
    thread, or a block of `warps`, each thread with at most `registers` registers (0: as the compiler likes)."""

    loops: tuple[Loop, ...]
    body: tuple[Stmt, ...]
    unit: Literal["thread", "block"] = "thread"
    warps: int = 1
    registers: int = 0


Stmt: TypeAlias = Fill | LoadTile | Map | Reduce | Contract | StoreTile | RowBlock | Stream | Retry | Parallel


@dataclass(frozen=True)
class Summary:
    """A per-tile extreme of a per-position value, computed before the items run: param[outer…, t…] = op over the positions of
    tile t of `axes` of `value` (an expression of `outer` variables and the axes' positions). One axis: O(positions) work and
    memory. Two axes, for a condition as a number that a tensor holds for every pair of positions: one number per tile, and no
    more of the tile is read than it takes to know it."""

    param: str
    op: Literal["min", "max"]
    axes: tuple[str, ...]
    outer: tuple[Loop, ...]
    value: Expr


@dataclass(frozen=True)
class Check:
    """An index that has to be right: at all turns of `loops` `value` is below `extent` and at least 0, or at least -`extent`
    where it `wraps` around. It is one of dimension `dim` of `tensor` ("": of something that is computed). If it is not so
    anywhere, nothing else of the kernel runs and its caller gets an IndexError. Of a kernel's checks the first that fails is
    told.

    What is loaded at such an index is clamped besides: max(0, min(x, extent - 1)). So no load is outside of its tensor, whatever
    an index tensor holds, and also where an index depends on what other threads write meanwhile."""

    tensor: str
    dim: int
    value: Expr
    extent: Expr
    wraps: bool
    loops: tuple[Loop, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel: parameters, sizes (run-time integers), scalars, axes, checks, summaries, and `Parallel` statements that run in
    order.

    `header` lines say where it came from and which schedule it follows; they are printed and copied into generated code.
    """

    name: str
    tensors: tuple[TensorParam, ...]
    sizes: tuple[str, ...]
    scalars: tuple[ScalarParam, ...]
    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]
    summaries: tuple[Summary, ...] = ()
    header: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    def axis(self, name: str) -> Axis:
        """The axis called `name`; KeyError when there is none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def tensor(self, name: str) -> TensorParam:
        """The tensor parameter called `name`; KeyError when there is none."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)


def inner(statement: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The bodies nested directly in a statement."""
    match statement:
        case RowBlock() | Retry() | Parallel():
            return (statement.body,)
        case Stream():
            return tuple(p.body for p in statement.phases)
        case _:
            return ()


def bodies(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    """`body` and every list of statements inside it, outermost first."""
    yield body
    for statement in body:
        for nested in inner(statement):
            yield from bodies(nested)


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement of `body` and of the bodies inside it, outermost first."""
    for statement in body:
        yield statement
        for nested in inner(statement):
            yield from statements(nested)


def written(statement: Stmt) -> Tile | None:
    """The tile that a statement defines, if it does."""
    match statement:
        case Fill() | LoadTile() | Map() | Reduce() | Contract():
            return statement.tile
        case _:
            return None


def reads(statement: Stmt) -> frozenset[str]:
    """Names of the variables that a statement itself reads, its own tile included when it accumulates."""
    match statement:
        case Map() | Reduce():
            expressions: tuple[Expr, ...] = (statement.expr,)
        case Fill():
            expressions = (statement.value,)
        case LoadTile():
            expressions = statement.at
        case StoreTile():
            expressions = (statement.expr, *statement.at)
        case Retry():
            expressions = (statement.again,)
        case _:
            expressions = ()
    names = {v.name for e in expressions for v in variables(e)}
    if isinstance(statement, Contract):
        names |= {statement.a.name, statement.b.name, *((statement.rescale.name,) if statement.rescale else ())}
    if isinstance(statement, Reduce | Contract) and statement.accumulate:
        names.add(statement.tile.name)
    return frozenset(names)
