"""From one graph of Dynamo's to the rewritten graph, in which each streamed region is one call.

    Dynamo's graph --capture--> ATen graph --read--> Semantic graph --driver--> regions --rewrite--> ATen graph with calls

What cannot be taken leaves the graph as it came, with the reason in the report.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Collection, Sequence
from typing import Any

import torch

from aicf.driver import Options, RegionResult, compile_graph
from aicf.frontends.torch.capture.equal_sizes import guard_equal_sizes
from aicf.frontends.torch.capture.marked_sizes import explain_marked_sizes, marked_sizes
from aicf.frontends.torch.capture.retrace import retrace
from aicf.frontends.torch.diagnostics.failures import error_line, refuse_all
from aicf.frontends.torch.fx.locations import location_of, op_name
from aicf.frontends.torch.read.reader import FOREVER, Reading, read, storage_of, written_by
from aicf.frontends.torch.rewrite.gradients import Gradients
from aicf.frontends.torch.rewrite.replace import rewrite, uncallable_tensors
from aicf.frontends.torch.run.devices import for_device
from aicf.frontends.torch.run.region_op import size_names
from aicf.frontends.torch.run.training import NotFaster, NotTrained, Training, trained
from aicf.report import GraphReport
from aicf.runtime.device import DeviceExecutable
from aicf.scalar import is_half, variables
from aicf.streaming.candidates import pure

from .options import BackendOptions

Module = torch.fx.GraphModule
MAX_WIDTHS = 3  # how often sizes are fixed: a refusal names one at a time
MAX_CUTS = 4  # how often regions are cut anew when one cannot be called where it was cut
log = logging.getLogger("aicf")

ASKED = "a gradient is asked of it"
GRADIENT = "a gradient is asked of it that is not derived yet: call it under torch.no_grad() or torch.inference_mode()"
SDPA = torch.ops.aten.scaled_dot_product_attention.default
SDPA_PRODUCTS = 7  # of PyTorch's own kernels: two forward, five backward
DIFFERENTIATED = "a gradient is taken inside of it (torch.func), and gradients are not derived yet"


def streamed_module(gm: Module, inputs: Sequence[Any], options: BackendOptions) -> tuple[GraphReport, Module | None]:
    """What streams in `gm`, and the rewritten module (None when nothing streams). Leaves `gm` alone; never raises."""
    report = GraphReport()
    try:
        traced, reading = _read_and_compile(gm, inputs, options, report)
        for _ in range(MAX_WIDTHS):
            marked = marked_sizes(traced, inputs)
            if not specialise_widths(reading, report.regions, marked):
                explain_marked_sizes(report.regions, marked)
                break
            traced, reading = _read_and_compile(gm, inputs, options, report)
        report.regions = in_order(reading, [*report.regions, *attention_ops(reading)])
        gradients = Gradients(gm, inputs)
        trainings = with_gradients(traced, reading, report.regions, gradients, options.driver)
        # A reduction that needs a gradient is not reported: PyTorch computes it as without AICF.
        report.regions = [r for r in report.regions if r.kind == "attention" or not r.reason.startswith(ASKED)]
        if not rewrite(traced, reading, report.regions, trainings):
            return report, None
        gradients.detach_regions(traced)
        return report, traced
    except Exception as e:
        # The graph runs unchanged, and the report has the reason.
        report.problem = DIFFERENTIATED if differentiates(gm) else error_line(e)
        refuse_all(report)
        log.debug("a graph is left to PyTorch: %s", report.problem, exc_info=True)  # `notices` warns of it
        return report, None


def differentiates(gm: Module) -> bool:
    """Whether the graph itself takes a gradient by torch.func, which cannot be traced again."""
    return any(getattr(n.target, "__name__", "") == "_autograd_grad" for n in gm.graph.nodes)


# Names of ops, PyTorch's and custom ones, that compute a whole attention.
_ATTENTION = re.compile(r"attention|attn|multi_head|transformer_encoder_layer", re.IGNORECASE)
_NO_ATTENTION = re.compile(r"bias|mask|backward", re.IGNORECASE)


def attention_ops(reading: Reading) -> list[RegionResult]:
    """The attentions that are a single opaque op, as refused regions with the reason."""
    ops: dict[torch.fx.Node, RegionResult] = {}
    for node, why in reading.boundaries.items():
        fx = reading.anchors[node][0].fx if node in reading.anchors else None
        if fx is not None and fx.target is operator.getitem and isinstance(fx.args[0], torch.fx.Node):
            fx = fx.args[0]
        name = "" if fx is None else op_name(fx)
        if fx is not None and _ATTENTION.search(name) and not _NO_ATTENTION.search(name):
            ops.setdefault(fx, RegionResult("refused", why, location_of(fx), node.name))
    return list(ops.values())


def in_order(reading: Reading, regions: Sequence[RegionResult]) -> list[RegionResult]:
    """Regions in the order of the program."""
    order = {node.name: k for k, node in enumerate(reading.graph.nodes)}
    return sorted(regions, key=lambda r: order.get(r.name, 0))


def _read_and_compile(gm: Module, inputs: Sequence[Any], options: BackendOptions, report: GraphReport) -> tuple[Module, Reading]:
    traced = retrace(gm, inputs)
    guard_equal_sizes(traced, marked_sizes(traced, inputs))
    reading = read(traced, [is_parameter(x) for x in inputs], strict=options.driver.strict)
    report.graph = reading.graph
    report.boundaries = [(node.name, why) for node, why in reading.boundaries.items()]
    anchors = frozenset(reading.anchors)
    for _ in range(MAX_CUTS):
        driver, hints = for_device(options.driver, inputs), size_hints(reading)
        found = compile_graph(reading.graph, driver, anchors, reading.parameters, hints, _internal_error)
        report.regions = found.regions
        unfit = uncallable_tensors(traced, reading, report.regions)
        if not unfit:
            break
        anchors -= unfit
    return traced, reading


def _internal_error(e: Exception) -> str:
    log.debug("an attention is left to PyTorch: %s", error_line(e), exc_info=True)  # `notices` warns of it
    return f"AICF itself fails on it, which is an error to report ({error_line(e)})"


def specialise_widths(reading: Reading, regions: Sequence[RegionResult], marked: Collection[str] = ()) -> bool:
    """Where something is refused, fixes the sizes that kernels need as numbers: those that a refusal names, and those that occur
    only as the last dimension of a floating point input. PyTorch compiles the graph again for another value. `marked`: sizes
    that must not be fixed. Returns whether any size was fixed."""
    if not any(r.status == "refused" for r in regions):
        return False
    last: dict[str, Any] = {}
    elsewhere: dict[str, Any] = {}
    for node in reading.positions:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        for axis, d in enumerate(value.shape):
            if isinstance(d, torch.SymInt):
                name = str(d.node.expr)
                (last if axis == value.dim() - 1 >= 2 and value.is_floating_point() else elsewhere)[name] = d
    named = {v.name for r in regions if r.unknown is not None for v in variables(r.unknown)}
    sizes = {name: d for name, d in {**last, **elsewhere}.items() if not {str(s) for s in d.node.expr.free_symbols} & set(marked)}
    widths = [d for name, d in sizes.items() if name in named or name not in elsewhere]
    for d in widths:
        int(d)  # adds a guard to Dynamo's: this size and no other
    return bool(widths)


def with_gradients(
    traced: Module, reading: Reading, regions: Sequence[RegionResult], gradients: Gradients, options: Options
) -> dict[int, Training]:
    """The gradients of streamed regions of whose results one is asked, by id; where none can be derived the region is refused."""
    found: dict[int, Training] = {}
    hints = size_hints(reading)
    created = {a.fx for n in pure(reading.graph.nodes) for a in reading.anchors.get(n, ())}
    for r in regions:
        if r.status != "streamed" or not any(gradients.is_required(reading.anchors[node][0].fx) for node in r.outputs):
            continue
        unsure = not reading.possibly_empty.isdisjoint(size_names(r))
        try:
            if gradients.has_hooks_or_bodies:
                raise NotTrained("the program has checkpoints, hooks or functions with a backward of their own")
            if unsure or isinstance(r.executable, DeviceExecutable):
                raise NotTrained("")
            taken, made = ([reading.anchors[n][0].fx for n in own] for own in (r.inputs, r.outputs))
            if not gradients.all_recorded(traced, taken, [*made, *_writers(r, traced, reading)], created):
                raise NotTrained("a part of it is detached")
            if _changes_later(r, reading):
                raise NotTrained("the program changes one of its tensors in place")
            wanted = [k for k, x in enumerate(taken) if gradients.may_require(traced, x) or _written_before(x, reading)]
            one = trained(r, wanted, options, hints)
            if options.fuse == "auto":
                _faster_than_sdpa(r, one, reading)
            r.backward = one.summary(hints)
            found[id(r)] = one
        except NotFaster as no:
            r.refuse(f"a gradient is asked of it, which PyTorch computes as fast or faster ({no})", "declined")
        except NotTrained as no:
            r.refuse(f"{GRADIENT} ({no})" if str(no) else GRADIENT)
    return found


def _changes_later(r: RegionResult, reading: Reading) -> bool:
    """Whether anything writes into a tensor that the region makes, or, after it, into one that it reads, which is saved."""
    made = [a.fx.meta.get("val") for n in r.outputs for a in reading.anchors[n]]
    return any(storage_of(x) in reading.mutated for x in made) or any(
        a.until != FOREVER for n in r.inputs for a in reading.anchors[n]
    )


def _writers(r: RegionResult, traced: Module, reading: Reading) -> list[torch.fx.Node]:
    """The ops that write into tensors which the region replaces."""
    inside = {storage_of(a.fx.meta.get("val")) for n in r.nodes for a in reading.anchors.get(n, ())} & reading.mutated
    if not inside:
        return []
    return [n for n in traced.graph.nodes if any(storage_of(x.meta.get("val")) in inside for x in written_by(n))]


def _written_before(x: torch.fx.Node, reading: Reading) -> bool:
    """Whether `x`, created without a gradient, may have got one with what was written into it."""
    value = x.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and storage_of(value) in reading.mutated


def _faster_than_sdpa(r: RegionResult, training: Training, reading: Reading) -> None:
    """Raises NotFaster where the source calls an op that PyTorch has kernels of fewer products for. Its kernels for halves take
    several times as long for each, and are none."""
    anchors = [a for n in (*r.nodes, *r.outputs) for a in reading.anchors.get(n, ())]
    halves = any(is_half(n.type.dtype) for n in r.inputs)
    products = sum(training.products)
    if not halves and products > SDPA_PRODUCTS and any(a.fx.target is SDPA for a in anchors):
        raise NotFaster(
            f"its kernels of scaled_dot_product_attention compute {SDPA_PRODUCTS} products of the size of the scores, forward "
            f'and backward, where {products} would be computed here; fuse="always" streams it'
        )


def is_parameter(x: Any) -> bool:
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


def size_hints(reading: Reading) -> dict[str, int]:
    """The sizes of this call, as hints for the cost model."""
    hints: dict[str, int] = {}
    for name, (node, axis) in reading.sizes.items():
        value: Any = node.meta["val"]
        symbol = value if axis is None else value.shape[axis]
        if isinstance(symbol, torch.SymInt) and symbol.node.has_hint():
            hints[name] = int(symbol.node.hint)
    return hints
