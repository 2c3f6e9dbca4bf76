"""PyTorch's state of a thread as it was, whatever a graph that is run to be traced leaves behind.

A graph sets gradients, autocast and torch.func's levels at one node and sets them back at another. Where the trace fails between
the two, they would stay. And a trace is no run: what autograd saves for it is not shown to the user's saved-tensor hooks
(offloading, compression, activation checkpointing around the compiled function, which counts what is saved).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """What is run inside leaves gradient mode, autocast, torch.func's levels and saved-tensor hooks as they are, and calls no
    hook for tensors that it saves."""
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
