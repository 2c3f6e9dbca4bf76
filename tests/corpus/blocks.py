"""An independent count of the softmax-attention blocks of an ATen graph: what detection is measured against.

    scores = matmul(q, k_t)  ->  … softmax …  ->  matmul(p, v)            one block: softmax, its values contraction matmul(p, v)

It shares no code with detection and is generous: every softmax, whole or written out, whose input comes from a contraction of two
computed tensors and whose result goes into another one counts, whatever lies between. Linear layers (one operand is a parameter)
are no such contractions, so that routers and classifiers don't count. Calls of scaled_dot_product_attention count as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch

Node = torch.fx.Node

SOFTMAX = {"softmax", "_softmax", "_safe_softmax"}
ATTENTION = {"scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_native_multi_head_attention"}
CONTRACTIONS = {"matmul", "bmm", "mm", "baddbmm", "einsum", "mv", "tensordot", "inner", "dot"}
# A tensor is the same tensor behind these; a parameter behind them is still a parameter.
LAYOUT = {
    "t", "mT", "numpy_T", "transpose", "permute", "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "slice", "select",
    "to", "_to_copy", "clone", "contiguous", "detach", "alias", "index", "index_select", "flatten", "unflatten", "split", "chunk",
    "unbind",
}  # fmt: skip
# Other layers begin here: scores don't come through them and probabilities don't go on through them.
LAYERS = {
    "linear", "addmm", "conv1d", "conv2d", "conv3d", "convolution", "embedding", "layer_norm", "native_layer_norm", "group_norm",
    "batch_norm", "rms_norm", "topk", "argmax", "argsort", "sort", "one_hot", "multinomial",
}  # fmt: skip
NUMERIC = {"add", "clamp", "clamp_min", "mul", "expand", "where", "masked_fill"}
SUMS = {"sum", "mean"}


@dataclass(frozen=True)
class Block:
    """One softmax attention: the FX nodes of its softmax and of the contractions with values that it reaches."""

    softmax: str
    values: tuple[str, ...]
    place: str = ""


def attention_blocks(gm: torch.fx.GraphModule, is_parameter: Collection[Node] = ()) -> list[Block]:
    """The blocks of `gm` (ATen, before decomposition), in order; `is_parameter`: its placeholders that are weights."""
    weights = frozenset(is_parameter)
    found: list[Block] = []
    for node in gm.graph.nodes:
        name = op(node)
        if name in ATTENTION:
            found.append(Block(node.name, (node.name,), line_of(node)))
            continue
        source = _softmax_input(node)
        if source is None or not _from_contraction(source, weights):
            continue
        values = _into_contractions(node, weights)
        if values:
            found.append(Block(node.name, tuple(v.name for v in values), line_of(node)))
    return found


def op(node: Node) -> str:
    """The name of the ATen op of a node, without overload and in-place underscore; empty for other nodes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    name = target._schema.name.partition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def line_of(node: Node) -> str:
    """The user's innermost source line, `file.py:12`."""
    lines = [x.strip() for x in (node.meta.get("stack_trace") or "").splitlines() if x.strip().startswith("File ")]
    if not lines:
        return ""
    file, _, rest = lines[-1].removeprefix('File "').partition('", line ')
    return f"{file.rpartition('/')[2]}:{rest.partition(',')[0]}"


# ------------------------------------------------------------------------------------------------ softmaxes


def _softmax_input(node: Node) -> Node | None:
    """The scores, if `node` is a softmax: an op of that name, or exp(x) / sum(exp(x)), or exp(x - logsumexp(x))."""
    name = op(node)
    if name in SOFTMAX:
        return _argument(node, 0)
    if name == "div":
        top = _behind(_argument(node, 0), {"exp", "exp2"})
        below = _behind(_argument(node, 1), SUMS)
        if top is not None and below is not None and _behind(_argument(below, 0), {"exp", "exp2"}) is top:
            return _argument(top, 0)
    if name == "exp":
        inner = _argument(node, 0)
        if inner is not None and op(inner) == "sub" and _behind(_argument(inner, 1), {"logsumexp"}) is not None:
            return _argument(inner, 0)
    return None


def _argument(node: Node, k: int) -> Node | None:
    found = node.args[k] if k < len(node.args) else None
    return found if isinstance(found, Node) else None


def _behind(node: Node | None, wanted: set[str]) -> Node | None:
    """The node with one of the `wanted` ops behind ops that lay out or adjust it."""
    while node is not None and op(node) not in wanted:
        sources = [a for a in node.args if isinstance(a, Node)]
        node = sources[0] if sources and op(node) in LAYOUT | NUMERIC else None
    return node


# ------------------------------------------------------------------------------------------------ contractions


def _contraction(node: Node, weights: frozenset[Node]) -> bool:
    """A sum of products of two computed tensors."""
    name = op(node)
    if name in CONTRACTIONS:
        operands = [a for a in _flat(node.args) if a.meta.get("val") is not None]
        return not any(_is_weight(a, weights) for a in operands)
    if name in SUMS:
        factor = _argument(node, 0)
        if factor is not None and op(factor) == "mul":
            both = [a for a in factor.args if isinstance(a, Node) and getattr(a.meta.get("val"), "ndim", 0) > 1]
            return len(both) == 2 and not any(_is_weight(a, weights) for a in both)
    return False


def _flat(args: object) -> list[Node]:
    found: list[Node] = []
    torch.fx.node.map_arg(args, found.append)  # type: ignore[arg-type]
    return found


def _is_weight(node: Node, weights: frozenset[Node]) -> bool:
    while node not in weights and op(node) in LAYOUT:
        source = _argument(node, 0)
        if source is None:
            return False
        node = source
    return node in weights


def _from_contraction(node: Node, weights: frozenset[Node]) -> bool:
    return any(_contraction(n, weights) for n in _reach(node, lambda n: n.all_input_nodes, weights))


def _into_contractions(node: Node, weights: frozenset[Node]) -> list[Node]:
    return [n for n in _reach(node, lambda n: list(n.users), weights) if n is not node and _contraction(n, weights)]


def _reach(start: Node, then: Callable[[Node], Iterable[Node]], weights: frozenset[Node]) -> list[Node]:
    """The nodes reached from `start` without going on behind a contraction or another layer."""
    seen: dict[Node, None] = {}
    stack = [start]
    while stack:
        node = stack.pop()
        if node in seen or node.op in ("placeholder", "output"):
            continue
        seen[node] = None
        if _contraction(node, weights) or op(node) in LAYERS | CONTRACTIONS:
            continue
        if node is not start and _softmax_input(node) is not None:
            continue
        stack += then(node)
    return list(seen)
