"""Sizes that an op of the graph requires to be equal become one symbol.

    softmax[1, 8, 1, s76 + 1] @ v[1, 8, s53 + 1, 64]    ->    guard s76 == s53; both are s76 from here on

A cache that grows gives K's and V's lengths as two symbols, and PyTorch does not compare them where its own attention takes
both. The equality is left with Dynamo as a guard: a call in which it does not hold is compiled by itself, without it, and runs
as PyTorch runs it, to PyTorch's own error. Lengths that depend on data are compared when the graph runs. Only what is equal in
the call at hand is ever guarded, so that no program is refused for it; dimensions of which one may be 1 are left alone where
they are not equal.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from aicf.semantic.einsum import parse_einsum

from .flex_mods import FLEX

Dim = Any  # an int or a SymInt
Pair = tuple[Dim, Dim]

_ATTENTION = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math")
# Ops by the two arguments that they contract as matrices (vectors where of rank 1).
_PRODUCTS = {
    "matmul": (0, 1), "mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2),
    "addbmm": (1, 2), "addmv": (1, 2),
}  # fmt: skip


def guard_equal_sizes(traced: torch.fx.GraphModule, marked: Collection[str] = ()) -> None:
    """Adds a guard for every equality of sizes that an op of `traced` (ATen, with `meta["val"]`) requires and PyTorch does not
    know.

    `marked`: sizes that must not be fixed.
    """
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is FLEX:
            q, k, v = (x.shape for x in _tensors(node)[:3])
            _guard_pairs([(k[2], v[2]), (q[3], k[3]), (k[1], v[1]), *_broadcast([q[:1], k[:1], v[:1]])], marked)
            _fix([q[1], k[1]], marked)
            _check_lengths(traced, node)
        elif isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten":
            _guard_pairs(_equal_pairs(node), marked)
            _fix(_heads_in_groups(node), marked)
            if node.target._schema.name.partition("::")[2] in _ATTENTION:
                _check_lengths(traced, node)


def _fix(heads: Iterable[Dim], marked: Collection[str]) -> None:
    """Guards for the numbers of heads of an attention in which several query heads share a key: they are part of a model, not of
    a call."""
    for n in heads:
        if isinstance(n, torch.SymInt) and n.node.has_hint() and not _names(n) & set(marked):
            int(n)


def _check_lengths(traced: torch.fx.GraphModule, attention: torch.fx.Node) -> None:
    """Where lengths of K and V depend on data, a check in the graph itself that they are equal, which PyTorch makes for every
    other op."""
    holders = [x for x in attention.args[1:3] if isinstance(x, torch.fx.Node)]
    lengths = [x.meta["val"].shape[-2] for x in holders]
    known = [not isinstance(n, torch.SymInt) or n.node.has_hint() for n in lengths]
    if len(holders) < 2 or all(known) or statically_known_true(lengths[0] == lengths[1]):
        return
    equal = lengths[0] == lengths[1]
    torch._check(equal)
    aten = torch.ops.aten
    with traced.graph.inserting_before(attention):
        sizes = [traced.graph.call_function(aten.sym_size.int, (x, x.meta["val"].dim() - 2)) for x in holders]
        compared = traced.graph.call_function(operator.eq, tuple(sizes))
        said = "attention takes as many keys as values"
        traced.graph.call_function(aten._assert_scalar.default, (compared, said)).meta["val"] = None
    for node, value in zip([*sizes, compared], [*lengths, equal], strict=True):
        node.meta["val"] = value


def _names(n: torch.SymInt) -> set[str]:
    return {str(s) for s in n.node.expr.free_symbols}


def _guard_pairs(pairs: Iterable[Pair], marked: Collection[str]) -> None:
    for a, b in pairs:
        fixes = [x for x in (a, b) if isinstance(x, torch.SymInt)] if isinstance(a, int) or isinstance(b, int) else []
        if not any(_names(x) & set(marked) for x in fixes):
            _guard_equal(a, b)


def _guard_equal(a: Dim, b: Dim) -> None:
    """Adds a guard that `a` and `b` are equal, where they are equal in this call and PyTorch does not know it."""
    hints = [x.node.hint if isinstance(x, torch.SymInt) and x.node.has_hint() else x for x in (a, b)]
    if all(isinstance(x, int) for x in hints) and hints[0] == hints[1] and not statically_known_true(a == b):
        bool(a == b)  # adds a guard to Dynamo's


def _equal_pairs(node: torch.fx.Node) -> Iterator[Pair]:
    """Pairs of sizes that the op of `node` needs to be equal, or of which it needs one to be 1."""
    name, tensors = node.target._schema.name.partition("::")[2], _tensors(node)  # type: ignore[union-attr]
    if name in _ATTENTION and len(tensors) >= 3:
        yield from _attention(node, tensors)
    elif name in _PRODUCTS and len(tensors) > _PRODUCTS[name][1]:
        yield from _product(*(tensors[k].shape for k in _PRODUCTS[name]))
    elif name == "linear":
        yield tensors[0].shape[-1], tensors[1].shape[-1]
    elif name == "einsum":
        yield from _einsum(str(node.args[0]), tensors)
    elif name in ("cat", "concat", "concatenate"):
        yield from _joined(node, tensors)
    elif name == "stack" or torch.Tag.pointwise in node.target.tags:  # type: ignore[union-attr]
        yield from _broadcast([x.shape for x in tensors])


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """The tensors that `node` reads, in the order of its arguments, those in lists among them."""
    found: list[torch.Tensor] = []

    def note(x: torch.fx.Node) -> torch.fx.Node:
        value = x.meta.get("val")
        if isinstance(value, torch.Tensor):
            found.append(value)
        return x

    torch.fx.map_arg((node.args, node.kwargs), note)
    return found


def _broadcast(shapes: Sequence[Sequence[Dim]]) -> Iterator[Pair]:
    for k in range(1, 1 + max(map(len, shapes), default=0)):
        own = [s[-k] for s in shapes if len(s) >= k]
        whole = [d for d in own if not statically_known_true(d == 1)]
        yield from ((whole[0], d) for d in whole[1:])


def _product(x: Sequence[Dim], y: Sequence[Dim]) -> Iterator[Pair]:
    if len(x) and len(y):
        yield x[-1], y[-1] if len(y) == 1 else y[-2]
        yield from _broadcast([x[:-2], y[:-2]])


def _einsum(equation: str, tensors: Sequence[torch.Tensor]) -> Iterator[Pair]:
    try:
        inputs, _ = parse_einsum(equation, [x.dim() for x in tensors])
    except ValueError:
        return
    for label in dict.fromkeys("".join(inputs)):
        own = [x.shape[term.index(label)] for term, x in zip(inputs, tensors, strict=True) if label in term]
        yield from _broadcast([[d] for d in own])


def _joined(node: torch.fx.Node, tensors: Sequence[torch.Tensor]) -> Iterator[Pair]:
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    whole = [x for x in tensors if x.dim() > 1 or (x.dim() == 1 and tensors[0].dim() == 1)]
    if not isinstance(dim, int) or not whole:
        return
    rank = whole[0].dim()
    for k in range(rank):
        if k != dim % rank:
            yield from ((whole[0].shape[k], x.shape[k]) for x in whole[1:] if x.dim() == rank)


def _attention(node: torch.fx.Node, tensors: Sequence[torch.Tensor]) -> Iterator[Pair]:
    q, k, v, *mask = (x.shape for x in tensors)
    if min(map(len, (q, k, v))) < 2:
        return
    yield k[-2], v[-2]
    yield q[-1], k[-1]
    grouped = 3 if node.kwargs.get("enable_gqa") and len(q) >= 3 else 2
    yield from _broadcast([x[: len(x) - grouped] for x in (q, k, v)])
    if grouped == 3:
        yield k[-3], v[-3]
    if mask:
        yield from _broadcast([[*q[:-1], k[-2]], mask[0]])


def _heads_in_groups(node: torch.fx.Node) -> list[Dim]:
    """The numbers of heads of an attention in which several query heads share a key."""
    if not (node.kwargs.get("enable_gqa") and node.target._schema.name == "aten::scaled_dot_product_attention"):  # type: ignore[union-attr]
        return []
    return [x.shape[-3] for x in _tensors(node)[:3] if x.dim() >= 3]
