"""Regions of which a gradient is asked: `aicf::trained` runs one and saves what its backward needs, `aicf::gradients` is that.

    %all = aicf.trained.default(4711, [%q, %k, %v], [])      the outputs, then what is saved
    %dq, %dk, %dv = aicf.gradients.default(4711, [%q, %k, %v, %m, %l, %o, %do], [])

Both run graphs that `aicf.gradient` derives: their regions as kernels, the little between them by PyTorch. A backward leaves out
what a mask hides, as the forward does, which takes the numbers of a row to be finite; where a row's maximum is not (a row without
keys), a backward that leaves out nothing runs instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aicf.driver import Options, RegionResult, compile_graph
from aicf.frontends.torch.fx.symbols import TORCH_DTYPE
from aicf.gradient import Gradient, NotDifferentiable, Plan, TooLarge, differentiate, planned
from aicf.mcir.passes.streaming_lowering import detected_meaning
from aicf.report.words import plural, size_text
from aicf.scalar import Const, Expr, Var, fingerprint, integer, show, variables
from aicf.scalar.dtypes import BYTES
from aicf.semantic import Graph, Node
from aicf.semantic.types import product
from aicf.streaming.recognise import Recognised

from .region_op import Order, register, run_region, size_names
from .single_ops import run_node, unknown


class NotTrained(Exception):
    """A region whose gradient is left to PyTorch; the message says why."""


class NotFaster(NotTrained):
    """A region whose gradient PyTorch computes as well or better; the message says why."""


@dataclass(frozen=True)
class Program:
    """A derived graph as it is run: its plan, and per region its number in the table of `aicf::region` and its sizes' names."""

    plan: Plan
    regions: tuple[RegionResult, ...]
    handles: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]

    @property
    def products(self) -> int:
        """How many products of the size of the scores its regions compute."""
        programs = [r.program for r in self.regions if r.program is not None]
        return sum(len(p.scores) + sum(bool(s.payload) for s in p.sums) for p in programs)

    def run(self, given: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """The outputs for the inputs of the graph."""
        values: dict[Node, torch.Tensor] = dict(zip(self.plan.graph.inputs, given, strict=True))
        for step in self.plan.steps:
            if isinstance(step, Node):
                values[step] = run_node(step, [values[x] for x in step.inputs], sizes)
            else:
                region = self.regions[step]
                read = [values[x] for x in region.inputs]
                made = run_region(self.handles[step], read, [sizes[n] for n in self.names[step]])
                values.update(zip(region.outputs, made, strict=True))
        return [values[n] for n in self.plan.graph.outputs]


@dataclass(frozen=True)
class Training:
    """A region with its gradient. `cautious`: the backward that leaves out nothing; `orders`: how the outputs lie in memory."""

    gradient: Gradient
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    forward: Program
    backward: tuple[Program, ...]
    cautious: tuple[Program, ...]
    orders: tuple[Order, ...] = ()

    @property
    def products(self) -> tuple[int, int]:
        """How many products of the size of the scores are computed, forward and backward."""
        return self.forward.products, sum(p.products for p in self.backward)

    def summary(self, hints: Mapping[str, int]) -> str:
        """How gradients are computed, and what is saved, in words."""
        kernels = sum(len(p.regions) for p in self.backward)
        forward, backward = self.products
        saved = sum(integer(product(n.type.shape), dict(hints)) * BYTES[n.type.dtype] for n in self.gradient.saved)
        return (
            f"{plural(kernels, 'kernel')}, {backward} products of the size of the scores (forward: {forward}); saved beside its "
            f"inputs: {size_text(saved)}, of outputs and one number or two per row"
        )

    def sizes(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The size symbols of a call, from its inputs."""
        found: dict[str, Any] = {}
        for node, x in zip(self.inputs, tensors, strict=True):
            for d, n in zip(node.type.shape, x.shape, strict=True):
                if isinstance(d, Var):
                    found.setdefault(d.name, n)
        return found


def trained(result: RegionResult, wanted: Collection[int], options: Options, hints: Mapping[str, int]) -> Training:
    """`result`, which streams, with the gradients of its inputs numbered by `wanted`. Raises NotTrained."""
    program, region = result.program, result.region
    assert program is not None and region is not None
    if not wanted:
        raise NotTrained("")
    found = detected_meaning(region)
    known = {d.name for n in result.inputs for d in n.type.shape if isinstance(d, Var)}
    if options.strict:
        raise NotTrained("gradients are not derived with strict=True")
    try:
        free = all(b.shift_invariant for b in program.bases)
        gradient = differentiate(result.inputs, result.outputs, wanted, free)
        scores = _scores(found, hints)
        own = replace(options, schedule=None, fuse="always")
        small = [*result.outputs, *(n for n in result.inputs if not _of_pairs(n, found))]
        forward = _program(gradient.forward, own, hints, scores, small)
        backward = tuple(_program(g, own, hints, scores, small) for g in gradient.backward)
        skips = any(r.assumes for p in backward for r in p.regions)
        careful = replace(own, strict=True)
        cautious = tuple(_program(g, careful, hints, scores, small) for g in gradient.backward if skips)
    except (NotDifferentiable, TooLarge) as no:
        raise NotTrained(str(no)) from no
    made = Training(gradient, tuple(result.inputs), tuple(result.outputs), forward, backward, cautious)
    for p in (forward, *backward, *cautious):
        needed = {v.name for n in p.plan.graph.nodes for d in n.type.shape for v in variables(d)}.union(*p.names)
        if not needed <= known:
            raise NotTrained(f"a size ({', '.join(sorted(needed - known))}) is no length of an input by itself")
    return made


def _of_pairs(n: Node, found: Recognised) -> bool:
    """Whether `n` has an axis as long as there are rows and another as long as the stream."""
    dims = list(n.type.shape)
    for extent in (found.extents[found.row], found.extents[found.stream]):
        if extent not in dims:
            return False
        dims.remove(extent)
    return True


def _scores(found: Recognised, hints: Mapping[str, int]) -> int:
    """How many scores there are."""
    dims = product(found.extents[v] for v in (*found.batch, found.row, found.stream))
    if not {v.name for v in variables(dims)} <= set(hints):
        raise NotTrained("the number of scores is not known")
    return integer(dims, dict(hints))


def _program(graph: Graph, options: Options, hints: Mapping[str, int], scores: int, results: Sequence[Node]) -> Program:
    made = compile_graph(graph, options, hints=hints, all_reductions=True)
    regions = tuple(r for r in made.regions if r.status == "streamed")
    try:
        plan = planned(graph, regions, scores, hints, results)
    except TooLarge as large:
        said = "; ".join(dict.fromkeys(r.reason for r in made.regions if r.status != "streamed"))
        raise TooLarge(f"{large}{f' ({said})' if said else ''}") from None
    stored = [s for r in regions for s in r.stored]
    if stored:
        raise TooLarge(f"its gradient reads {stored[0].name}, which {stored[0].reason}")
    for n in plan.single:
        if n.op in ("matmul", "einsum") and integer(product(n.type.shape), dict(hints)) >= scores:
            # Computed by another library, scores differ by roundings from those that the saved maxima and sums are of.
            raise NotFaster("its scores are no larger than what they are made of")
        if unknown(n):
            raise NotTrained(f"its gradient needs {n.op}, which is not run by itself")
    handles = tuple(register(r, [tuple(range(n.type.rank)) for n in r.outputs]) for r in regions)
    return Program(plan, regions, handles, tuple(tuple(size_names(r)) for r in regions))


# ------------------------------------------------------------------------------------------------ the ops

_TRAININGS: dict[int, Training] = {}


def enter(training: Training, orders: Sequence[Order]) -> int:
    """Enters `training` in the table and returns its number, a hash of what it does."""
    programs = (training.forward, *training.backward, *training.cautious)
    graphs = [_text(p.plan) for p in programs]
    handles = [p.handles for p in programs]
    handle = int(fingerprint(graphs, handles, list(map(tuple, orders)), training.gradient.wanted)[:15], 16)
    _TRAININGS[handle] = replace(training, orders=tuple(tuple(o) for o in orders))
    return handle


def _text(plan: Plan) -> list[Any]:
    nodes = [(n.name, n.op, [x.name for x in n.inputs], n.attrs, n.type) for n in plan.graph.nodes]
    return [nodes, [n.name for n in plan.graph.inputs], [n.name for n in plan.graph.outputs]]


def run_trained(handle: int, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    t = _TRAININGS[handle]
    sizes = t.sizes(inputs)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # the types are the graph's own
        found = t.forward.run(inputs, sizes)
    made = _fake_trained(handle, inputs)
    result: list[torch.Tensor] = []
    for m, x in zip(made, found, strict=True):
        own = m.stride() == x.stride() and not _shared(x, [*inputs, *result])
        result.append(x if own else m.copy_(x))
    return result


def _shared(x: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    own = x.untyped_storage().data_ptr()
    return any(own == i.untyped_storage().data_ptr() for i in inputs) or x._is_view()


def run_gradients(handle: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    t = _TRAININGS[handle]
    n = len(t.inputs)
    sizes = t.sizes(tensors[:n])
    kept = tensors[n : n + len(t.gradient.saved)]
    with torch.no_grad(), torch.autocast("cpu", enabled=False):  # the types are the graph's own
        finite = not t.cautious or all(bool(x.isfinite().all()) for x in kept)
        given, found = list(tensors), list[torch.Tensor]()
        for program in t.backward if finite else t.cautious:
            found = program.run(given, sizes)
            given += found
    return [x.contiguous() if not _shared(x, tensors) else x.contiguous().clone() for x in found]


def _shape(node: Node, sizes: Mapping[str, Any]) -> list[Any]:
    return [_number(d, sizes) for d in node.type.shape]


def _number(d: Expr, sizes: Mapping[str, Any]) -> Any:
    if isinstance(d, Const):
        return int(d.value)
    return eval(show(d), {"min": torch.sym_min, "max": torch.sym_max}, dict(sizes))


def _fake_trained(handle: int, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    t = _TRAININGS[handle]
    sizes, made = t.sizes(inputs), list[torch.Tensor]()
    orders = [*t.orders, *(tuple(range(n.type.rank)) for n in t.gradient.saved)]
    for node, order in zip([*t.outputs, *t.gradient.saved], orders, strict=True):
        shape = _shape(node, sizes)
        laid = torch.empty([shape[k] for k in order], dtype=TORCH_DTYPE[node.type.dtype], device=inputs[0].device)
        made.append(laid.permute([order.index(k) for k in range(len(order))]))
    return made


def _fake_gradients(handle: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    t = _TRAININGS[handle]
    return [torch.empty(tensors[k].shape, dtype=tensors[k].dtype, device=tensors[k].device) for k in t.gradient.wanted]


def _setup(ctx: Any, inputs: tuple[int, list[torch.Tensor]], output: list[torch.Tensor]) -> None:
    ctx.handle, given = inputs
    ctx.count = len(given)
    ctx.save_for_backward(*given, *output[len(_TRAININGS[ctx.handle].outputs) :])
    ctx.outputs = [(x.shape, x.dtype) for x in output]


def _backward(ctx: Any, grads: Sequence[torch.Tensor | None]) -> tuple[None, list[torch.Tensor | None]]:
    t = _TRAININGS[ctx.handle]
    saved = list(ctx.saved_tensors)
    cotangents: list[torch.Tensor] = []
    for k in t.gradient.differentiable:
        g, (shape, dtype) = grads[k], ctx.outputs[k]
        cotangents.append(torch.zeros(shape, dtype=dtype) if g is None else g)
    found = GRADIENTS(ctx.handle, [*saved, *cotangents])
    made: list[torch.Tensor | None] = [None] * ctx.count
    for k, g in zip(t.gradient.wanted, found, strict=True):
        made[k] = g
    return None, made


def _twice(ctx: Any, grads: Sequence[torch.Tensor | None]) -> Any:
    raise RuntimeError(
        "AICF does not derive second derivatives yet: call the function uncompiled, or compile it with another backend, where "
        "gradients of gradients are taken (create_graph=True)"
    )


_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY = torch.library.Library("aicf", "FRAGMENT")
_LIBRARY.define("trained(int handle, Tensor[] inputs) -> Tensor[]", tags=_TAGS)
_LIBRARY.define("gradients(int handle, Tensor[] tensors) -> Tensor[]", tags=_TAGS)
_LIBRARY.impl("trained", run_trained, "CPU")
_LIBRARY.impl("gradients", run_gradients, "CPU")
torch.library.register_fake("aicf::trained", _fake_trained, lib=_LIBRARY)
torch.library.register_fake("aicf::gradients", _fake_gradients, lib=_LIBRARY)
torch.library.register_autograd("aicf::trained", _backward, setup_context=_setup, lib=_LIBRARY)
torch.library.register_autograd("aicf::gradients", _twice, lib=_LIBRARY)
TRAINED = torch.ops.aicf.trained.default
GRADIENTS = torch.ops.aicf.gradients.default
