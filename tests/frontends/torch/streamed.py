"""Shared by the tests: a function compiled the short way (no Dynamo), with what became of its attentions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from aicf.driver import Options, RegionResult, compile_graph
from aicf.frontends.torch.read.reader import read
from aicf.frontends.torch.rewrite.replace import rewrite
from tests.contract import assert_contract
from tests.frontends.torch.capture import capture_directly

SMALL: Mapping[str, Any] = {"tile_m": 8, "tile_n": 16, "rows": 2}
_NAMES: dict[torch.dtype, Any] = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def compiled(fn: Callable[..., Any], *args: torch.Tensor, strict: bool = False) -> tuple[Callable[..., Any], list[RegionResult]]:
    """(`fn` with its attentions streamed in small tiles, what became of each)."""
    one = capture_directly(fn, *args)
    reading = read(one.traced, strict=strict)
    options = Options(fuse="always", threads=1, schedule=SMALL, strict=strict)
    regions = compile_graph(reading.graph, options, frozenset(reading.anchors)).regions
    rewrite(one.traced, reading, regions)
    return one.traced.forward, regions


def assert_streams(fn: Callable[..., Any], *args: torch.Tensor, strict: bool = False) -> torch.Tensor:
    """Asserts that `fn` streams and keeps the numeric contract, NaN and infinities included; returns the result.

    Constants of the source are kept in the float64 reference: only tensors are widened.
    """
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        run, regions = compiled(fn, *args, strict=strict)
        assert [r.status for r in regions] == ["streamed"], [(r.status, r.reason) for r in regions]
        got, eager = run(*args), fn(*args)
        exact = fn(*(x.double() if x.is_floating_point() else x for x in args))
    assert got.dtype == eager.dtype
    assert_contract(got, eager, exact, _NAMES[eager.dtype])
    return got
