"""What is kept is kept under what it is: programs that differ in a bit, a type or a bracket share no kernel and no schedule."""

from __future__ import annotations

import ast
import copy
import math
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from aicf.backends import backends
from aicf.backends.llvm import BACKEND, code
from aicf.backends.llvm.build import Target, host_target
from aicf.kernel import Kernel, Map, kernel_fingerprint, print_kernel
from aicf.runtime import emitters
from aicf.runtime.building import code_key
from aicf.scalar import Expr, call, const, digest, exact, fingerprint, index, load, unknown, var
from aicf.semantic import GraphBuilder
from tests.kernel.handmade import attention
from tests.scalar.expressions import expression

x = var("x", "f32")


def test_digests_are_equal_only_for_the_same_expression():
    r = random.Random(3)
    known: dict[bytes, Expr] = {}
    for _ in range(500):
        for e in unknown(expression(r, 20), ()):
            assert known.setdefault(digest(e), e) is e


def test_a_digest_costs_a_shared_subexpression_once():
    e: Expr = x
    for _ in range(5000):
        e = call("mul", e, e)
    assert len(digest(e)) == 32


PAIRS = [
    (0.0, -0.0), (1, True), (1, 1.0), (0, False), (1.0, 1.0000000000000002), (math.inf, -math.inf), ("1", 1), (None, "none"),
    ((1, 2), (1, (2,))), (("ab", "c"), ("a", "bc")), ({"a": 0.0}, {"a": -0.0}), ((), None), (b"a", "a"),
    (np.zeros(1, "f4"), np.zeros(1, "f8")), (np.zeros(2), -np.zeros(2)), (np.zeros((2, 1)), np.zeros((1, 2))),
    (const(1.0, "f32"), const(1.0, "f16")), (const(0.0, "f32"), const(-0.0, "f32")), (var("a", "f32"), var("a", "f16")),
    (var("a", "i64"), load("a", (), "i64")),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_what_python_or_text_takes_for_equal_has_two_keys(a: object, b: object):
    assert fingerprint(a) != fingerprint(b) and exact(a) != exact(b)
    assert fingerprint(a) == fingerprint(copy.copy(a)) and exact(a) == exact(copy.copy(a))


def test_nan_is_one_number():
    (other,) = np.array([0xFFF8000000000123], np.uint64).view(np.float64)
    assert fingerprint(math.nan) == fingerprint(float(other)) and const(math.nan, "f32") is const(float(other), "f32")


def test_two_records_of_different_kinds_or_fields_differ():
    @dataclass(frozen=True)
    class A:
        one: int
        two: int

    @dataclass(frozen=True)
    class B:
        one: int
        two: int

    assert len({fingerprint(v) for v in (A(1, 2), A(2, 1), B(1, 2))}) == 3


def test_what_has_no_fingerprint_is_refused():
    with pytest.raises(TypeError, match="no fingerprint of a function"):
        fingerprint((1, exact))


# ------------------------------------------------------------------------------------------------ kernels


def scaled(e: Expr) -> Kernel:
    """A kernel whose scores are `e` of x, the rest as ever."""
    kernel = attention(d=64, dv=64)

    def changed(value: object) -> object:
        if isinstance(value, Map) and value.tile.name == "p":
            return replace(value, expr=e)
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if hasattr(value, "body"):
            return replace(value, body=changed(value.body))  # pyright: ignore
        if hasattr(value, "phases"):
            return replace(value, phases=changed(value.phases))  # pyright: ignore
        return value

    made = changed(kernel.body)
    assert made != kernel.body
    return replace(kernel, body=made)  # pyright: ignore


def raised(base: float) -> Expr:
    return call("pow", const(base, "f32"), x)


def key_for(kernel: Kernel, processor: Target) -> str:
    return code_key(BACKEND, kernel, code.identity(processor))


SCORES = [
    raised(-2.0), call("neg", raised(2.0)), call("add", x, const(1000.0001220703125, "f32")),
    call("add", x, const(1000.00006103515625, "f32")), call("mul", x, const(-0.0, "f32")), call("mul", x, const(0.0, "f32")),
    call("sub", x, call("sub", x, const(2.0, "f32"))), call("sub", call("sub", x, x), const(2.0, "f32")),
    call("pow", call("pow", x, x), x), call("pow", x, call("pow", x, x)), call("mul", x, const(math.nan, "f32")),
]  # fmt: skip


def test_kernels_that_differ_in_one_expression_have_keys_and_texts_of_their_own():
    kernels = [scaled(e) for e in SCORES]
    target = host_target()
    assert len({key_for(k, target) for k in kernels}) == len(kernels)
    assert len({print_kernel(k) for k in kernels}) == len(kernels)


def test_a_key_does_not_depend_on_where_the_kernel_came_from_but_on_everything_else():
    kernel, target = attention(d=64, dv=64), host_target()
    key = key_for(kernel, target)
    assert key == key_for(replace(copy.deepcopy(kernel), header=("from elsewhere",)), target)
    others = [replace(target, cpu="other"), replace(target, features=target.features + ",+x"), replace(target, triple="other")]
    assert len({key, *(key_for(kernel, t) for t in others)}) == 4
    assert key_for(replace(kernel, name="other"), target) != key


def test_a_fingerprint_is_the_same_in_another_process():
    code = (
        "from aicf.kernel import kernel_fingerprint; from tests.kernel.handmade import attention;"
        "print(kernel_fingerprint(attention(d=64, dv=32)))"
    )
    root = Path(__file__).parents[2]
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert there.stdout.strip() == kernel_fingerprint(attention(d=64, dv=32))


EMITTING = ["scalar/functions.py", "kernel/ir.py", "backends/llvm/build.py", "backends/llvm/codegen/text.py"]


@pytest.mark.parametrize("changed", EMITTING)
def test_a_change_of_what_emits_makes_another_key(changed: str, tmp_path: Path):
    for file in emitters.PACKAGE.rglob("*.py"):
        copied = tmp_path / file.relative_to(emitters.PACKAGE)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(file.read_bytes())
    copied_backend = replace(BACKEND, folder=tmp_path / "backends" / "llvm")
    before = emitters.emitter(BACKEND)
    assert emitters.emitter(copied_backend, tmp_path) == before
    (tmp_path / changed).write_text((tmp_path / changed).read_text() + "# changed\n")
    emitters.sources.cache_clear()
    assert emitters.emitter(copied_backend, tmp_path) != before


@pytest.mark.parametrize("backend", [b.name for b in backends()])
def test_the_hash_of_the_emitter_covers_all_that_it_imports(backend: str):
    root = emitters.PACKAGE
    covered = {f for p in (*emitters.COMMON, f"backends/{backend}/**/*.py") for f in root.glob(p)}
    for file in (root / "backends" / backend).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aicf."):
                path = root.joinpath(*(node.module or "").split(".")[1:])
                assert {path.with_suffix(".py"), path / "__init__.py"} & covered, f"{file.name} imports {node.module}"


# ------------------------------------------------------------------------------------------------ graphs


def test_nodes_whose_attributes_are_only_equal_to_python_are_not_shared():
    b = GraphBuilder(share=True)
    zero, minus = b.constant(np.float32(0.0), "f32"), b.constant(np.float32(-0.0), "f32")
    assert zero is not minus and zero is b.constant(np.float32(0.0), "f32")
    i = b.input("I", "f32", (2,))
    assert b._add("reduce", (i,), {"op": "sum", "axes": (0,), "keepdims": False}, None) is not b._add(  # pyright: ignore
        "reduce", (i,), {"op": "sum", "axes": (0,), "keepdims": 0}, None
    )


def test_an_array_of_both_zeros_is_not_uniform():
    from aicf.semantic.ops import uniform

    assert uniform(np.zeros(3)) and uniform(-np.zeros(3)) and uniform(np.full(2, np.nan)) and uniform(np.ones(4, bool))
    assert not uniform(np.array([0.0, -0.0])) and not uniform(np.array([np.nan, 1.0])) and not uniform(np.arange(3))


def test_index_expressions_are_keyed_like_all_others():
    i, j = index("i"), index("j")
    assert fingerprint(call("add", i, j)) == fingerprint(call("add", j, i))
