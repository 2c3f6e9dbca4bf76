"""A mask condition in words: `~(j > i | i - j >= 256)` is "causal, window 256".

Only what is recognised is renamed; everything else is shown as the expression it is.
"""

from __future__ import annotations

from aicf.scalar import Call, Const, Expr, Load, Var, affine, call, integer_const, show, variables

_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def describe_mask(keep: Expr, row: Var, stream: Var) -> str:
    """The condition under which a key at `stream` counts for a query at `row`, for people."""
    return ", ".join(dict.fromkeys(_part(p, row, stream) for p in _joined(_pushed(keep), "and")))


def _pushed(e: Expr) -> Expr:
    """Negations moved inwards, so that parts can be told apart."""
    if isinstance(e, Call) and e.fn == "not" and isinstance(e.args[0], Call) and e.args[0].fn in ("and", "or"):
        inner = e.args[0]
        other = "or" if inner.fn == "and" else "and"
        return call(other, *(_pushed(call("not", a)) for a in inner.args))
    if isinstance(e, Call) and e.fn in ("and", "or") and e.dtype == "bool":
        return call(e.fn, *(_pushed(a) for a in e.args))
    return e


def _joined(e: Expr, fn: str) -> list[Expr]:
    if isinstance(e, Call) and e.fn == fn and e.dtype == "bool":
        return [x for a in e.args for x in _joined(a, fn)]
    return [e]


def _part(e: Expr, row: Var, stream: Var) -> str:
    alternatives = _joined(e, "or")
    if len(alternatives) > 1:
        return "(" + " or ".join(", ".join(_part(p, row, stream) for p in _joined(a, "and")) for a in alternatives) + ")"
    if isinstance(e, Call) and e.fn in _SWAPPED and len(e.args) == 2:
        found = _compared(e, row, stream)
        if found is not None:
            return found
    return _given(e, row, stream) or show(e)


def _given(e: Expr, row: Var, stream: Var) -> str | None:
    """A mask that comes as a tensor: which one, and along what."""
    hides = isinstance(e, Call) and e.fn == "not"
    held = e.args[0] if isinstance(e, Call) and hides else e
    if not (isinstance(held, Load) and held.dtype == "bool"):
        return None
    along = [v for v in (row, stream) if any(v in variables(x) for x in held.index)]
    what = "pairs" if len(along) == 2 else "keys" if along == [stream] else "queries" if along == [row] else "batches"
    return f"{what} that {held.tensor} {'hides' if hides else 'keeps'}"


def _compared(e: Call, row: Var, stream: Var) -> str | None:
    a, b = e.args
    if a.dtype == "i64":
        straight = affine(call("sub", a, b), (row, stream))
        if straight is not None:
            return _straight(e.fn, straight)
    for left, right, fn in ((a, b, e.fn), (b, a, _SWAPPED[e.fn])):
        if isinstance(left, Call) and left.fn == "abs" and isinstance(right, Const):
            inside = affine(left.args[0], (row, stream))
            if inside is not None and _difference(inside) in (1, -1) and _is_zero(inside[1]) and fn in ("lt", "le"):
                return f"band {_less(int(right.value), fn)} to each side"
        if isinstance(left, Call) and left.fn == "mod" and isinstance(left.args[1], Const) and isinstance(right, Const):
            inside = affine(left.args[0], (row, stream))
            if inside is not None and _difference(inside) and fn == "eq" and right.value == 0:
                return f"stride {left.args[1].value}"
    if all(isinstance(x, Call) and x.fn == "floordiv" for x in (a, b)):
        return _blocks(e, row, stream)
    if e.fn == "eq" and all(isinstance(x, Load) for x in (a, b)) and getattr(a, "tensor", 0) == getattr(b, "tensor", 1):
        return f"same {getattr(a, 'tensor', '')}"
    return None


def _difference(found: tuple[tuple[Expr, ...], Expr]) -> int:
    """k when the expression is k * (row - stream) + rest, else 0."""
    (r, s), _ = found
    if isinstance(r, Const) and isinstance(s, Const) and int(r.value) == -int(s.value):
        return int(r.value)
    return 0


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def _less(n: int, fn: str) -> int:
    return n if fn == "le" else n - 1


def _straight(fn: str, found: tuple[tuple[Expr, ...], Expr]) -> str | None:
    """k * (row - stream) + rest compared with 0, or a bound on one position."""
    k = _difference(found)
    (r, s), rest = found
    if abs(k) == 1:
        if k < 0:  # turn it round: row - stream - rest with the comparison swapped
            fn, rest = _SWAPPED[fn], call("neg", rest)
        if fn in ("ge", "gt"):  # row - stream >= -rest
            at_least = call("neg", rest) if fn == "ge" else call("sub", call("neg", rest), integer_const(-1))
            offset = call("neg", at_least)
            return "causal" if _is_zero(offset) else f"causal with offset {show(offset)}"
        if fn in ("lt", "le"):  # row - stream < width
            width = call("neg", rest) if fn == "lt" else call("add", call("neg", rest), integer_const(1))
            return f"window {show(width)}"
        return None
    if isinstance(r, Const) and r.value == 0 and isinstance(s, Const) and abs(int(s.value)) == 1:
        if int(s.value) < 0:
            fn, rest = _SWAPPED[fn], call("neg", rest)
        bound = call("neg", rest)
        if fn in ("lt", "le"):
            return f"keys before {show(bound if fn == 'lt' else call('add', bound, integer_const(1)))}"
        if fn in ("ge", "gt"):
            return f"keys from {show(bound if fn == 'ge' else call('add', bound, integer_const(1)))}"
    return None


def _blocks(e: Call, row: Var, stream: Var) -> str | None:
    a, b = e.args
    assert isinstance(a, Call) and isinstance(b, Call)
    if a.args[1] is not b.args[1] or not isinstance(a.args[1], Const):
        return None
    length, tops = a.args[1].value, (a.args[0], b.args[0])
    if tops == (stream, row):
        fn = _SWAPPED[e.fn]
    elif tops == (row, stream):
        fn = e.fn
    else:
        return None
    return {"ge": f"causal by blocks of {length}", "eq": f"within blocks of {length}"}.get(fn)
