"""The Memory-Centric IR: how data moves. Meaning becomes streams, streams become tiles with a place in memory.

    semantic graph --AttentionPatternPass--> ExecutionRegion --StreamingLoweringPass--> StreamingRegion + TileRegion

The names here are those of the user's specification. It knows nothing of backends or PyTorch.
"""

from aicf.mcir.builder import MCIRBuilder
from aicf.mcir.module import MCModule
from aicf.mcir.nodes import MCNode
from aicf.mcir.passes.manager import MCIRPassManager, Snapshot
from aicf.mcir.printer import dump_module, show_node, show_value
from aicf.mcir.regions import ExecutionRegion, Region, StreamingRegion, TileRegion, walk
from aicf.mcir.types import MC_DTYPES, MCNodeOp, RegionKind, Residency, mc_dtype, scalar_dtype
from aicf.mcir.values import MCValue
from aicf.mcir.verifier import Problem, ValidationError, find_problems, validate_module

__all__ = [
    "MC_DTYPES",
    "ExecutionRegion",
    "MCIRBuilder",
    "MCIRPassManager",
    "MCModule",
    "MCNode",
    "MCNodeOp",
    "MCValue",
    "Problem",
    "Region",
    "RegionKind",
    "Residency",
    "Snapshot",
    "StreamingRegion",
    "TileRegion",
    "ValidationError",
    "dump_module",
    "find_problems",
    "mc_dtype",
    "scalar_dtype",
    "show_node",
    "show_value",
    "validate_module",
    "walk",
]
