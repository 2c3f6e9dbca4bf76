"""The Memory-Centric IR: how data moves. Meaning becomes streams, streams become tiles with a place in memory.

    semantic graph --AttentionPatternPass--> ExecutionRegion --StreamingLoweringPass--> StreamingRegion + TileRegion

The names here are those of the user's specification. It knows nothing of backends or PyTorch.
"""

from aicf.mcir.axes import AxisRole, RegionAxis
from aicf.mcir.builder import MCIRBuilder
from aicf.mcir.defaults import NoDefaultMeaning
from aicf.mcir.evaluate import evaluate_module
from aicf.mcir.module import MCModule, Refusal
from aicf.mcir.nodes import MCNode
from aicf.mcir.parser import MCIRSyntaxError, parse_module
from aicf.mcir.passes.attention_pattern import AttentionPatternPass, detect_attention_pattern, run_attention_pattern_pass
from aicf.mcir.passes.manager import MCIRPassManager, Snapshot
from aicf.mcir.passes.streaming_lowering import lower_attention_to_streaming, run_streaming_lowering_pass
from aicf.mcir.payloads import (
    Accumulation,
    Payload,
    RunningExtremum,
    RunningSum,
    ScoreProduct,
    Shift,
    StateUpdate,
    TileLoad,
    TileStore,
)
from aicf.mcir.phases import Phases, TileSummary
from aicf.mcir.printer import dump_module, show_node, show_value
from aicf.mcir.regions import ExecutionRegion, Region, StreamingRegion, TileRegion, walk
from aicf.mcir.types import MC_DTYPES, MCNodeOp, RegionKind, Residency, mc_dtype, scalar_dtype
from aicf.mcir.values import MCValue
from aicf.mcir.verifier import Problem, ValidationError, find_problems, validate_module

__all__ = [
    "MC_DTYPES",
    "Accumulation",
    "AttentionPatternPass",
    "AxisRole",
    "ExecutionRegion",
    "MCIRBuilder",
    "MCIRPassManager",
    "MCIRSyntaxError",
    "MCModule",
    "MCNode",
    "MCNodeOp",
    "MCValue",
    "NoDefaultMeaning",
    "Payload",
    "Phases",
    "Problem",
    "Refusal",
    "Region",
    "RegionAxis",
    "RegionKind",
    "Residency",
    "RunningExtremum",
    "RunningSum",
    "ScoreProduct",
    "Shift",
    "Snapshot",
    "StateUpdate",
    "StreamingRegion",
    "TileLoad",
    "TileRegion",
    "TileStore",
    "TileSummary",
    "ValidationError",
    "detect_attention_pattern",
    "dump_module",
    "evaluate_module",
    "find_problems",
    "lower_attention_to_streaming",
    "mc_dtype",
    "parse_module",
    "run_attention_pattern_pass",
    "run_streaming_lowering_pass",
    "scalar_dtype",
    "show_node",
    "show_value",
    "validate_module",
    "walk",
]
