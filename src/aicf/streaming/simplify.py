"""Simplifications of pulled expressions that need the ranges of index variables, and the precision policy.

* comparisons that the ranges decide are decided: `j + 1 < 1` is false when `0 <= j`;
* a Reduce over a concatenation is split into the reductions of its parts: the way an attention sink leaves the softmax;
* half-precision arithmetic is done in fp32, except where its rounding is part of the meaning (an additive mask).
"""

from __future__ import annotations

from collections.abc import Mapping

from aicf.scalar import (
    COMPARISONS,
    MONOIDS,
    Call,
    Const,
    DType,
    Expr,
    Load,
    Reduce,
    Var,
    bounds,
    call,
    cast,
    children,
    const,
    extents,
    is_float,
    is_half,
    rebuild,
    reduce,
    substitute,
    transform,
    variables,
    walk,
)


def fold_comparisons(e: Expr, known: Mapping[Var, Expr]) -> Expr:
    """`e` with integer comparisons folded that hold, or fail, for every index in range."""

    def fold(node: Expr) -> Expr | None:
        if not (isinstance(node, Call) and node.fn in COMPARISONS and node.args[0].dtype == "i64"):
            return None
        low, high = bounds(call("sub", node.args[0], node.args[1]))
        return _verdict(node.fn, _value(low), _value(high))

    with extents(known):
        return transform(e, fold)


def _value(e: Expr | None) -> int | None:
    return int(e.value) if isinstance(e, Const) else None


def _verdict(fn: str, low: int | None, high: int | None) -> Expr | None:
    yes, no = const(True, "bool"), const(False, "bool")
    below = high is not None and high < 0
    above = low is not None and low > 0
    match fn:
        case "lt":
            return yes if below else no if low is not None and low >= 0 else None
        case "ge":
            return no if below else yes if low is not None and low >= 0 else None
        case "gt":
            return yes if above else no if high is not None and high <= 0 else None
        case "le":
            return no if above else yes if high is not None and high <= 0 else None
        case _:
            if below or above:
                return no if fn == "eq" else yes
            if low == 0 and high == 0:
                return yes if fn == "eq" else no
            return None


SMALL = 8  # parts of a concatenation this short are written out element by element


def split(e: Reduce, length: Expr, known: dict[Var, Expr]) -> Expr | None:
    """`e` over a domain that is a part of extent `length` plus a few single positions, as the Reduce over the part combined with
    the single elements; None when it does not have that form. The part's own variable keeps the name of `e.var`."""
    rest = call("sub", e.extent, length)
    if not isinstance(rest, Const) or not 0 < int(rest.value) <= SMALL:
        return None
    extra = int(rest.value)
    cuts: list[Expr] = []
    for node in walk(e.body):
        if isinstance(node, Call) and node.fn in ("lt", "ge") and node.args[0].dtype == "i64":
            distance = call("sub", node.args[0], e.var)
            if e.var in variables(node.args[0]) and not any(e.var in variables(x) for x in (distance, node.args[1])):
                cuts.append(call("sub", node.args[1], distance))
    for start in range(extra + 1):
        begin = call("mul", const(start, "i64"), const(1, "i64"))
        end = call("add", begin, length)
        borders = {c for c in (begin, end) if not (isinstance(c, Const) and c.value == 0) and c is not e.extent}
        if not borders or not borders <= set(cuts):
            continue
        shifted = substitute(e.body, {e.var: call("add", e.var, begin)})
        main = reduce(e.op, e.var, length, fold_comparisons(shifted, {**known, e.var: length}))
        value: Expr = main
        for k in range(extra):
            at = const(k, "i64") if k < start else call("add", end, const(k - start, "i64"))
            single = fold_comparisons(substitute(e.body, {e.var: at}), known)
            value = call(MONOIDS[e.op].combine, value, single)
        return value
    return None


# ------------------------------------------------------------------------------------------------ precision

LARGE = 256.0  # a constant of this size added to a half loses the other operand's bits, which is part of the meaning


def in_fp32(e: Expr) -> Expr:
    """`e` with half-precision arithmetic done in fp32.

    Rounding to half is kept after an addition of a loaded tensor or a large constant (`s + finfo(fp16).min` is not `s - inf`, and
    rows that are masked everywhere show it), and nowhere else: the error against float64 can only shrink by that.
    """
    done: dict[Expr, Expr] = {}
    for node in walk(e):
        kids = tuple(done[c] for c in children(node))
        done[node] = _widened(node, kids)
    return done[e]


def _wide(e: Expr) -> Expr:
    return cast(e, "f32") if is_half(e.dtype) else e


def _widened(node: Expr, kids: tuple[Expr, ...]) -> Expr:
    match node:
        case Const() if is_half(node.dtype):
            return const(node.value, "f32")
        case Load():
            return _wide(rebuild(node, kids))
        case Reduce():
            return reduce(node.op, node.var, kids[0], kids[1])
        case Call(fn="cast") if is_half(node.dtype):
            # A float stays as it is; an integer becomes the half it would have become.
            return _with_rounded_constants(kids[0], node.dtype) if is_float(kids[0].dtype) else _wide(cast(kids[0], node.dtype))
        case Call(fn="cast"):
            return cast(kids[0], node.dtype)
        case Call() if is_half(node.dtype):
            value = call(node.fn, *kids)
            if node.fn in ("add", "sub") and any(_masklike(k) for k in kids):
                return cast(cast(value, node.dtype), "f32")
            return value
        case _:
            return rebuild(node, kids)


def _with_rounded_constants(e: Expr, half: DType) -> Expr:
    """A float that becomes a half, not rounded but for the constants that are selected: a fill of -1e9 is another number in bf16,
    and rows that are masked everywhere compare it with fills that were rounded elsewhere."""
    match e:
        case Const():
            return const(const(e.value, half).value, e.dtype)
        case Call(fn="where", args=(c, a, b)):
            return call("where", c, _with_rounded_constants(a, half), _with_rounded_constants(b, half))
        case Call(fn=("min" | "max" | "neg")):
            return call(e.fn, *(_with_rounded_constants(a, half) for a in e.args))
        case _:
            return e


def _masklike(e: Expr) -> bool:
    """Whether an addend may be a mask: it holds a large constant or a loaded element, outside any contraction."""
    stack = [e]
    while stack:
        node = stack.pop()
        match node:
            case Const():
                if is_float(node.dtype) and (abs(float(node.value)) >= LARGE) and abs(float(node.value)) != float("inf"):
                    return True
            case Load():
                return True
            case Reduce():
                continue
            case Call():
                stack += node.args[1:] if node.fn == "where" else node.args
            case _:
                pass
    return False
