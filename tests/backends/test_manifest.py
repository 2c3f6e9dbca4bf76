"""Backends are found, not listed: one that lies in a folder of its own compiles, dumps and runs, and no other file knows it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aicf.backends
from aicf.backends import backend_for, backends, named_target, stages
from aicf.backends.llvm import BACKEND as LLVM
from aicf.driver import Options, RegionResult, compile_graph
from aicf.runtime import emitters
from aicf.runtime.executable import ArrayRef, contiguous
from aicf.schedule import TARGETS
from aicf.semantic import Graph, GraphBuilder
from tests.contract import assert_contract

TOY_INIT = '''
from pathlib import Path

from aicf.backends import Backend
from aicf.schedule.target import AVX2
from dataclasses import replace

BACKEND = Backend(
    name="toy", kinds=("toy",), machine="a toy", stages=("toy_text",), memory="host", module="aicf.backends.toy.code",
    folder=Path(__file__).parent, targets=(replace(AVX2, name="toy1", kind="toy", l2=64 << 10),),
)
'''
TOY_CODE = '''
from aicf.backends.interpreter.code import build, load  # a toy may stand on another's shoulders
from aicf.kernel import print_kernel

CALLS = []

def identity():
    CALLS.append("identity")
    return "wood"

def dump(kernel, stage, target):
    return f"{stage} for {target.name}: {print_kernel(kernel).splitlines()[0]}"
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(TOY_INIT)
    (folder / "code.py").write_text(TOY_CODE)
    monkeypatch.setattr(aicf.backends, "__path__", [*aicf.backends.__path__, str(tmp_path)])
    yield folder
    for name in [n for n in sys.modules if n.startswith("aicf.backends.toy")]:
        del sys.modules[name]
    if hasattr(aicf.backends, "toy"):
        delattr(aicf.backends, "toy")


def graph(n: int = 40, d: int = 8) -> Graph:
    """Attention of two heads."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "f32", (2, n, d)) for name in "QKV")
    scores = b.einsum(["bid", "bjd"], "bij", q, k)
    raised = b.op("exp", b.op("sub", scores, b.reduce("max", scores, [2], keepdims=True)))
    weights = b.op("div", raised, b.reduce("sum", raised, [2], keepdims=True))
    return b.output(b.einsum(["bij", "bje"], "bie", weights, v))


def unfused(q: Any, k: Any, v: Any) -> Any:
    raised = np.exp(q @ k.transpose(0, 2, 1) - (q @ k.transpose(0, 2, 1)).max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True) @ v


def compiled(target: str) -> RegionResult:
    (region,) = compile_graph(graph(), Options(fuse="always", target=target)).regions
    assert region.status == "streamed", region.reason
    return region


def right(region: RegionResult) -> None:
    """Its result keeps the contract."""
    random = np.random.default_rng(0)
    values = {name: random.standard_normal((2, 40, 8)).astype(np.float32) for name in "QKV"}
    executable = region.executable
    assert executable is not None
    out = np.full((2, 40, 8), np.nan, np.float32)
    arrays = [*(values[node.name] for node in region.inputs), out]
    *inputs, output = [ArrayRef(a.ctypes.data, a.shape, contiguous(a.shape)) for a in arrays]
    executable.run(inputs, [output])
    assert_contract(out, unfused(*values.values()), unfused(*(v.astype(np.float64) for v in values.values())), "f32")


def test_each_target_has_one_backend():
    assert {b.name for b in backends()} >= {"interpreter", "llvm", "triton"}
    assert {backend_for(t).name for t in TARGETS.values()} == {"llvm", "triton"}
    assert backend_for(named_target("host")) is LLVM
    with pytest.raises(ValueError, match=r"target odd is of kind 'odd', for which there is no backend \(known kinds: .*cpu"):
        backend_for(replace(named_target("avx2"), name="odd", kind="odd"))


def test_the_interpreter_is_a_backend():
    right(compiled("interpreter"))
    with pytest.raises(ValueError, match=r"for the interpreter, so there is no asm .*; name a CPU as the target \(--target avx2"):
        compiled("interpreter").dump("asm")


def test_a_new_backend_touches_no_other_file(toy: Path):
    assert "toy_text" in stages() and named_target("toy1").kind == "toy"
    region = compiled("toy1")
    assert region.dump("toy_text").startswith("toy_text for toy1: kernel ")
    right(region)
    assert sys.modules["aicf.backends.toy.code"].CALLS == ["identity"]
    with pytest.raises(ValueError, match=r"for a CPU, so there is no toy_text .*name a toy as the target \(--target toy1\)"):
        compiled("host").dump("toy_text")


def test_its_sources_are_part_of_the_key(toy: Path):
    (backend,) = (b for b in backends() if b.name == "toy")
    before = emitters.emitter(backend)
    (toy / "code.py").write_text(TOY_CODE + "# changed\n")
    emitters.sources.cache_clear()
    assert emitters.emitter(backend) != before


def test_an_unknown_target_is_told_all_names(toy: Path):
    with pytest.raises(ValueError, match=r"no target 'toi'; known: host, avx2, .*, interpreter, toy1"):
        Options(target="toi")


def test_a_package_without_a_backend_is_told_what_to_do(toy: Path):
    (toy / "__init__.py").write_text("")
    with pytest.raises(TypeError, match=r"aicf\.backends\.toy is no backend: its __init__\.py defines BACKEND"):
        backends()


def test_two_backends_cannot_make_code_for_one_kind(toy: Path):
    (toy / "__init__.py").write_text(TOY_INIT.replace('kinds=("toy",)', 'kinds=("cpu",)'))
    with pytest.raises(TypeError, match=r"kind of target cpu belongs to several backends \(llvm, toy\)"):
        backends()


def test_looking_at_all_backends_imports_none_of_their_libraries():
    code = (
        "import sys; from aicf.backends import stages, target_names; stages(), target_names(); import aicf.driver;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"llvmlite", "triton", "torch"} & set(done.stdout.split())
