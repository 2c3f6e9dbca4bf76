"""Sizes that the user marked as dynamic.

    torch._dynamo.mark_dynamic(x, 3)      ->      PyTorch raises ConstraintViolationError where a compiler fixes that size

A size that is dynamic for another reason (`dynamic=True`, or because it changed between calls) may be fixed; the program is then
compiled again for another value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import TracingContext

from aicf.driver import RegionResult
from aicf.scalar import variables


def marked_sizes(traced: torch.fx.GraphModule, inputs: Sequence[Any]) -> frozenset[str]:
    """The size symbols of `traced` that must stay symbols. `inputs`: those of Dynamo's graph, one for each placeholder."""
    context = TracingContext.try_get()
    if context is None:
        return frozenset()
    found: set[str] = set()
    placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    for node, x in zip(placeholders, inputs, strict=True):
        value = node.meta.get("val")
        symbolic: Any = context.tensor_to_context.get(x) if isinstance(x, torch.Tensor) else None
        if not isinstance(value, torch.Tensor) or symbolic is None:
            continue
        for size, constraint in zip(value.shape, getattr(symbolic, "constraint_sizes", None) or (), strict=False):
            if isinstance(size, torch.SymInt) and constraint is not None and not getattr(constraint, "warn_only", False):
                found |= {str(s) for s in size.node.expr.free_symbols}
    return frozenset(found)


def explain_marked_sizes(regions: Sequence[RegionResult], marked: frozenset[str]) -> None:
    """Extends a refusal for an unknown size: the user marked this size as dynamic, so that it may not be fixed, and what to
    do."""
    for r in regions:
        names = {v.name for v in variables(r.unknown)} & marked if r.status == "refused" and r.unknown is not None else set()
        if names:
            r.reason += (
                f": {', '.join(sorted(names))} is marked with torch._dynamo.mark_dynamic, so that it may not be fixed. Kernels "
                "are made for one width and for any length: leave widths unmarked, or use torch._dynamo.maybe_mark_dynamic, and "
                "PyTorch compiles once for each width"
            )
