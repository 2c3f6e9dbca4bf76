"""Code for every processor that is known, this one or not: it compiles, uses the vectors that are there, and nothing else.

What can run here is run by the other tests (see `paths`)."""

from __future__ import annotations

import re
from functools import cache

import pytest

from aicf.backends.llvm.build import compile_text, emit
from aicf.scalar import DType
from tests.kernel.handmade import attention

from .paths import AMX, AVX2, AVX512, AVX512_BF16, EXECUTABLE, NEON, PATHS, SSE2, Path

# What the inside of a kernel must use, and what no line may: an illegal instruction ends the process.
USES = {
    SSE2: ("mulps %xmm", "addps %xmm"),
    AVX2: (r"vfmadd\w+ps .*%ymm", r"vpermps"),
    AVX512: (r"vfmadd\w+ps .*%zmm",),
    AVX512_BF16: (r"vfmadd\w+ps .*%zmm",),
    AMX: (r"vfmadd\w+ps .*%zmm",),
    NEON: (r"fmla\s+v\d+\.4s",),
}
ILLEGAL = {
    SSE2: r"%[yz]mm|%k[0-7]\b|\b(vmovups|vfmadd\w*|pshufb|roundps|blendvps|insertps|pmulld|cvtph2ps)\b",
    AVX2: r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b",
    AVX512: r"dpbf16|vcvtne\w*bf16|\btile\w+|%tmm|\w+ph\b .*%zmm.*%zmm.*%zmm",
    AVX512_BF16: r"\btile\w+|%tmm",
    AMX: r"%r(16|17|18|19|2\d|3[01])\b",
    NEON: r"%[xyz]mm|\bz\d+\.[bhsd]\b",  # SVE is another target
}


@cache
def assembly(path: Path, dtype: DType) -> str:
    text = emit(attention(d=64, dv=64, causal=True, dtype=dtype), path.triple, path.cpu, path.features)
    return compile_text(text, path.target, assembly=True).decode()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.name)
def test_every_target_compiles_to_its_own_instructions(path: Path, dtype: DType):
    lines = [x.strip().replace("\t", " ") for x in assembly(path, dtype).splitlines() if x.startswith("\t") and x[1:2] != "."]
    for wanted in USES[path]:
        assert any(re.search(wanted, x) for x in lines), wanted
    illegal = [x for x in lines if re.search(ILLEGAL[path], x)]
    assert not illegal, illegal[:5]


@pytest.mark.parametrize("path", [AVX2, AVX512], ids=lambda p: p.name)
def test_upper_halves_are_cleared_once_a_worker(path: Path):
    """Before code that knows of no upper halves; not around every register tile."""
    text = assembly(path, "f32")
    assert text.count("vzeroupper") == sum(1 for _ in re.finditer(r"^aicf_worker_\d+:", text, re.MULTILINE))


def test_halves_need_no_run_time_library():
    """Where no instruction converts them, the functions for it are in the module."""
    text = assembly(SSE2, "f16")
    assert "\n__extendhfsf2:" in text and "\n__truncsfhf2:" in text
    assert "hfsf2" not in assembly(AVX2, "f16")


def test_lesser_processors_are_run_here_too():
    """Of an AVX-512 machine AVX2's code is run too, and so on downwards; no kind twice."""
    host = EXECUTABLE[0].target
    lesser = [p for p in (SSE2, AVX2, AVX512) if p.runs_here and p.target.lanes < host.lanes]
    assert list(EXECUTABLE[1:]) == lesser
    assert host.triple.startswith("x86_64") or not lesser
