"""The statements of one register block of rows: scores, running extrema, weights, sums. The same for every order and phase.

score = contract Q, K;  max_in = map <scores>;  max_tile = reduce max max_in;  max_new = max(max, max_tile)
max_ref = where(max_new == -inf, 0, max_new);  rescale = exp(max - max_ref);  weight = map exp(max_in - max_ref)
sum = sum * rescale + sum of weight;  acc = acc * rescale + contract weight, V;  max = max_new
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aicf.kernel.ir import Contract, Map, Reduce, Stmt, Tile
from aicf.kernel.lowering.builder import KernelBuilder, old_reference
from aicf.mcir.lowered import Extremum, Sum
from aicf.mcir.payloads import RunningSum, reference_of
from aicf.scalar import Call, Const, Expr, Var, call, const, substitute, transform, var


def in_order(sums: Sequence[Sum]) -> list[Sum]:
    """Sums that move with a partner first: they read the partner's value from before it moves."""
    return sorted(sums, key=lambda s: s.sum.shift is None)


def rebased(s: RunningSum, carried: Expr, partner: Expr | None, scale: Expr | None, known: Mapping[Expr, Expr]) -> Expr:
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
    """Makes the statements for one phase. `operands`: the loaded tiles by name; `decided`: mask conditions that hold (or fail) in
    the whole tile."""

    def __init__(self, builder: KernelBuilder, operands: Mapping[str, Tile], decided: Mapping[Expr, Expr]) -> None:
        self.builder, self.operands, self.decided = builder, operands, decided
        self.out: list[Stmt] = []
        self.known: dict[Expr, Expr] = {}

    def _body(self, e: Expr) -> Expr:
        return substitute(self.builder.put(substitute(e, self.decided)), self.known)

    def statements(self) -> list[Stmt]:
        region = self.builder.region
        for s in region.scores:
            a, b = self.operands[s.row.name], self.operands[s.streamed.name]
            self.out.append(Contract(self.builder.tile(s.tile), a, b, s.over))
        for x in region.extrema:
            self._extremum(x)
        scales = self._scales()
        weights: dict[Expr, Tile] = {}
        for s in in_order(region.sums):
            weight = gradual(self._body(s.sum.weight))
            if weight not in weights:
                p = weights[weight] = self.builder.score_tile(_numbered("weight", len(weights)))
                self.out.append(Map(p, weight))
            self._sum(s, weights[weight], scales)
        for x in region.extrema:
            self.out.append(Map(self.builder.tile(x.state), var(f"{x.state.name}_new", "f32")))
        return self.out

    def _extremum(self, x: Extremum) -> None:
        name = x.state.name
        body = self._body(x.extremum.body)
        if not isinstance(body, Var):
            u = self.builder.score_tile(f"{name}_in")
            self.out.append(Map(u, body))
            if not isinstance(body, Const):  # a number stands for itself wherever else it is
                self.known[body] = var(u.name, "f32")
            body = var(u.name, "f32")
        self.out.append(Reduce(self.builder.row_tile(f"{name}_tile"), x.extremum.op, self.builder.j, body))
        new = self.builder.row_tile(f"{name}_new")
        self.out.append(Map(new, call(x.extremum.op, var(name, "f32"), var(f"{name}_tile", "f32"))))
        reference = self.builder.row_tile(x.extremum.reference.name)
        self.out.append(Map(reference, reference_of(x.extremum.op, var(new.name, "f32"))))
        self.known[x.extremum.old] = old_reference(x, var(name, "f32"), self.builder.region.sums)

    def _scales(self) -> dict[Expr, Tile]:
        scales: dict[Expr, Tile] = {}
        for s in self.builder.region.sums:
            rescale = s.sum.rescale
            if rescale is not None and rescale not in scales:
                tile = scales[rescale] = self.builder.row_tile(_numbered("rescale", len(scales)))
                self.out.append(Map(tile, self._body(rescale)))
        return scales

    def _sum(self, s: Sum, p: Tile, scales: Mapping[Expr, Tile]) -> None:
        scale = None if s.sum.rescale is None else scales[s.sum.rescale]
        state, j = self.builder.tile(s.state), self.builder.j
        values = None if s.values is None else self.operands[s.values.name]
        if values is not None and s.sum.shift is None:
            self.out.append(Contract(state, p, values, j, accumulate=True, rescale=scale))
            return
        partner = None if s.sum.shift is None else var(s.sum.shift.partner, "f32")
        own = var(s.state.name, "f32")
        moved = rebased(s.sum, own, partner, None if scale is None else var(scale.name, "f32"), self.known)
        if moved is not own:
            self.out.append(Map(state, moved))
        if values is not None:
            self.out.append(Contract(state, p, values, j, accumulate=True))
        else:
            self.out.append(Reduce(state, "sum", j, var(p.name, "f32"), accumulate=True))


def _numbered(name: str, k: int) -> str:
    return name if k == 0 else f"{name}{k + 1}"
