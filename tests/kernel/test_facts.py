"""Every fact of a kernel counts: change one, and the verifier refuses it, or it is another kernel, with another text and another
key. A wrong promise that the verifier cannot see is found by running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
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
    kernel_fingerprint,
    lower_to_kernel,
    print_kernel,
    run_kernel,
    statements,
    verify_kernel,
)
from aicf.kernel.ir import Axis, Check, Loop, Phase, ScalarParam, Summary, TensorParam, Tile
from aicf.scalar import Const, Expr, Var, call, const, integer_const, is_float, var
from tests.mcir.modules import CASES, HEADS, KEYS, ROWS, VALUES, WIDTH

from . import programs
from .handmade import attention

NODES = (Kernel, TensorParam, ScalarParam, Axis, Check, Loop, Summary, Tile, Phase, Stmt)
OTHER_WORDS = {
    "in": "scratch", "out": "in", "scratch": "in", "sum": "max", "max": "min", "min": "max", "thread": "block", "block": "thread",
    "warp": "thread", "empty": "full", "full": "partial", "partial": "full", "global": "shared", "shared": "register",
    "register": "shared", "f32": "f64", "f16": "f32", "bf16": "f32", "f64": "f32", "i64": "i32", "bool": "i64",
}  # fmt: skip


def others(value: Any) -> Iterator[Any]:
    """`value` with one fact in it changed, in every place in turn."""
    if isinstance(value, Expr):
        if isinstance(value, Var):
            yield var(value.name + "_other", value.dtype)
            yield call("add", value, integer_const(1)) if value.dtype == "i64" else var(value.name, "bool")
        elif isinstance(value, Const) and isinstance(value.value, bool):
            yield const(not value.value, "bool")
        elif value.dtype == "bool":
            yield call("not", value)
        else:
            yield call("add", value, const(1.0, value.dtype) if is_float(value.dtype) else integer_const(1))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield OTHER_WORDS.get(value, value + "_other")
    elif isinstance(value, tuple):
        parts: tuple[Any, ...] = value
        for k, part in enumerate(parts):
            yield (*parts[:k], *parts[k + 1 :])
            for other in others(part):
                yield (*parts[:k], other, *parts[k + 1 :])
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            if not (isinstance(value, Kernel) and f.name == "header"):  # says where a kernel came from, and means nothing
                held = getattr(value, f.name)
                for other in [0] if held is None and f.name == "unit" else [] if held is None else others(held):
                    if f.name in ("var", "flag") and not isinstance(other, Var):
                        continue
                    yield replace(value, **{f.name: other})
    else:
        raise TypeError(f"no other value of {value!r} is known")


KERNELS = {
    "causal": attention(d=8, dv=8, causal=True, tile_m=4, tile_n=4, rows=2, unit=None),
    "finite_fill": programs.finite_fill(4, 4, 3),
    "documents": programs.documents(4, 4, 3),
    "split_kv": programs.split_kv(3, 4, 4, 3),
    "paged": programs.paged(),
    **{name: lower_to_kernel(case.module().regions[0]) for name, case in CASES.items()},
}


def refused(kernel: Kernel) -> bool:
    try:
        return bool(verify_kernel(kernel))
    except (ValueError, KeyError, TypeError):
        return True


@pytest.mark.parametrize("name", KERNELS)
def test_every_fact_is_printed_and_part_of_the_key_or_refused(name: str):
    kernel = KERNELS[name]
    text, key = print_kernel(kernel), kernel_fingerprint(kernel)
    silent: list[str] = []
    tried = 0
    for other in others(kernel):
        if other == kernel:
            continue
        tried += 1
        assert kernel_fingerprint(other) != key
        if not refused(other) and print_kernel(other) == text:
            silent.append(difference(kernel, other))
    assert silent == [] and tried > 100


def difference(a: Any, b: Any, path: str = "kernel") -> str:
    """Where two kernels differ."""
    if is_dataclass(a) and not isinstance(a, type | Expr) and type(a) is type(b):
        f = next(f for f in fields(a) if getattr(a, f.name) != getattr(b, f.name))
        return difference(getattr(a, f.name), getattr(b, f.name), f"{path}.{f.name}")
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        k = next(k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        return difference(a[k], b[k], f"{path}[{k}]")
    return f"{path}: {a} -> {b}"


# ------------------------------------------------------------------------------------------------ lanes that are left out


Ends = tuple[tuple[str, Expr], ...]


def with_ends(body: tuple[Stmt, ...], change: Callable[[Ends], Ends]) -> tuple[Stmt, ...]:
    """Blocks of rows that end have other ends."""
    made: list[Stmt] = []
    for s in body:
        match s:
            case RowBlock():
                made.append(replace(s, ends=change(s.ends) if s.ends else ()))
            case Stream():
                made.append(replace(s, phases=tuple(replace(p, body=with_ends(p.body, change)) for p in s.phases)))
            case Parallel() | Retry():
                made.append(replace(s, body=with_ends(s.body, change)))
            case _:
                made.append(s)
    return tuple(made)


def earlier(kernel: Kernel, by: int) -> Kernel:
    """Blocks of rows end `by` lanes earlier."""

    def change(ends: Ends) -> Ends:
        return tuple((a, call("sub", e, integer_const(by))) for a, e in ends)

    return replace(kernel, body=with_ends(kernel.body, change))


ENDED = [name for name, k in KERNELS.items() if any(isinstance(s, RowBlock) and s.ends for s in statements(k.body))]


def run(kernel: Kernel, double: bool = False) -> None:
    rng = np.random.default_rng(0)
    shapes = {"Q": (1, HEADS, ROWS, WIDTH), "K": (1, HEADS, KEYS, WIDTH), "V": (1, HEADS, KEYS, VALUES), "X1": (KEYS,)}
    sizes = {"N": ROWS, "M": KEYS, "n_b": HEADS} | {f"{t}_{k}": n for t, shape in shapes.items() for k, n in enumerate(shape)}
    tensors = allocate(kernel, sizes, ("in", "out"), double=double)
    for t in kernel.tensors:
        if t.role == "in":
            shape, kind = tensors[t.name].shape, tensors[t.name].dtype
            values = rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, 2, shape)
            tensors[t.name] = values.astype(kind)
    run_kernel(kernel, tensors, sizes, double=double)


def test_some_kernels_end_rows():
    assert len(ENDED) > 1


@pytest.mark.parametrize("name", ENDED)
def test_an_end_that_leaves_out_what_counts_is_found(name: str):
    kernel = KERNELS[name]
    run(kernel)
    run(kernel, double=True)
    run(earlier(kernel, -1))  # later: nothing that counts is left out
    with pytest.raises(ValueError, match=r"without lanes that were said not to count .*rows i: j before"):
        run(earlier(kernel, 1))


@pytest.mark.parametrize("ends, problem", [
    ((("zz", integer_const(1)),), "ends axis zz, which no stream around it walks"),
    ((("d", integer_const(1)),), "ends axis d, which no stream around it walks"),
    ((("j", const(1.0, "f32")),), "an end must be an integer"),
    ((("j", var("zz", "i64")),), "uses zz, which is not bound here"),
    ((("j", var("j", "i64")),), "uses position j, but there is no axis j here"),
    ((("j", integer_const(1)), ("j", integer_const(2))), "an axis is ended twice"),
])  # fmt: skip
def test_an_end_that_cannot_be_is_refused(ends: Ends, problem: str):
    kernel = KERNELS[ENDED[0]]
    problems = verify_kernel(replace(kernel, body=with_ends(kernel.body, lambda _: ends)))
    assert any(problem in p for p in problems), problems
