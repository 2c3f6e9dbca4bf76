"""The module of the specification's section 11, taken from the example script so that both stay the same program."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import cast

from aicf.mcir import MCIRBuilder, MCModule, MCNode, Region
from aicf.scalar import index

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_hand_built_mcir.py"


def attention_module() -> MCModule:
    """A fresh copy; tests break it at will."""
    return cast("Callable[[], MCModule]", runpy.run_path(str(EXAMPLE))["attention_module"])()


def stated_module() -> MCModule:
    """The same, with everything stated that section 11 leaves out: inputs, outputs, names, carried states."""
    b = MCIRBuilder()
    module = attention_module()
    region, tile = module.regions[0], tile_of(module)
    dims = (index("B"), index("H"), index("N"), 64)
    region.inputs += [b.value("Q", dims, "fp16"), b.value("K", dims, "fp16"), b.value("V", dims, "fp16")]
    region.outputs.append(b.value("O", dims, "fp16"))
    region.attrs.update(q_name="Q", k_name="K", v_name="V")
    stream_of(module).attrs["carried"] = (*node(tile, "softmax").outputs, *node(tile, "accumulate").outputs)
    return module


def stream_of(module: MCModule) -> Region:
    return module.regions[0].subregions[0]


def tile_of(module: MCModule) -> Region:
    return stream_of(module).subregions[0]


def node(region: Region, name: str) -> MCNode:
    return next(n for n in region.nodes if n.name == name)
