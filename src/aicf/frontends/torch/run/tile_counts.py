"""Counts the skipped tiles of a call whose mask depends on tensors, for explanations.

Only the tensors that the mask is computed from are evaluated, before the call itself runs; no attention is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Interpreter, Node

from aicf.driver import RegionResult
from aicf.report import GraphReport
from aicf.runtime.device import DeviceExecutable
from aicf.scalar import Load, walk

from .region_op import REGION, size_names
from .training import TRAINED

EAGER_LIMIT = 1 << 30  # scores that the call of an explanation may write to memory
MAX_MASK_ELEMENTS = 1 << 27  # elements of a mask
log = logging.getLogger("aicf")


@torch.no_grad()
def count_tiles(module: GraphModule, regions: Sequence[RegionResult], values: Sequence[Any]) -> None:
    """Fills in `tiles` of the streamed `regions` of a rewritten graph where they depend on tensors, for `module(*values)`. They
    stay None where a mask's tensor is the result of another region, is changed in place, or is too large."""
    calls = [n for n in module.graph.nodes if n.target in (REGION, TRAINED)]
    streamed = [r for r in regions if r.status == "streamed"]
    with torch.random.fork_rng(devices=[]):
        for call, region in zip(calls, streamed, strict=True):
            if call.target is REGION and region.tiles is None and region.executable is not None:
                _count(module, call, region, values)


def explained_call(gm: GraphModule, rewritten: GraphModule | None, report: GraphReport) -> Callable[..., Any]:
    """The callable of an explanation: `gm` itself, or the rewritten graph where the scores would take more than EAGER_LIMIT
    bytes. The tensors of its first call are used to count skipped tiles."""
    report.rest = "eager"
    counted = rewritten is None
    streamed = [r for r in report.regions if r.status == "streamed"]
    heavy = max((r.bytes_unfused or 0 for r in streamed), default=0) > EAGER_LIMIT
    here = not any(isinstance(r.executable, DeviceExecutable) for r in streamed)
    module = rewritten if rewritten is not None and heavy and here else gm

    def run(*values: Any) -> Any:
        nonlocal counted
        if not counted:
            counted = True
            assert rewritten is not None
            try:
                count_tiles(rewritten, report.regions, values)
            except Exception as e:  # an error of the call itself is raised when it runs
                log.debug("the tiles of a call were not counted: %s", e, exc_info=True)
        return module.forward(*values)

    return run


def _count(module: GraphModule, call: Node, region: RegionResult, values: Sequence[Any]) -> None:
    assert region.executable is not None
    _, inputs, sizes = call.args
    kernel = region.executable.kernel
    read = {x.tensor for s in kernel.summaries for x in walk(s.value) if isinstance(x, Load)}
    wanted = {name: node for name, node in zip(region.executable.input_names, inputs, strict=True) if name in read}  # type: ignore[arg-type]
    numbers = [n for n in sizes if isinstance(n, Node)]  # type: ignore[union-attr]
    needed = _ancestors([*wanted.values(), *numbers])
    if needed is None:
        return
    found = _Subgraph(module, needed).of(values)
    tensors = {name: found[node] for name, node in wanted.items()}
    given = [int(found[n]) if isinstance(n, Node) else int(n) for n in sizes]  # type: ignore[union-attr, arg-type]
    if any(t.numel() > MAX_MASK_ELEMENTS for t in tensors.values()):
        return
    arrays = {name: _array(t) for name, t in tensors.items()}
    try:
        region.tiles = region.count_tiles(dict(zip(size_names(region), given, strict=True)), arrays)
    except ValueError:  # too many tiles to look at
        return
    region.of_call = True


def _array(t: torch.Tensor) -> np.ndarray:
    return (t.float() if t.dtype in (torch.bfloat16, torch.float16) else t).detach().cpu().numpy()


def _ancestors(nodes: Iterable[Node]) -> set[Node] | None:
    """`nodes` and all that they are computed from; None where that cannot be computed without the rest of the graph."""
    ancestors: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node in ancestors:
            continue
        schema = getattr(node.target, "_schema", None)
        if node.target in (REGION, TRAINED) or node.op == "call_module" or (schema is not None and schema.is_mutable):
            return None
        ancestors.add(node)
        left += node.all_input_nodes
    return ancestors


class _Subgraph(Interpreter):
    """Runs some nodes of a graph."""

    def __init__(self, module: GraphModule, needed: set[Node]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.whole, self.needed = module, needed

    def of(self, values: Sequence[Any]) -> dict[Node, Any]:
        """The values of the nodes, for arguments `values` of the whole graph."""
        given = iter(values)
        for node in self.whole.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = next(given)
            elif node in self.needed:
                self.env[node] = self.run_node(node)
        return self.env
