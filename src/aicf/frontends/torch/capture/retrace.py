"""Dynamo's module traced again, as one flat ATen graph before autograd and decompositions.

    %s = call_method masked_fill(%scores, %mask, -inf)   ->   %masked_fill = aten.masked_fill.Scalar(%scores, %mask, -inf)

Composite ops such as `softmax`, `matmul` and `dropout` stay whole, sizes stay symbolic, and every node keeps the user's line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.node import map_arg
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import _disable_current_modes

from aicf.frontends.torch.fx.locations import add_calling_line, calling_line

from .decompose import TABLE
from .flex_mods import batch_mods
from .runtime_floats import floats_as_tensors
from .torch_state import preserved_torch_state


def retrace(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """`gm` traced again on fakes of `inputs`; placeholders correspond one to one and keep Dynamo's sources.

    Inside a Dynamo backend the fakes share Dynamo's size symbols; elsewhere all sizes are numbers. Raises whatever the trace
    raises.
    """
    context = TracingContext.try_get()
    shapes = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    fakes = [_fake(mode, context, n, x) for n, x in zip(placeholders, inputs, strict=True)]

    cast = _autocast_devices(gm)
    traced = trace(_Inlined(gm).run, mode, fakes, pre_dispatch=not cast)
    if not cast and _untraced(traced):
        # Transforms such as torch.vmap run below the pre-dispatch level, so their ops are missing there.
        traced = trace(_Inlined(gm).run, mode, fakes, pre_dispatch=False)
    if lost := _untraced(traced):
        raise RuntimeError(f"the trace of the graph does not see the op that computes {', '.join(lost)}")
    _check_results(gm, traced)
    add_calling_line(traced.graph, calling_line())
    _constants_as_ops(traced, mode)
    floats_as_tensors(traced, mode)
    batch_mods(traced, mode)
    if cast:
        _disable_autocast(traced, cast)
    for old, new in zip(placeholders, [n for n in traced.graph.nodes if n.op == "placeholder"], strict=True):
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
        new._rename(plain_name(str(old.target)))  # names of nodes are in lower case
    weights = {id(x): name for name, x in (*gm.named_parameters(), *gm.named_buffers())}  # where Inductor is to freeze them
    for node in traced.graph.find_nodes(op="get_attr"):  # and tensors of numbers that stand in the source
        own_name = weights.get(id(getattr(traced, str(node.target), None)))
        node._rename(re.sub("^_tensor_(?=constant)", "", node.name) if own_name is None else plain_name(own_name))
    traced.meta.update(gm.meta)
    sources: Any = getattr(gm, "_param_name_to_source", None)
    if sources is not None:
        # Tensors that the trace found to be constants are buffers of its own, and so are a module's parameters where Inductor is
        # to freeze them; it wants to hear of a source for each.
        held = [*traced.named_buffers(remove_duplicate=False), *traced.named_parameters(remove_duplicate=False)]
        own: Any = {name: ConstantSource(name) for name, _ in held}
        traced._param_name_to_source = own | sources
    traced.recompile()
    return traced


class _Inlined(torch.fx.Interpreter):
    """Runs a graph with the bodies of activation checkpoints inlined: a checkpoint changes only the backward pass, and a region
    that needs a gradient is not streamed. Inference mode is traced as `no_grad`, which gives the same results."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is _enter_inference_mode:
            before = torch.is_grad_enabled()
            _set_gradients(not args[0])
            return before
        if target is _exit_inference_mode:
            return _set_gradients(args[0])
        if target is torch._C._set_grad_enabled:
            return _set_gradients(args[0])
        if target is torch.ops.higher_order.tag_activation_checkpoint and isinstance(args[0], torch.fx.GraphModule):
            return _Inlined(args[0]).run(*args[1:])
        return super().call_function(target, args, kwargs)


def _set_gradients(on: bool) -> None:
    """Turns gradients on or off, here and in the graph that is being traced."""
    torch._C._set_grad_enabled(on)
    tracing_all = get_proxy_mode()
    if tracing_all is not None and not getattr(tracing_all, "pre_dispatch", False):  # a pre-dispatch tracer records it by itself
        tracing_all.tracer.graph.call_function(torch._C._set_grad_enabled, (on,))


def trace(fn: Callable[..., Any], mode: FakeTensorMode, fakes: Sequence[Any], pre_dispatch: bool = True) -> torch.fx.GraphModule:
    """The ATen graph of `fn` on fakes of `mode`, without dead code (such as unused averaged weights of nn.MultiheadAttention).
    Without `pre_dispatch`, casts of autocast are in the graph and composite ops are decomposed."""
    with preserved_torch_state(), tracing(TracingContext(mode)), mode, preserve_node_meta():
        traced = make_fx(lambda *args: fn(*args), decomposition_table=TABLE, pre_dispatch=pre_dispatch)(*fakes)
    traced.graph.eliminate_dead_code()
    return traced


def _constants_as_ops(traced: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """Replaces constant tensors of rank 0 (`scores[..., 0] = -inf` makes one) by ops that hold the value."""
    for node in list(traced.graph.nodes):
        held = getattr(traced, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(held, torch.Tensor) or isinstance(held, FakeTensor) or held.dim() or held.is_complex():
            continue
        with _disable_current_modes():
            number = held.item()
        kind: Any = {"dtype": held.dtype, "device": held.device}
        with traced.graph.inserting_before(node):
            made = traced.graph.call_function(torch.ops.aten.scalar_tensor.default, (number,), kind)
        with mode:
            made.meta = {**node.meta, "val": torch.ops.aten.scalar_tensor.default(number, **kind)}
        node.replace_all_uses_with(made)
        traced.graph.erase_node(node)
        if not any(n.op == "get_attr" and n.target == node.target for n in traced.graph.nodes):
            delattr(traced, str(node.target))


def _autocast_devices(gm: torch.fx.GraphModule) -> list[str]:
    """The kinds of device for which autocast is on anywhere in `gm`, or around it."""
    around = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    entered = [str(n.args[0]) for n in gm.graph.nodes if n.target is _enter_autocast]
    return sorted({*around, *entered})


def _disable_autocast(traced: torch.fx.GraphModule, devices: Sequence[str]) -> None:
    """Turns autocast off around `traced`: its casts are in the graph already and must not be applied twice."""
    nodes = list(traced.graph.nodes)
    first = next(n for n in nodes if n.op != "placeholder")
    for device in devices:
        with traced.graph.inserting_before(first):
            entered = traced.graph.call_function(_enter_autocast, (device, None, False, None))
        with traced.graph.inserting_before(nodes[-1]):
            traced.graph.call_function(_exit_autocast, (entered,))


def _untraced(traced: torch.fx.GraphModule) -> list[str]:
    """Constants of the graph without a value: results of ops that the trace did not see."""
    constants = [n for n in traced.graph.nodes if n.op == "get_attr"]
    return [n.name for n in constants if isinstance(getattr(traced, str(n.target), None), FakeTensor)]


def _check_results(gm: torch.fx.GraphModule, traced: torch.fx.GraphModule) -> None:
    """Raises RuntimeError when the results of the trace have other types than those of Dynamo's graph."""

    def results(module: torch.fx.GraphModule, key: str) -> list[tuple[Any, ...]]:
        found: list[Any] = []
        output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
        map_arg(output.args, lambda n: found.append(n.meta.get(key)))
        return [(x.dtype, x.device, len(x.shape)) if isinstance(x, torch.Tensor) else () for x in found]

    before, after = results(gm, "example_value"), results(traced, "val")
    if any(a and b and a != b for a, b in zip(before, after, strict=False)) or len(before) < len(after):
        raise RuntimeError(f"tracing the graph again gives {after} where Dynamo has {before}")


def _fake(mode: FakeTensorMode, context: TracingContext | None, node: torch.fx.Node, x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    symbolic = context.tensor_to_context.get(x) if context is not None else None
    source = getattr(node, "_dynamo_source", None)
    if symbolic is None or source is None:
        return mode.from_tensor(x, static_shapes=True)
    return mode.from_tensor(x, source=source, symbolic_context=symbolic)


def plain_name(name: str) -> str:
    """Dynamo's name of an input as its author would write it: `L_self_modules_attn_parameters_weight_` -> `attn_weight`."""
    text = re.sub(r"^[lL]_+|_+$", "", name)
    text = re.sub(r"(^|_)(self|modules|parameters|buffers)(?=_|$)", "", text)
    text = re.sub(r"_{2,}", "_", text).strip("_")
    text = re.sub(r"^(kwargs|args_\d+)_(?=\w)", "", text)  # what a call passes on by name, or a module that is itself an argument
    return text if text.isidentifier() else name
