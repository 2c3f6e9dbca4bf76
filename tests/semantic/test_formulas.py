"""Formulas that frontends share, evaluated beside NumPy's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aicf.scalar import var
from aicf.semantic import GraphBuilder, Node, activations, run_graph, sdpa
from aicf.semantic.einsum import parse_einsum
from tests.contract import assert_contract

# Apart, so that the error of large numbers does not hide that of small ones.
SMALL = np.array([-4.0, -3.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 3.0, 4.0], np.float32)
LARGE = np.array([-1e4, -30.0, -9.0, 9.0, 25.0, 1e4], np.float32)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x).astype(x.dtype)


def expm1(x: np.ndarray) -> np.ndarray:
    return np.expm1(np.minimum(x, 0))


CASES: dict[str, tuple[Callable[[GraphBuilder, Node], Node], Callable[[np.ndarray], np.ndarray]]] = {
    "gelu": (activations.gelu, lambda x: x / 2 * (1 + erf(x / math.sqrt(2)))),
    "gelu by tanh": (
        lambda b, x: activations.gelu(b, x, approximate=True),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "softplus": (activations.softplus, lambda x: np.where(x > 20, x, softplus(x))),
    "softplus, beta 2": (
        lambda b, x: activations.softplus(b, x, 2.0, 6.0),
        lambda x: np.where(2 * x > 6, x, softplus(2 * x) / 2),
    ),
    "leaky_relu": (lambda b, x: activations.leaky_relu(b, x, 0.25), lambda x: np.where(x > 0, x, x / 4)),
    "elu": (
        lambda b, x: activations.elu(b, x, 0.5, 3.0, 2.0),
        lambda x: 3 * np.where(x > 0, x, expm1(2 * x) / 2),
    ),
    "selu": (activations.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * expm1(x))),
    "silu": (activations.silu, lambda x: x * sigmoid(x)),
    "mish": (activations.mish, lambda x: x * np.tanh(softplus(x))),
    "log_sigmoid": (activations.log_sigmoid, lambda x: -softplus(-x)),
    "hard_sigmoid": (activations.hard_sigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    "hard_swish": (activations.hard_swish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
}


@pytest.mark.parametrize("x", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("name", CASES)
def test_an_activation(name: str, x: np.ndarray) -> None:
    formula, expected = CASES[name]
    b = GraphBuilder()
    graph = b.output(formula(b, b.input("x", "f32", (len(x),))))
    with np.errstate(all="ignore"):
        assert_contract(run_graph(graph, [x])[0], expected(x), expected(x.astype(np.float64)), "f32")


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray, keep: np.ndarray, scale: float) -> np.ndarray:
    k, v = k.repeat(2, axis=1), v.repeat(2, axis=1)
    scores = np.where(keep, q @ np.swapaxes(k, -1, -2) * q.dtype.type(scale) + bias, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return np.where(total == 0, 0, weights / np.where(total == 0, 1, total)) @ v


@pytest.mark.parametrize("given", ["nothing", "causal", "booleans", "numbers", "scale"])
@pytest.mark.parametrize("add_masks", [False, True])
def test_sdpa(given: str, add_masks: bool) -> None:
    """With grouped heads, and with a row in which a mask leaves nothing."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=s).astype(np.float32) for s in ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)))
    keep = rng.random((5, 7)) < 0.6
    keep[2] = False
    added = rng.normal(size=(5, 7)).astype(np.float32)
    b = GraphBuilder()
    nq, nk, nv = (b.input(name, "f32", x.shape) for name, x in (("q", q), ("k", k), ("v", v)))
    mask = b.input("mask", "bool" if given == "booleans" else "f32", (5, 7)) if given in ("booleans", "numbers") else None
    heads = [sdpa.repeat_heads(b, x, nq) for x in (nk, nv)]
    scale = sdpa.number(b, 0.75, "f32") if given == "scale" else None
    out = sdpa.sdpa(b, nq, *heads, mask=mask, causal=given == "causal", scale=scale, add_masks=add_masks)
    values: list[np.ndarray] = [q, k, v]
    if mask is not None:
        values.append(keep if given == "booleans" else np.where(keep, added, np.float32(-np.inf)))
    (got,) = run_graph(b.output(out), values)
    factor = 0.75 if given == "scale" else 8**-0.5
    seen = {"causal": np.tril(np.ones((5, 7), bool)), "booleans": keep, "numbers": keep}.get(given, np.ones((5, 7), bool))
    bias = added if given == "numbers" else np.zeros_like(added)
    wide = (x.astype(np.float64) for x in (q, k, v, bias))
    assert_contract(got, attention(q, k, v, bias, seen, factor), attention(*wide, keep=seen, scale=factor), "f32")


def test_heads_that_need_not_divide_are_refused() -> None:
    b = GraphBuilder()
    q, k = b.input("q", "f32", (1, var("H", "i64"), 5, 8)), b.input("k", "f32", (1, var("G", "i64"), 5, 8))
    with pytest.raises(ValueError, match="divide the number of query heads"):
        sdpa.repeat_heads(b, k, q)


@pytest.mark.parametrize(
    ("equation", "ranks", "inputs", "output"),
    [
        ("bid,bjd->bij", [3, 3], ["bid", "bjd"], "bij"),
        ("ij, jk", [2, 2], ["ij", "jk"], "ik"),
        ("...id,...jd", [4, 3], ["abid", "bjd"], "abij"),
        ("...d->d", [3], ["abd"], "d"),
    ],
)
def test_einsum_equations(equation: str, ranks: list[int], inputs: list[str], output: str) -> None:
    assert parse_einsum(equation, ranks) == (inputs, output)


@pytest.mark.parametrize("equation", ["ii->i", "ij,jk->iki", "ij,jk,kl->il"])
def test_einsum_equations_that_are_not_taken(equation: str) -> None:
    with pytest.raises(ValueError, match="einsum"):
        parse_einsum(equation, [2, 2] if equation != "ii->i" else [2])
