"""require="streamed" over whole calls, and graph breaks in the report: no call passes for streamed unseen."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import aicf
from aicf.frontends.torch.capture.torch_state import preserved_torch_state
from aicf.frontends.torch.diagnostics import notices


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 4.0).softmax(-1) @ v


def branching(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v) if (q.sum() > 1e9).item() else q + 1  # the break


class Block(nn.Module):
    """Copies of it are pickled, so that it must be found by name."""

    attends = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v) if self.attends else q + 1


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.inner(x * 2, mask) + 1


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def qkv() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 3, 32, 16) for _ in range(3))


def required(fn: Any) -> Any:
    return aicf.compile(fn, fuse="always", require="streamed")


def test_a_function_without_attention_is_told() -> None:
    fast = required(lambda x: x.sort().values + 1)
    for _ in range(2):
        with pytest.raises(aicf.NotStreamed, match=r"no attention was found(?s:.)*not followed: aten.sort") as raised:
            fast(torch.randn(4))
        assert raised.value.regions == []
    with pytest.raises(aicf.NotStreamed, match="no attention was found"):
        aicf.explain(lambda x: x + 1, torch.randn(3), options={"require": "streamed"})


def test_a_graph_break_that_hides_attention_is_told_with_its_place(qkv: tuple[Tensor, ...]) -> None:
    fast = required(branching)
    for _ in range(2):
        with pytest.raises(aicf.NotStreamed, match=r"break: .*item.* \(at .*required\.py:\d+ in branching: return .*break"):
            fast(*qkv)
    text = str(aicf.explain(branching, *qkv))
    assert "graph break: " in text and "test_required.py" in text and "in branching" in text


def test_what_pytorch_compiles_nothing_of_is_told(qkv: tuple[Tensor, ...]) -> None:
    inner: Any = torch.compiler.disable(attention)

    def outer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return inner(q, k, v)

    fast = required(outer)
    for _ in range(2):
        with pytest.raises(aicf.NotStreamed, match=r"without any compiled graph: it left the graph\n  graph break: .*in outer"):
            fast(*qkv)


def test_a_recompilation_limit_does_not_pass(qkv: tuple[Tensor, ...]) -> None:
    fast = required(attention)
    with torch._dynamo.config.patch(recompile_limit=1, automatic_dynamic_shapes=False):
        fast(*qkv)
        with pytest.raises(aicf.NotStreamed, match="skipped the function"):
            fast(*(x[:1] for x in qkv))


def test_other_ways_through_a_function_that_streams(qkv: tuple[Tensor, ...]) -> None:
    def cached(q: Tensor, k: Tensor, v: Tensor, again: bool) -> Tensor:
        return v if again else attention(q, k, v)

    def halves(q: Tensor, k: Tensor, v: Tensor) -> Any:
        first = attention(q, k, v)
        torch._dynamo.graph_break()
        return first + 1

    fast = required(cached)
    for again in (False, True, False):
        given: tuple[Any, ...] = (*qkv, again)
        torch.testing.assert_close(fast(*given), cached(*given), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(required(halves)(*qkv), halves(*qkv), rtol=1e-5, atol=1e-5)
    inner: Any = required(attention)
    outer: Any = torch.compile(lambda q, k, v: inner(q, k, v) + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(*qkv), attention(*qkv) + 1, rtol=1e-5, atol=1e-5)


def test_copies_of_a_module_are_watched_too(qkv: tuple[Tensor, ...]) -> None:
    fast = required(Block())
    fast(*qkv)
    for made in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(made(*qkv), attention(*qkv), rtol=1e-5, atol=1e-5)
        without = copy.deepcopy(made)
        without.attends = False
        with pytest.raises(aicf.NotStreamed, match="no attention was found"):
            without(*qkv)


# ------------------------------------------------------------------------------------------------ modules of PyTorch's own


@pytest.fixture
def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False).eval()


X = torch.randn(2, 16, 32)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(16)
BAND = torch.zeros(16, 16).masked_fill((torch.arange(16)[:, None] - torch.arange(16)).abs() > 3, -torch.inf)


@pytest.mark.parametrize("mask", [CAUSAL, BAND, CAUSAL.isinf()])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_encoder_with_a_mask_is_one_graph(encoder: nn.Module, mask: Tensor, gradients: bool) -> None:
    with torch.set_grad_enabled(gradients):
        report = aicf.explain(Around(encoder).eval(), X, mask, options={"fuse": "always"})
    assert (len(report.graphs), report.breaks, len(report.regions)) == (1, [], 2), str(report)
    left = [r.reason for r in report.regions if r.status != "streamed"]
    assert all(gradients and reason.startswith("a gradient is asked of it") for reason in left), str(report)
    if not gradients:
        torch.testing.assert_close(required(encoder)(X, mask), encoder(X, mask), rtol=1e-5, atol=1e-5)


def test_a_decoder_with_a_mask_is_one_graph() -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2).eval()
    torch.testing.assert_close(required(decoder)(X, X, CAUSAL), decoder(X, X, CAUSAL), rtol=1e-5, atol=1e-5)
    report = aicf.explain(decoder, X, X, CAUSAL, options={"fuse": "always"})
    assert (len(report.graphs), [r.status for r in report.regions]) == (1, ["streamed"] * 4), str(report)


def test_other_backends_trace_an_encoder_as_before(encoder: nn.Module) -> None:
    before = sum(counters["graph_break"].values())
    torch.testing.assert_close(torch.compile(encoder, backend="eager")(X, CAUSAL), encoder(X, CAUSAL))
    assert sum(counters["graph_break"].values()) > before


def test_places_inside_of_pytorchs_modules_are_the_users(encoder: nn.Module) -> None:
    for module in (encoder, Around(encoder).eval()):
        report = aicf.explain(module, X, CAUSAL)
        assert report.regions
        for r in report.regions:
            assert r.source is not None and r.source.file == __file__, str(report)


def test_dropout_is_a_refusal_and_said_once() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).train()
    report = aicf.explain(layer, X)
    assert [r.status for r in report.regions] == ["refused"]
    assert "eval mode" in report.regions[0].reason and str(report).count("dropout is on") == 1
    with pytest.raises(aicf.NotStreamed, match="dropout is on"):
        required(layer)(X)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout((q @ k.mT).softmax(-1), 0.1) @ v

    assert str(aicf.explain(plain, X, X, X)).count("dropout is on") == 1


def test_an_attention_that_is_one_op_is_seen(qkv: tuple[Tensor, ...]) -> None:
    @torch.library.custom_op("aicf_test::attention", mutates_args=())
    def one_op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v)

    one_op.register_fake(lambda q, k, v: torch.empty_like(q))
    (r,) = aicf.explain(lambda q, k, v: one_op(q, k, v), *qkv).regions
    assert r.status == "refused" and "aicf_test.attention is not followed" in r.reason


def test_weights_that_are_summed_up_elsewhere_are_told(qkv: tuple[Tensor, ...]) -> None:
    def summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v + 0 * weights.sum()

    (r,) = aicf.explain(summed, *qkv).regions
    assert "also reduced along another axis" in r.reason and "aten.sum" in r.reason


def test_memory_of_tiles_is_explained() -> None:
    small = tuple(torch.randn(1, 1, 16, 16) for _ in range(3))
    text = str(aicf.explain(attention, *small, options={"fuse": "always", "threads": 2}))
    assert "of tiles after (2 threads): more than unfused at this size; it does not grow with length" in text
    large = tuple(torch.randn(1, 2, 512, 16) for _ in range(3))
    text = str(aicf.explain(attention, *large, options={"fuse": "always", "threads": 1}))
    assert "of tiles after (1 thread)\n" in text and "more than unfused" not in text


# ------------------------------------------------------------------------------------------------ graphs that are left alone


def test_a_gradient_of_torch_func_is_left_with_one_line(qkv: tuple[Tensor, ...], caplog: pytest.LogCaptureFixture) -> None:
    def gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.func.grad(lambda x: attention(x, k, v).sum())(q)

    report = aicf.explain(gradient, *qkv)
    (problem,) = [g.problem for g in report.graphs]
    assert "a gradient is taken inside of it" in problem and "\n" not in problem
    got: Any = torch.compile(gradient, backend="aicf", options={"rest": "eager"})
    notices.reset()
    torch.testing.assert_close(got(*qkv), gradient(*qkv))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "aicf" and r.levelno >= logging.WARNING]
    assert "a graph is left to PyTorch" in line and "a gradient is taken inside of it" in line and "\n" not in line
    with pytest.raises(aicf.NotStreamed, match="a gradient is taken inside of it"):
        required(gradient)(*qkv)
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_trace_that_fails_leaves_nothing_behind() -> None:
    before = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    with pytest.raises(ZeroDivisionError), preserved_torch_state():
        torch.autocast("cpu", dtype=torch.float16).__enter__()
        torch._C._set_grad_enabled(not before[0])
        raise ZeroDivisionError
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")) == before
    assert torch.autocast_increment_nesting() == 1 and torch.autocast_decrement_nesting() == 0


def test_integer_scores_are_refused_in_words(qkv: tuple[Tensor, ...], caplog: pytest.LogCaptureFixture) -> None:
    def counted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).float().softmax(-1) @ v

    whole = [torch.randint(-3, 3, (2, 8, 8), dtype=kind) for kind in (torch.int64, torch.int64, torch.int32, torch.int32)]
    for q, k in (whole[:2], whole[2:]):
        (r,) = aicf.explain(counted, q, k, torch.randn(2, 8, 8)).regions
        assert r.status == "refused" and "convert queries and keys before" in r.reason
    assert [r for r in caplog.records if r.name == "aicf"] == []


def test_checkpointed_attention_streams_where_no_gradient_is_asked(qkv: tuple[Tensor, ...]) -> None:
    def block(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return checkpoint(attention, q, k, v, use_reentrant=False) * 2  # type: ignore[no-untyped-call]

    fast = required(block)
    torch.testing.assert_close(fast(*qkv), block(*qkv), rtol=1e-5, atol=1e-5)
    with torch.enable_grad():
        q, *rest = (x.clone().requires_grad_() for x in qkv)
        (r,) = aicf.explain(block, q, *rest).regions
        assert r.status == "refused" and "gradient" in r.reason
        trained: Any = torch.compile(block, backend="aicf", options={"rest": "eager"})
        (got,) = torch.autograd.grad(trained(q, *rest).sum(), q)
        (expected,) = torch.autograd.grad(block(q, *rest).sum(), q)
    torch.testing.assert_close(got, expected)
