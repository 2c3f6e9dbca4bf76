"""Masks in words."""

from __future__ import annotations

import pytest

from aicf.scalar import Expr, call, const, index, load, size
from aicf.streaming.describe import describe_mask

i, j, m, n = (index(x) for x in "ijmn")


def sub(a: Expr, b: Expr) -> Expr:
    return call("sub", a, b)


CASES = {
    "causal": call("le", j, i),
    "causal with offset m - n": call("ge", call("add", i, sub(m, n)), j),
    "causal with offset -1": call("lt", j, i),
    "causal, window 256": call("not", call("or", call("gt", j, i), call("ge", sub(i, j), size(256)))),
    "window 129": call("le", sub(i, j), size(128)),
    "band 128 to each side, stride 2": call(
        "and", call("le", call("abs", sub(i, j)), size(128)), call("eq", call("mod", sub(i, j), size(2)), size(0))
    ),
    "(causal or keys before 64)": call("or", call("le", j, i), call("lt", j, size(64))),
    "(causal and window 4 or stride 2)": call(
        "or", call("and", call("le", j, i), call("lt", sub(i, j), size(4))), call("eq", call("mod", sub(i, j), size(2)), size(0))
    ),
    "causal by blocks of 64": call("ge", call("floordiv", i, size(64)), call("floordiv", j, size(64))),
    "same doc, causal": call("and", call("eq", load("doc", (i,), "i64"), load("doc", (j,), "i64")), call("ge", i, j)),
    "pairs that keep keeps": load("keep", (i, j), "bool"),
    "causal, keys that padding hides": call("and", call("le", j, i), call("not", load("padding", (m, j), "bool"))),
    "queries that short keeps": load("short", (i,), "bool"),
    "i * i > j": call("gt", call("mul", i, i), j),
    "true": const(True, "bool"),
}


@pytest.mark.parametrize("text", CASES)
def test_words(text: str) -> None:
    assert describe_mask(CASES[text], i, j) == text
