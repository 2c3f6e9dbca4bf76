"""The Memory-Centric IR: how data moves. Meaning becomes streams, streams become tiles with a place in memory.

    semantic graph --AttentionPatternPass--> ExecutionRegion --StreamingLoweringPass--> StreamingRegion + TileRegion

The names here are those of the user's specification. It knows nothing of backends or PyTorch.
"""

from aicf.mcir.builder import MCIRBuilder
from aicf.mcir.module import MCModule, Refusal
from aicf.mcir.nodes import MCNode
from aicf.mcir.passes.attention_pattern import AttentionPatternPass, detect_attention_pattern, run_attention_pattern_pass
from aicf.mcir.passes.manager import MCIRPassManager, Snapshot
from aicf.mcir.passes.streaming_lowering import LoweringRefused, lower_attention_to_streaming, run_streaming_lowering_pass
from aicf.mcir.printer import dump_module, show_node, show_value
from aicf.mcir.regions import ExecutionRegion, Region, StreamingRegion, TileRegion, walk
from aicf.mcir.types import MC_DTYPES, MCNodeOp, RegionKind, Residency, mc_dtype, scalar_dtype
from aicf.mcir.values import MCValue
from aicf.mcir.verifier import Problem, ValidationError, find_problems, validate_module

__all__ = [
    "MC_DTYPES",
    "AttentionPatternPass",
    "ExecutionRegion",
    "LoweringRefused",
    "MCIRBuilder",
    "MCIRPassManager",
    "MCModule",
    "MCNode",
    "MCNodeOp",
    "MCValue",
    "Problem",
    "Refusal",
    "Region",
    "RegionKind",
    "Residency",
    "Snapshot",
    "StreamingRegion",
    "TileRegion",
    "ValidationError",
    "detect_attention_pattern",
    "dump_module",
    "find_problems",
    "lower_attention_to_streaming",
    "mc_dtype",
    "run_attention_pattern_pass",
    "run_streaming_lowering_pass",
    "scalar_dtype",
    "show_node",
    "show_value",
    "validate_module",
    "walk",
]
