"""A question that modules of PyTorch's ask of a tensor's numbers, and of whose answer no result depends.

nn.TransformerEncoder and nn.TransformerDecoder compare a mask with the causal one, to hint at it where a kernel has a fast path.
Numbers are not known while a program is traced: PyTorch gives the whole module up there, and no attention of it would be seen.
For AICF the hint says nothing that the mask does not say itself, so that the question is left out where AICF compiles; other
backends ask as before.
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
def for_aicf() -> bool:
    """Whether the program that is being traced goes to AICF."""
    backend: Any = InstructionTranslator.current_tx().output.compiler_fn
    return getattr(innermost_backend(backend), "compiler_name", "") == NAME


def _is_causal(mask: Any, is_causal: Any = None, size: Any = None) -> bool:
    """What `_detect_is_causal_mask` says, without looking at numbers where AICF compiles."""
    if is_causal is not None or mask is None or for_aicf():
        return is_causal is True
    causal = _causal(mask.size(-2) if size is None else size, device=mask.device, dtype=mask.dtype)
    return mask.size() == causal.size() and bool((mask == causal).all())


def install() -> None:
    """Enters the above with Dynamo, in PyTorch versions that have the question, once."""
    if _asks is not None and _causal is not None:
        with contextlib.suppress(ValueError):  # somebody else has entered an answer already
            torch.compiler.substitute_in_graph(_asks)(_is_causal)
