"""The statements of one register block of rows: scores, running extrema, weights, sums. The same for every order and phase.

    s = contract q, k;  u = map <scores>;  top = reduce max u;  new = max(B, top);  ref = where(new == -inf, 0, new)
    scale = exp(B - ref);  p = map exp(u - ref);  G_l = G_l * scale + sum p;  G_o = G_o * scale + contract p, v;  B = new
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aicf.kernel.ir import Contract, Map, Reduce, Stmt, Tile
from aicf.kernel.lowering.names import KernelLoweringError, Names, old_reference, reference
from aicf.scalar import Call, Const, Expr, Var, call, const, show, substitute, transform, var
from aicf.streaming.stream_program import Base, Sum


def in_order(sums: Sequence[Sum]) -> list[Sum]:
    """Sums that move with a partner first: they read the partner's value from before it moves."""
    return sorted(sums, key=lambda s: s.shift is None)


def rebased(s: Sum, carried: Expr, partner: Expr | None, scale: Expr | None, known: Mapping[Expr, Expr]) -> Expr:
    """The carried value of `s` moved to the new references: `carried * scale + distance * scale * partner`. `known` gives the old
    references; `partner` is the partner sum's value at the old references. A large distance meets its vanishing scale first:
    times the partner it may overflow."""
    moved = carried if scale is None else call("mul", carried, scale)
    if s.shift is None:
        return moved
    assert partner is not None
    distance = substitute(s.shift.distance, known)
    return call("add", moved, call("mul", distance if scale is None else call("mul", distance, scale), partner))


def gradual(weight: Expr) -> Expr:
    """A weight that selects after the exponential, with results below the smallest normal number kept: exp(x) as exp(x/2)^2.

    `exp` may flush those to 0. Beside a term of 1, which the plain exponential relative to the row's maximum always has, they
    do not count; where that term can be deselected, all that is left may be that small, and the source divides by their sum.
    """
    if not any(x.dtype == "bool" for x in _outside_exp(weight)):
        return weight

    def halves(x: Expr) -> Expr | None:
        if isinstance(x, Call) and x.fn == "exp":
            root = call("exp", call("mul", x.args[0], const(0.5, x.dtype)))
            return call("mul", root, root)
        return None

    return transform(weight, halves)


def _outside_exp(e: Expr) -> Iterator[Expr]:
    """Subexpressions that are not inside an exponential's argument."""
    yield e
    if isinstance(e, Call) and e.fn != "exp":
        for a in e.args:
            yield from _outside_exp(a)


class Block:
    """Makes the statements for one phase. `decided`: mask conditions that hold (or fail) in the whole tile."""

    def __init__(self, names: Names, operands: Mapping[str, Tile], decided: Mapping[Expr, Expr]) -> None:
        self.names, self.operands, self.decided = names, operands, decided
        self.out: list[Stmt] = []
        self.known: dict[Expr, Expr] = {}

    def _scores(self, name: str) -> Tile:
        return Tile(name, "f32", (self.names.i, self.names.j), self.names.space("score_frag", "register"))

    def _body(self, e: Expr) -> Expr:
        return substitute(self.names.put(substitute(e, self.decided)), self.known)

    def statements(self) -> list[Stmt]:
        program = self.names.program
        for k, a in enumerate(self.names.found.atoms):
            end = "" if k == 0 else str(k + 1)
            self.out.append(Contract(self._scores(a.name), self.operands[f"q{end}"], self.operands[f"k{end}"], a.over.name))
        for b in program.bases:
            self._base(b)
        scales = self._scales()
        weights: dict[Expr, Tile] = {}
        for s in in_order(program.sums):
            weight = gradual(self._body(s.weight))
            if weight not in weights:
                p = weights[weight] = self._scores("p" if not weights else f"p{len(weights) + 1}")
                self.out.append(Map(p, weight))
            self._sum(s, weights[weight], scales)
        for b in program.bases:
            self.out.append(Map(self.names.state(b), var(f"new{b.name[1:]}", "f32")))
        return self.out

    def _base(self, b: Base) -> None:
        end = b.name[1:]
        body = self._body(b.body)
        if not isinstance(body, Var):
            u = self._scores(f"u{end}")
            self.out.append(Map(u, body))
            if not isinstance(body, Const):  # a number stands for itself wherever else it is
                self.known[body] = var(u.name, "f32")
            body = var(u.name, "f32")
        self.out.append(Reduce(self.names.row_tile(f"top{end}"), b.op, self.names.j, body))
        new = self.names.row_tile(f"new{end}")
        self.out.append(Map(new, call(b.op, var(b.name, "f32"), var(f"top{end}", "f32"))))
        self.out.append(Map(self.names.row_tile(b.ref.name), reference(b, var(new.name, "f32"))))
        self.known[b.old] = old_reference(b, var(b.name, "f32"))

    def _scales(self) -> dict[Expr, Tile]:
        scales: dict[Expr, Tile] = {}
        for s in self.names.program.sums:
            if s.scale is not None and s.scale not in scales:
                tile = scales[s.scale] = self.names.row_tile("scale" if not scales else f"scale{len(scales) + 1}")
                self.out.append(Map(tile, self._body(s.scale)))
        return scales

    def _sum(self, s: Sum, p: Tile, scales: Mapping[Expr, Tile]) -> None:
        scale = None if s.scale is None else scales[s.scale]
        state = self.names.state(s)
        if s.payload and s.shift is None:
            self.out.append(Contract(state, p, self._value(s), self.names.j, accumulate=True, rescale=scale))
            return
        partner = None if s.shift is None else var(s.shift.partner, "f32")
        moved = rebased(s, var(s.name, "f32"), partner, None if scale is None else var(scale.name, "f32"), self.known)
        if moved is not var(s.name, "f32"):
            self.out.append(Map(state, moved))
        if s.payload:
            self.out.append(Contract(state, p, self._value(s), self.names.j, accumulate=True))
        else:
            self.out.append(Reduce(state, "sum", self.names.j, var(p.name, "f32"), accumulate=True))

    def _value(self, s: Sum) -> Tile:
        for operand in self.names.operands():
            if operand.element is s.value and self.names.j in operand.axes:
                return self.operands[operand.name]
        raise KernelLoweringError(f"no load_tile gives {show(s.value) if s.value is not None else s.name}")
