"""Kernels as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aicf.kernel import Parallel, Stream, print_kernel, print_statement

from . import programs
from .handmade import attention


def test_causal_attention(golden: Callable[[str, str], None]):
    golden("attention_causal.txt", print_kernel(attention(d=64, dv=64, group=4, causal=True)))


def test_every_statement_prints(golden: Callable[[str, str], None]):
    kernels = programs.finite_fill(), programs.documents(), programs.split_kv(), programs.kv_major(), programs.paged()
    golden("programs.txt", "\n".join(map(print_kernel, kernels)))


def test_printing_is_deterministic():
    assert print_kernel(attention(d=64, dv=32)) == print_kernel(attention(d=64, dv=32))


def test_a_statement_with_an_unknown_axis_still_prints():
    kernel = replace(attention(d=64, dv=32), axes=())
    item = kernel.body[0]
    assert isinstance(item, Parallel) and isinstance(item.body[4], Stream)
    assert print_statement(kernel, item.body[0]) == "q[i:?, d:?] : f32 shared = load Q[b, h, i, d]"
    assert print_statement(kernel, item.body[4]) == "stream j0 in 0 .. M step ?:"
