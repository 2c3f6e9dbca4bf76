"""Expressions evaluated with NumPy: variables are scalars or arrays that broadcast together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aicf.scalar.dtypes import is_half, numpy_dtype, round_to
from aicf.scalar.expr import Call, Const, Expr, Load, Reduce, Var, children, variables, walk
from aicf.scalar.functions import FUNCTIONS
from aicf.scalar.monoids import MONOIDS

_REDUCE: dict[str, Any] = {
    "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "any": np.any, "all": np.all,
}  # fmt: skip


def evaluate(
    e: Expr,
    env: Mapping[str, Any],
    tensors: Mapping[str, Any] | None = None,
    *,
    double: bool = False,
    halves: bool = False,
    read: Callable[[Load, tuple[Any, ...]], Any] | None = None,
) -> Any:
    """The value of `e` where variables take their values from `env` (by name) and loads read `tensors`.

    A Reduce adds one leading axis to everything in its body and reduces over it. `double` computes every float in float64, the
    reference of the numeric contract; with `halves` what is cast to a half is rounded to it all the same. `read` replaces the
    plain array look-up of loads. Raises KeyError for a name that is in neither map.
    """
    memo: dict[Expr, Any] = {}
    arrays: Mapping[str, Any] = tensors or {}

    def at(node: Expr) -> Any:
        if node not in memo:
            memo[node] = compute(node)
        return memo[node]

    def compute(node: Expr) -> Any:
        match node:
            case Const():
                return round_to(node.value, "f64" if double and node.dtype[0] in "fb" and node.dtype != "bool" else node.dtype)
            case Var():
                return env[node.name]
            case Load():
                where = tuple(at(i) for i in node.index)
                if read is not None:
                    return read(node, where)
                return arrays[node.tensor][where]
            case Reduce():
                return _reduce(node, env, arrays, double, halves, read)
            case Call(fn="cast"):
                target = "f64" if double and node.dtype in ("f16", "bf16", "f32") else node.dtype
                value = at(node.args[0])
                return round_to(round_to(value, node.dtype) if halves and is_half(node.dtype) else value, target)
            case Call():
                values = [at(a) for a in node.args]
                result = FUNCTIONS[node.fn].numpy(*values)
                if is_half(node.dtype) and not double:
                    return round_to(result, node.dtype)
                if double and node.dtype != "bool" and node.dtype[0] in "fb":
                    return np.asarray(result, dtype=np.float64)
                return np.asarray(result, dtype=numpy_dtype(node.dtype))

    with np.errstate(all="ignore"):
        for node in walk(e):
            # A Reduce evaluates its own body; what lies only inside it needs the bound variable.
            known = not isinstance(node, Reduce) and all(v.name in env for v in variables(node))
            if known and all(c in memo for c in children(node)):
                at(node)
        return at(e)


def _reduce(node: Reduce, env: Mapping[str, Any], arrays: Mapping[str, Any], double: bool, halves: bool, read: Any) -> Any:
    extent = int(evaluate(node.extent, env, arrays))
    rank = max((np.ndim(v) for v in env.values()), default=0)
    steps = np.arange(extent).reshape((extent,) + (1,) * rank)
    body = np.asarray(evaluate(node.body, {**env, node.var.name: steps}, arrays, double=double, halves=halves, read=read))
    if body.ndim <= rank or body.shape[0] != extent:
        body = np.broadcast_to(body, (extent, *body.shape[-rank:]) if rank else (extent,))
    if extent == 0:
        return np.full(body.shape[1:], MONOIDS[node.op].unit, dtype=body.dtype)
    return _REDUCE[node.op](body, axis=0)


def integer(e: Expr, env: Mapping[str, int]) -> int:
    """The value of an integer expression of sizes."""
    return e.value if isinstance(e, Const) and isinstance(e.value, int) else int(evaluate(e, env))
