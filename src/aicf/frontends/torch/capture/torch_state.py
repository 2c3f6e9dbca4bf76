"""Restores PyTorch's thread state after a graph was run in order to trace it.

A graph sets gradient mode, autocast and the levels of torch.func at one node and resets them at another. If the trace fails in
between, they would stay set. Tracing also must not call the user's saved-tensor hooks (offloading, compression, activation
checkpointing around the compiled function, which counts saved tensors): nothing is really computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def preserved_torch_state() -> Iterator[None]:
    """Restores gradient mode, autocast, the levels of torch.func and saved-tensor hooks at the end. Inside, hooks are not called
    for saved tensors."""
    native: Any = torch._C
    depth = native._functorch.get_dynamic_layer_stack_depth()
    gradients, hooks = torch.is_grad_enabled(), native._autograd._saved_tensors_hooks_get_disabled_error_message()
    casts = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES}
    cached, nesting = torch.is_autocast_cache_enabled(), _nesting()
    traced = native._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        native._autograd._saved_tensors_hooks_set_tracing(traced)
        native._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        native._set_grad_enabled(gradients)
        if hooks is None:
            native._autograd._saved_tensors_hooks_enable()
        else:
            native._autograd._saved_tensors_hooks_disable(hooks)
        for device, (on, dtype) in casts.items():
            torch.set_autocast_enabled(device, on)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cached)
        for _ in range(_nesting() - nesting):
            torch.autocast_decrement_nesting()


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
