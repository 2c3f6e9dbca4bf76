"""The whole text of three derived programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from .cascades import S, T, V, derived, exp, log, p, r, reduction, row, softmax
from .test_derive import sink_cascade


def text(program: object) -> str:
    return "\n" + str(program)


def test_softmax_times_v() -> None:
    got = derived([*softmax(), reduction("o", "sum", p() * V)], {"o": r("o")})
    assert text(got) == dedent("""
        stream j (scores s)
          base B_m : f64 = max of s, shift invariant
          sum G_l : f64 = sum of exp(s - ref_m), rescale exp(old_m - ref_m)
          sum G_o[e] : f64 = sum of exp(s - ref_m) * V[j, e], rescale exp(old_m - ref_m)
          let m = B_m
          let l = G_l
          out o = G_o / G_l
    """)


def test_attention_with_a_sink() -> None:
    cascade, o = sink_cascade()
    assert text(derived(cascade, {"o": o})) == dedent("""
        stream j (scores s)
          base B_m : f64 = max of s, from sink[i], shift invariant
          sum G_l : f64 = sum of exp(s - ref_m), rescale exp(old_m - ref_m)
          sum G_o[e] : f64 = sum of exp(s - ref_m) * V[j, e], rescale exp(old_m - ref_m)
          let l = G_l
          out o = G_o / (G_l + exp(sink[i] - B_m))
    """)


def test_differential_attention() -> None:
    difference = p() - row("lam") * p(T, "m2", "l2")
    got = derived([*softmax(), *softmax(T, "m2", "l2"), reduction("o", "sum", difference * V)], {"o": r("o")})
    assert text(got) == dedent("""
        stream j (scores s, t)
          base B_m : f64 = max of s, shift invariant
          base B_m2 : f64 = max of t, shift invariant
          sum G_l : f64 = sum of exp(s - ref_m), rescale exp(old_m - ref_m)
          sum G_l2 : f64 = sum of exp(t - ref_m2), rescale exp(old_m2 - ref_m2)
          sum G_o[e] : f64 = sum of exp(s - ref_m) * V[j, e], rescale exp(old_m - ref_m)
          sum G_o_1[e] : f64 = sum of exp(t - ref_m2) * V[j, e], rescale exp(old_m2 - ref_m2)
          let m = B_m
          let l = G_l
          let m2 = B_m2
          let l2 = G_l2
          out o = G_o / G_l - G_o_1 * lam[i] / G_l2
    """)


def test_entropy_beside_the_output() -> None:
    logp = S - r("m") - log(r("l"))
    cascade = [*softmax(), reduction("o", "sum", exp(logp) * V), reduction("H", "sum", exp(logp) * logp)]
    assert text(derived(cascade, {"o": r("o"), "entropy": -r("H")})) == dedent("""
        stream j (scores s)
          base B_m : f64 = max of s, shift invariant
          sum G_l : f64 = sum of exp(s - ref_m), rescale exp(old_m - ref_m)
          sum G_o[e] : f64 = sum of exp(s - ref_m) * V[j, e], rescale exp(old_m - ref_m)
          sum G_H : f64 = sum of exp(s - ref_m) * (s - ref_m), rescale exp(old_m - ref_m), after adding LAG times G_l
          let m = B_m
          let l = G_l
          out o = G_o / G_l
          let H = G_H / G_l - log(G_l)
          out entropy = -H
    """.replace("LAG", "where(old_m == -inf, 0.0, old_m - ref_m)"))


def test_another_process_derives_the_same_text() -> None:
    """Nothing depends on the addresses of objects or on the seed of hashes."""
    program = (
        "from streaming.cascades import *\n"
        "logp = S - r('m') - log(r('l'))\n"
        "print(derived([*softmax(), reduction('o', 'sum', exp(logp) * V), reduction('H', 'sum', exp(logp) * logp)]), end='')"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(__file__).parents[1])}
    other = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    logp = S - r("m") - log(r("l"))
    cascade = [*softmax(), reduction("o", "sum", exp(logp) * V), reduction("H", "sum", exp(logp) * logp)]
    assert other == str(derived(cascade))
