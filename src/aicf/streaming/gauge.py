"""Which references are free (theorem T4): the outputs stay the same when a reference is shifted and its sums rebased.

A free reference may lag behind the running extremum (lazy rescale), be a constant, or differ between splits. Decided by a
shift test: every unknown takes random values, and outputs before and after the shift are compared in float64. A base of which
an output keeps a trace fails it with certainty but for a set of values of measure zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from aicf.scalar import Call, Const, Expr, Load, Var, evaluate, is_float, is_int, substitute, var, variables, walk
from aicf.streaming.stream_program import StreamProgram

TRIALS = 4
SHIFTS = (1.0, -1.0, 100.0, -100.0)  # of a reference, in natural units; each times a random number near 1
COMPARISONS = 32  # trials where comparisons may have either outcome


def gauge_free(p: StreamProgram) -> frozenset[str]:
    """Names of the bases that are references of sums and whose shift changes no output."""
    used = {name for s in p.sums for name, _ in s.stabilisers} | {s.shift.base for s in p.sums if s.shift is not None}
    return frozenset(b.name for b in p.bases if b.name in used and _is_free(p, b.name))


def _is_free(p: StreamProgram, name: str) -> bool:
    random = np.random.default_rng(1)
    compared = 0
    for size in SHIFTS:
        env = _values(p, random)
        tensors: dict[object, float] = {}
        before = _outputs(p, env, tensors, random)
        shift = size * float(random.uniform(0.5, 1.5))
        moved = dict(env)
        moved[name] = env[name] + shift
        for s in p.sums:
            if s.shift is not None and s.shift.base == name:
                moved[s.name] -= shift * env[s.shift.partner]
            for base, power in s.stabilisers:
                if base == name:
                    moved[s.name] *= math.exp(-float(_value(power, env, tensors, random)) * shift)
        after = _outputs(p, moved, tensors, random)
        for a, b in zip(before, after, strict=True):
            if math.isnan(a) and math.isnan(b):
                continue
            compared += 1
            if not _close(a, b):
                return False
    return compared > 0


def scaling(p: StreamProgram, sums: Collection[str], names: Collection[str]) -> int | None:
    """The power of z by which the results `names` all grow when `sums` are multiplied by z > 0: 0, 1, or None for neither."""
    random = np.random.default_rng(3)
    powers = {0, 1}
    for size in SHIFTS:
        env = _values(p, random)
        tensors: dict[object, float] = {}
        z = math.exp(size * float(random.uniform(0.5, 1.5)))
        before = _results(p, env, tensors, random)
        after = _results(p, {**env, **{s: env[s] * z for s in sums}}, tensors, random)
        powers &= {k for k in (0, 1) if all(_close(after[n] / z**k, before[n]) for n in names)}
    return powers.pop() if len(powers) == 1 else None


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def same_value(a: Expr, b: Expr) -> bool:
    """Whether two expressions of inputs agree, NaN with NaN, at random values of what they read, and of their comparisons:
    `i < 4` may hold or not, whatever few values i takes here."""
    if a is b:
        return True
    random = np.random.default_rng(2)
    free: dict[Expr, Expr] = {x: var(f"?{n}", "bool") for n, x in enumerate(filter(_open, {**_walked(a), **_walked(b)}))}
    a, b = substitute(a, free), substitute(b, free)
    for _ in range(TRIALS if not free else COMPARISONS):
        tensors: dict[object, float] = {}
        env = {v.name: _random(v, random) for v in sorted(variables(a) | variables(b), key=lambda v: v.name)}
        one, other = (_value(e, env, tensors, random) for e in (a, b))
        if not (one == other or (math.isnan(one) and math.isnan(other))):
            return False
    return True


def _walked(e: Expr) -> dict[Expr, None]:
    return dict.fromkeys(walk(e))


def _open(e: Expr) -> bool:
    """A comparison that both outcomes are possible of, as far as its form tells."""
    if not (isinstance(e, Call) and e.fn in ("lt", "le", "gt", "ge", "eq", "ne")) or e.args[0] is e.args[1]:
        return False
    return bool(variables(e)) and not any(isinstance(x, Const) and x.value != x.value for x in walk(e))


def _values(p: StreamProgram, random: np.random.Generator) -> dict[str, float]:
    """Random values of the states and of every input of the row."""
    exprs = [*p.finalize.values(), *(power for s in p.sums for _, power in s.stabilisers)]
    names: dict[str, Var] = {}
    for e in exprs:
        for v in variables(e):
            names.setdefault(v.name, v)
    env: dict[str, float] = {}
    for name in sorted(names):
        if name in p.finalize and not any(name == b.name for b in p.bases):
            continue
        env[name] = _random(names[name], random)
    for b in p.bases:
        env[b.name] = float(random.uniform(-1, 1))
    for s in p.sums:
        env[s.name] = float(random.uniform(1, 2))
    return env


def _random(e: Expr, random: np.random.Generator) -> float:
    if is_float(e.dtype):
        return float(random.uniform(0.5, 1.5))
    return int(random.integers(1, 4)) if is_int(e.dtype) else bool(random.integers(0, 2))


def _value(e: Expr, env: dict[str, float], tensors: dict[object, float], random: np.random.Generator) -> float:
    def read(at: Load, _: tuple[object, ...]) -> float:
        if at not in tensors:
            tensors[at] = _random(at, random)
        return tensors[at]

    # Loads are opaque numbers here; their indices only have to be bound.
    bound = {v.name: 0 for n in walk(e) for v in variables(n) if v.name not in env}
    return float(evaluate(e, {**bound, **env}, double=True, read=read))


def _outputs(
    p: StreamProgram, env: dict[str, float], tensors: dict[object, float], random: np.random.Generator
) -> list[float]:
    known = _results(p, env, tensors, random)
    return [known[name] for name in p.outputs]


def _results(
    p: StreamProgram, env: dict[str, float], tensors: dict[object, float], random: np.random.Generator
) -> dict[str, float]:
    known = dict(env)
    for name, e in p.finalize.items():
        known[name] = _value(e, known, tensors, random)
    return known
