"""A patch of Dynamo that avoids a graph break for a check of a mask's values.

nn.TransformerEncoder and nn.TransformerDecoder compare a mask with the causal mask, to pass `is_causal` as a hint to kernels that
use it. The values of a tensor are not known while a program is traced, so PyTorch would stop compiling the whole module there.
AICF reads the mask itself, so the comparison is skipped where AICF compiles. Other backends are not affected.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.nn.modules import transformer

NAME = "aicf"
_asks: Any = getattr(transformer, "_detect_is_causal_mask", None)
_causal: Any = getattr(transformer, "_generate_square_subsequent_mask", None)


@torch.compiler.assume_constant_result
def compiles_for_aicf() -> bool:
    """Whether the program that is being traced goes to AICF."""
    backend: Any = InstructionTranslator.current_tx().output.compiler_fn
    return getattr(innermost_backend(backend), "compiler_name", "") == NAME


def _is_causal(mask: Any, is_causal: Any = None, size: Any = None) -> bool:
    """The result of `_detect_is_causal_mask`; where AICF compiles, the mask's values are not read."""
    if is_causal is not None or mask is None or compiles_for_aicf():
        return is_causal is True
    causal = _causal(mask.size(-2) if size is None else size, device=mask.device, dtype=mask.dtype)
    return mask.size() == causal.size() and bool((mask == causal).all())


def install() -> None:
    """Registers the replacement with Dynamo once, in PyTorch versions that have the check."""
    if _asks is not None and _causal is not None:
        with contextlib.suppress(ValueError):  # another replacement is registered already
            torch.compiler.substitute_in_graph(_asks)(_is_causal)
