"""torch.compile(backend="aicf"): what streams is right, and everything else is as PyTorch alone would have it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aicf import driver
from aicf.frontends.torch import pipeline
from aicf.frontends.torch.options import backend_options
from aicf.frontends.torch.read import reader
from aicf.frontends.torch.read.context import DROPOUT
from aicf.frontends.torch.run import rest
from aicf.report import GraphReport

INF = float("inf")


def qkv(n: int = 40, m: int = 56, d: int = 16, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, 3, r, d, generator=g).to(dtype) for r in (n, m, m))  # type: ignore[return-value]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.arange(k.shape[-2])[None, :] <= torch.arange(q.shape[-2])[:, None]
    return (q @ k.transpose(-2, -1) / 4.0).masked_fill(~keep, -INF).softmax(-1) @ v


class Compiled:
    """A compiled function and the reports of its graphs."""

    def __init__(self, fn: Callable[..., Any], dynamic: bool | None = None, **options: Any) -> None:
        torch._dynamo.reset()
        self.reports: list[GraphReport] = []
        given = {"rest": "eager", "fuse": "always", "report": self.reports.append, **options}
        self.fn: Any = torch.compile(fn, backend="aicf", dynamic=dynamic, options=given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.fn(*args, **kwargs)

    @property
    def statuses(self) -> list[str]:
        return [r.status for g in self.reports for r in g.regions]

    @property
    def reasons(self) -> list[str]:
        return [r.reason for g in self.reports for r in g.regions]


def close(ours: Any, theirs: Any) -> None:
    """Same structure, shapes, strides and, within float32's rounding of short sums, values."""
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            close(a, b)
        return
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert ours.stride() == theirs.stride(), f"strides {ours.stride()} != {theirs.stride()}"
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


def same(fn: Callable[..., Any], *args: Tensor, streams: bool = True, **options: Any) -> Compiled:
    """Runs `fn` in eager and compiled, on copies of `args`; results and arguments end up equal."""
    ours, theirs = [a.clone() for a in args], [a.clone() for a in args]
    compiled = Compiled(fn, **options)
    close(compiled(*ours), fn(*theirs))
    close(ours, theirs)
    assert [g.problem for g in compiled.reports if g.problem] == []
    assert (compiled.statuses and set(compiled.statuses) == {"streamed"}) == streams, compiled.reasons
    return compiled


def test_found_by_name_without_importing_aicf() -> None:
    code = (
        "import torch\n"
        "f = lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v\n"
        "q, k, v = (torch.randn(1, 2, 64, 16) for _ in range(3))\n"
        "c = torch.compile(f, backend='aicf', options={'rest': 'eager', 'require': 'streamed', 'fuse': 'always'})\n"
        "with torch.no_grad(): print((c(q, k, v) - f(q, k, v)).abs().max().item() < 1e-5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("rest", ["eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_streams(rest: str, dynamic: bool) -> None:
    same(lambda q, k, v: causal(q * 2, k, v).transpose(1, 2).reshape(2, -1, 48) + 1, *qkv(), rest=rest, dynamic=dynamic)


def test_an_attention_that_the_compiler_fails_on_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v + ((q + 1) @ k.mT).softmax(-1) @ v

    decide = driver.decide

    def failing(*args: Any) -> Any:
        if len(made) == 0:
            made.append(args)
            raise AssertionError("a fault")
        return decide(*args)

    made: list[Any] = []
    monkeypatch.setattr(driver, "decide", failing)
    compiled = Compiled(two)
    q, k, v = qkv(n=24)
    close(compiled(q, k, v), two(q, k, v))
    assert sorted(compiled.statuses) == ["refused", "streamed"]
    assert any("AICF itself fails on it, which is an error to report (AssertionError: a fault)" in r for r in compiled.reasons)


def test_an_op_that_the_reader_fails_on_is_an_input_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise AttributeError("a fault")

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(torch.erf(q), k, v)

    monkeypatch.setitem(reader.HANDLERS, "erf", failing)  # type: ignore[arg-type]
    compiled = Compiled(fn)
    close(compiled(*qkv()), fn(*qkv()))
    assert compiled.statuses == ["streamed"]
    assert any("AICF itself fails to read aten.erf" in why for g in compiled.reports for _, why in g.boundaries)


def test_one_compilation_serves_many_lengths() -> None:
    compiled = Compiled(causal, dynamic=True)
    for n in range(20, 60, 4):
        args = qkv(n, n)
        close(compiled(*args), causal(*args))
    assert len(compiled.reports) == 1
    assert compiled.statuses == ["streamed"]


def newest_of(q: Tensor, k: Tensor, v: Tensor, held: Tensor) -> Tensor:
    """A padding mask longer than the keys: its last positions count."""
    newest = (torch.arange(k.shape[-2]) + (held.shape[-1] - k.shape[-2])).expand(q.shape[-2], -1)
    keep = held[torch.arange(2)[:, None, None, None], newest]
    return (q @ k.mT / 4.0).masked_fill(~keep, -INF).softmax(-1) @ v


def test_mask_read_at_a_place_that_depends_on_sizes() -> None:
    compiled = Compiled(newest_of, dynamic=True)
    for n, m in ((200, 260), (130, 131), (7, 300)):
        held = torch.arange(m + 9) >= torch.tensor([[20], [m]])
        close(compiled(*qkv(n, m), held), newest_of(*qkv(n, m), held))
    assert compiled.statuses == ["streamed"] and not compiled.reports[0].problem


def test_lengths_become_dynamic_by_themselves() -> None:
    compiled = Compiled(causal)
    for n in (24, 32, 40, 72):
        args = qkv(n, n)
        close(compiled(*args), causal(*args))
    assert len(compiled.reports) == 2
    assert set(compiled.statuses) == {"streamed"}


def test_two_regions_with_equal_graphs_keep_apart_in_inductors_cache() -> None:
    args = qkv(48, 48)
    for fn in (attention, causal, attention):
        same(fn, *args, rest="inductor")


# ---------------------------------------------------------------------------------- memory that is shared or changed


def test_equal_graphs_under_other_options_keep_apart() -> None:
    """What a mask hides is skipped by the one and not by the other, whichever was compiled last."""
    q, k, v = qkv(m=160)
    v[..., -3, 2] = float("nan")

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep = torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2])[:, None]
        return torch.softmax((q @ k.transpose(-2, -1)).masked_fill(~keep, float("-inf")), -1) @ v

    common: dict[str, Any] = {"fuse": "always", "rest": "eager", "schedule": {"tile_n": 32}}
    strict, plain = (torch.compile(run, backend="aicf", options={**common, "strict": x}) for x in (True, False))
    with torch.no_grad():
        nan = [bool(f(q, k, v).isnan().any()) for f in (strict, plain, strict)]
    assert nan == [True, False, True]


def input_changed_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = attention(q, k, v)
    q.mul_(2)
    return out + q.sum()


def input_changed_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k.mul_(0.5)
    return attention(q, k, v)


def input_changed_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = (q @ k.transpose(-2, -1) / 4.0).softmax(-1)
    k.zero_()
    return p @ v


def output_changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = attention(q, k, v)
    out.mul_(2)
    return out


def view_of_output_changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = attention(q, k, v)
    out[:, 0].add_(1)
    return out


def scores_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose(-2, -1)
    s /= 4.0
    s += 1.0
    return s.softmax(-1) @ v


def scores_in_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose(-2, -1)
    s[..., 0] = -INF
    s[:, 1] += 1
    s[..., 20:, 30:] = -INF
    return s.softmax(-1) @ v


def mask_in_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(q.shape[-2], k.shape[-2])
    mask[:, 9:] = -INF
    mask[3:5, 20:30] = 0
    return ((q @ k.transpose(-2, -1)) + mask).softmax(-1) @ v


def outputs_share_memory(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out = attention(q, k, v)
    return out, out.view(-1)


def strided_output(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v).transpose(1, 2)


def strided_twice(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out = attention(q, k, v).transpose(1, 2)
    return out, out[..., ::2]


def merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v).transpose(1, 2).contiguous().view(2, -1, 48)


def merged_and_kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out = attention(q, k, v)
    merged = out.transpose(1, 2).reshape(2, -1, 48)
    return merged.mul_(2), out.sum()


def fused_then_viewed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The fused op's result has its query's layout, on which the view relies."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view(2, -1, 48)


def columns_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhnm,bhmd->bhdn", (q @ k.mT).softmax(-1), v)


def input_returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return q, attention(q, k, v)


@pytest.mark.parametrize(
    "fn",
    [
        input_changed_after, input_changed_before, input_changed_between, output_changed, view_of_output_changed, scores_in_place,
        scores_in_parts, mask_in_parts,
        outputs_share_memory, strided_output, strided_twice, merged_heads, merged_and_kept, fused_then_viewed, columns_first,
        input_returned,
    ],
)  # fmt: skip
@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_shared_and_changed_memory(fn: Callable[..., Any], rest: str) -> None:
    same(fn, *qkv(), rest=rest)


def test_outputs_that_share_memory_still_do() -> None:
    out, flat = Compiled(outputs_share_memory)(*qkv())
    assert out.data_ptr() == flat.data_ptr()


def test_an_input_that_is_gone_when_another_appears_is_read_earlier() -> None:
    """K is gone when V has its final value; V can be had from its former value, inside the region."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = (q @ k.transpose(-2, -1) / 4.0).softmax(-1)
        k.zero_()
        v.mul_(2)
        return p @ v

    same(fn, *qkv())


def test_an_input_changed_at_the_wrong_time_is_copied() -> None:
    """K is gone when V, which nothing can compute in a region, appears: no place in the graph has both."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = (q @ k.transpose(-2, -1) / 4.0).softmax(-1)
        k.zero_()
        return p @ v.cumsum(-1)

    same(fn, *qkv())


def test_arguments_that_are_views_of_one_buffer() -> None:
    buffer = torch.randn(3, 2, 40, 3, 16)
    q, k, v = (x.transpose(1, 2) for x in buffer)
    compiled = Compiled(attention)
    close(compiled(q, k, v), attention(q, k, v))
    assert compiled.statuses == ["streamed"]


# ------------------------------------------------------------------------------------------------ gradients, modes, breaks


def test_a_gradient_is_streamed_and_right() -> None:
    args = [a.requires_grad_() for a in qkv()]
    compiled = Compiled(attention)
    out = compiled.fn(*args)
    assert compiled.statuses == ["streamed"]
    ours = torch.autograd.grad(out.square().sum(), args)
    theirs = torch.autograd.grad(attention(*args).square().sum(), args)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)  # row-major, whatever order eager's happen to have


def test_a_gradient_turned_on_inside_is_streamed() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.enable_grad():
            return attention(q, k, v)

    args = [a.requires_grad_() for a in qkv()]
    compiled = Compiled(fn)
    assert compiled(*args).requires_grad
    assert compiled.statuses == ["streamed"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_that_require_gradients_do_not_matter_without_grad(mode: Any) -> None:
    layer = torch.nn.Linear(16, 16)

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(layer(q), k, v)

    compiled = Compiled(fn)
    with mode():
        out = compiled.fn(*qkv())
        close(out, fn(*qkv()))
    assert compiled.statuses == ["streamed"]


def test_graph_breaks() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = attention(q, k, v)
        torch._dynamo.graph_break()
        return causal(first, k, v)

    compiled = same(fn, *qkv())
    assert len(compiled.reports) == 2


def test_autocast() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attention(q, k, v)

    compiled = Compiled(fn)
    out, reference = compiled(*qkv()), fn(*qkv())
    exact = attention(*(x.double() for x in qkv()))
    assert out.dtype == reference.dtype == torch.bfloat16
    assert (out - exact).abs().max() <= 2 * (reference - exact).abs().max() + 2**-8 * exact.abs().max()


def test_a_training_module_keeps_its_buffers() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(3)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(self.norm(q), k, v)

    ours, theirs = Model(), Model()
    compiled = Compiled(ours)
    close(compiled(*qkv()), theirs(*qkv()))
    close(ours.norm.running_mean, theirs.norm.running_mean)
    assert ours.norm.num_batches_tracked == theirs.norm.num_batches_tracked == 1
    assert compiled.statuses == ["streamed"]


def test_dropout_that_is_on_is_refused_and_named() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.dropout((q @ k.transpose(-2, -1)).softmax(-1), 0.5, True) @ v

    compiled = Compiled(fn)
    torch.manual_seed(3)
    ours = compiled(*qkv())
    torch.manual_seed(3)
    close(ours, fn(*qkv()))
    assert "streamed" not in compiled.statuses
    assert DROPOUT in dict(compiled.reports[0].boundaries).values()


# ------------------------------------------------------------------------------------------------ when things go wrong


def test_a_failing_retrace_leaves_the_graph_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no trace today")

    monkeypatch.setattr(pipeline, "retrace", broken)
    compiled = Compiled(attention)
    close(compiled(*qkv()), attention(*qkv()))
    assert [g.problem for g in compiled.reports] == ["RuntimeError: no trace today"]


def test_a_failing_compilation_leaves_the_graph_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ValueError("a bug")

    monkeypatch.setattr(pipeline, "rewrite", broken)
    compiled = Compiled(attention)
    close(compiled(*qkv()), attention(*qkv()))
    assert compiled.statuses == ["refused"]
    assert "a bug" in compiled.reasons[0]


def test_without_a_compiler_the_rest_runs_eagerly_with_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise rest.InvalidCxxCompiler

    monkeypatch.setattr(rest, "get_cpp_compiler", missing)
    monkeypatch.setattr(rest, "_COMPILER", [])
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        for attend in (attention, causal):

            def fn(q: Any, k: Any, v: Any, attend: Callable[..., Any] = attend) -> Any:
                return attend(q, k, v).cumsum(-1)

            compiled = Compiled(fn, rest="auto")
            close(compiled(*qkv()), fn(*qkv()))
            assert compiled.statuses == ["streamed"]
            assert compiled.reports[0].rest == "eager"
    assert len([n for n in notes if "C++ compiler" in str(n.message)]) == 1


def test_where_nothing_is_left_nothing_else_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("Inductor was asked")

    monkeypatch.setattr(rest, "through_inductor", never)

    def heads(x: Any) -> Any:
        q, k, v = x.unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return attention(q, k, v).transpose(1, 2)

    compiled = Compiled(heads, rest="auto")
    for length in (33, 40):
        x = torch.randn(2, length, 192)
        close(compiled(x), heads(x))
    assert set(compiled.statuses) == {"streamed"} and {r.rest for r in compiled.reports} == {"nothing"}


@pytest.mark.parametrize(
    "values",
    [
        lambda v: v.relu(),
        lambda v: (v * 2).transpose(1, 2).transpose(1, 2),
        lambda v: torch.cat([v, -v], -1),
        lambda v: v[..., :5] + 1,
    ],
)
def test_products_with_several_values_under_one_softmax(values: Callable[[Any], Any]) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        p = (q @ k.mT / 4.0).softmax(-1)
        o = p @ v
        return o.cos() * o.sin(), (p @ values(v)).sigmoid() * 2, o + 1

    same(fn, *qkv())


def test_negated_tensors_are_read_negated() -> None:
    """The imaginary part of a conjugate is kept with a bit that says so."""
    x = torch.randn(2, 3, 20, 16, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    same(attention, x, x, x, rest="auto")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"fuse": "often"}, "fuse='often'"),
        ({"require": "all"}, "require='all'"),
        ({"rest": "x"}, "rest='x'"),
        ({"tile": 3}, "unknown option tile"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part.replace("(", r"\(")):
        backend_options(options)


def test_float64_is_refused_and_right() -> None:
    compiled = same(attention, *qkv(dtype=torch.float64), streams=False)
    assert compiled.statuses == ["refused"]
    assert "float64" in compiled.reasons[0]


def test_empty_tensors() -> None:
    for n, m in ((0, 8), (8, 0)):
        args = qkv(n, m)
        compiled = Compiled(attention)
        close(compiled(*args), attention(*args))


def test_a_gradient_taken_inside_is_left_to_pytorch() -> None:
    """Its graph cannot be traced again; what the attempt switched on is off afterwards."""
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: (torch.softmax(x @ k.mT, -1) @ v).sum())(q)

    torch._dynamo.reset()
    got = torch.compile(run, backend="aicf", options={"rest": "eager"})(q, k, v)
    torch.testing.assert_close(got, run(q, k, v))


def test_a_mask_made_under_vmap_is_seen() -> None:
    """What vmap computes is not seen whole; the trace must not take it for a constant whose value it does not know."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        n = torch.arange(q.shape[-2])
        mask = torch.vmap(torch.vmap(lambda i, j: (i - j).abs() < 7, (None, 0)), (0, None))(n, n)
        return (q @ k.transpose(-2, -1) / 4.0).masked_fill(~mask, -torch.inf).softmax(-1) @ v, mask + 0.0

    same(fn, *qkv(40, 40))


def test_scores_changed_in_place_are_not_computed_twice() -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        scores.masked_fill_(torch.ones(40, 56, dtype=torch.bool).triu(1), -INF)
        scores += 1
        return scores.softmax(-1) @ v

    seen: list[Any] = []

    def note(gm: torch.fx.GraphModule, given: list[Any]) -> Any:
        _, module = pipeline.streamed_module(gm, given, backend_options({"fuse": "always"}))
        assert module is not None
        seen.extend(str(n.target) for n in module.graph.nodes if n.op == "call_function")
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        close(torch.compile(masked, backend=note)(*qkv()), masked(*qkv()))
    assert seen == ["aicf.region.default", "<built-in function getitem>"]


def test_what_is_changed_in_place_and_read_stays() -> None:
    def summed(q: Tensor, k: Tensor, v: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = attention(q, k, v)
        held = out.new_zeros(out.shape)
        held[:, 0] = out[:, 0]
        part = held[:, 1]
        part += 1
        part += out[:, 1]
        total += out.sum()
        out[:, 2].mul_(2)
        return out, held, out.transpose(1, 2)

    same(summed, *qkv(), torch.ones(()))


@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_constant_tensors(rest: str) -> None:
    def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k.mT * torch.tensor([0.5, 0.25, 0.125])[:, None, None]
        s[..., 0] = -INF
        return s.softmax(-1) @ v

    compiled = same(scaled, *qkv(), rest=rest)
    assert [r.mask for g in compiled.reports for r in g.regions] == ["all keys but 0"]
