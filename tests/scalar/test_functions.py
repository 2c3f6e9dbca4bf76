"""Scalar functions in NumPy: what every level is compared with is rounded once."""

from __future__ import annotations

import numpy as np
import pytest

from aicf.scalar import call, cast, const, evaluate, var
from aicf.scalar.functions import FUNCTIONS

NAMES = ["exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "sigmoid", "softplus", "sin", "cos", "rsqrt"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", NAMES)
def test_a_function_of_narrow_floats_is_that_of_float64_rounded(name: str, dtype: type) -> None:
    x = np.random.default_rng(0).uniform(0.01, 9, 10_000).astype(dtype)
    got = FUNCTIONS[name].numpy(x)
    assert got.dtype == dtype
    assert np.array_equal(got, FUNCTIONS[name].numpy(x.astype(np.float64)).astype(dtype))


def test_an_entropy_of_equal_scores_is_exact_to_a_rounding() -> None:
    """90 equal probabilities: what is off in one of them is off in all."""
    exp, log = FUNCTIONS["exp"].numpy, FUNCTIONS["log"].numpy
    logs = np.full(90, -log(np.float32(90)), np.float32)
    assert abs(float(-(exp(logs) * logs).sum()) - np.log(90.0)) < 4e-7


def test_float64_may_keep_the_roundings_to_halves() -> None:
    """A mask of halves absorbs the score, also where everything else is computed in float64."""
    s = var("s", "f32")
    e = cast(cast(call("add", s, const(-1e9, "f32")), "bf16"), "f32")
    env = {"s": np.array([0.25, -3.0])}
    assert np.array_equal(evaluate(e, env, double=True), env["s"] - 1e9)
    kept = evaluate(e, env, double=True, halves=True)
    assert kept.dtype == np.float64 and kept[0] == kept[1] == evaluate(const(-1e9, "bf16"), {})
