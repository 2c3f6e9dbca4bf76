"""A stream program run with NumPy: the reference for every lower level.

Layout: values that depend on the stream have the streamed axis first, `[n, rows..., payload...]`, with size-1 axes where they
don't vary; inputs of the row and states broadcast against the axes behind it. `env[stream.name]` is always given and holds
the positions of the tile, shape `[n, 1, ...]`. States: `{base or sum name: array}`. Everything in float64 with `double`, and
rounded where it is cast to a half with `halves`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from aicf.scalar import MONOIDS, DType, Load, evaluate, in_a_branch, is_int, numpy_dtype
from aicf.streaming.stream_program import Base, StreamProgram, Sum

State = dict[str, Any]
Env = Mapping[str, Any]
Read = Callable[[Load, tuple[Any, ...]], Any]


def identity(op: str, dtype: DType) -> float | int:
    """The identity of `max` or `min` in `dtype`."""
    return MONOIDS[op].identity(dtype)


def init(
    p: StreamProgram, env: Env, tensors: Env | None = None, *, double: bool = True, halves: bool = False, read: Read | None = None
) -> State:
    """The state before any element: extrema at their start, sums 0."""
    state: State = {}
    for b in p.bases:
        start = np.asarray(identity(b.op, b.dtype), dtype=_type(b.dtype, double))
        if b.init is not None:
            start = _extremum(b, start, evaluate(b.init, env, tensors, double=double, halves=halves, read=read))
        state[b.name] = start
    for s in p.sums:
        state[s.name] = np.zeros((), dtype=_type(s.dtype, double))
    return state


def _type(dtype: DType, double: bool) -> Any:
    return np.float64 if double and not is_int(dtype) else numpy_dtype(dtype)


def _extremum(b: Base, x: Any, y: Any) -> Any:
    return np.maximum(x, y) if b.op == "max" else np.minimum(x, y)


def _references(p: StreamProgram, state: State) -> dict[str, Any]:
    """The extrema, or 0 while they are the identity (docs/theory.md, 5): `-inf - 0` where `-inf - -inf` would be NaN."""
    out: dict[str, Any] = {}
    for b in p.bases:
        value = np.asarray(state[b.name])
        out[b.ref.name] = np.where(value == identity(b.op, b.dtype), np.zeros_like(value), value)
    return out


def _rebased(p: StreamProgram, s: Sum, state: State, references: dict[str, Any], env: Env, options: dict[str, Any]) -> Any:
    """The sum `s` of `state` relative to new references; 0 where an extremum was still the identity."""
    value = state[s.name]
    if s.scale is None and s.shift is None:
        return value
    old = {b.old.name: state[b.name] for b in p.bases}
    factor = 1.0 if s.scale is None else evaluate(s.scale, {**env, **references, **old}, **options)
    for b in p.bases:
        if any(b.name == name for name, _ in s.stabilisers):
            factor = np.where(state[b.name] == identity(b.op, b.dtype), 0.0, factor)
            if in_a_branch(s.weight, b.ref):  # an infinite score that a mask keeps out of the sum: the others' terms are 0
                factor = np.where(state[b.name] == -identity(b.op, b.dtype), 0.0, factor)
    with np.errstate(all="ignore"):
        if s.shift is not None:
            distance = evaluate(s.shift.distance, {**env, **references, **old}, **options)
            return value * factor + distance * factor * state[s.shift.partner]
        return value * factor


def step(
    p: StreamProgram,
    state: State,
    env: Env,
    tensors: Env | None = None,
    *,
    double: bool = True,
    halves: bool = False,
    read: Read | None = None,
) -> State:
    """`state` after one more tile, whose elements `env` holds."""
    n = len(env[p.stream.name])
    options: dict[str, Any] = {"tensors": tensors, "double": double, "halves": halves, "read": read}
    new: State = {}
    for b in p.bases:
        tile = _tile(evaluate(b.body, env, **options), n, env)
        new[b.name] = state[b.name] if n == 0 else _extremum(b, state[b.name], getattr(np, b.op)(tile, axis=0))
    references = _references(p, new)
    for s in p.sums:
        body = _tile(evaluate(s.body, {**env, **references}, **options), n, env)
        with np.errstate(all="ignore"):
            new[s.name] = _rebased(p, s, state, references, env, options) + np.sum(body, axis=0, dtype=_type(s.dtype, double))
    return new


def _tile(value: Any, n: int, env: Env) -> Any:
    """`value` with its streamed axis, also where it doesn't depend on the stream."""
    value = np.asarray(value)
    rank = max(np.ndim(v) for v in env.values())
    if value.ndim < rank:
        value = value.reshape((1,) * (rank - value.ndim) + value.shape)
    return np.broadcast_to(value, (n, *value.shape[1:]))


def combine(
    p: StreamProgram,
    a: State,
    b: State,
    env: Env,
    tensors: Env | None = None,
    *,
    double: bool = True,
    halves: bool = False,
    read: Read | None = None,
) -> State:
    """The state of two parts of the stream together: associative, commutative, with `init` as its unit (docs/theory.md, T2)."""
    options: dict[str, Any] = {"tensors": tensors, "double": double, "halves": halves, "read": read}
    new: State = {x.name: _extremum(x, a[x.name], b[x.name]) for x in p.bases}
    references = _references(p, new)
    for s in p.sums:
        with np.errstate(all="ignore"):
            new[s.name] = _rebased(p, s, a, references, env, options) + _rebased(p, s, b, references, env, options)
    return new


def finalize(
    p: StreamProgram,
    state: State,
    env: Env,
    tensors: Env | None = None,
    *,
    double: bool = True,
    halves: bool = False,
    read: Read | None = None,
) -> dict[str, Any]:
    """Every name of `p.finalize`, from the state after the last element."""
    known: dict[str, Any] = {**env, **state}
    for name, e in p.finalize.items():
        known[name] = evaluate(e, known, tensors, double=double, halves=halves, read=read)
    return {name: known[name] for name in p.finalize}


def run(
    p: StreamProgram,
    env: Env,
    cuts: Sequence[int] = (),
    tensors: Env | None = None,
    *,
    double: bool = True,
    halves: bool = False,
    read: Read | None = None,
) -> dict[str, Any]:
    """The outputs over the whole stream, read in tiles that end at `cuts`."""
    n = len(env[p.stream.name])
    row = row_env(p, env)
    state = init(p, row, tensors, double=double, halves=halves, read=read)
    edges = [0, *cuts, n]
    for lo, hi in pairwise(edges):
        state = step(p, state, slice_env(p, env, lo, hi), tensors, double=double, halves=halves, read=read)
    done = finalize(p, state, row, tensors, double=double, halves=halves, read=read)
    return {name: done[name] for name in p.outputs}


def row_env(p: StreamProgram, env: Env) -> dict[str, Any]:
    """What of `env` doesn't depend on the stream."""
    streamed = {p.stream.name, *(a.name for a in p.scores)}
    return {k: v for k, v in env.items() if k not in streamed}


def slice_env(p: StreamProgram, env: Env, lo: int, hi: int) -> dict[str, Any]:
    """`env` for the elements `lo <= j < hi`."""
    streamed = {p.stream.name, *(a.name for a in p.scores)}
    return {k: v[lo:hi] if k in streamed else v for k, v in env.items()}
