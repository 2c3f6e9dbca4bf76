"""The generated text: whole modules as goldens, the same every time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aicf.backends.triton.emit import emit, padded
from aicf.backends.triton.operands import DotTypes, Operands
from aicf.backends.triton.width import fits32
from aicf.kernel import Contract, Kernel, statements
from aicf.kernel.placement import map_to_blocks
from aicf.scalar import DType
from tests.kernel import programs
from tests.kernel.handmade import attention

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, text: str) -> None:
    """`text` is what golden/<name> holds; AICF_UPDATE_GOLDEN=1 writes it, to be reviewed like code."""
    path = GOLDEN / name
    if os.environ.get("AICF_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def causal(dtype: DType = "bf16") -> Kernel:
    kernel = attention(d=64, dv=48, causal=True, group=2, tile_m=64, tile_n=64, dtype=dtype)
    return map_to_blocks(kernel, warps=4, stages=2)


def test_causal_attention_in_bf16():
    golden("causal.py.txt", emit(causal()).text)


def test_documents_with_summaries():
    golden("documents.py.txt", emit(map_to_blocks(programs.documents(), warps=4, stages=2)).text)


def test_the_same_kernel_gives_the_same_text():
    assert emit(causal()) == emit(causal())


def test_entries_name_their_arguments_in_the_functions_order():
    (entry,) = emit(causal()).entries
    assert entry.arguments[:4] == ("Q", "K", "V", "O") and entry.arguments[-2:] == ("N", "M")
    assert (entry.warps, entry.stages) == (4, 2)


def test_tiles_are_padded():
    assert [padded(n, product=True) for n in (1, 16, 17, 96)] == [16, 16, 32, 128]
    assert padded(1, product=False) == 1


def dots(kernel: Kernel) -> list[DotTypes]:
    operands = Operands(kernel)
    return list(dict.fromkeys(operands.dot(s) for s in statements(kernel.body) if isinstance(s, Contract)))


def test_halves_are_multiplied_as_halves():
    assert dots(causal()) == [DotTypes("bf16", "half")]
    assert dots(causal("f32")) == [DotTypes("f32", "ieee")]


def test_32_bits_only_where_they_suffice():
    kernel = causal()

    def fits(b: int, n: int) -> bool:
        sizes = {"B": b, "H": 16, "N": n, "M": n}
        strides = {"Q": (16 * n * 64, n * 64, 64, 1), "O": (16 * n * 48, n * 48, 48, 1)}
        strides |= {"K": (8 * n * 64, n * 64, 64, 1), "V": (8 * n * 48, n * 48, 48, 1)}
        return fits32(kernel, sizes, strides)

    assert fits(1, 16384) and fits(127, 16384) and not fits(129, 16384)


PROGRAMS = [
    programs.bias, programs.dense_mask, programs.table, programs.paged, programs.kv_major, programs.split_kv,
    programs.finite_fill,
]  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS)
def test_every_program_is_valid_python(make: Callable[[], Kernel]):
    for wide in (False, True):
        source = emit(make(), wide=wide)
        compile(source.text, "generated", "exec")
        assert all(f"def {e.name}(" in source.text for e in source.entries)
