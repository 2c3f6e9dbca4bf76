"""Cascades written with operators, evaluated directly in float64, and derived programs run on random cuts and merge trees."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from aicf.scalar import DType, Expr, Load, Var, call, cast, const, evaluate, index, is_float, load, var
from aicf.semantic import Refusal
from aicf.streaming.derive import derive
from aicf.streaming.evaluate import combine, finalize, init, row_env, slice_env, step
from aicf.streaming.stream_program import Reduction, StreamProgram

J, E, I, H = index("j"), index("e"), index("i"), index("h")
INF = float("inf")
N, ROWS, WIDTH = 37, 3, 5

Number = bool | int | float


@dataclass(frozen=True)
class X:
    """An expression with operators."""

    e: Expr

    def __add__(self, o: X | Number) -> X:
        return fn("add", self, o)

    def __radd__(self, o: Number) -> X:
        return fn("add", o, self)

    def __sub__(self, o: X | Number) -> X:
        return fn("sub", self, o)

    def __rsub__(self, o: Number) -> X:
        return fn("sub", o, self)

    def __mul__(self, o: X | Number) -> X:
        return fn("mul", self, o)

    def __rmul__(self, o: Number) -> X:
        return fn("mul", o, self)

    def __truediv__(self, o: X | Number) -> X:
        return fn("div", self, o)

    def __rtruediv__(self, o: Number) -> X:
        return fn("div", o, self)

    def __pow__(self, n: Number) -> X:
        return fn("pow", self, n)

    def __neg__(self) -> X:
        return fn("neg", self)

    def to(self, dtype: DType) -> X:
        return X(cast(self.e, dtype))


def fn(name: str, *args: X | Number) -> X:
    """The call of a scalar function; plain numbers take the type of the first expression."""
    floats: list[DType] = [a.e.dtype for a in args if isinstance(a, X) and is_float(a.e.dtype)]
    like = floats[0] if floats else "f64"
    return X(call(name, *(a.e if isinstance(a, X) else const(a, like) for a in args)))


def exp(x: X) -> X:
    return fn("exp", x)


def log(x: X) -> X:
    return fn("log", x)


def where(c: X, a: X | Number, b: X | Number) -> X:
    return fn("where", c, a, b)


def maximum(a: X | Number, b: X | Number) -> X:
    return fn("max", a, b)


def r(name: str, dtype: DType = "f64") -> X:
    """The value of an earlier reduction, or an atom."""
    return X(var(name, dtype))


def row(name: str, dtype: DType = "f64") -> X:
    """An input of the row: one number per row i."""
    return X(load(name, (I,), dtype))


def streamed(name: str, dtype: DType = "f64") -> X:
    """One number per streamed element, the same for all rows."""
    return X(load(name, (J,), dtype))


S, T = r("s"), r("t")
V, W = X(load("V", (J, E), "f64")), X(load("W", (J, E), "f64"))


def reduction(name: str, op: Any, body: X) -> Reduction:
    return Reduction(name, op, body.e)


def softmax(s: X = S, m: str = "m", l: str = "l") -> list[Reduction]:
    """The two reductions of a softmax over scores `s`."""
    return [reduction(m, "max", s), reduction(l, "sum", exp(s - r(m)))]


def p(s: X = S, m: str = "m", l: str = "l") -> X:
    """A probability of that softmax."""
    return exp(s - r(m)) / r(l)


# ------------------------------------------------------------------------------------------------ values


@dataclass
class Data:
    """Arrays: scores `s`, `t` are [n, rows, 1]; tensors are looked up by index."""

    env: dict[str, Any]
    tensors: dict[str, Any]


def data(seed: int = 0, n: int = N) -> Data:
    g = np.random.default_rng(seed)
    env = {
        "s": g.normal(size=(n, ROWS, 1)) * 3,
        "t": g.normal(size=(n, ROWS, 1)) * 3,
        "j": np.arange(n).reshape(n, 1, 1),
        "i": np.arange(ROWS).reshape(ROWS, 1),
        "e": np.arange(WIDTH),
    }
    tensors = {
        "V": g.normal(size=(n, WIDTH)),
        "W": g.normal(size=(n, WIDTH)),
        "gamma": g.normal(size=n),
        "beta": g.normal(size=n),
        "scale": g.uniform(0.5, 1.5, size=n),
        "onehot": (np.arange(n) == 7 % max(n, 1)).astype(float),
        "sink": g.normal(size=ROWS),
        "c": g.uniform(0.5, 1.5, size=ROWS),
        "lam": g.normal(size=ROWS),
    }
    return Data(env, tensors)


_REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "any": np.any, "all": np.all,
}  # fmt: skip


def direct(cascade: Sequence[Reduction], outputs: Mapping[str, Expr], d: Data) -> dict[str, Any]:
    """The cascade as written, every reduction over the whole stream, in float64."""
    env = dict(d.env)
    n = len(env["j"])
    with np.errstate(all="ignore"):
        for one in cascade:
            body = np.asarray(evaluate(one.body, env, d.tensors, double=True))
            body = body.reshape((1,) * (3 - body.ndim) + body.shape)
            env[one.name] = _REDUCE[one.op](np.broadcast_to(body, (n, *body.shape[1:])), axis=0)
        rows = {k: v for k, v in env.items() if k not in ("s", "t", "j")}
        wanted = outputs or {one.name: var(one.name, one.body.dtype) for one in cascade}
        return {k: np.asarray(evaluate(e, rows, d.tensors, double=True)) for k, e in wanted.items()}


def parts(program: StreamProgram, d: Data, cuts: Sequence[int]) -> list[dict[str, Any]]:
    """One state per tile."""
    row_values = row_env(program, d.env)
    edges = [0, *cuts, len(d.env["j"])]
    start = init(program, row_values, d.tensors)
    return [
        step(program, start, slice_env(program, d.env, lo, hi), d.tensors) for lo, hi in pairwise(edges)
    ]


def merged(program: StreamProgram, d: Data, cuts: Sequence[int], order: random.Random, shuffle: bool) -> dict[str, Any]:
    """Tiles combined along a random tree, in a random order of tiles if `shuffle`."""
    row_values = row_env(program, d.env)
    states = parts(program, d, cuts)
    if shuffle:
        order.shuffle(states)
    while len(states) > 1:
        i = order.randrange(len(states) - 1)
        states[i : i + 2] = [combine(program, states[i], states[i + 1], row_values, d.tensors)]
    done = finalize(program, states[0], row_values, d.tensors)
    return {name: done[name] for name in program.outputs}


def derived(cascade: Sequence[Reduction], outputs: Mapping[str, X] | None = None) -> StreamProgram | Refusal:
    return derive(cascade, plain(outputs), J, scores=_atoms(cascade), payload=(E,))


def _atoms(cascade: Sequence[Reduction]) -> tuple[Var, ...]:
    names: dict[str, Var] = {}
    for one in cascade:
        stack: list[Expr] = [one.body]
        while stack:
            e = stack.pop()
            if isinstance(e, Var) and e.name in ("s", "t"):
                names[e.name] = e
            if not isinstance(e, Load):
                stack.extend(getattr(e, "args", ()))
    return tuple(names[n] for n in sorted(names))


def plain(outputs: Mapping[str, X] | None) -> dict[str, Expr]:
    return {k: v.e for k, v in (outputs or {}).items()}


def close(got: Any, want: Any, tolerance: float = 1e-10, floor: float = 1e-30) -> None:
    """Equal to `tolerance` of the largest finite value (at least `floor`), with NaN and infinities in the same places."""
    got, want = np.broadcast_arrays(np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64))
    assert np.array_equal(np.isnan(got), np.isnan(want)), (got, want)
    infinite = np.isinf(want)
    assert np.array_equal(got[infinite], want[infinite]) and not np.isinf(got[~infinite]).any(), (got, want)
    finite = np.isfinite(want)
    if finite.any():
        size = np.abs(want[finite]).max()
        assert np.abs(got[finite] - want[finite]).max() <= tolerance * max(size, floor), (got, want)


def check(cascade: Sequence[Reduction], outputs: Mapping[str, X] | None = None, d: Data | None = None) -> StreamProgram:
    """Derives the cascade and compares it with its direct evaluation, over random cuts, orders and merge trees."""
    program = derived(cascade, outputs)
    assert isinstance(program, StreamProgram), str(program)
    d = d or data()
    want = direct(cascade, plain(outputs), d)
    n = len(d.env["j"])
    order = random.Random(0)
    for trial in range(4):
        cuts = sorted(order.sample(range(1, n), order.randint(1, min(5, n - 1)))) if n > 1 else []
        got = merged(program, d, cuts, order, shuffle=trial > 0)
        assert set(got) == set(want)
        for name in want:
            close(got[name], want[name])
    return program
