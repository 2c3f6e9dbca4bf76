"""Builders of expressions: folding, identities that hold for every value, integer normal form, interning."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aicf.scalar import (
    Const,
    Expr,
    bounds,
    call,
    cast,
    const,
    evaluate,
    extents,
    index,
    integer_const,
    load,
    reduce,
    show,
    size,
    substitute,
    var,
    variables,
)

i, j, h, b = (index(x) for x in "ijhb")
x = var("x", "f32")


def test_equal_expressions_are_one_object():
    assert call("add", i, call("mul", j, size(2))) is call("add", call("mul", size(2), j), i)
    assert call("exp", x) is call("exp", x)


def test_identities_keep_nan_and_zero_times_infinity():
    # x * 0 is not 0 (x may be infinite), x - x is not 0 (x may be NaN): neither is folded.
    assert show(call("mul", x, const(0.0, "f32"))) == "x * 0.0"
    assert show(call("sub", x, x)) == "x - x"
    assert call("mul", x, const(1.0, "f32")) is x
    assert call("add", x, const(0.0, "f32")) is x


def test_comparison_of_floats_is_not_negated():
    # not (x < 0) is not x >= 0 when x is NaN.
    assert show(call("not", call("lt", x, const(0.0, "f32")))) == "~(x < 0.0)"
    assert call("not", call("lt", i, j)) is call("ge", i, j)


def test_merged_heads_split_again():
    heads = index("H")
    with extents({b: size(2), h: heads}):
        merged = call("add", call("mul", b, heads), h)
        assert call("floordiv", merged, heads) is b
        assert call("mod", merged, heads) is h


def test_repeated_heads_become_a_quotient():
    with extents({h: size(8)}):
        assert show(call("floordiv", h, size(4))) == "h // 4"
        assert call("floordiv", call("add", call("mul", h, size(64)), const(63, "i64")), size(64)) is h


def test_groups_of_heads_merge_again():
    with extents({h: size(12), b: size(2)}):
        for c in (size(3), var("g", "i64")):
            group, member = call("floordiv", h, c), call("mod", h, c)
            assert call("add", call("mul", group, c), member) is h
            wide = call("mul", call("add", call("mul", group, c), member), size(12))
            assert call("add", wide, b) is call("add", call("mul", h, size(12)), b)
        other = call("add", call("mul", call("floordiv", h, size(3)), size(4)), call("mod", h, size(3)))
        assert show(other) == "h % 3 + h // 3 * 4"


def test_a_selection_of_truth_values_is_its_condition():
    below = call("lt", i, j)
    assert call("where", below, const(True, "bool"), const(False, "bool")) is below
    assert call("where", below, const(False, "bool"), const(True, "bool")) is call("ge", i, j)


def test_a_quotient_depends_on_the_ranges_declared_where_it_is_built():
    with extents({h: size(4)}):
        assert call("floordiv", h, size(4)) is const(0, "i64")
    with extents({h: size(8)}):
        assert show(call("floordiv", h, size(4))) == "h // 4"
    with extents({h: size(4)}):
        assert call("mod", h, size(4)) is h


def test_constants_fold_in_their_type():
    assert const(1e5, "f16") is const(math.inf, "f16")
    folded = call("add", const(1.0, "bf16"), const(2**-9, "bf16"))
    assert isinstance(folded, Const) and folded.value == 1.0


def test_substitute_and_variables():
    e = call("add", load("t", (i, j), "f32"), x)
    assert variables(e) == {i, j, x}
    assert show(substitute(e, {j: call("add", j, size(1)), x: const(2.0, "f32")})) == "t[i, j + 1] + 2.0"


def test_reduce_evaluates_over_its_own_axis():
    e = reduce("max", j, size(5), load("t", (i, j), "f32"))
    t = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(evaluate(e, {"i": np.arange(3)}, {"t": t}), t.max(1))


small = st.integers(-20, 20)


@st.composite
def integers(draw: st.DrawFn, depth: int = 3):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([i, j, h])) if draw(st.booleans()) else const(draw(small), "i64")
    fn = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "neg"]))
    a = draw(integers(depth=depth - 1))
    if fn == "neg":
        return call("neg", a)
    other = const(draw(st.integers(1, 9)), "i64") if fn in ("floordiv", "mod") else draw(integers(depth=depth - 1))
    return call(fn, a, other)


@st.composite
def written(draw: st.DrawFn, depth: int = 3) -> str:
    """The same arithmetic as Python text, evaluated with Python's own integers."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["i", "j", "h"])) if draw(st.booleans()) else str(draw(small))
    op = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    a = draw(written(depth=depth - 1))
    c = str(draw(st.integers(1, 9))) if op in ("//", "%") else draw(written(depth=depth - 1))
    return f"({a} {op} {c})"


class _Symbol:
    """Python operators on expressions, to build an expression from written text."""

    def __init__(self, e: Expr) -> None:
        self.e = e

    def _with(self, fn: str, other: _Symbol | int, flip: bool = False):
        e = other.e if isinstance(other, _Symbol) else const(other, "i64")
        return _Symbol(call(fn, e, self.e) if flip else call(fn, self.e, e))

    def __add__(self, o: _Symbol | int): return self._with("add", o)
    def __radd__(self, o: _Symbol | int): return self._with("add", o, True)
    def __sub__(self, o: _Symbol | int): return self._with("sub", o)
    def __rsub__(self, o: _Symbol | int): return self._with("sub", o, True)
    def __mul__(self, o: _Symbol | int): return self._with("mul", o)
    def __rmul__(self, o: _Symbol | int): return self._with("mul", o, True)
    def __floordiv__(self, o: _Symbol | int): return self._with("floordiv", o)
    def __mod__(self, o: _Symbol | int): return self._with("mod", o)


@given(written(), st.integers(0, 30), st.integers(0, 15), st.integers(0, 7))
def test_integer_normal_form_keeps_the_value(text: str, vi: int, vj: int, vh: int):
    values = {"i": vi, "j": vj, "h": vh}
    known = {i: size(31), j: size(16), h: size(8)}
    with extents(known):
        made = eval(text, {k: _Symbol(index(k)) for k in values})
    e = made.e if isinstance(made, _Symbol) else const(made, "i64")
    assert int(evaluate(e, {k: np.int64(v) for k, v in values.items()})) == eval(text, dict(values))


@given(integers(), st.integers(0, 30), st.integers(0, 15), st.integers(0, 7))
def test_bounds_hold(e: Expr, vi: int, vj: int, vh: int):
    with extents({i: size(31), j: size(16), h: size(8)}):
        low, high = bounds(e)
    value = int(evaluate(e, {"i": np.int64(vi), "j": np.int64(vj), "h": np.int64(vh)}))
    if low is not None and high is not None:
        assert int(evaluate(low, {})) <= value <= int(evaluate(high, {}))


def test_cast_of_the_same_type_is_dropped():
    assert cast(x, "f32") is x


def test_bounds_past_the_ends_of_the_type_are_unknown():
    i, n = index("i"), integer_const(64)
    with extents({i: n}):
        assert bounds(call("mul", i, integer_const(3))) == (integer_const(0), integer_const(189))
        assert bounds(call("mul", i, integer_const(1 << 60))) == (None, None)
