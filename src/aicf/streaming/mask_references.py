"""A reference over the elements that count: for sums over what a condition keeps, of which only ratios are used.

    p = softmax(s) * keep;  o = sum(p * v) / sum(p)
        sums of  where(keep, exp(s - max s), 0)            ->  sums of  exp(where(keep, s, -inf) - max of where(keep, s, -inf))

The maximum over all elements may be so far above those that are kept that their exponentials are subnormal, or 0: the ratio
is coarse then, or 0 / 0. Relative to their own maximum they are not. The source's 0 / 0 is part of its meaning (it is NaN where
every kept probability rounds to 0), so the sums are NaN there still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aicf.scalar import MONOIDS, Call, Const, Expr, call, const, substitute, var, variables
from aicf.streaming.shift_invariance import scaling
from aicf.streaming.stream_program import Base, StreamProgram, Sum


def with_mask_references(p: StreamProgram) -> StreamProgram:
    """`p` with a reference of their own for conditional sums that meet in ratios alone. Some of them may select from what the
    others keep, and these get one again when they meet in ratios by themselves."""
    done: set[str] = set()
    while True:
        base = next((b for b in p.bases if b.op == "max" and b.name not in done), None)
        if base is None:
            return p
        done.add(base.name)
        for shared in dict.fromkeys(_conditions(s, base) for s in p.sums):
            if not any(variables(c) & {p.stream, *p.scores} for c in shared):
                continue
            own = {s.name: _conditions(s, base) for s in p.sums}
            within = [s for s in p.sums if set(shared) <= set(own[s.name])]
            same = [s for s in within if own[s.name] == shared]
            for sums in (within, same):
                if sums and _only_ratios(p, sums):
                    p = _referred(p, base, shared, sums)
                    break


def _conditions(s: Sum, base: Base) -> tuple[Expr, ...]:
    """The conditions under which `s` adds up `exp(u - ref)`, u being the body of `base`, times anything; none if it is no such
    sum."""
    if len(s.stabilisers) != 1 or s.stabilisers[0][0] != base.name or s.shift is not None:
        return ()
    conditions, factors = _factors(s.weight)
    return tuple(dict.fromkeys(conditions)) if _exponential(base) in factors else ()


def _exponential(base: Base) -> Expr:
    return call("exp", call("sub", base.body, base.ref))


def _factors(e: Expr) -> tuple[list[Expr], list[Expr]]:
    """(conditions that make it 0 when they fail, other factors) of a product."""
    match e:
        case Call(fn="mul", args=(a, b)):
            (c1, f1), (c2, f2) = _factors(a), _factors(b)
            return c1 + c2, f1 + f2
        case Call(fn="where", args=(condition, a, Const(value=0))):
            conditions, factors = _factors(a)
            return [condition, *conditions], factors
        case Call(fn="cast") if _switch(e) is not None:
            return [c for c in (_switch(e),) if c is not None], []
        case _:
            return [], [e]


def _switch(e: Expr) -> Expr | None:
    """The condition that `e` is as a number, in whatever types."""
    while isinstance(e, Call) and e.fn == "cast":
        e = e.args[0]
    return e if e.dtype == "bool" else None


def _only_ratios(p: StreamProgram, sums: Sequence[Sum]) -> bool:
    names = [s.name for s in sums]
    return scaling(p, names, p.outputs) == 0


def _referred(p: StreamProgram, base: Base, conditions: Sequence[Expr], sums: Sequence[Sum]) -> StreamProgram:
    taken = {b.name for b in p.bases}
    name = next(n for n in (f"{base.name}_{k}" for k in range(1, 2 + len(taken))) if n not in taken)
    keep = conditions[0]
    for c in conditions[1:]:
        keep = call("and", keep, c)
    body = call("where", keep, base.body, MONOIDS["max"].nothing(base.dtype))
    own = Base(name, "max", body, None, var("ref" + name[1:], base.dtype), var("old" + name[1:], base.dtype))
    new = {s.name: _moved(s, base, own, conditions) for s in sums}
    # What the source makes of the largest kept exponential before anything is divided by it: 0 here is 0 / 0 there. As a square
    # it loses nothing where an exponential below the smallest normal number is flushed to 0.
    root = call("exp", call("mul", call("sub", own.state, base.state), const(0.5, base.dtype)))
    largest = call("mul", root, root)
    value = next((e for e in _linear(p, sums)), None)
    rounded = largest if value is None else substitute(value[1], {value[0].state: largest})
    counts = call("gt", call("abs", rounded), const(0, rounded.dtype))  # a sum that it is divided by may be negative
    seen: dict[Expr, Expr] = {s.state: call("where", counts, s.state, const(float("nan"), s.dtype)) for s in sums}
    finalize = {n: substitute(e, {v: seen[v] for v in variables(e) if v in seen}) for n, e in p.finalize.items()}
    return replace(p, bases=(*p.bases, own), sums=tuple(new.get(s.name, s) for s in p.sums), finalize=finalize)


def _linear(p: StreamProgram, sums: Sequence[Sum]) -> list[tuple[Sum, Expr]]:
    """Reductions that are one of `sums` times something: what the source calls the sum."""
    pairs: list[tuple[Sum, Expr]] = []
    for name, e in p.finalize.items():
        mine = [s for s in sums if s.state in variables(e)]
        if len(mine) == 1 and not mine[0].payload and scaling(p, [mine[0].name], [name]) == 1:
            pairs.append((mine[0], e))
    return pairs


def _moved(s: Sum, base: Base, own: Base, conditions: Sequence[Expr]) -> Sum:
    weight = _without(s.weight, conditions, {_exponential(base): _exponential(own)})
    scale = call("exp", call("sub", own.old, own.ref))
    body = weight if s.value is None else s.value if weight is const(1, weight.dtype) else call("mul", weight, s.value)
    return replace(s, body=body, weight=weight, scale=scale, stabilisers=((own.name, s.stabilisers[0][1]),))


def _without(e: Expr, conditions: Sequence[Expr], put: dict[Expr, Expr]) -> Expr:
    """The product without those of its conditions that the new exponential contains."""
    match e:
        case Call(fn="mul", args=(a, b)):
            return call("mul", _without(a, conditions, put), _without(b, conditions, put))
        case Call(fn="where", args=(c, a, Const(value=0) as nothing)):
            inner = _without(a, conditions, put)
            return inner if c in conditions else call("where", c, inner, nothing)
        case Call(fn="cast") if _switch(e) in conditions:
            return const(1, e.dtype)
        case _:
            return put.get(e, e)
