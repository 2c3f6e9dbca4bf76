"""Builders of expressions: constants folded, identities applied, integer arithmetic in normal form, casts merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from aicf.scalar.dtypes import DType, is_float, is_int, round_to
from aicf.scalar.expr import Call, Const, Expr, Load, Reduce, children, const, load, raw, reduce, walk
from aicf.scalar.functions import FUNCTIONS
from aicf.scalar.integers import is_inside, normal


def cast(e: Expr, dtype: DType) -> Expr:
    """`e` converted to `dtype`; a literal is converted now, a conversion to the same type is dropped."""
    if e.dtype == dtype:
        return e
    if isinstance(e, Const):
        if is_int(dtype) and isinstance(e.value, float) and not math.isfinite(e.value):
            return raw("cast", (e,), dtype)
        return const(e.value, dtype)
    return raw("cast", (e,), dtype)


RANGED = ("floordiv", "mod", "inside")  # what these simplify to depends on the ranges declared where they are built
_MADE: dict[tuple[str | Expr, ...], Expr] = {}  # what `call` gave; the layers of a model ask for the same again and again


def call(fn: str, *args: Expr) -> Expr:
    """`fn` of `args`, operands promoted to their common type, constants folded, integers normalised.

    Raises KeyError for a function outside the table and TypeError for a wrong number of operands.
    """
    if fn in RANGED:
        return _call(fn, *args)
    key = (fn, *args)
    found = _MADE.get(key)
    if found is None:
        found = _MADE[key] = _call(fn, *args)
    return found


def _call(fn: str, *args: Expr) -> Expr:
    row = FUNCTIONS[fn]
    if len(args) != row.arity:
        raise TypeError(f"{fn} takes {row.arity} operands, got {len(args)}")
    types: list[DType] = [a.dtype for a in args]
    dtype = row.result(*types)
    args = _promoted(row.kind, args, dtype)
    if fn == "inside" and dtype == "i64":
        return args[0] if is_inside(*args) else raw(fn, args, dtype)
    if all(isinstance(a, Const) for a in args):
        with np.errstate(all="ignore"):
            values = [a.value for a in args if isinstance(a, Const)]
            if is_int(dtype) and fn in ("floordiv", "mod") and values[1] == 0:
                return raw(fn, args, dtype)
            if is_int(dtype) and fn == "pow":
                return const(int(values[0]) ** int(values[1]), dtype)
            folded = row.numpy(*(round_to(v, a.dtype) for v, a in zip(values, args, strict=True)))
            return const(folded.item() if hasattr(folded, "item") else folded, dtype)
    if dtype == "i64" and fn in ("add", "sub", "mul", "neg", "floordiv", "mod"):
        return normal(fn, args)
    simpler = _identity(fn, args, dtype)
    if simpler is not None:
        return simpler
    return raw(fn, args, dtype)


def _promoted(kind: str, args: tuple[Expr, ...], dtype: DType) -> tuple[Expr, ...]:
    """Operands converted to the type in which the function computes."""
    if kind == "select":
        return (cast(args[0], "bool"), cast(args[1], dtype), cast(args[2], dtype))
    if kind in ("arithmetic", "float"):
        return tuple(cast(a, dtype) for a in args)
    if kind in ("compare", "logic") and len(args) == 2:
        common = FUNCTIONS["add"].result(args[0].dtype, args[1].dtype)
        return tuple(cast(a, common) for a in args)
    return args


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.value == value and not isinstance(e.value, bool)


def _identity(fn: str, args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """Identities that hold for every value, NaN, infinities and signed zeros included."""
    match fn:
        case "mul":
            for one, other in (args, args[::-1]):
                if _is(one, 1):
                    return other
        case "div" | "floordiv" if _is(args[1], 1) and (fn == "div" or is_int(dtype)):
            return args[0]
        case "sub" if isinstance(args[1], Const) and repr(args[1].value) in ("0", "0.0"):
            return args[0]
        case "add":
            for zero, other in (args, args[::-1]):
                # x + 0.0 turns -0.0 into 0.0, which no reduction or comparison here can tell apart.
                if _is(zero, 0):
                    return other
        case "and" | "or" if dtype == "bool":
            for one, other in (args, args[::-1]):
                if isinstance(one, Const):
                    return other if bool(one.value) == (fn == "and") else one
            if args[0] is args[1]:
                return args[0]
        case "not":
            if isinstance(args[0], Call) and args[0].fn == "not":
                return args[0].args[0]
            if isinstance(args[0], Call) and args[0].fn in _NEGATED and not is_float(args[0].args[0].dtype):
                return call(_NEGATED[args[0].fn], *args[0].args)
        case "where":
            if isinstance(args[0], Const):
                return args[1] if args[0].value else args[2]
            if args[1] is args[2]:
                return args[1]
            if dtype == "bool" and isinstance(args[1], Const) and isinstance(args[2], Const):
                return args[0] if args[1].value else call("not", args[0])
        case "max" | "min":
            if args[0] is args[1]:
                return args[0]
        case "neg" if isinstance(args[0], Call) and args[0].fn == "neg":
            return args[0].args[0]
        case "ne" if dtype == "bool" and isinstance(args[1], Const) and args[0].dtype == "bool" and not args[1].value:
            return args[0]
        case "eq" if dtype == "bool" and isinstance(args[1], Const) and args[0].dtype == "bool" and args[1].value:
            return args[0]
        case _:
            pass
    return None


_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def rebuild(e: Expr, kids: tuple[Expr, ...]) -> Expr:
    """`e` with its children replaced, simplified again."""
    if kids == children(e):
        return e
    match e:
        case Load():
            return load(e.tensor, kids, e.dtype)
        case Call(fn="cast"):
            return cast(kids[0], e.dtype)
        case Call():
            return call(e.fn, *kids)
        case Reduce():
            return reduce(e.op, e.var, kids[0], kids[1])
        case _:
            return e


def transform(e: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """`e` rebuilt bottom-up; `change` may replace a node (None keeps it)."""
    done: dict[Expr, Expr] = {}
    for node in walk(e):
        new = rebuild(node, tuple(done[c] for c in children(node)))
        changed = change(new)
        done[node] = new if changed is None else changed
    return done[e]


def substitute(e: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`e` with each key (a variable or any subexpression) replaced; bound variables are not captured by construction,
    since every Reduce binds a fresh name."""
    if not values:
        return e
    done: dict[Expr, Expr] = dict(values)
    for node in walk(e):
        if node not in done:
            done[node] = rebuild(node, tuple(done[c] for c in children(node)))
    return done[e]
