"""One model, eager and through `torch.compile(backend="aicf")`: what became of its attentions, and its error by the contract."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters

from aicf.driver import RegionResult
from aicf.frontends.torch.backend import aicf_backend
from aicf.frontends.torch.capture.retrace import retrace
from aicf.frontends.torch.pipeline import is_parameter
from aicf.report import GraphReport
from aicf.scalar import DType
from tests.contract import assert_contract, errors
from tests.corpus.blocks import Block, attention_blocks
from tests.corpus.double import in_double

DTYPES: dict[torch.dtype, DType] = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
OPTIONS = {"fuse": "always", "rest": "eager"}


@dataclass
class Measured:
    """Of one model: its softmax-attention blocks by fate, reasons of those that don't stream, regions that are no counted block
    (score maps, or mistakes), graphs left alone, the largest errors against float64, and what is `wrong` (empty: nothing)."""

    blocks: int = 0
    streamed: int = 0
    declined: int = 0
    refused: int = 0
    missed: int = 0
    reasons: list[str] = field(default_factory=list[str])
    others: list[str] = field(default_factory=list[str])
    graphs: int = 0
    breaks: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    max_error: float = 0.0
    eager_error: float = 0.0
    wrong: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(model: torch.nn.Module, inputs: Mapping[str, Any], seed: int = 0) -> Measured:
    """Runs `model(**inputs)` in eager, in float64 and compiled, without gradients. Raises what the compiled model raises."""
    m = Measured()
    eager = _run(model, inputs, seed)
    reference, why = _reference(model, inputs, seed)
    seen: list[tuple[list[Block], GraphReport]] = []

    def backend(gm: torch.fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        blocks = _counted(gm, given)
        reports: list[GraphReport] = []
        made = aicf_backend(gm, given, options={**OPTIONS, "report": reports.append})
        seen.append((blocks, reports[0]))
        return made

    before = dict(counters["graph_break"])
    torch._dynamo.reset()
    start = time.perf_counter()
    try:
        got = _run(torch.compile(model, backend=backend, dynamic=False), inputs, seed)
    finally:
        torch._dynamo.reset()
    m.seconds = time.perf_counter() - start
    m.breaks = [why.splitlines()[0] for why, n in counters["graph_break"].items() if n > before.get(why, 0)]
    m.graphs = len(seen)
    for blocks, report in seen:
        _judge(m, blocks, report)
    if reference is None:
        m.problems.append(f"no float64 reference: {why}")
    _compare(m, got, eager, reference or eager)
    return m


def _counted(gm: torch.fx.GraphModule, given: Sequence[Any]) -> list[Block]:
    traced = retrace(gm, given)
    placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
    return attention_blocks(traced, [n for n, x in zip(placeholders, given, strict=True) if is_parameter(x)])


def _judge(m: Measured, blocks: list[Block], report: GraphReport) -> None:
    if report.problem:
        m.problems.append(report.problem)
    left = list(report.regions)
    m.blocks += len(blocks)
    for b in blocks:
        mine = [r for r in report.regions if _belongs(r, b)]
        left = [r for r in left if r not in mine]
        best = min(mine, key=lambda r: ("streamed", "declined", "refused").index(r.status), default=None)
        status = "missed" if best is None else best.status
        setattr(m, status, getattr(m, status) + 1)
        if best is None:
            m.reasons.append(f"missed: {b.softmax} at {b.place} (values: {', '.join(b.values)})")
        elif best.status != "streamed":
            m.reasons.append(f"{best.status}: {best.name} at {best.source}: {best.reason}")
    m.others += [f"{r.status}: {r.name} at {r.source}: {r.reason}" for r in left]


def _belongs(r: RegionResult, b: Block) -> bool:
    names = {r.name, *(n.name for n in r.nodes)}
    return any(_made_by(name, v) for name in names for v in (b.softmax, *b.values))


def _made_by(node: str, fx: str) -> bool:
    """Whether a Semantic node is that of an FX node, or a step towards it (`softmax_1_exp`)."""
    rest = node.removeprefix(fx + "_")
    return node == fx or (rest != node and not rest[:1].isdigit())


# ------------------------------------------------------------------------------------------------ numbers


def _run(model: Any, inputs: Mapping[str, Any], seed: int) -> list[torch.Tensor]:
    with torch.no_grad(), _seeded(seed):
        return [x.detach().clone() for x in float_tensors(model(**inputs))]


def _reference(model: torch.nn.Module, inputs: Mapping[str, Any], seed: int) -> tuple[list[torch.Tensor] | None, str]:
    """The float64 outputs, or None and why there are none."""
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    try:
        twin = copy.deepcopy(model).double()
        with in_double():
            return _run(twin, wide, seed), ""
    except Exception as e:
        return None, f"{type(e).__name__}: {e}".splitlines()[0]


def float_tensors(output: object) -> Iterator[torch.Tensor]:
    """The floating point tensors of a model's output, in its order."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from float_tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from float_tensors(value)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Some models draw random numbers in eval mode too."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _compare(m: Measured, got: list[torch.Tensor], eager: list[torch.Tensor], reference: list[torch.Tensor]) -> None:
    if not len(got) == len(eager) == len(reference):
        m.wrong = f"{len(got)} outputs, eager gives {len(eager)}, float64 {len(reference)}"
        return
    for k, (g, u, r) in enumerate(zip(got, eager, reference, strict=True)):
        m.max_error = max(m.max_error, errors(g, r).max)
        m.eager_error = max(m.eager_error, errors(u, r).max)
        try:
            assert_contract(g, u, r, DTYPES[u.dtype], f"output {k}")
        except AssertionError as e:
            m.wrong = m.wrong or str(e)
        if g.stride() != u.stride():
            m.problems.append(f"output {k}: strides {g.stride()}, eager {u.stride()}")
