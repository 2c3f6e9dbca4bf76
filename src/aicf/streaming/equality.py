"""Whether two expressions of the row have the same value whatever they read, NaN with NaN.

    where(k, 0 / 0, x)  and  where(k, NaN * y, x)        the same: NaN where k holds, x where it does not

Decided by cases: every condition is tried both ways, NaN is carried through, and what is left must be one expression. Nothing
is sampled, so that a condition which seldom holds counts like any other; "not the same" may only mean that no proof was found.
"""

from __future__ import annotations

from aicf.scalar import Call, Const, Expr, Load, Var, cast, const, is_float, substitute, transform, walk

MOST_CONDITIONS = 8  # that are tried both ways
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf")


def same_value(a: Expr, b: Expr) -> bool:
    """Whether `a` and `b` are proved to agree at all values of what they read."""
    a, b = _nan_carried(a), _nan_carried(b)
    return _by_cases(a, b, MOST_CONDITIONS)


def _by_cases(a: Expr, b: Expr, left: int) -> bool:
    if a is b:
        return True
    condition = _condition(a) or _condition(b)
    if condition is None or not left:
        return False
    for outcome in (True, False):
        put: dict[Expr, Expr] = {condition: const(outcome, "bool")}
        if not _by_cases(_nan_carried(substitute(a, put)), _nan_carried(substitute(b, put)), left - 1):
            return False
    return True


def _condition(e: Expr) -> Expr | None:
    """A condition that is not made of others, innermost first."""
    for x in walk(e):
        if x.dtype == "bool" and (isinstance(x, Var | Load) or (isinstance(x, Call) and x.fn in COMPARISONS)):
            return x
    return None


def _nan_carried(e: Expr) -> Expr:
    """`e` with NaN carried through everything that is NaN with it."""

    def change(x: Expr) -> Expr | None:
        if not isinstance(x, Call):
            return None
        if x.fn == "div" and _nothing(x.args[0]) and _nothing(x.args[1]):
            return _nan(x)
        nan = [isinstance(a, Const) and a.value != a.value for a in x.args]
        if not any(nan):
            return None
        match x.fn:
            case "where" | "pow":
                return None
            case "ne":
                return const(True, "bool")
            case "isnan":
                return const(True, "bool")
            case "lt" | "le" | "gt" | "ge" | "eq" | "isinf":
                return const(False, "bool")
            case _:
                return _nan(x) if is_float(x.dtype) else None

    return transform(e, change)


def _nan(like: Expr) -> Expr:
    return cast(const(float("nan"), "f64"), like.dtype)


def _nothing(e: Expr) -> bool:
    """Whether `e` is 0, or NaN: 0 times whatever."""
    match e:
        case Const():
            return is_float(e.dtype) and not e.value
        case Call(fn="mul", args=(a, b)):
            return _nothing(a) or _nothing(b)
        case Call(fn="neg" | "abs" | "cast", args=(a,)):
            return is_float(a.dtype) and _nothing(a)
        case _:
            return False


__all__ = ["same_value"]
