"""MCIRBuilder: short constructors for values, nodes and regions, so that passes and tests read as programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aicf.mcir.nodes import MCNode
from aicf.mcir.payloads import Payload
from aicf.mcir.regions import ExecutionRegion, StreamingRegion, TileRegion
from aicf.mcir.types import Shape
from aicf.mcir.values import MCValue


class MCIRBuilder:
    """Makes MCIR objects. `node` also notes on each value who produces and who consumes it."""

    def value(self, name: str, shape: Shape, dtype: str, residency: str = "global", axes: tuple[str, ...] = ()) -> MCValue:
        return MCValue(name=name, shape=shape, dtype=dtype, residency=residency, axes=axes)

    def node(
        self,
        name: str,
        op: str,
        inputs: Sequence[MCValue] | None = None,
        outputs: Sequence[MCValue] | None = None,
        payload: Payload | None = None,
        **attrs: Any,
    ) -> MCNode:
        node = MCNode(name=name, op=op, inputs=list(inputs or []), outputs=list(outputs or []), attrs=attrs, payload=payload)
        for value in node.inputs:
            if name not in value.consumers:
                value.consumers.append(name)
        for value in node.outputs:
            # The first producer stays: a second writer is a fault that the verifier reports, not one to paper over here.
            if value.producer is None:
                value.producer = name
        return node

    def execution_region(self, name: str) -> ExecutionRegion:
        return ExecutionRegion(name)

    def streaming_region(self, name: str, stream_axis: str = "sequence") -> StreamingRegion:
        return StreamingRegion(name, stream_axis=stream_axis)

    def tile_region(self, name: str, tile_m: int, tile_n: int, tile_k: int) -> TileRegion:
        return TileRegion(name, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k)
