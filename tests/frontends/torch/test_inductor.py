"""What Inductor does wrong, or cannot do, with the rest of a graph is kept from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._inductor.exc import InductorError

from aicf.frontends.torch.run.inductor import ExactPatterns
from aicf.frontends.torch.run.rest import has_compiler
from aicf.report import GraphReport
from tests.contract import assert_contract

compiles = pytest.mark.skipif(not has_compiler(), reason="Inductor finds no C++ compiler here")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled before, and nothing that Inductor kept on disk under another configuration."""
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False), torch.no_grad():
        yield
    torch._dynamo.reset()


def made(*shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=g) for s in shapes]


# ------------------------------------------------------------------------------------------------ attention that it is not


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.2).softmax(-2) @ v


def over_batches(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 5.0).softmax(0) @ v


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    e = (s - s.amax(-2, keepdim=True)).exp()
    return (e / e.sum(-2, keepdim=True)) @ v


def sum_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-2, keepdim=True)) @ v


def permuted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.permute(0, 3, 1, 2) * 0.2).softmax(-1) @ v


def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.2).softmax(1) @ v


SQUARE = ((2, 4, 8, 8), (2, 4, 8, 8), (2, 4, 8, 8))
NOT_ATTENTION = [over_queries, over_batches, written_out, sum_over_queries, over_heads]


@compiles
@pytest.mark.parametrize("fn", [*NOT_ATTENTION, permuted], ids=lambda f: f.__name__)
def test_what_looks_like_attention_is_computed_as_it_is_written(fn: Callable[..., Tensor]) -> None:
    args = made(*((4, 4, 4, 4),) * 3 if fn is permuted else SQUARE)
    got = torch.compile(fn, backend="aicf", options={"rest": "inductor"})(*args)
    assert_contract(got, fn(*args), fn(*(x.double() for x in args)), "f32")


@compiles
def test_its_gradient_too() -> None:
    args = made(*SQUARE)
    with torch.enable_grad():
        kinds = (torch.float32, torch.float32, torch.float64)
        ours, theirs, exact = ([x.detach().to(kind, copy=True).requires_grad_() for x in args] for kind in kinds)
        got = torch.compile(over_queries, backend="aicf")(*ours)
        for result in (got, over_queries(*theirs), over_queries(*exact)):
            result.square().sum().backward()
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert_contract(a.grad, b.grad, c.grad, "f32")


@compiles
@pytest.mark.xfail(
    strict=True,
    reason="PyTorch's own defect (pytorch#196468). When this passes, it is mended: ExactPatterns can go, and README's line on it",
)
def test_inductor_by_itself_computes_a_softmax_over_the_queries() -> None:
    args = made(*SQUARE)
    got: Any = torch.compile(over_queries)(*args)
    torch.testing.assert_close(got, over_queries(*args), rtol=1e-4, atol=1e-4)


@compiles
def test_attention_that_is_one_is_still_taken_for_it_and_other_backends_are_left_alone() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 4.0).softmax(-1) @ v

    args = made(*SQUARE)
    for backend in ("aicf", "inductor"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with torch.enable_grad():
            given = [x.clone().requires_grad_() for x in args]
            # Gradients are not derived with `strict`: the attention is left to Inductor.
            options: Any = {"strict": True} if backend == "aicf" else None
            compiled: Any = torch.compile(attention, backend=backend, options=options)
            compiled(*given)
        assert torch._dynamo.utils.counters["inductor"]["fuse_attention"] > 0, backend
    checks = [e.extra_check for e in _sfdp_entries()]
    assert checks and not any(type(c).__name__ == "_Exact" for c in checks)


def _sfdp_entries() -> list[Any]:
    from torch._inductor.fx_passes import joint_graph

    found = [e for some in joint_graph.pass_patterns for entries in some.patterns.values() for e in entries]
    return [e for e in found if str(getattr(e, "pattern_name", None)).startswith("_sfdp_pattern")]


@compiles
@pytest.mark.parametrize("streams_too", [True, False])
def test_without_a_place_for_its_files_the_rest_runs_eagerly(streams_too: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        try:
            raise PermissionError(13, "Permission denied", "/tmp/torchinductor_root/locks")
        except PermissionError as e:
            raise InductorError(e, None) from None  # type: ignore[no-untyped-call]

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.mT / 4).softmax(-1 if streams_too else -2) @ v).cumsum(-1)

    monkeypatch.setattr("aicf.frontends.torch.run.inductor.compile_fx", refused)
    args = made(*SQUARE)
    reports: list[GraphReport] = []
    with pytest.warns(UserWarning, match="no folder for its files .PermissionError"):
        got: Any = torch.compile(fn, backend="aicf", options={"fuse": "always", "report": reports.append})(*args)
    torch.testing.assert_close(got, fn(*args), rtol=1e-5, atol=1e-5)
    assert reports[0].rest == "eager" and ("streamed" in [r.status for r in reports[0].regions]) == streams_too
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Permission denied"):
        torch.compile(over_queries, backend="aicf", options={"rest": "inductor"})(*args)


def test_passes_of_the_user_run_first_and_count_in_the_key() -> None:
    ran: list[str] = []

    class Own:
        def __call__(self, graph: torch.fx.Graph) -> None:
            ran.append("own")

        def uuid(self) -> str:
            return "own"

    ours = ExactPatterns([Own()])
    ours(torch.fx.Graph())
    assert ran == ["own"]
    assert ours.uuid() != ExactPatterns(None).uuid() and ours.uuid() is not None
    assert ExactPatterns(lambda graph: None).uuid() is None  # of a plain function nobody knows what it does


# ------------------------------------------------------------------------------------------------ freezing, the C++ wrapper


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.proj, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.register_buffer("bias", torch.randn(24, 24))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.proj(self.norm(x)).chunk(3, -1)
        return x + self.out((q @ k.mT * 0.25 + self.bias).softmax(-1) @ v)


def streams(module: torch.nn.Module, x: Tensor, **options: Any) -> None:
    reports: list[GraphReport] = []
    given = {"fuse": "always", "report": reports.append, **options}
    compiled = torch.compile(module, backend="aicf", options=given)
    exact = Block().double()
    exact.load_state_dict(module.state_dict())
    for _ in range(2):
        assert_contract(compiled(x), module(x), exact(x.double()), "f32")
    assert [r.status for g in reports for r in g.regions] == ["streamed"]
    assert [g.problem for g in reports] == [""]


@compiles
def test_inductor_may_freeze_the_weights() -> None:
    with inductor_config.patch(freezing=True):
        streams(Block().eval(), *made((2, 24, 16)), require="streamed")


def test_frozen_weights_stream_without_inductor() -> None:
    with inductor_config.patch(freezing=True):
        streams(Block().eval(), *made((2, 24, 16)), rest="eager")


@compiles
def test_graphs_with_regions_keep_the_python_wrapper() -> None:
    """A region called from the C++ wrapper would end the process."""
    with inductor_config.patch(cpp_wrapper=True):
        streams(Block().eval(), *made((2, 24, 16)))
        assert inductor_config.cpp_wrapper
