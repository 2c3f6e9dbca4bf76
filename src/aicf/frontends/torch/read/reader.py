"""FX graph (ATen, from before autograd) -> Semantic graph.

    %div = aten.div.Tensor(%matmul, 8.0)         %div = div(%matmul, 8.0) : f32[2, 4, 256, 256]
    %softmax = aten.softmax.int(%div, -1)   ->   %softmax = softmax(%div) {axis=3}
    %conv = aten.conv2d.default(%x, %w)          conv: an input, remembered as a boundary with its reason

Every op is checked against PyTorch's own idea of its result (element type and shape); where the two differ, or an op is not
covered, the result becomes an input of the Semantic graph and the rest is still read. What is read is always what FX computes.

In-place ops are followed by storage: after `x.add_(1)` the node `x` (and whatever looks at the same elements in the same way)
means the new value, and so does what `x` was selected or sliced from; other views of that storage are unknown from there on. An
`Anchor` says from when until when an FX node holds the tensor of a Semantic node.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.node import map_arg

from aicf.frontends.torch.capture.flex_mods import FLEX
from aicf.frontends.torch.fx.locations import location_of, op_name
from aicf.frontends.torch.fx.symbols import Dims, Unreadable, from_symbolic, is_positive, type_of
from aicf.semantic import Graph, GraphBuilder, Node, TensorType, ancestors
from aicf.semantic.split_contractions import merge_split_contractions

from . import ops_contract, ops_create, ops_elementwise, ops_index, ops_reduce, ops_views
from .context import Args, Context, Given, Handler
from .flex import flex_attention

HANDLERS: Mapping[str, Handler] = {
    **ops_elementwise.OPS, **ops_views.OPS, **ops_create.OPS, **ops_index.OPS, **ops_reduce.OPS, **ops_contract.OPS,
}  # fmt: skip
log = logging.getLogger("aicf")
FOREVER = 1 << 60
# Ops without a tensor as their result that ask for nothing but the kind of a tensor.
_QUESTIONS = ("sym_", "_assert_tensor_metadata")
_getitem = operator.getitem
# Views that are a part of their source.
_PARTS = (torch.ops.aten.select.int, torch.ops.aten.slice.Tensor)


@dataclass(frozen=True)
class Anchor:
    """The FX node `fx` holds a Semantic node's tensor from position `since` of the FX graph until position `until`."""

    fx: torch.fx.Node
    since: int
    until: int = FOREVER


@dataclass
class Reading:
    """What was read: the graph, where each Semantic node's tensor is found, why some nodes are inputs only. `sizes`: where each
    size symbol is found first, as a number or along an axis of a tensor; `possibly_empty`: those that may be below 1."""

    graph: Graph
    anchors: dict[Node, list[Anchor]] = field(default_factory=dict[Node, list[Anchor]])
    boundaries: dict[Node, str] = field(default_factory=dict[Node, str])
    parameters: frozenset[Node] = frozenset()
    sizes: dict[str, tuple[torch.fx.Node, int | None]] = field(default_factory=dict[str, tuple[torch.fx.Node, "int | None"]])
    positions: dict[torch.fx.Node, int] = field(default_factory=dict[torch.fx.Node, int])
    mutated: set[int] = field(default_factory=set[int])
    possibly_empty: set[str] = field(default_factory=set[str])

    @property
    def fx_of(self) -> dict[Node, torch.fx.Node]:
        """The first FX node that computes each Semantic node."""
        return {node: nodes[0].fx for node, nodes in self.anchors.items()}


def read(gm: torch.fx.GraphModule, parameters: Sequence[bool] = (), *, strict: bool = False) -> Reading:
    """Reads `gm`, whose nodes carry `meta["val"]` (fake tensors, as make_fx leaves them).

    `parameters[k]` says that input k is a parameter or buffer. Never raises for an op that it does not know.
    """
    return _Reader(gm, parameters, strict).run()


def storage_of(value: Any) -> int | None:
    """What identifies the memory of a (fake) tensor, or None."""
    try:
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
    except (RuntimeError, NotImplementedError):
        return None


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The FX nodes whose memory `node` writes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return []
    written: list[torch.fx.Node] = []
    for k, argument in enumerate(target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        raw = node.args[k] if k < len(node.args) and not argument.kwarg_only else node.kwargs.get(argument.name)
        written += [x for x in (raw if isinstance(raw, list | tuple) else (raw,)) if isinstance(x, torch.fx.Node)]
    return written


def _geometry(value: torch.Tensor) -> tuple[Any, ...]:
    return (value.dtype, tuple(map(str, value.shape)), tuple(map(str, value.stride())), str(value.storage_offset()))


class _Reader:
    def __init__(self, gm: torch.fx.GraphModule, parameters: Sequence[bool], strict: bool) -> None:
        self.gm = gm
        self.flags = parameters
        self.b = GraphBuilder(share=True)
        self.dims = Dims()
        self.c = Context(self.b, strict)
        self.env: dict[torch.fx.Node, Any] = {}
        self.unread: dict[torch.fx.Node, str] = {}
        self.stale: dict[torch.fx.Node, int] = {}
        self.origin: dict[Node, torch.fx.Node] = {}
        self.by_storage: dict[int, list[torch.fx.Node]] = {}
        self.changes: dict[int, list[int]] = {}
        self.reading = Reading(self.b.graph)
        self.here = 0

    def run(self) -> Reading:
        placeholders = 0
        for here, node in enumerate(self.gm.graph.nodes):
            self.here = here
            self.reading.positions[node] = self.here
            self.b.location = location_of(node)
            self.c.fx = node
            first = len(self.b.graph.nodes)
            match node.op:
                case "placeholder":
                    self._placeholder(node, placeholders)
                    placeholders += 1
                case "get_attr":
                    self._source(node, "")
                    held = self.env.get(node)
                    if isinstance(held, Node):  # weights, where Inductor is to freeze them, and what the source has as numbers
                        self.reading.parameters |= {held}
                case "call_function" | "call_method" | "call_module":
                    self._call(node)
                case "output":
                    self._output(node)
                case _:
                    raise AssertionError(node.op)
            for made in self.b.graph.nodes[first:]:
                self.origin[made] = node
        self._finish()
        return self.reading

    # ---------------------------------------------------------------- values

    def _placeholder(self, node: torch.fx.Node, k: int) -> None:
        value = node.meta.get("val")
        self._source(node, "")
        if isinstance(value, torch.Tensor) and k < len(self.flags) and self.flags[k] and isinstance(self.env.get(node), Node):
            self.reading.parameters |= {self.env[node]}
        self._note_sizes(node, value)

    def _note_sizes(self, node: torch.fx.Node, value: Any) -> None:
        """The size symbols that `value`, which `node` holds, tells."""
        found: list[tuple[Any, int | None]] = [(value, None)] if isinstance(value, torch.SymInt) else []
        if isinstance(value, torch.Tensor):
            found += [(d, axis) for axis, d in enumerate(value.shape) if isinstance(d, torch.SymInt)]
        for size, axis in found:
            name = str(size.node.expr)
            if name.isidentifier() and name not in self.reading.sizes:
                self.reading.sizes[name] = (node, axis)
                if not is_positive(size):
                    self.reading.possibly_empty.add(name)

    def _source(self, node: torch.fx.Node, reason: str) -> None:
        """`node` as an input of the Semantic graph."""
        value = node.meta.get("val")
        if value is None and node.op == "get_attr":
            value = node.meta["val"] = _attribute(self.gm, str(node.target))
        self._remember(node, value)
        if not isinstance(value, torch.Tensor):
            self.env[node] = None
            return
        try:
            kind = type_of(value, self.dims)
        except Unreadable as e:
            self.unread[node] = str(e)
            self.env[node] = None
            return
        made = self.b.input(node.name, kind.dtype, kind.shape)
        if reason:
            self.reading.boundaries[made] = self.b.graph.unknown[made] = reason
            whole = node.args[0] if node.target is operator.getitem else node  # of which `node` is one of several results
            assert isinstance(whole, torch.fx.Node)
            found = (self.env.get(x) for x in whole.all_input_nodes)
            self.b.graph.sources[made] = tuple(x for x in found if isinstance(x, Node))
        self._bind(node, made)

    def _remember(self, node: torch.fx.Node, value: Any) -> None:
        for x in value if isinstance(value, list | tuple) else (value,):
            key = storage_of(x)
            if key is not None and node not in self.by_storage.setdefault(key, []):
                self.by_storage[key].append(node)

    def _bind(self, node: torch.fx.Node, made: Node) -> None:
        self.env[node] = made
        self.reading.anchors.setdefault(made, []).append(Anchor(node, self.here))

    def _unbind(self, node: torch.fx.Node) -> None:
        """`node` as the place of no tensor that the rest of the graph needs."""
        held = self.env.get(node)
        if isinstance(held, Node) and held.op != "input":
            left = [a for a in self.reading.anchors.pop(held, []) if a.fx is not node]
            if left:
                self.reading.anchors[held] = left

    def _value(self, x: Any) -> Any:
        """An FX argument as handlers see it."""
        if isinstance(x, list | tuple):
            return [self._value(e) for e in x]
        if isinstance(x, slice):
            raise Unreadable("a Python slice")
        if not isinstance(x, torch.fx.Node):
            return x
        value = x.meta.get("val")
        if isinstance(value, torch.SymInt):
            return self.dims.expression(value)
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return self._float(x, value)
        if isinstance(value, int | float):
            return value
        if x in self.stale:
            self._refresh(x)
        made = self.env.get(x)
        if isinstance(made, Node) or (isinstance(made, list) and made):
            return made
        raise Unreadable(self.unread.get(x, f"{op_name(x) or x.name} gives no tensor that is supported"))

    def _float(self, x: torch.fx.Node, value: torch.SymFloat | torch.SymBool) -> Any:
        """A float that follows from sizes as their expression, any other as what its tensor holds when the graph runs."""
        try:
            return from_symbolic(value)
        except Unreadable:
            made = self.env.get(x.meta.get("float32"))  # type: ignore[arg-type]
            if not isinstance(made, Node):
                raise
            return Given(made)

    def _refresh(self, x: torch.fx.Node) -> None:
        """A view whose storage was written through another: a new unknown."""
        since = self.stale.pop(x)
        kind = type_of(x.meta["val"], self.dims)
        made = self.b.input(x.name, kind.dtype, kind.shape)
        self.reading.boundaries[made] = self.b.graph.unknown[made] = "its storage is changed in place through another view"
        self.origin[made] = x
        self.env[x] = made
        self.reading.anchors[made] = [Anchor(x, since)]

    # ---------------------------------------------------------------- calls

    def _call(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        self._remember(node, value)
        self._note_sizes(node, value)
        if node.target is _getitem:
            self._getitem(node)
            return
        written = written_by(node)
        if not isinstance(value, torch.Tensor) and not (isinstance(value, list | tuple) and value):
            if not getattr(node.target, "__name__", "").startswith(_QUESTIONS):
                self._read_outside(node)
            self._mutate(written, None)
            return
        result: Any = None
        try:
            result = self._read_op(node, value)
            reason = ""
        except Unreadable as e:
            reason = str(e)
        except ValueError as e:  # a type rule of the Semantic IR: a shape that cannot be followed
            reason = f"{op_name(node)} is not understood: {e}"
        except Exception as e:  # the other ops are read all the same
            reason = f"AICF itself fails to read {op_name(node)}, which is an error to report ({type(e).__name__}: {e})"
            log.warning("%s", reason, exc_info=log.isEnabledFor(logging.DEBUG))
        if reason:
            self._read_outside(node)
        if isinstance(value, list | tuple):
            self.env[node] = [r if isinstance(r, Node) else None for r in result] if reason == "" else None
            self.unread[node] = reason
            self._mutate(written, None)
            return
        if written:
            self._mutate(written, result if isinstance(result, Node) else None)
            if isinstance(result, Node) and node not in self.env:
                self._bind(node, result)
            elif node not in self.env:
                self._source(node, reason)
            return
        if isinstance(result, Node):
            self._bind(node, result)
        else:
            self.unread[node] = reason
            self._source(node, reason)

    def _read_outside(self, node: torch.fx.Node) -> None:
        """`node` stays as it is, so that the tensors that it reads must exist."""
        for x in node.all_input_nodes:
            found = self.env.get(x)
            if isinstance(found, Node):
                self.b.graph.readers.setdefault(found, str(location_of(node)))

    def _getitem(self, node: torch.fx.Node) -> None:
        source, k = node.args
        assert isinstance(source, torch.fx.Node)
        found = self.env.get(source)
        if isinstance(found, list) and isinstance(k, int) and found[k] is not None and source not in self.stale:
            self._bind(node, found[k])
        elif isinstance(node.meta.get("val"), torch.Tensor) and node.users:
            self._read_outside(source)
            self._source(node, self.unread.get(source) or f"{op_name(source)}'s output {k} is not followed")

    def _read_op(self, node: torch.fx.Node, value: Any) -> Any:
        target = node.target
        if target is FLEX:
            return self._flex(node, value)
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            raise Unreadable(f"{op_name(node)} is not followed")
        packet, overload = target._schema.name.partition("::")[2], target._schema.overload_name
        functional = packet[:-1] if packet.endswith("_") and not packet.endswith("__") else packet
        handler = HANDLERS.get(f"{functional}.{overload}") or HANDLERS.get(functional)
        if handler is None or overload == "out":
            raise Unreadable(f"{op_name(node)} is not followed")
        many = isinstance(value, list | tuple)
        self.c.out_types = [self._type_or_none(x) for x in (value if many else (value,))]
        result = handler(self.c, self._arguments(target, node))
        if not many:
            if functional != packet and isinstance(result, Node):
                # In place, the result is converted to the type of what it overwrites.
                result = self.b.expand(self.b.cast(result, self.c.out.dtype), self.c.out.shape)
            return self._checked(result, self.c.out, node)
        assert isinstance(result, Sequence)
        return [
            None if r is None or t is None else self._checked(r, t, node) for r, t in zip(result, self.c.out_types, strict=True)
        ]

    def _flex(self, node: torch.fx.Node, value: Sequence[Any]) -> list[Node | None]:
        types = [self._type_or_none(x) for x in value]
        q, k, v, _, _, scale, _, *others = (None if n in (3, 4, 6) else self._value(x) for n, x in enumerate(node.args))
        found = flex_attention(self.c, node, [q, k, v, scale, *others], self._inlined)
        return [None if t is None or r is None else self._checked(r, t, node) for r, t in zip(found, types, strict=True)]

    def _inlined(self, gm: torch.fx.GraphModule, values: Sequence[Any]) -> Any:
        """The result of `gm` (ATen) called on `values`, as handlers see them. Raises Unreadable."""
        given, outer = iter(values), self.c.fx
        for node in gm.graph.nodes:
            self.c.fx = node
            value = node.meta.get("val")
            if node.op == "placeholder":
                self.env[node] = next(given)
            elif node.op == "output":
                self.c.fx = outer
                return self._value(node.args[0])
            elif node.op != "call_function":
                raise Unreadable("a function that makes tensors of its own")
            elif isinstance(value, torch.Tensor):
                if written_by(node):
                    raise Unreadable("a function that changes tensors in place")
                self.env[node] = self._read_op(node, value)
        raise AssertionError("a graph without an output")

    def _type_or_none(self, value: Any) -> TensorType | None:
        try:
            return type_of(value, self.dims) if isinstance(value, torch.Tensor) else None
        except Unreadable:
            return None

    def _checked(self, result: Any, kind: TensorType, node: torch.fx.Node) -> Node:
        if not isinstance(result, Node) or result.type != kind:
            got = result.type if isinstance(result, Node) else result
            raise Unreadable(f"{op_name(node)} gives {kind} where {got} was expected")
        return result

    def _arguments(self, target: Any, node: torch.fx.Node) -> Args:
        values: dict[str, Any] = {}
        raws: dict[str, Any] = {}
        given = list(node.args)
        for k, argument in enumerate(target._schema.arguments):
            if k < len(given) and not argument.kwarg_only:
                raw = given[k]
            elif argument.name in node.kwargs:
                raw = node.kwargs[argument.name]
            else:
                raw = argument.default_value if argument.has_default_value() else None
            raws[argument.name], values[argument.name] = raw, self._value(raw)
        return Args(values, raws)

    # ---------------------------------------------------------------- in-place ops

    def _mutate(self, written: list[torch.fx.Node], result: Node | None) -> None:
        for x in written:
            value = x.meta.get("val")
            key = storage_of(value)
            if key is None or not isinstance(value, torch.Tensor):
                continue
            self.reading.mutated.add(key)
            self.changes.setdefault(key, []).append(self.here)
            changed = self._wholes(x, result) if result is not None and len(written) == 1 else {}
            for other in self.by_storage.get(key, []):
                if self.reading.positions[other] > self.here:
                    continue
                seen = other.meta.get("val")
                new = changed.get(_geometry(seen)) if isinstance(seen, torch.Tensor) else None
                if new is not None:
                    self.stale.pop(other, None)
                    self._bind(other, new)
                elif other in self.env or other in self.stale:
                    self.env.pop(other, None)
                    if isinstance(seen, torch.Tensor):
                        self.stale[other] = self.here

    def _wholes(self, x: torch.fx.Node, result: Node) -> dict[tuple[Any, ...], Node]:
        """The new values, by place in memory, of `x`, now `result`, and of the tensors that it is a part of, as far as they are
        followed."""
        found = {_geometry(x.meta["val"]): result}
        while x.target in _PARTS and x.args[0] not in self.stale and isinstance(self.env.get(x.args[0]), Node):  # type: ignore[arg-type]
            try:
                result = ops_views.replaced(self.c, self._arguments(x.target, x), x.target is _PARTS[0], result)
            except (Unreadable, ValueError):
                break
            assert isinstance(x.args[0], torch.fx.Node)
            if len(x.users) == 1:
                self._unbind(x)  # what the part was is read by nobody but the op that changes it
            x = x.args[0]
            found[_geometry(x.meta["val"])] = result
        return found

    # ---------------------------------------------------------------- the end

    def _output(self, node: torch.fx.Node) -> None:
        flat: list[Any] = []
        map_arg(node.args, flat.append)
        outputs: list[Node] = []
        for x in flat:
            try:
                returned = self._value(x)
            except Unreadable:
                continue
            if isinstance(returned, Node):
                outputs.append(returned)
        self.b.output(*dict.fromkeys(outputs))

    def _finish(self) -> None:
        graph = self.b.graph
        for node, found in self.reading.anchors.items():
            self.reading.anchors[node] = [self._until(a) for a in found]
        for node in merge_split_contractions(graph):
            self.reading.anchors.pop(node, None)
        live = set(ancestors([*graph.outputs, *self.reading.anchors]))
        graph.nodes[:] = [n for n in graph.nodes if n in live]
        _rename(graph, self.reading.anchors, self.origin)

    def _until(self, anchor: Anchor) -> Anchor:
        ends = [FOREVER]
        value = anchor.fx.meta.get("val")
        key = storage_of(value)
        if key is not None:
            ends += [at for at in self.changes.get(key, ()) if at > anchor.since]
        return Anchor(anchor.fx, anchor.since, min(ends))


def _attribute(gm: torch.fx.GraphModule, target: str) -> Any:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part, None)
    return value


def _rename(graph: Graph, anchors: Mapping[Node, Sequence[Anchor]], origin: Mapping[Node, torch.fx.Node]) -> None:
    """Names for people: what an FX node computes is called like it, the steps towards it after it and their op."""
    used = {a.fx.name for found in anchors.values() for a in found}
    taken: set[str] = set()
    for node in graph.nodes:
        own = anchors.get(node)
        if own and own[0].fx.name not in taken:
            name = own[0].fx.name
        else:
            base = f"{origin[node].name}_{node.op}" if node in origin else node.op
            name, k = base, 1
            while name in used or name in taken:
                k += 1
                name = f"{base}_{k}"
        taken.add(name)
        node.name = name
