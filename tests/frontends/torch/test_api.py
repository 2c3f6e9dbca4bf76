"""aicf.compile and aicf.explain, as a person calls them."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

import aicf


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain attention."""
    return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v


def talking_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhij,hg->bgij", q @ k.transpose(-2, -1), torch.eye(3) + 0.1)
    return s.softmax(-1) @ v


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def qkv() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 3, 64, 16) for _ in range(3))


def test_import_is_light() -> None:
    code = "import sys, aicf; print(sorted({'torch', 'numpy', 'llvmlite'} & set(sys.modules)), dir(aicf)[-2:])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("[]"), done.stdout + done.stderr
    with pytest.raises(AttributeError, match="no attribute 'compiel'; it has NotStreamed, Report, __version__, compile, explain"):
        aicf.compiel  # type: ignore[attr-defined]  # noqa: B018


def test_a_function_stays_a_function(qkv: tuple[Tensor, ...]) -> None:
    fast = aicf.compile(attention, fuse="always", require="streamed")
    assert fast.__doc__ == "Plain attention."
    torch.testing.assert_close(fast(*qkv), attention(*qkv), rtol=1e-5, atol=1e-5)


def test_a_module_stays_a_module(qkv: tuple[Tensor, ...]) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(16, 16)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(self.project(q), k, v)

    model = Model()
    fast = aicf.compile(model, fuse="always", require="streamed")
    assert isinstance(fast, torch.nn.Module)
    assert len(list(fast.parameters())) == 2
    torch.testing.assert_close(fast(*qkv), model(*qkv), rtol=1e-5, atol=1e-5)


def test_require_streamed_raises_with_the_reason(qkv: tuple[Tensor, ...]) -> None:
    with pytest.raises(aicf.NotStreamed, match=r"1 attention.*\n.*test_api\.py:\d+ in talking_heads.*refused: ") as raised:
        aicf.compile(talking_heads, require="streamed")(*qkv)
    assert len(raised.value.regions) == 1


def test_the_rest_may_be_left_to_pytorch(qkv: tuple[Tensor, ...]) -> None:
    def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v) + (q @ k.mT).softmax(-2) @ v

    fast = aicf.compile(over_queries, fuse="always", rest="eager")
    torch.testing.assert_close(fast(*qkv), over_queries(*qkv), rtol=1e-5, atol=1e-5)


def test_schedule_and_threads_are_taken(qkv: tuple[Tensor, ...]) -> None:
    fast = aicf.compile(attention, fuse="always", schedule={"tile_n": 32}, threads=1)
    torch.testing.assert_close(fast(*qkv), attention(*qkv), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: aicf.compile(3), TypeError, "takes a function or a torch.nn.Module, got int"),
        (lambda: aicf.explain(None), TypeError, "takes a function or a torch.nn.Module, got NoneType"),
        (lambda: aicf.compile(attention, fuse="never"), ValueError, "fuse='never'"),  # type: ignore[arg-type]
        (lambda: aicf.compile(attention, require=True), ValueError, "require=True"),  # type: ignore[arg-type]
        (lambda: aicf.compile(attention, threads=0), ValueError, "threads=0"),
        (lambda: aicf.compile(attention, rest="none"), ValueError, "rest='none'"),  # type: ignore[arg-type]
    ],
)
def test_errors_are_for_people(call: Any, error: type[Exception], part: str) -> None:
    with pytest.raises(error, match=part):
        call()


def test_explain(qkv: tuple[Tensor, ...]) -> None:
    big = tuple(torch.randn(1, 4, 1024, 16) for _ in range(3))
    report = aicf.explain(attention, *big)
    assert isinstance(report, aicf.Report)
    (region,) = report.regions
    assert region.status == "streamed"
    assert region.source is not None and region.source.file == __file__ and region.source.function == "attention"
    assert region.tiles is not None and region.tiles["full"] > 0
    assert region.bytes_unfused is not None and region.bytes_unfused >= 4 * 1024 * 1024 * 4
    text = str(report)
    for part in ("1 attention in 1 graph: 1 streamed", "test_api.py", "tiles", "MiB of scores before", "tile_m"):
        assert part in text
    for stage in ("semantic", "mcir", "kernel", "llvm", "asm"):
        assert report.dump(stage)
    with pytest.raises(ValueError, match="no stage 'brain'"):
        report.dump("brain")


def test_explain_of_a_long_sequence_writes_no_scores() -> None:
    """48k tokens: eagerly the scores alone would be 9 GiB."""
    q, k, v = (torch.randn(1, 1, 49152, 8) for _ in range(3))

    def near(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(q.shape[2])
        s = (q @ k.transpose(-2, -1)).masked_fill((i[:, None] - i).abs() > 64, float("-inf"))
        return s.softmax(-1) @ v

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (r,) = aicf.explain(near, q, k, v).regions
    assert r.status == "streamed" and r.bytes_unfused is not None and r.bytes_unfused > 8 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_explain_of_a_refusal(qkv: tuple[Tensor, ...]) -> None:
    report = aicf.explain(talking_heads, *qkv)
    (region,) = report.regions
    assert region.status == "refused"
    assert region.reason in str(report)
    assert "why not" in str(report)
    with pytest.raises(ValueError, match="nothing streams"):
        report.dump("kernel")


def test_explain_of_a_gradient(qkv: tuple[Tensor, ...]) -> None:
    with torch.enable_grad():
        report = aicf.explain(attention, *(x.requires_grad_() for x in qkv), options={"fuse": "always"})
        assert [r.status for r in report.regions] == ["streamed"]

        def shared(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
            return attention(q * 1.0, k, v) + ((q @ k.mT) * temperature).softmax(-1) @ v

        given = [*(x.requires_grad_() for x in qkv), torch.ones((), requires_grad=True)]
        report = aicf.explain(shared, *given, options={"fuse": "always"})
    assert "refused" in [r.status for r in report.regions]
    assert "torch.no_grad()" in str(report)


def test_explain_of_a_refusal_says_nothing_of_a_streaming(qkv: tuple[Tensor, ...]) -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        scores = q @ k.mT * scale
        return scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf).softmax(-1) @ v

    with torch.enable_grad():
        scale = torch.ones((), requires_grad=True)
        report = aicf.explain(masked, *(x.requires_grad_() for x in qkv), scale, options={"fuse": "always"})
    assert [line.split()[0] for line in str(report).splitlines()[3:]] == ["from", "why", "mask", "memory"]


def test_explain_names_graph_breaks(qkv: tuple[Tensor, ...]) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = attention(q, k, v)
        torch._dynamo.graph_break()
        return attention(first, k, v)

    report = aicf.explain(fn, *qkv)
    assert len(report.graphs) == 2
    assert "graph break: " in str(report)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fuze": "always"}, r"unknown option fuze \(did you mean fuse\?\): the options are dynamic, fullgraph, fuse"),
        ({"options": {"fuse": "always"}}, r"unknown option options: .*given by name here, without options="),
    ],
)
def test_compile_names_the_option_that_was_meant(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        aicf.compile(attention, **given)


def test_explain_takes_the_options_of_compile(qkv: tuple[Tensor, ...]) -> None:
    (r,) = aicf.explain(attention, *qkv, options={"target": "h100", "fuse": "always"}).regions
    assert r.status == "streamed" and "tl.dot" in r.dump("triton")
    (r,) = aicf.explain(attention, *qkv, options={"schedule": "tile_m=1,tile_n=1"}).regions
    assert r.status == "declined"
    with pytest.raises(ValueError, match=r"unknown option targte \(did you mean target\?\): the options are"):
        aicf.explain(attention, *qkv, options={"targte": "h100"})
    with pytest.raises(ValueError, match="option rest makes no sense"):
        aicf.explain(attention, *qkv, options={"rest": "eager"})
    with pytest.raises(aicf.NotStreamed, match="heads"):
        aicf.explain(talking_heads, *qkv, options={"require": "streamed"})


def test_heads_too_wide_for_a_machine_are_refused_in_words() -> None:
    q, k, v = (torch.randn(1, 1, 64, 1024, dtype=torch.float16) for _ in range(3))
    (r,) = aicf.explain(attention, q, k, v, options={"target": "mi300x", "fuse": "always"}).regions
    assert r.status == "refused" and r.reason.startswith("nothing fits mi300x: ")


def test_explain_tells_options_from_arguments(qkv: tuple[Tensor, ...]) -> None:
    def scaled(q: Tensor, k: Tensor, v: Tensor, threads: float, **others: float) -> Tensor:
        return attention(q * threads, k, v)

    assert aicf.explain(scaled, *qkv, threads=2.0, factor=3.0, options={"fuse": "always"}).regions[0].status == "streamed"
    for function in (scaled, attention):
        with pytest.raises(TypeError, match=r"options are given as options=\{'fuse': 'always'\}$"):
            aicf.explain(function, *qkv, fuse="always")


def test_a_wrong_shape_is_told_in_one_message(qkv: tuple[Tensor, ...], caplog: pytest.LogCaptureFixture) -> None:
    q, k, v = qkv
    with pytest.raises(RuntimeError) as raised:
        aicf.explain(attention, q, k[..., :9], v)
    assert "\n" not in str(raised.value) and "dynamo" not in str(raised.value).lower()
    assert "test_api.py" in str(raised.value) and "in attention: return (q @ k" in str(raised.value)
    assert raised.value.__suppress_context__ and len(raised.traceback) == 2
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_explain_of_no_attention() -> None:
    assert str(aicf.explain(lambda x: x + 1, torch.randn(3))) == "no attention found in 1 graph\n"
    hidden = str(aicf.explain(lambda x: x.sort().values + 1, torch.randn(3)))
    assert hidden == "no attention found in 1 graph; not followed: aten.sort\n"


def test_compile_without_a_function_is_a_decorator():
    @aicf.compile(fuse="always", require="streamed", dynamic=True)
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    for n in (40, 56):
        q, k, v = (torch.randn(1, 2, n, 16) for _ in range(3))
        torch.testing.assert_close(attend(q, k, v), (q @ k.mT).softmax(-1) @ v)


@pytest.mark.parametrize(("dynamic", "compilations"), [(True, 1), (False, 3)])
def test_dynamic_is_that_of_torch_compile(dynamic: bool, compilations: int):
    mine = aicf.compile(lambda q: (q @ q.mT).softmax(-1) @ q, dynamic=dynamic, fuse="always")
    before = counters["stats"]["unique_graphs"]
    for n in (40, 56, 72):
        x = torch.randn(1, 2, n, 16)
        torch.testing.assert_close(mine(x), (x @ x.mT).softmax(-1) @ x)
    assert counters["stats"]["unique_graphs"] - before == compilations


def test_fullgraph_raises_at_a_graph_break_as_in_torch_compile():
    def broken(q: Tensor) -> Tensor:
        s = (q @ q.mT).softmax(-1)
        torch._dynamo.graph_break()
        return s @ q

    x = torch.randn(1, 2, 40, 16)
    torch.testing.assert_close(aicf.compile(broken)(x), broken(x))
    torch._dynamo.reset()
    with pytest.raises(Unsupported):
        aicf.compile(broken, fullgraph=True)(x)


@pytest.mark.parametrize("given", [{"dynamic": "yes"}, {"fullgraph": 1}, {"fullgraph": None}])
def test_flags_that_are_none_are_refused(given: dict[str, Any]):
    with pytest.raises(ValueError, match=r"it is (None or )?False or True"):
        aicf.compile(lambda q: q, **given)
