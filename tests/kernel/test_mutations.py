"""Programs that the verifier accepts run: tried on every program with one statement left out, repeated, or two exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aicf.kernel import (
    Kernel,
    Parallel,
    Retry,
    RowBlock,
    Stmt,
    Stream,
    allocate,
    print_kernel,
    run_kernel,
    verify_kernel,
)
from aicf.scalar import integer

from . import programs
from .handmade import attention
from .live_tiles import live_tiles

SIZES = {"B": 1, "H": 1, "N": 5, "M": 6, "chunk": 1, "G": 6, "T": 2}
PROGRAMS = {
    "attention": attention(d=8, dv=8, causal=True, tile_m=4, tile_n=4, rows=2, unit=None),
    "bias": programs.bias(),
    "kv_major": programs.kv_major(4, 4, 3),
    "split_kv": programs.split_kv(3, 4, 4, 3),
    "finite_fill": programs.finite_fill(4, 4, 3),
    "documents": programs.documents(4, 4, 3),
    "dense_mask": programs.dense_mask(4, 4, 3),
    "paged": programs.paged(),
}


def changed(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    """`body` with one change somewhere in it."""
    for k, s in enumerate(body):
        yield body[:k] + body[k + 1 :]
        yield body[: k + 1] + body[k:]
        if k:
            yield (*body[: k - 1], s, body[k - 1], *body[k + 1 :])
        match s:
            case RowBlock() | Retry() | Parallel():
                for inner in changed(s.body):
                    yield (*body[:k], replace(s, body=inner), *body[k + 1 :])
            case Stream():
                for p, phase in enumerate(s.phases):
                    for inner in changed(phase.body):
                        phases = (*s.phases[:p], replace(phase, body=inner), *s.phases[p + 1 :])
                        yield (*body[:k], replace(s, phases=phases), *body[k + 1 :])
            case _:
                pass


def inputs(kernel: Kernel) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for t in kernel.tensors:
        shape = tuple(integer(e, SIZES) for e in t.shape)
        if t.role == "in":
            floats = rng.standard_normal(shape).astype(np.float32)
            made[t.name] = (
                floats if t.dtype == "f32" else rng.integers(0, 2, shape).astype(bool if t.dtype == "bool" else np.int64)
            )
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_verifier_accepts_runs_and_stores_each_element_once(name: str):
    original = PROGRAMS[name]
    sizes = {size: SIZES[size] for size in original.sizes}
    given = inputs(original)
    accepted = refused = 0
    for body in changed(original.body):
        kernel = replace(original, body=body)
        if verify_kernel(kernel):
            refused += 1
            continue
        accepted += 1
        tensors = {**given, **allocate(kernel, sizes)}
        trace = run_kernel(kernel, tensors, sizes)
        assert trace.stores == {"O": (1, 1)}, print_kernel(kernel)
        for space in ("shared", "register"):
            assert trace.peak[space] <= live_tiles(kernel, space), print_kernel(kernel)
    assert accepted > 10 and refused > 10
