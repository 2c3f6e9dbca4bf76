"""A dry run of a call on fake tensors: it tells an error of the user's code from one of the compiler."""

from __future__ import annotations

import contextlib
import inspect
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """No gradients (a module's parameters would ask for them, and none are derived yet), and `errors_unlogged`."""
    with errors_unlogged(), torch.no_grad():
        yield


@contextlib.contextmanager
def errors_unlogged() -> Iterator[None]:
    """Silences PyTorch's log of failing fake ops: the caller reports the error that the call raises."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def parameters(fn: Callable[..., Any]) -> frozenset[str]:
    """The names of the parameters of a function or module, as far as it tells; what `**` collects is not among them."""
    try:
        return frozenset(inspect.signature(getattr(fn, "forward", fn)).parameters)
    except ValueError:  # a function of PyTorch's own, in C
        return frozenset()


def call_error(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """What `fn` itself raises on tensors of these shapes and types, found without computing anything; None when nothing."""
    with inference(), FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def fake(x: Any) -> Any:
            return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

        try:
            fn(*tree_map(fake, tuple(args)), **tree_map(fake, dict(kwargs)))
        except Exception as e:
            return e
    return None


def with_users_line(error: Exception, fn: Callable[..., Any]) -> Exception:
    """`error`, which `call_error` returned for `fn`, with the user's line in the message instead of PyTorch's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    target = inspect.unwrap(getattr(fn, "forward", fn))
    own = [f for f in frames if f.filename == getattr(getattr(target, "__code__", None), "co_filename", None)]
    if own:
        error.args = (f"{error} (at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}: {own[-1].line})",)
    return error.with_traceback(None)
