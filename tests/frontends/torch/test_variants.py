"""The attention variants that the project is measured by: each is read without gaps, and means to the Semantic evaluator what it
means to PyTorch, node by node."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from .capture import capture, check

PATH = Path(__file__).resolve().parents[4] / "shared" / "cases" / "variants.py"


def load() -> list[Any]:
    """The cases, or none where the shared folder is not beside the repository."""
    if not PATH.exists():
        return []
    spec = importlib.util.spec_from_file_location("variants", PATH)
    assert spec is not None and spec.loader is not None
    module = sys.modules["variants"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.CASES)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in load()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_read(case: Any, dtype: torch.dtype) -> None:
    (one,) = capture(case.fn, **case.make(n=24, d=16, dtype=dtype))
    assert one.reading.boundaries == {}
    assert check(one, ulps=8) > 0


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in load()])
def test_read_with_symbolic_sizes(case: Any) -> None:
    # Two of them stack q and k, or turn both by one table, and so want them of one length.
    keys = 24 if case.name in ("packed_qkv_views", "rope_prologue") else 40
    (one,) = capture(case.fn, **case.make(n=24, m=keys, d=16), dynamic=True)
    assert check(one, ulps=8) > 0
