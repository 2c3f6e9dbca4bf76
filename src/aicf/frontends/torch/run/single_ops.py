"""Ops of a Semantic graph run by PyTorch one by one: what a derived gradient has left beside its regions.

Only small tensors come here (`aicf.gradient.plan`). An op that is no row of the table is known before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from aicf.frontends.torch.fx.symbols import TORCH_DTYPE
from aicf.scalar import Expr, evaluate, integer
from aicf.semantic import Node

Sizes = Mapping[str, int]
Run = Callable[[Sequence[torch.Tensor], Node, Sizes], torch.Tensor]

_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "neg": torch.neg, "abs": torch.abs,
    "max": torch.maximum, "min": torch.minimum, "floordiv": torch.floor_divide, "mod": torch.remainder, "exp": torch.exp,
    "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "softplus": F.softplus, "erf": torch.erf,
    "sin": torch.sin, "cos": torch.cos, "pow": torch.pow, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "round": torch.round, "sign": torch.sign, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq,
    "ne": torch.ne, "where": torch.where, "isnan": torch.isnan, "isinf": torch.isinf,
}  # fmt: skip
_LOGIC = {"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not}
_WHOLE = ("floor", "ceil", "trunc", "round")  # of integers they are the integers


def _numbers(dims: Sequence[Expr], sizes: Sizes) -> list[int]:
    return [integer(d, dict(sizes)) for d in dims]


def _function(name: str) -> Run:
    def run(x: Sequence[torch.Tensor], n: Node, sizes: Sizes) -> torch.Tensor:
        return {**_FUNCTIONS, **_LOGIC}[name](*x)

    return run


def _scalar(x: Sequence[torch.Tensor], n: Node, sizes: Sizes) -> torch.Tensor:
    return torch.tensor(evaluate(n.attrs["value"], dict(sizes)).item(), dtype=TORCH_DTYPE[n.type.dtype])


def _iota(x: Sequence[torch.Tensor], n: Node, sizes: Sizes) -> torch.Tensor:
    return torch.arange(integer(n.attrs["length"], dict(sizes)))


def _slice(x: Sequence[torch.Tensor], n: Node, sizes: Sizes) -> torch.Tensor:
    made = x[0]
    starts, lengths = _numbers(n.attrs["start"], sizes), _numbers(n.attrs["length"], sizes)
    for axis, (s, length, t) in enumerate(zip(starts, lengths, n.attrs["step"], strict=True)):
        made = made.narrow(axis, s, length) if t == 1 else made.index_select(axis, s + t * torch.arange(length))
    return made


def _pad(x: Sequence[torch.Tensor], n: Node, sizes: Sizes) -> torch.Tensor:
    low, high = _numbers(n.attrs["low"], sizes), _numbers(n.attrs["high"], sizes)
    return F.pad(x[0], [v for pair in zip(reversed(low), reversed(high), strict=True) for v in pair], value=n.attrs["value"])


def _reduce(x: Sequence[torch.Tensor], n: Node, sizes: Sizes) -> torch.Tensor:
    axes, keep = list(n.attrs["axes"]), bool(n.attrs["keepdims"])
    table: dict[str, Callable[..., torch.Tensor]] = {
        "sum": torch.sum, "max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all,
    }  # fmt: skip
    return table[n.attrs["op"]](x[0], dim=axes, keepdim=keep)


def _einsum(x: Sequence[torch.Tensor], n: Node, sizes: Sizes) -> torch.Tensor:
    return torch.einsum(f"{','.join(n.attrs['inputs'])}->{n.attrs['output']}", *x)


TABLE: Mapping[str, Run] = {
    **{name: _function(name) for name in (*_FUNCTIONS, *_LOGIC)},
    "constant": lambda x, n, s: torch.as_tensor(n.attrs["value"]),
    "scalar": _scalar,
    "iota": _iota,
    "cast": lambda x, n, s: x[0],
    "reshape": lambda x, n, s: x[0].reshape(_numbers(n.attrs["shape"], s)),
    "permute": lambda x, n, s: x[0].permute(list(n.attrs["perm"])),
    "expand": lambda x, n, s: x[0].expand(_numbers(n.attrs["shape"], s)),
    "slice": _slice,
    "concat": lambda x, n, s: torch.cat(list(x), dim=n.attrs["axis"]),
    "pad": _pad,
    "reduce": _reduce,
    "matmul": lambda x, n, s: torch.matmul(x[0], x[1]),
    "einsum": _einsum,
    "softmax": lambda x, n, s: torch.softmax(x[0], n.attrs["axis"]),
    "log_softmax": lambda x, n, s: torch.log_softmax(x[0], n.attrs["axis"]),
    "logsumexp": lambda x, n, s: torch.logsumexp(x[0], n.attrs["axis"], n.attrs["keepdims"]),
}


def unknown(n: Node) -> bool:
    """Whether no row runs `n`."""
    return n.op not in TABLE or (n.op == "reduce" and n.attrs["op"] == "prod")


def run_node(n: Node, read: Sequence[torch.Tensor], sizes: Sizes) -> torch.Tensor:
    """The tensor of `n` for its operands."""
    whole = n.op in _WHOLE and not read[0].is_floating_point()
    made = read[0] if whole else TABLE[n.op](read, n, sizes)
    return made.to(TORCH_DTYPE[n.type.dtype])


__all__ = ["TABLE", "run_node", "unknown"]
