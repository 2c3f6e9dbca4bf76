"""Random cascades: what is derived equals the cascade as written, however the stream is cut, merged and rebased."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from aicf.scalar import evaluate, show, variables, walk
from aicf.semantic import Refusal
from aicf.streaming.evaluate import finalize, init, row_env, run, step
from aicf.streaming.stream_program import Reduction, StreamProgram

from .cascades import (
    INF,
    Data,
    J,
    S,
    T,
    V,
    X,
    close,
    data,
    derived,
    direct,
    exp,
    fn,
    log,
    maximum,
    merged,
    plain,
    r,
    reduction,
    row,
    streamed,
    where,
)

Draw = Callable[..., Any]
SEEDS = st.integers(0, 1 << 16)


def _condition(draw: Draw) -> X:
    k = draw(st.integers(1, 3))
    return draw(st.sampled_from([fn("gt", T, 0.0), fn("le", X(J), X(J) * 0 + 9 * k), fn("lt", S, T)]))


def _scores(draw: Draw) -> X:
    """x only: what a score can be."""
    base = draw(st.sampled_from([S, T, S * 0.5, S + streamed("beta"), fn("tanh", S / 3.0) * 3.0, row("c") * S, S - row("lam")]))
    if draw(st.booleans()):
        base = where(_condition(draw), base, draw(st.sampled_from([-INF, -1e4])))
    return base


def _softmax(draw: Draw, n: int) -> tuple[list[Reduction], X, dict[str, X]]:
    """(reductions, a weight that needs them, values of the row) of a softmax-like normaliser, spelled in many ways."""
    s = _scores(draw)
    m, l = r(f"m{n}"), r(f"l{n}")
    cascade = [reduction(f"m{n}", "max", s)]
    top = m
    start = draw(st.sampled_from([None, row("sink"), 0.0]))
    if start is not None:
        top = maximum(m, start)
    shifted, rest = s - top, top
    if draw(st.booleans()):
        cascade.append(reduction(f"n{n}", "max", shifted))
        second = r(f"n{n}")
        if start is not None:
            second = maximum(second, start - top)
        shifted, rest = shifted - second, rest + second
    power = draw(st.sampled_from([1.0, 1.0, 2.0]))
    e = exp(shifted * power) if power != 1.0 else exp(shifted)
    cascade.append(reduction(f"l{n}", "sum", e))
    total = l
    if start is not None and draw(st.booleans()):
        total = l + exp((start - rest) * power)
    logs = shifted * power - log(total)
    weight = draw(st.sampled_from([e / total, e * (1.0 / total), exp(logs), e, (e / total) ** 2, exp(logs) / 2.0]))
    return cascade, weight, {f"lse{n}": rest * power + log(total), f"l{n}": total}


def _mean(draw: Draw, n: int) -> tuple[list[Reduction], X, dict[str, X]]:
    """Centred and scaled scores, as in a normalisation."""
    x = draw(st.sampled_from([S, T, S * T]))
    cascade = [reduction(f"mu{n}", "sum", x / 37.0)]
    centred = x - r(f"mu{n}")
    cascade.append(reduction(f"q{n}", "sum", centred**2 / 37.0))
    return cascade, centred / fn("sqrt", r(f"q{n}") + 1e-3), {f"q{n}": r(f"q{n}")}


@st.composite
def cascades(draw: Draw) -> tuple[list[Reduction], dict[str, X]]:
    """Normalisers, then sums of products of their weights with streamed values, then outputs."""
    cascade: list[Reduction] = []
    weights: list[X] = []
    rows: dict[str, X] = {}
    for n in range(draw(st.integers(1, 2))):
        more, weight, values = draw(st.sampled_from([_softmax, _softmax, _mean]))(draw, n)
        cascade += more
        weights.append(weight)
        rows |= values
    outputs = {name: rows[name] for name in rows if draw(st.booleans())}
    for n in range(draw(st.integers(1, 2))):
        body = draw(st.sampled_from(weights))
        if len(weights) > 1 and draw(st.booleans()):
            body = draw(st.sampled_from([weights[0] - row("lam") * weights[1], weights[0] * weights[1], weights[0] + weights[1]]))
        if draw(st.booleans()):
            body = where(_condition(draw), body, draw(st.sampled_from([X(S.e) * 0.0, body * 2.0])))
        if draw(st.booleans()):
            body = where(fn("gt", row("lam"), 0.0), body, -body)
        body = body * draw(st.sampled_from([V, S, V * streamed("gamma"), T, X(S.e) * 0.0 + 1.0, V - streamed("beta")]))
        cascade.append(reduction(f"o{n}", "sum", body))
        outputs[f"y{n}"] = draw(st.sampled_from([r(f"o{n}"), r(f"o{n}") / 3.0, r(f"o{n}") * row("c")]))
    return cascade, outputs


def _direct(cascade: list[Reduction], outputs: dict[str, X], d: Data) -> dict[str, Any]:
    want = direct(cascade, plain(outputs), d)
    assume(all(np.isfinite(v).all() for v in want.values()))
    return want


def _tolerance(cascade: list[Reduction], d: Data) -> float:
    """1e-10 of the largest magnitude squared that is summed up: bodies that cancel lose digits in either form."""
    env = dict(d.env)
    size = 1.0
    for one in cascade:
        body = np.asarray(evaluate(one.body, env, d.tensors, double=True))
        finite = np.abs(body[np.isfinite(body)])
        size = max(size, float(finite.max(initial=0.0)))
        env |= direct(cascade[: cascade.index(one) + 1], {}, d)
    return 1e-10 * size**2


@settings(max_examples=60, deadline=None)
@given(cascades(), SEEDS)
def test_random_cascades(made: tuple[list[Reduction], dict[str, X]], seed: int) -> None:
    cascade, outputs = made
    d = data(seed)
    want = _direct(cascade, outputs, d)
    program = derived(cascade, outputs)
    assert isinstance(program, StreamProgram), str(program)
    tolerance = _tolerance(cascade, d)
    order = random.Random(seed)
    n = len(d.env["j"])
    for shuffle in (False, True):
        cuts = sorted(order.sample(range(1, n), order.randint(0, 6)))
        in_turn, in_tree = run(program, d.env, cuts, d.tensors), merged(program, d, cuts, order, shuffle)
        for name in want:
            close(in_turn[name], want[name], tolerance, 1.0)
            close(in_tree[name], want[name], tolerance, 1.0)


@settings(max_examples=30, deadline=None)
@given(cascades(), SEEDS, st.floats(-3.0, 3.0))
def test_a_shift_invariant_reference_may_move(made: tuple[list[Reduction], dict[str, X]], seed: int, shift: float) -> None:
    cascade, outputs = made
    d = data(seed)
    _direct(cascade, outputs, d)
    program = derived(cascade, outputs)
    assert isinstance(program, StreamProgram)
    free = [b for b in program.bases if b.shift_invariant]
    event(f"{len(free)} of {len(program.bases)} free")
    rows = row_env(program, d.env)
    from_state = _final_state(program, d)
    before = finalize(program, from_state, rows, d.tensors)
    for base in free:
        moved = dict(from_state)
        moved[base.name] = moved[base.name] + shift
        for s in program.sums:
            if s.shift is not None and s.shift.base == base.name:
                moved[s.name] = moved[s.name] - shift * from_state[s.shift.partner]
            for name, power in s.stabilisers:
                if name == base.name:
                    moved[s.name] = moved[s.name] * np.exp(-evaluate(power, rows, d.tensors, double=True) * shift)
        after = finalize(program, moved, rows, d.tensors)
        for name in program.outputs:
            close(after[name], before[name], 1e-9)


def _final_state(program: StreamProgram, d: Data) -> dict[str, Any]:
    return step(program, init(program, row_env(program, d.env), d.tensors), d.env, d.tensors)


# ------------------------------------------------------------------------------------------------ any expression


@st.composite
def expressions(draw: Draw, depth: int = 3) -> X:
    """Any body over the score, another stream, an input of the row and an earlier sum and maximum."""
    leaf = depth == 0 or draw(st.integers(0, 4)) == 0
    if leaf:
        return draw(st.sampled_from([S, T, row("c"), r("mu"), r("m"), X(S.e) * 0.25, V]))
    a = draw(expressions(depth - 1))
    kind = draw(st.sampled_from(["unary", "add", "sub", "mul", "where", "div", "max"]))
    if kind == "unary":
        name = draw(st.sampled_from(["neg", "exp", "abs", "tanh", "square", "cube"]))
        if name in ("square", "cube"):
            return a ** (2 if name == "square" else 3)
        return exp(a / 8.0) if name == "exp" else fn(name, a)
    if kind == "where":
        return where(fn("gt", draw(expressions(1)), 0.0), a, draw(expressions(depth - 1)))
    if kind == "div":
        return a / (1.0 + fn("abs", draw(expressions(1))))
    return fn(kind, a, draw(expressions(depth - 1)))


@settings(max_examples=100, deadline=None)
@given(expressions(), st.sampled_from(["sum", "max", "min"]), SEEDS)
def test_any_body_is_separated_or_refused_with_its_guilty_part(body: X, op: str, seed: int) -> None:
    cascade = [reduction("mu", "sum", S / 37.0), reduction("m", "max", T), reduction("z", op, body)]
    program = derived(cascade, {"z": r("z")})
    if isinstance(program, Refusal):
        event("refused")
        assert program.name == "z" and program.where is not None
        names = {v.name for v in variables(program.where)}
        assert names & {"mu", "m", "B_m"}, show(program.where)
        assert names & {"s", "t", "j"}, show(program.where)
        return
    event(f"separated, {len(program.sums)} sums")
    d = data(seed, n=13)
    want = direct(cascade, {"z": r("z").e}, d)
    assume(all(np.isfinite(v).all() and np.abs(v).max() < 1e6 for v in want.values()))
    order = random.Random(seed)
    got = merged(program, d, [4, 9], order, shuffle=True)
    close(got["z"], want["z"], _tolerance(cascade, d), 1.0)


def test_the_grammar_reaches_both_sides() -> None:
    """The random expressions above are not all refused, nor all accepted."""
    kinds: set[bool] = set()

    @settings(max_examples=60, deadline=None, database=None)
    @given(expressions())
    def one(body: X) -> None:
        cascade = [reduction("mu", "sum", S / 37.0), reduction("m", "max", T), reduction("z", "sum", body)]
        if any(getattr(n, "name", "") in ("mu", "m") for n in walk(body.e)):
            kinds.add(isinstance(derived(cascade), StreamProgram))

    one()
    assert kinds == {True, False}
