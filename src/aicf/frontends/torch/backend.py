"""The backend of `torch.compile(model, backend="aicf")`.

    Dynamo's graph --retrace--> ATen graph --read--> Semantic graph --driver--> regions
    regions that stream become one call each (rewrite); the rest goes to Inductor, or runs eagerly

What streams nowhere is left exactly as it came. Whatever goes wrong on the way, the graph runs as PyTorch alone would run it,
and the reason is kept.
"""

from __future__ import annotations

import inspect
import logging
import operator
import re
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch._dynamo.exc import RestartAnalysis
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler
from torch._subclasses.fake_tensor import FakeTensor

from aicf.driver import Options, RegionResult, compile_graph
from aicf.errors import NotStreamed
from aicf.report import GraphReport
from aicf.runtime.device import DeviceExecutable
from aicf.scalar import variables

from . import hints, notices
from .breaks import is_cut
from .counting import count_tiles
from .devices import for_device
from .equal_sizes import settle_equal_sizes
from .fakes import on_fakes
from .flex import FLEX
from .gradients import Gradients, attached
from .inductor import cannot_write, through_inductor
from .locations import location_of, op_name
from .marked import marked_sizes, say_marked
from .raised import as_it_is
from .reader import Reading, read
from .region_op import REGION, run_region
from .required import ran
from .retrace import retrace
from .rewrite import misplaced, rewrite
from .subclasses import on_own_tensors, subclasses

hints.install()
notices.set_up()

Rest = Literal["auto", "inductor", "eager", "explain"]
EAGER_BYTES = 1 << 30  # scores that an explanation's call may write
Module = torch.fx.GraphModule
OPTIONS = frozenset({"fuse", "require", "target", "schedule", "threads", "strict", "rest"})
MAX_WIDTHS = 3  # how often sizes are fixed: a refusal names one at a time
MAX_CUTS = 4  # how often regions are cut anew when one cannot be called where it was cut
log = logging.getLogger("aicf")

GRADIENT = "a gradient is asked of it, and gradients are not derived yet: call it under torch.no_grad() or torch.inference_mode()"
DIFFERENTIATED = "a gradient is taken inside of it (torch.func), and gradients are not derived yet"


@dataclass(frozen=True)
class BackendOptions:
    """The options of the backend: those of the driver, `require` ("streamed": raise NotStreamed when something is not), `rest`
    (what runs everything else; "explain" runs the graph unchanged) and `report` (called with a GraphReport for every graph)."""

    driver: Options = field(default_factory=Options)
    require: Literal["streamed"] | None = None
    rest: Rest = "auto"
    report: Callable[[GraphReport], None] | None = None


def backend_options(options: Mapping[str, Any] | None) -> BackendOptions:
    """`options` of torch.compile, checked. Raises ValueError naming the option and what it takes."""
    if options is not None and not isinstance(options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f'options={options!r}: give them by name, as options={{"fuse": "always"}}')
    given = dict(options or {})
    require: Any = given.pop("require", None)
    rest: Any = given.pop("rest", "auto")
    report: Any = given.pop("report", None)
    called: object = report
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        said = ", ".join(map(str, unknown))
        raise ValueError(f"unknown option {said}: the options are {', '.join(sorted(OPTIONS))}")
    if not (require is None or (isinstance(require, str) and require == "streamed")):
        raise ValueError(f'require={require!r}: it is None or "streamed" (raise NotStreamed when an attention does not stream)')
    if not (isinstance(rest, str) and rest in ("auto", "inductor", "eager", "explain")):
        raise ValueError(f'rest={rest!r}: it is "auto", "inductor" or "eager"')
    if not (called is None or callable(called)):
        raise ValueError(f"report={report!r}: it is a function that is called with a GraphReport, or None")
    driver = Options(**given)
    if driver.threads is None:
        driver = replace(driver, threads=torch.get_num_threads())
    return BackendOptions(driver, require, rest, report)


def aicf_backend(
    gm: Module, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compiles one graph of Dynamo's. Raises ValueError for bad options, NotStreamed when `require="streamed"` is not met."""
    try:
        if mode not in (None, "default"):
            raise ValueError(f"mode={mode!r}: the aicf backend has no modes; use options={{...}}")
        chosen = backend_options(options)
    except ValueError as e:
        raise as_it_is(e, inspect.currentframe()) from None
    began = time.perf_counter()
    apart: Callable[..., Any] | None = None
    if subclasses(gm):
        report, apart = _taken_apart(gm, example_inputs, chosen)
        rewritten = None
    else:
        report, rewritten = streamed_module(gm, example_inputs, chosen)
    report.seconds = time.perf_counter() - began
    if chosen.report is not None:
        chosen.report(report)
    _require(chosen, report)
    if apart is not None:
        made = apart
    elif on_fakes(gm):  # memory or shapes are asked for; compiled code would read memory that is not there
        report.rest = "eager"
        made = gm.forward
    elif chosen.rest == "explain":
        made = _counting(gm, rewritten, report)
    else:
        made = _finish(gm, rewritten, example_inputs, chosen, report)
    _require(chosen, report)
    if notices.is_wanted(chosen.require, chosen.report, chosen.rest):
        notices.note(gm, report)
    return made if chosen.require is None else _telling(made, report, is_cut(gm))


def _taken_apart(gm: Module, inputs: Sequence[Any], options: BackendOptions) -> tuple[GraphReport, Callable[..., Any] | None]:
    """What streams in the graph over the tensors that those of `gm` are made of, and that graph compiled (None when nothing
    streams). Never raises."""
    found = [GraphReport()]

    def compile(own: Module, tensors: Sequence[Any]) -> Callable[..., Any]:
        report, rewritten = streamed_module(own, tensors, options)
        found.append(report)
        plain = rewritten is None or options.rest == "explain"
        return own.forward if plain else _finish(own, rewritten, tensors, options, report)

    kinds = ", ".join(subclasses(gm))
    if Gradients(gm, inputs).asked:
        found[-1].problem = f"a gradient is asked of it over tensors of another kind ({kinds}), and gradients are not derived yet"
        return found[-1], None
    try:
        made = on_own_tensors(gm, inputs, compile)
    except Exception as e:
        found[-1].problem = f"PyTorch does not say what it computes on the tensors that a {kinds} is made of ({_brief(e)})"
        _left(found[-1])
        log.info("a graph is left to PyTorch: %s", found[-1].problem, exc_info=log.isEnabledFor(logging.DEBUG))
        return found[-1], None
    report = found[-1]
    return report, made if any(r.status == "streamed" for r in report.regions) and not report.problem else None


def _telling(made: Callable[..., Any], report: GraphReport, cut: bool) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        ran(report, cut)
        return made(*args)

    return run


def _require(options: BackendOptions, report: GraphReport) -> None:
    missing = [r for r in report.regions if r.status != "streamed" and r.kind == "attention"]
    if options.require == "streamed" and (missing or report.problem):
        said = f"the graph could not be taken as a whole: {report.problem}" if report.problem else ""
        error = NotStreamed([(r.source, r.name, r.status, r.reason) for r in missing], said)
        raise as_it_is(error, inspect.currentframe())


def streamed_module(gm: Module, inputs: Sequence[Any], options: BackendOptions) -> tuple[GraphReport, Module | None]:
    """What streams in `gm`, and the rewritten module (None when nothing streams). Leaves `gm` alone; never raises."""
    report = GraphReport()
    try:
        traced, reading = _compiled(gm, inputs, options, report)
        for _ in range(MAX_WIDTHS):
            marked = marked_sizes(traced, inputs)
            if not specialise_widths(reading, report.regions, marked):
                say_marked(report.regions, marked)
                break
            traced, reading = _compiled(gm, inputs, options, report)
        report.regions = in_order(reading, [*report.regions, *attention_ops(reading)])
        gradients = Gradients(gm, inputs)
        refuse_gradients(traced, reading, report.regions, gradients)
        # A reduction of scores is missed by nobody: PyTorch computes it as it would have.
        report.regions = [r for r in report.regions if r.kind == "attention" or r.reason != GRADIENT]
        if not rewrite(traced, reading, report.regions):
            return report, None
        gradients.detach_regions(traced)
        return report, traced
    except Exception as e:
        # The model's result comes first: the graph runs as it is, and the reason is reported.
        report.problem = DIFFERENTIATED if differentiates(gm) else _brief(e)
        _left(report)
        log.debug("a graph is left to PyTorch: %s", report.problem, exc_info=True)  # `notices` warns of it
        return report, None


def differentiates(gm: Module) -> bool:
    """Whether a transform of torch.func takes a gradient in the graph itself; no trace goes through that."""
    return any(getattr(n.target, "__name__", "") == "_autograd_grad" for n in gm.graph.nodes)


def _brief(e: Exception) -> str:
    """The kind of an error and its first line; others explain PyTorch to its authors."""
    return ": ".join([type(e).__name__, *str(e).strip().splitlines()[:1]])


# Ops that are an attention as a whole, of PyTorch's and of others', by what they are called.
_ATTENTION = re.compile(r"attention|attn|multi_head|transformer_encoder_layer", re.IGNORECASE)
_NO_ATTENTION = re.compile(r"bias|mask|backward", re.IGNORECASE)


def attention_ops(reading: Reading) -> list[RegionResult]:
    """The attentions that are one op which is not followed, refused with the reason."""
    found: dict[torch.fx.Node, RegionResult] = {}
    for node, why in reading.boundaries.items():
        fx = reading.anchors[node][0].fx if node in reading.anchors else None
        if fx is not None and fx.target is operator.getitem and isinstance(fx.args[0], torch.fx.Node):
            fx = fx.args[0]
        name = "" if fx is None else op_name(fx)
        if fx is not None and _ATTENTION.search(name) and not _NO_ATTENTION.search(name):
            found.setdefault(fx, RegionResult("refused", why, location_of(fx), node.name))
    return list(found.values())


def in_order(reading: Reading, regions: Sequence[RegionResult]) -> list[RegionResult]:
    """Regions in the order of the program."""
    order = {node.name: k for k, node in enumerate(reading.graph.nodes)}
    return sorted(regions, key=lambda r: order.get(r.name, 0))


def _left(report: GraphReport) -> None:
    """The graph is left to PyTorch: nothing of it streams after all."""
    for r in report.regions:
        if r.status == "streamed":
            r.refuse(f"the graph could not be rewritten ({report.problem})")


def _compiled(gm: Module, inputs: Sequence[Any], options: BackendOptions, report: GraphReport) -> tuple[Module, Reading]:
    traced = retrace(gm, inputs)
    settle_equal_sizes(traced, marked_sizes(traced, inputs))
    reading = read(traced, [is_parameter(x) for x in inputs], strict=options.driver.strict)
    report.graph = reading.graph
    report.boundaries = [(node.name, why) for node, why in reading.boundaries.items()]
    anchors = frozenset(reading.anchors)
    for _ in range(MAX_CUTS):
        driver, hints = for_device(options.driver, inputs), size_hints(reading)
        found = compile_graph(reading.graph, driver, anchors, reading.parameters, hints, _fault)
        report.regions = found.regions
        unfit = misplaced(traced, reading, report.regions)
        if not unfit:
            break
        anchors -= unfit
    return traced, reading


def _fault(e: Exception) -> str:
    log.debug("an attention is left to PyTorch: %s", _brief(e), exc_info=True)  # `notices` warns of it
    return f"AICF itself fails on it, which is an error to report ({_brief(e)})"


def specialise_widths(reading: Reading, regions: Sequence[RegionResult], marked: Collection[str] = ()) -> bool:
    """Fixes sizes that kernels want to know, where something is refused: those of heads and values that a refusal names, and
    those that are only ever the last dimension of a floating point input. The graph is then compiled again for another width.
    `marked`: sizes that must not be fixed. Returns whether there was any."""
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
        int(d)  # leaves a guard with Dynamo: this size and no other
    return bool(widths)


def refuse_gradients(traced: Module, reading: Reading, regions: Sequence[RegionResult], gradients: Gradients) -> None:
    """Refuses streamed regions of whose results a gradient is asked."""
    for r in regions:
        if r.status == "streamed" and any(gradients.is_asked(reading.anchors[node][0].fx) for node in r.outputs):
            r.refuse(GRADIENT)


def is_parameter(x: Any) -> bool:
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


def size_hints(reading: Reading) -> dict[str, int]:
    """The sizes that this call has, as hints for the cost model."""
    found: dict[str, int] = {}
    for name, (node, axis) in reading.sizes.items():
        value: Any = node.meta["val"]
        symbol = value if axis is None else value.shape[axis]
        if isinstance(symbol, torch.SymInt) and symbol.node.has_hint():
            found[name] = int(symbol.node.hint)
    return found


# ------------------------------------------------------------------------------------------------ the rest of the graph


def _finish(gm: Module, rewritten: Module | None, inputs: Sequence[Any], options: BackendOptions, report: GraphReport) -> Any:
    """The module as a callable: through Inductor where that works and is wanted, else eagerly."""
    module = gm if rewritten is None else rewritten
    if rewritten is not None and options.rest == "auto" and only_regions(rewritten):
        report.rest = "nothing"
        return _direct(rewritten, inputs)
    if options.rest == "eager" or (options.rest == "auto" and not has_compiler()):
        report.rest = "eager"
        return _direct(module, inputs)
    report.rest = "inductor"
    try:
        return through_inductor(module, inputs)
    except (CppCompileError, InvalidCxxCompiler) as e:
        if options.rest == "inductor":
            raise
        _note_no_compiler(str(e).splitlines()[0])
        report.rest = "eager"
        return module.forward
    except RestartAnalysis:  # Dynamo traces again, with a float that Inductor cannot take as a constant
        raise
    except Exception as e:
        no_place = cannot_write(e)
        if no_place and options.rest == "auto":  # code is made for a place on disk, and there is none
            warnings.warn(
                f"Inductor finds no place for its files ({no_place}): what AICF does not stream runs eagerly", stacklevel=2
            )
            report.rest = "eager"
            return _direct(module, inputs)
        if options.rest == "auto" and any(n.target is FLEX for n in module.graph.nodes):
            # Inductor's own kernels for it take less than eager does (no views as queries on a CPU, in PyTorch 2.13).
            notices.warn("Inductor fails on a flex_attention that is not streamed: the graph runs op by op, scores in memory")
            report.rest = "eager"
            return module.forward
        if rewritten is None:
            raise
        report.problem = f"Inductor does not take the rewritten graph ({_brief(e)})"
        _left(report)
        return through_inductor(gm, inputs)


def _counting(gm: Module, rewritten: Module | None, report: GraphReport) -> Callable[..., Any]:
    """`gm` as it is, or its regions streamed where that would take a lot of memory; its first call's tensors say how many tiles
    are skipped."""
    report.rest = "eager"
    counted = rewritten is None
    streamed = [r for r in report.regions if r.status == "streamed"]
    heavy = max((r.bytes_unfused or 0 for r in streamed), default=0) > EAGER_BYTES
    here = not any(isinstance(r.executable, DeviceExecutable) for r in streamed)
    module = rewritten if rewritten is not None and heavy and here else gm

    def run(*values: Any) -> Any:
        nonlocal counted
        if not counted:
            counted = True
            assert rewritten is not None
            try:
                count_tiles(rewritten, report.regions, values)
            except Exception as e:  # the call's own mistakes show when it runs
                log.debug("the tiles of a call were not counted: %s", e, exc_info=True)
        return module.forward(*values)

    return run


def only_regions(module: Module) -> bool:
    """Whether nothing is left beside regions but views, for which no code need be made."""
    aten = torch.ops.aten
    views = (
        operator.getitem, REGION, aten.sym_size.int, aten.view.default, aten.permute.default, aten.transpose.int, aten.t.default,
        aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.slice.Tensor, aten.select.int,
        aten.detach.default,
    )  # fmt: skip
    return all(n.op in ("placeholder", "output") or (n.op == "call_function" and n.target in views) for n in module.graph.nodes)


def _direct(module: Module, inputs: Sequence[Any]) -> Callable[..., Any]:
    """`module` run as Python, its regions without PyTorch's dispatcher where all inputs are plain tensors (Dynamo guards their
    types and dispatch keys)."""
    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    if all(type(x) in plain and not x.is_neg() for x in inputs if isinstance(x, torch.Tensor)):
        for node in module.graph.nodes:
            if node.target is REGION:
                attached(node)
                node.target = run_region
        module.recompile()
    return module.forward


_COMPILER: list[bool] = []


def has_compiler() -> bool:
    """Whether Inductor finds a C++ compiler; a note is given once when it does not."""
    if not _COMPILER:
        try:
            get_cpp_compiler()
            _COMPILER.append(True)
        except Exception as e:
            _COMPILER.append(False)
            _note_no_compiler(type(e).__name__)
    return _COMPILER[0]


def _note_no_compiler(why: str) -> None:
    warnings.warn(
        f"no working C++ compiler for Inductor ({why}): what AICF does not stream runs eagerly. Streamed regions need none. "
        'Set options={"rest": "eager"} to silence this.',
        stacklevel=3,
    )
