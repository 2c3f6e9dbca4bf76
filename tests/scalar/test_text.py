"""Text of expressions: no two print alike, and what is printed is read back as the very object."""

from __future__ import annotations

import copy
import pickle
import random

import pytest

from aicf.scalar import (
    DTYPES,
    FUNCTIONS,
    Call,
    Expr,
    ParseError,
    call,
    cast,
    const,
    index,
    load,
    parse_expr,
    parse_prefix,
    reduce,
    show,
    size,
    spell,
    unknown,
    var,
)
from aicf.scalar.expr import raw

from .expressions import FLOATS, INTEGERS, expression

i, j = index("i"), index("j")
x, h = var("x", "f32"), var("h", "f16")
TYPES = {"x": "f32", "h": "f16"}


def test_every_random_expression_is_read_back():
    r = random.Random(0)
    seen: set[str] = set()
    for k in range(1500):
        e = expression(r, 1 + k % 40)
        text = spell(e)
        assert parse_expr(text) is e, text
        seen.update(n.fn for n in unknown(e, ()) if isinstance(n, Call))
    assert seen == {*FUNCTIONS, "cast"}


def test_no_two_expressions_print_alike():
    r = random.Random(1)
    known: dict[str, Expr] = {}
    for k in range(1500):
        # Names say their types here, so that the plain text has to tell all.
        for e in unknown(expression(r, 1 + k % 25), ()):
            assert known.setdefault(show(e), e) is e, show(e)
    assert len(known) > 4000


@pytest.mark.parametrize("dtype", DTYPES)
def test_literals_keep_every_bit(dtype: str):
    for value in (*FLOATS, *INTEGERS):
        if dtype[0] in "fb" or isinstance(value, int):
            c = const(value, dtype)  # pyright: ignore[reportArgumentType]
            assert parse_expr(show(c)) is c


def test_negative_bases_nested_powers_and_subtractions():
    two, minus = const(2.0, "f32"), const(-2.0, "f32")
    texts = {
        call("pow", minus, x): "(-2.0) ** x",
        call("neg", call("pow", two, x)): "-(2.0 ** x)",
        call("pow", call("neg", x), two): "(-x) ** 2.0",
        call("neg", call("pow", x, two)): "-x ** 2.0",
        call("pow", x, minus): "x ** (-2.0)",
        call("pow", call("pow", x, two), x): "(x ** 2.0) ** x",
        call("pow", x, call("pow", two, x)): "x ** 2.0 ** x",
        call("sub", x, call("sub", x, two)): "x - (x - 2.0)",
        call("sub", call("sub", x, two), x): "x - 2.0 - x",
        call("sub", x, minus): "x - -2.0",
        call("div", x, call("mul", x, two)): "x / (x * 2.0)",
        raw("neg", (two,), "f32"): "-(2.0)",
        raw("lt", (raw("lt", (i, j), "bool"), cast(i, "bool")), "bool"): "(i < j) < bool(i)",
    }
    assert {e: show(e) for e in texts} == texts
    assert all(parse_expr(text, TYPES) is e for e, text in texts.items())  # pyright: ignore[reportArgumentType]


def test_literals_say_their_type_where_nothing_beside_them_does():
    texts = {
        call("mul", h, const(0.1, "f16")): "h * 0.1",
        raw("mul", (h, const(0.1, "f32")), "f32"): "h * f32(0.1)",
        call("exp", const(0.5, "f16")): "f16(1.648)",
        raw("exp", (const(0.5, "f16"),), "f16"): "exp(f16(0.5))",
        call("where", call("lt", i, j), const(0.0, "bf16"), const(-0.0, "bf16")): "where(i < j, bf16(0.0), bf16(-0.0))",
        cast(const(float("inf"), "f16"), "i32"): "cast.i32(f16(inf))",
        call("add", cast(i, "i32"), const(3, "i32")): "i32(i) + 3",
    }
    assert {e: show(e) for e in texts} == texts
    assert all(parse_expr(text, TYPES) is e for e, text in texts.items())  # pyright: ignore[reportArgumentType]


def test_types_of_names_are_spelled_where_they_are_not_known():
    e = call("mul", load("K", (i, size(3)), "f16"), h)
    assert spell(e) == "K[i, 3]:f16 * h:f16"
    assert spell(e, {"K": "f16", "h": "f16"}) == "K[i, 3] * h"
    strange = call("add", var("a b", "f32"), var("nan", "f32"))
    assert spell(strange) == "`a b`:f32 + `nan`:f32" and parse_expr(spell(strange)) is strange


def test_a_reduction_is_no_call_of_max():
    d = index("d")
    inner = reduce("max", d, call("add", i, size(1)), load("K", (d,), "f32"))
    assert show(inner) == "max(d < i + 1: K[d])"
    for e in (inner, call("max", call("lt", i, j), call("lt", j, d)), reduce("sum", d, size(4), call("max", inner, x))):
        assert parse_expr(spell(e)) is e


def test_the_text_of_shared_subexpressions_grows_with_the_nodes():
    def doubled(n: int) -> Expr:
        e: Expr = x
        for k in range(n):
            e = call("where", call("lt", i, size(k)), call("mul", e, e), e)
        return e

    lengths = [len(show(doubled(n))) for n in (100, 200, 400)]
    assert lengths[2] - lengths[1] < 3 * (lengths[1] - lengths[0])
    assert parse_expr(spell(doubled(400))) is doubled(400)
    assert show(doubled(8)).startswith("let $1 = where(i < 0, x * x, x); $2 = ") and "let" not in show(doubled(2))


def test_deep_expressions_print_and_parse():
    e: Expr = x
    for k in range(3000):
        e = call("where", call("lt", i, size(k)), e, const(float(k), "f32"))
    assert parse_expr(spell(e)) is e


def test_a_prefix_of_a_text():
    e, end = parse_prefix("axis i < N tile 8", 9)
    assert e is index("N") and "axis i < N tile 8"[end:] == " tile 8"


def test_what_people_write_is_brought_into_normal_form():
    assert parse_expr("j*2 + i + 1 - 1", simplify=True) is call("add", i, call("mul", j, size(2)))
    assert parse_expr("j*2 + i + 1 - 1") is not call("add", i, call("mul", j, size(2)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i +", "an expression was expected, at column 4"),
        ("foo(i)", "there is no function foo"),
        ("exp(i, j)", "exp takes 1 operands, 2 are given"),
        ("K[i]", "the type of K's elements is not known: write K[…]:f32"),
        ("i < j < i", "comparisons are not chained: put brackets"),
        ("(i", "')' was expected"),
        ("i j", "nothing more was expected, at column 3"),
        ("$3", "$3 is not defined"),
    ],
)
def test_faults_say_what_and_where(text: str, message: str):
    with pytest.raises(ParseError) as error:
        parse_expr(text)
    assert message in str(error.value)


def test_copies_and_unpickled_expressions_are_the_same_objects():
    r = random.Random(2)
    for _ in range(50):
        e = expression(r, 20)
        assert copy.copy(e) is e and copy.deepcopy(e) is e and pickle.loads(pickle.dumps(e)) is e
