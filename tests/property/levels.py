"""A program at every level of the compiler, compared with eager PyTorch and with float64.

    semantic     the graph as read, run by the Semantic IR's evaluator
    stream       the derived one-pass program, run with NumPy in float64, read in two pieces; roundings that are part of the
                 meaning (of what a mask of halves is added to) are kept
    kernel       Kernel IR in the interpreter
    cpu          compiled code, called from the rewritten graph as the torch backend calls it

Every level but the first runs inside the rewritten graph, in the place of the call of a region, so that what is compared are the
program's own results. NaN and infinities must be where eager or float64 has them (a half that is rounded may overflow, vanish, or
fall on the other side of a comparison), indices that are out of range raise, and the error is held against the numeric contract.
On results of a few elements eager is at times exact by luck: before a program is called wrong its errors are taken over more
data. Where a rare element decides (two large scores nearly equal, a small number that is squared and divided by), the largest
error of one evaluation says little on any amount of data: at last every error is taken in units of eager's own error in that
element, over evaluations that round and add up differently.
"""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from aicf.driver import Options, RegionResult, compile_graph
from aicf.frontends.torch.capture.retrace import trace
from aicf.frontends.torch.read.reader import Reading, read
from aicf.frontends.torch.rewrite.replace import rewrite
from aicf.frontends.torch.run.region_op import REGION, size_names
from aicf.kernel import allocate, run_kernel
from aicf.mcir.passes.streaming_lowering import detected_meaning
from aicf.scalar import DType, Expr, Load, evaluate, integer
from aicf.semantic import Graph, Node
from aicf.semantic.evaluate import run_graph
from aicf.streaming import evaluate as stream_programs
from aicf.streaming.recognise import Recognised

from .grammar import DTYPES, Program

LEVELS = ("semantic", "stream", "kernel", "cpu")
MORE = (12, 60)  # draws of data over which errors are taken when those of the first break the contract: few, then more
EVALUATIONS = 32  # of eager, rounded otherwise each time
LARGEST = 1_000_000  # elements of the largest array that the stream level may make
TILES = 16  # tiles in all that the kernel level may run: the interpreter takes a millisecond a statement
_NAMES: dict[torch.dtype, DType] = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


@dataclass
class Outcome:
    """What became of a program: per level, that it ran; regions by status; reasons of refusals; and what failed (level,
    message)."""

    ran: list[str] = field(default_factory=list[str])
    statuses: list[str] = field(default_factory=list[str])
    reasons: list[str] = field(default_factory=list[str])
    failed: tuple[str, str] | None = None


@dataclass
class Traced:
    """A program traced, read and compiled: `graph` as traced (`copied` leads to its nodes), `rewritten` calls the regions."""

    graph: torch.fx.GraphModule
    copied: Mapping[torch.fx.Node, torch.fx.Node]
    reading: Reading
    regions: list[RegionResult]
    rewritten: torch.fx.GraphModule | None
    by_handle: dict[int, RegionResult]
    holds: Callable[[Sequence[torch.Tensor]], bool]


class Wrong(Exception):
    """A level differs from eager; the message says how."""


def check(p: Program, levels: Sequence[str] = LEVELS, data: int = 0, traced: Traced | None = None) -> Outcome:
    """Runs `p` at all of `levels` and compares."""
    out = Outcome()
    level = "trace"
    try:
        with quiet():
            traced = traced or prepared(p)
            for r in traced.regions:
                out.statuses.append(r.status)
                if r.status != "streamed":
                    out.reasons.append(r.reason)
            args = p.arguments(data)
            eager, exact = eager_results(p, args), exact_results(p, args)
            wide = in_range(p, args, eager)
            for level in levels:
                run = _runner(p, traced, level)
                if run is None:
                    continue
                got = run(args)
                if got is None:
                    continue
                out.ran.append(level)
                like = compared(level, got, eager, wide, exact)
                judge(p, level, run, got, like, exact, level in ("semantic", "kernel"))
                if level == "cpu":
                    _wrong_indices(p, run, args)
    except Wrong as e:
        out.failed = (level, str(e))
    except Exception as e:
        where = traceback.extract_tb(e.__traceback__)
        inside = next((f for f in reversed(where) if "/aicf/" in f.filename), where[-1])
        out.failed = (level, f"{type(e).__name__}: {e} (at {inside.filename.rpartition('/')[2]}:{inside.lineno})")
    return out


def _wrong_indices(p: Program, run: Run, args: Sequence[torch.Tensor]) -> None:
    """An index that is out of range raises in compiled code as in eager, saying which it is, and the next call is right again."""
    for k, x in enumerate(p.inputs):
        for wrong in x.wrong if args[k].numel() else ():
            changed = list(args)
            changed[k] = args[k].clone()
            changed[k].view(-1)[(p.seed + wrong) % args[k].numel()] = wrong
            try:
                eager_results(p, changed)
            except (IndexError, RuntimeError):
                pass
            else:
                raise Wrong(f"eager takes {wrong} for an index in {x.name}")
            try:
                run(changed)
            except (IndexError, RuntimeError) as e:
                if f"index {wrong} " not in str(e) and "out of" not in str(e):
                    raise Wrong(f"the index {wrong} in {x.name} is called '{e}'") from None
            else:
                if _counts(p, args, k):
                    raise Wrong(f"eager raises for the index {wrong} in {x.name}, compiled code does not")


def _counts(p: Program, args: Sequence[torch.Tensor], k: int) -> bool:
    """Whether results depend on index tensor `k`: under a mask that hides all scores no compiler looks anything up."""
    other = [torch.zeros_like(x) if n == k else x for n, x in enumerate(args)]
    pairs = zip(eager_results(p, args), eager_results(p, other), strict=True)
    same = (torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
    return not args[k].any() or not all(same)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with torch.no_grad(), np.errstate(all="ignore"), sdpa_kernel(SDPBackend.MATH):
        yield


def _flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def eager_results(p: Program, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.clone() for x in _flat(p.function()(*args))]


class Rounded(TorchDispatchMode):
    """float32 with as many digits as halves have, float64 with those of float32: halves and float32 that neither overflow nor
    vanish."""

    def __init__(self, digits: int) -> None:
        super().__init__()
        self.digits = digits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return tree_map_only(torch.Tensor, self._rounded, func(*args, **(kwargs or {})))

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in (torch.float32, torch.float64) or x._is_view():
            return x
        digits, power = torch.frexp(x)
        steps = 2.0 ** (self.digits if x.dtype == torch.float32 else 24)
        return torch.where(x.isfinite(), torch.ldexp((digits * steps).round() / steps, power), x)


class Otherwise(TorchDispatchMode):
    """The same computation rounded otherwise: products of matrices add up in another order (the contracted axis is permuted), and
    results of arithmetic are off by up to half a unit in the last place more (Parker, Monte Carlo Arithmetic, 1997)."""

    ADDED_UP = ("mm", "bmm", "addmm", "baddbmm")
    ARITHMETIC = (
        *ADDED_UP, "add", "sub", "rsub", "mul", "div", "pow", "exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "sigmoid",
        "sqrt", "rsqrt", "reciprocal", "sum", "mean", "logsumexp", "_softmax", "_log_softmax", "softplus",
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.ADDED_UP:
            *first, a, b = args
            order = torch.randperm(a.shape[-1], generator=self.random)
            args = (*first, a.index_select(-1, order), b.index_select(-2, order))
        out = func(*args, **(kwargs or {}))
        if name not in self.ARITHMETIC or not isinstance(out, torch.Tensor) or out.dtype not in _ROUNDOFF:
            return out
        by = (2 * torch.rand(out.shape, generator=self.random, dtype=torch.float64) - 1) * _ROUNDOFF[out.dtype]
        return (out.double() * (1 + by)).to(out.dtype)


def in_range(p: Program, args: Sequence[torch.Tensor], eager: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a program in halves without the overflow and underflow of halves: regions are computed in fp32 (README).
    Each op is rounded as the source rounds it: where scores are large, the roundings decide what comes out."""
    if p.dtype == "f32" or all(bool(torch.isfinite(x).all()) for x in eager):
        return eager
    wide = [x.to(torch.float32) if x.dtype == DTYPES[p.dtype] else x for x in args]
    with Rounded(11 if p.dtype == "f16" else 8):
        results = _flat(p.function(wide=True)(*wide))
    return [torch.where(torch.isfinite(e) | ~torch.isfinite(x), e, x.to(e.dtype)) for e, x in zip(eager, results, strict=True)]


def where_finite(got: list[torch.Tensor], eager: list[torch.Tensor], wide: list[torch.Tensor]) -> list[torch.Tensor]:
    """`eager`, but for what is finite in `got` and not there, and for results that only at the end leave the range of halves:
    those are compared with `wide`."""
    if len(got) != len(eager) or any(g.shape != e.shape for g, e in zip(got, eager, strict=True)):
        return eager
    return [torch.where(torch.isfinite(g) | (g == w), w, e) for g, e, w in zip(got, eager, wide, strict=True)]


def compared(
    level: str, got: list[torch.Tensor], eager: list[torch.Tensor], wide: list[torch.Tensor], exact: list[torch.Tensor]
) -> list[torch.Tensor]:
    """What a level's results are compared with. The stream level computes in float64: where eager is NaN or infinite and float64
    is not, or the other way round, eager's type overflowed or vanished, and nothing is compared."""
    if level == "semantic":
        return eager
    if level == "stream" and _same_specials(got, exact):
        return [
            torch.where(_kind(e) == _kind(x.to(e.dtype)), e, g.to(e.dtype)) for g, e, x in zip(got, eager, exact, strict=True)
        ]
    return where_finite(got, eager, wide)


def exact_results(p: Program, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    doubles = [x.double() if x.is_floating_point() else x for x in args]
    return _flat(p.function(double=True)(*doubles))


# ------------------------------------------------------------------------------------------------ compiling


def prepare(p: Program) -> Traced:
    """`p` traced, read, compiled and rewritten, as the torch backend does it."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    mode.cache_enabled = False  # an op rarely meets the same sizes twice in a small program
    args = p.arguments()
    fakes = [_fake(mode, p, k, x) for k, x in enumerate(args)]
    graph = trace(p.function(), mode, fakes)
    reading = read(graph, strict=p.strict)
    options = Options(fuse="always", threads=p.threads, schedule=p.schedule or None, strict=p.strict)
    regions = compile_graph(reading.graph, options, frozenset(reading.anchors), reading.parameters, {}).regions
    # Rewriting changes the graph that was read: the semantic level runs a copy from before.
    plain, copied = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    plain.output(plain.graph_copy(graph.graph, copied))
    by_handle = rewrite(graph, reading, regions)
    places = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    shapes = mode.shape_env
    assert shapes is not None
    holds = lambda given: shapes.evaluate_guards_for_args(places, given)  # noqa: E731
    return Traced(torch.fx.GraphModule(graph, plain), copied, reading, regions, graph if by_handle else None, by_handle, holds)


_LAST: list[tuple[Any, Traced]] = []  # traces of the last program's text, for sizes of several kinds


def prepared(p: Program) -> Traced:
    """`prepare`, or a trace of the last program when it was of the same text and one that holds for these sizes too."""
    key = (p.text, p.dtype, p.schedule, p.threads, p.strict, [x.dims for x in p.inputs], {} if p.symbolic else p.sizes)
    if _LAST and _LAST[0][0] != key:
        _LAST.clear()
    for _, traced in _LAST:
        if not p.symbolic or traced.holds(p.arguments()):
            return traced
    _LAST.append((key, prepare(p)))
    return _LAST[-1][1]


def _fake(mode: FakeTensorMode, p: Program, k: int, x: torch.Tensor) -> torch.Tensor:
    if not p.symbolic:
        return mode.from_tensor(x, static_shapes=True)
    grows = [any(w in ("b", "n", "m", "long") for w in dim.replace("*", " ").replace("+", " ").replace("-", " ").split())
             for dim in p.inputs[k].dims]  # fmt: skip
    sizes = [DimDynamic.DYNAMIC if g else DimDynamic.STATIC for g in grows]
    return mode.from_tensor(x, source=ConstantSource(f"x{k}"), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


# ------------------------------------------------------------------------------------------------ running


Run = Callable[[Sequence[torch.Tensor]], "list[torch.Tensor] | None"]


def _runner(p: Program, t: Traced, level: str) -> Run | None:
    if level == "semantic":
        return lambda args: _semantic(p, t, args)
    if t.rewritten is None:
        return None
    if level == "cpu":
        return lambda args: _flat(t.rewritten.forward(*args)) if t.rewritten is not None else None
    run_region = {"stream": _stream_region, "kernel": _kernel_region}[level]
    if (level == "stream" and _elements(p) > LARGEST) or (level == "kernel" and _tiles(p, t) > TILES):
        return None
    return lambda args: _flat(_WithRegions(t, run_region).run(*args))


def _elements(p: Program) -> int:
    z = p.sizes
    return z["b"] * z["h"] * z["n"] * z["m"] * z["dv"]


def _tiles(p: Program, t: Traced) -> int:
    z = p.sizes
    schedule = next((r.schedule for r in t.by_handle.values() if r.schedule is not None), None)
    m, n = (48, 64) if schedule is None else (schedule.tile_m, schedule.tile_n)
    return z["b"] * z["h"] * -(-z["n"] // m) * -(-z["m"] // n)


class _Recorder(torch.fx.Interpreter):
    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.values: dict[torch.fx.Node, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        self.values[n] = result.clone() if isinstance(result, torch.Tensor) else result
        return result


def _semantic(p: Program, t: Traced, args: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    recorder = _Recorder(t.graph)
    eager = _flat(recorder.run(*args))
    graph = t.reading.graph
    if len(graph.outputs) != len(eager) or any(
        n.type.dtype != _NAMES[x.dtype] for n, x in zip(graph.outputs, eager, strict=True)
    ):
        return None

    def value(node: Node) -> Any:
        return recorder.values[t.copied[t.reading.anchors[node][0].fx]]

    # Results of ops that were not understood are eager's, with eager's roundings: errors that cancel in eager wouldn't.
    between = [n for n in graph.inputs if t.reading.anchors[n][0].fx.op != "placeholder"]
    if any(value(n).is_floating_point() for n in between):
        return None
    sizes: dict[str, int] = {}
    for name, (fx, axis) in t.reading.sizes.items():
        got = recorder.values[t.copied[fx]]
        sizes[name] = int(got if axis is None else got.shape[axis])
    needed = Graph(graph.nodes, graph.inputs, graph.outputs)
    results = run_graph(needed, [_numpy(value(n)) for n in graph.inputs], sizes)
    return [torch.from_numpy(np.array(r)).to(x.dtype) for r, x in zip(results, eager, strict=True)]


def _same_specials(got: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> bool:
    """Whether a float64 result, rounded to the type of the output, is NaN and infinite where float64 rounded to it is: where fp32
    underflows or overflows (0 / 0, inf - inf) only fp32 is NaN."""
    tests = (torch.isnan, torch.isposinf, torch.isneginf)
    return len(got) == len(exact) and all(
        torch.equal(t(g), t(x.to(g.dtype))) for g, x in zip(got, exact, strict=True) for t in tests
    )


def _numpy(x: Any) -> Any:
    x = x.detach()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


RegionRunner = Callable[[RegionResult, Sequence[torch.Tensor], Mapping[str, int]], list[torch.Tensor]]


class _WithRegions(torch.fx.Interpreter):
    """The rewritten graph, with regions run by `run_region`."""

    def __init__(self, t: Traced, run_region: RegionRunner) -> None:
        assert t.rewritten is not None
        super().__init__(t.rewritten)
        self.regions, self.run_region = t.by_handle, run_region

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not REGION:
            return super().call_function(target, args, kwargs)
        handle, inputs, sizes = args
        result = self.regions[handle]
        return self.run_region(result, inputs, dict(zip(size_names(result), map(int, sizes), strict=True)))


def _torch_dtype(node: Node) -> torch.dtype:
    return {**DTYPES, "f64": torch.float64, "i64": torch.int64, "bool": torch.bool}[node.type.dtype]


def _kernel_region(result: RegionResult, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> list[torch.Tensor]:
    executable = result.executable
    assert executable is not None
    kernel, bound = executable.kernel, executable.sizes(sizes)
    arrays = {
        name: np.ascontiguousarray(_numpy(x)).reshape(x.shape) for name, x in zip(executable.input_names, inputs, strict=True)
    }
    arrays |= allocate(kernel, bound, ("out",))
    trace_ = run_kernel(kernel, arrays, bound)
    for name, (least, most) in trace_.stores.items():
        if (least, most) != (1, 1) and arrays[name].size:
            raise Wrong(f"elements of {name} are stored {least} to {most} times")
    return [
        torch.from_numpy(arrays[name]).to(_torch_dtype(node))
        for name, node in zip(executable.output_names, result.outputs, strict=True)
    ]  # fmt: skip


def _stream_region(result: RegionResult, inputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> list[torch.Tensor]:
    assert result.region is not None and result.executable is not None
    found, program = detected_meaning(result.region), result.program
    assert program is not None
    values = dict(zip(result.inputs, inputs, strict=True))
    tensors = {
        name: _numpy(x.double() if x.is_floating_point() else x) for name, x in ((k, values[n]) for k, n in found.loads.items())
    }
    env = stream_env(found, tensors, sizes)
    n = len(env[found.stream.name])
    done = stream_programs.run(program, env, [n // 3] if n > 1 else [], tensors, halves=True, read=_reader(tensors))
    axes = [*found.batch, found.row, *found.columns]
    extents = [integer(found.extents[v], sizes) for v in axes]
    positions = {v.name: env[v.name] for v in axes} | dict(sizes)
    results: list[torch.Tensor] = []
    for k, e in enumerate(found.outputs):
        own = [n if v in found.batch or v is found.row or v in e.columns else 1 for v, n in zip(axes, extents, strict=True)]
        out = np.full([integer(d, sizes) for d in e.node.type.shape], np.nan)
        at = tuple(np.broadcast_to(evaluate(x, positions), own) for x in e.at)
        out[at] = np.broadcast_to(done[f"out{k}"], own)
        results.append(torch.from_numpy(out).to(_torch_dtype(e.node)))
    return results


def _reader(tensors: Mapping[str, Any]) -> Callable[[Load, tuple[Any, ...]], Any]:
    def read_element(load: Load, where: tuple[Any, ...]) -> Any:
        # A selection guards what lies outside of the tensor.
        array = tensors[load.tensor]
        return array[tuple(np.clip(w, 0, n - 1) for w, n in zip(where, array.shape, strict=True))]

    return read_element


def stream_env(found: Recognised, tensors: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Positions and scores of a region as the stream program's environment: axes are the stream, batch, row, columns."""
    order = [found.stream, *found.batch, found.row, *found.columns]
    rank = len(order)
    env: dict[str, Any] = {name: np.int64(n) for name, n in sizes.items()}
    for axis, v in enumerate(order):
        # The axes of a row stand behind the stream's; only what depends on the stream has that one.
        shape = [-1, *[1] * (rank - 1)] if axis == 0 else [-1 if k == axis else 1 for k in range(1, rank)]
        env[v.name] = np.arange(integer(found.extents[v], sizes)).reshape(shape)
    read_element = _reader(tensors)
    wide = {k: np.asarray(x)[..., None] if np.ndim(x) else x for k, x in env.items()}
    batch = len(found.batch)
    scores: dict[str, Any] = {}
    for a in found.scores:
        own = {**wide, a.over.name: np.arange(integer(a.width, sizes)).reshape([1] * rank + [-1])}
        width = integer(a.width, sizes)

        def operand(e: Expr, axis: int, own: Mapping[str, Any] = own, width: int = width) -> Any:
            value = np.asarray(evaluate(e, own, tensors, double=True, read=read_element))
            full = np.broadcast_to(value, np.broadcast_shapes(value.shape, (1,) * rank + (width,)))
            kept = [*range(1, 1 + batch), axis, rank]
            rest = [d for d in range(rank + 1) if d not in kept]
            return full.transpose([*rest, *kept]).reshape([full.shape[d] for d in kept])

        product = operand(a.row, 1 + batch) @ operand(a.key, 0).swapaxes(-1, -2)
        scores[a.name] = np.moveaxis(product, -1, 0).reshape([product.shape[-1], *product.shape[:-1], *[1] * len(found.columns)])
    # Scores alone have the stream in front of everything else.
    return {**env, **scores}


# ------------------------------------------------------------------------------------------------ judging

_ROUNDOFF: dict[torch.dtype, float] = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
_UNDERFLOW: dict[torch.dtype, float] = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134, torch.float32: 2.0**-150}


Sample = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]  # got, eager, float64


def _more(p: Program, level: str, run: Run, first: int, last: int) -> Iterator[Sample]:
    for data in range(first, last):
        args = p.arguments(data)
        got = run(args)
        if got is not None:
            eager, exact = eager_results(p, args), exact_results(p, args)
            yield got, compared(level, got, eager, in_range(p, args, eager), exact), exact


def judge(
    p: Program, level: str, run: Run, got: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor], unfused: bool
) -> None:
    """Raises Wrong when the contract is broken. An `unfused` result is computed with another library's functions (NumPy's
    sums and exponentials): both it and eager may be off by a rounding more."""
    broken = _broken(got, eager, exact, unfused)
    if broken is None:
        return
    samples = [(got, eager, exact)]
    still = broken
    for count in MORE:
        draws = list(_more(p, level, run, len(samples), 1 + count))
        for g, e, x in draws:
            _broken(g, e, x, unfused)
        samples += draws
        still = _broken_together(samples, unfused)
        if still is None:
            return
    draws = samples[: 1 + MORE[0]]
    others: list[Sample] = []
    for seed, (data, (g, _, x)) in itertools.product(range(EVALUATIONS), enumerate(draws)):
        with Otherwise(seed):
            others.append((g, eager_results(p, p.arguments(data)), x))
    in_units = _broken_in_units([*draws, *others], 1 + EVALUATIONS)
    if in_units is None:
        return
    still = f"{still}; {in_units}"
    raise Wrong(f"{still}; at first {broken}")


def _broken(got: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor], unfused: bool) -> str | None:
    if len(got) != len(eager):
        raise Wrong(f"{len(got)} results, eager has {len(eager)}")
    for k, (g, e) in enumerate(zip(got, eager, strict=True)):
        if g.shape != e.shape or g.dtype != e.dtype:
            raise Wrong(f"result {k} is {g.dtype}{list(g.shape)}, eager's {e.dtype}{list(e.shape)}")
        for name, test in (("NaN", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
            as_exact = _kind(g) == _kind(exact[k].to(g.dtype))
            differs = (test(g) != test(e)) & ~as_exact
            if bool(differs.any()):
                at = tuple(differs.nonzero()[0].tolist())
                raise Wrong(
                    f"result {k}: {int(differs.sum())} of {g.numel()} elements differ in being {name}; the first is {at}: "
                    f"got {float(g[at])}, eager {float(e[at])}, float64 {float(exact[k][at])}"
                )
    flat = [(g.double().flatten(), e.double().flatten(), x.double().flatten()) for g, e, x in zip(got, eager, exact, strict=True)]
    return _broken_flat(flat, [x.dtype for x in got], unfused)


def _kind(x: torch.Tensor) -> torch.Tensor:
    """0 where a number is finite, else one number per kind."""
    return x.isnan() + 2 * x.isposinf() + 3 * x.isneginf()


def _broken_together(samples: Sequence[Sample], unfused: bool) -> str | None:
    return _broken_flat(_pooled(samples), [x.dtype for x in samples[0][0]], unfused)


def _pooled(samples: Sequence[Sample]) -> list[tuple[torch.Tensor, ...]]:
    """Per result (got, eager, float64), flat over all samples."""
    results = range(len(samples[0][0]))
    return [tuple(torch.cat([s[side][k].double().flatten() for s in samples]) for side in range(3)) for k in results]


def _broken_in_units(samples: Sequence[Sample], evaluations: int) -> str | None:
    """The contract in units of eager's error in each element: its root mean square over `evaluations` of the same data, which lie
    one behind the other, plus one rounding."""
    for k, (results, like) in enumerate(zip(_pooled(samples), samples[0][0], strict=True)):
        if like.dtype not in _ROUNDOFF:
            continue
        g, e, x = (r.view(evaluations, -1) for r in results)
        gap = torch.where(e.isfinite() & x.isfinite(), e - x, 0.0)
        unit = gap.square().mean(0).sqrt() + _ROUNDOFF[like.dtype] * x[0].abs() + _UNDERFLOW[like.dtype]
        both = g[0].isfinite() & x[0].isfinite() & (unit > 0)
        mine, theirs = ((g[0] - x[0]).abs() / unit)[both], (gap.abs() / unit)[:, both]
        for name, of in (("max", torch.max), ("mean", torch.mean)):
            if mine.numel() and float(of(mine)) > 2 * float(of(theirs)) + 1:
                return f"result {k}: in units of eager's error {name} {float(of(mine)):.3g}, eager {float(of(theirs)):.3g}"
    return None


def _broken_flat(results: Sequence[Any], dtypes: Sequence[torch.dtype], unfused: bool) -> str | None:
    """The contract of `tests.contract` over flat tensors (got, eager, float64); None when it is kept."""
    for k, ((g, e, x), dtype) in enumerate(zip(results, dtypes, strict=True)):
        if dtype not in _ROUNDOFF:
            if not torch.equal(g, e):
                return f"result {k} differs from eager"
            continue
        both = torch.isfinite(g) & torch.isfinite(x) & torch.isfinite(e)
        if not bool(both.any()):
            continue
        mine, theirs, size = (g - x)[both].abs(), (e - x)[both].abs(), x[both].abs()
        for name, of in (("max", torch.max), ("mean", torch.mean)):
            rounding = _ROUNDOFF[dtype] * float(of(size)) + _UNDERFLOW[dtype]
            allowed = 2 * float(of(theirs)) + (2 if unfused else 1) * rounding
            if float(of(mine)) > allowed:
                at = int(mine.argmax())
                return (
                    f"result {k}: {name} error {float(of(mine)):.3g} is over {allowed:.3g} = 2 x {float(of(theirs)):.3g} "
                    f"+ rounding; "
                    f"worst {float(g[both][at]):.6g}, eager {float(e[both][at]):.6g}, float64 {float(x[both][at]):.6g}"
                )
    return None


def same_kind(a: tuple[str, str] | None, b: tuple[str, str] | None) -> bool:
    """Whether two failures are of one kind: for reducing."""
    if a is None or b is None:
        return False
    word = lambda t: t[1].split(";")[0].split("(")[0].rstrip("0123456789. ")[:18]  # noqa: E731
    return a[0] == b[0] and (("error" in a[1]) == ("error" in b[1])) and word(a)[:8] == word(b)[:8]


__all__ = [
    "LEVELS", "Outcome", "Rounded", "Traced", "Wrong", "check", "compared", "eager_results", "exact_results", "in_range", "judge",
    "prepare", "quiet", "same_kind",
]  # fmt: skip
