"""Attention over nothing is refused in words and runs as written."""

from __future__ import annotations

import pytest

from aicf.semantic import Refusal, build_attention_semantic_graph
from aicf.streaming.recognise import recognise


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"queries": 0}, {"keys": 0}])
def test_no_elements(sizes: dict[str, int]) -> None:
    graph = build_attention_semantic_graph(**{"batch": 2, "heads": 2, "queries": 5, "keys": 5, **sizes})  # type: ignore[arg-type]
    (found,) = recognise(graph.nodes, graph.outputs)
    assert isinstance(found, Refusal) and "no elements" in found.reason
