"""The float64 value of a model that says `float32` in its code: every op computed in float64, whatever it asks for.

`model.double()` is not enough: attention code converts scores to float32 and back, and creates float32 tables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# What draws random numbers draws the same ones in every type only if it draws them in its own.
RANDOM = ("rand", "randn", "rand_like", "randn_like", "normal_", "uniform_", "bernoulli", "bernoulli_", "exponential_")


class Doubling(TorchDispatchMode):
    """Ops under this mode see and make float64 where they would see and make narrower floats."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func._schema.name.partition("::")[2] in RANDOM:
            return _drawn(func, args, named)
        return func(*tree_map(_double, args), **{k: tree_map(_double, x) for k, x in named.items()})


def _double(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return torch.float64 if x in FLOATS else x
    return x.to(torch.float64) if isinstance(x, torch.Tensor) and x.dtype in FLOATS else x


def _drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func._schema.is_mutable:
        own = args[0]
        drawn = func(torch.empty(own.shape, dtype=torch.float32), *args[1:], **kwargs)
        return own.copy_(drawn)
    narrow = [a.float() if isinstance(a, torch.Tensor) and a.dtype == torch.float64 else a for a in args]
    if not kwargs.get("dtype") and any(a.name == "dtype" for a in func._schema.arguments):
        kwargs["dtype"] = torch.float32
    return _double(func(*narrow, **kwargs))


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Everything inside in float64; the model and the inputs must be converted by the caller."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Doubling():
            yield
    finally:
        torch.set_default_dtype(before)
