"""The names of a region's parts: the specification's where it is an attention, general ones elsewhere.

    attention       attention_stream, q_tile_loop, Q_tile, score_frag, compute_score, update_softmax, accumulate_output
    anything else   reduction_stream, row_tile_loop, row_tile, product_frag, contract_tile, update_state, accumulate_state

Nothing below detection depends on the words: the verifier holds them against the pattern, and kernels follow from payloads.
"""

from __future__ import annotations

from dataclasses import dataclass

from aicf.mcir.types import MCNodeOp


@dataclass(frozen=True)
class Vocabulary:
    """Names of regions, axes (and their extents), values and ops. Values and nodes of which there are several are numbered."""

    stream: str
    tile: str
    row: tuple[str, str]  # axis, extent
    streamed: tuple[str, str]
    contracted: tuple[str, str]
    column: tuple[str, str]
    row_operand: tuple[str, str]  # value before its number, node
    streamed_operand: tuple[str, str]
    values: tuple[str, str]
    scores: tuple[str, str]
    states: str  # node
    extremum: str  # value, before its operation
    sums: str
    accumulator: tuple[str, str]
    outputs: tuple[str, str]
    contract: MCNodeOp
    update: MCNodeOp
    accumulate: MCNodeOp


ATTENTION = Vocabulary(
    "attention_stream", "q_tile_loop", ("query", "query_length"), ("sequence", "sequence_length"), ("head", "head_dim"),
    ("value", "value_dim"), ("Q", "load_q"), ("K", "load_k"), ("V", "load_v"), ("score_frag", "score"), "softmax", "softmax",
    "softmax_sum", ("output_acc", "accumulate"), ("O", "store_o"), MCNodeOp.COMPUTE_SCORE, MCNodeOp.UPDATE_SOFTMAX,
    MCNodeOp.ACCUMULATE_OUTPUT,
)  # fmt: skip
GENERAL = Vocabulary(
    "reduction_stream", "row_tile_loop", ("row", "rows"), ("streamed", "streamed_length"), ("contracted", "contracted_length"),
    ("column", "columns"), ("row", "load_row"), ("streamed", "load_streamed"), ("value", "load_value"),
    ("product_frag", "product"), "state", "row", "row_sum", ("acc", "accumulate"), ("out", "store_out"), MCNodeOp.CONTRACT_TILE,
    MCNodeOp.UPDATE_STATE, MCNodeOp.ACCUMULATE_STATE,
)  # fmt: skip


def vocabulary(pattern: str) -> Vocabulary:
    """The names for regions of a pattern."""
    return ATTENTION if pattern.endswith("attention") else GENERAL
