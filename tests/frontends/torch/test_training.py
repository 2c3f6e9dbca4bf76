"""Gradients through streamed regions, against float64 by the contract, with PyTorch's own of the same precision beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import aicf
from aicf.report import GraphReport
from aicf.report.text import full_lines
from tests.contract import assert_contract

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def compiled(f: Function, reports: list[GraphReport], **options: Any) -> Function:
    dynamic = options.pop("dynamic", None)
    given = {"fuse": "always", "rest": "eager", "report": reports.append, **options}
    return torch.compile(f, backend="aicf", dynamic=dynamic, options=given)  # type: ignore[call-overload,no-any-return]


def found(f: Function, inputs: Sequence[Tensor], wanted: Sequence[int], dtype: torch.dtype) -> list[Tensor | None]:
    """The results of `f` and the gradients of `inputs`, the floating ones as `dtype`, for fixed cotangents."""
    given = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    given = [x.detach().clone().requires_grad_() if k in wanted else x for k, x in enumerate(given)]
    made = f(*given)
    results: list[Tensor] = list(made) if isinstance(made, tuple) else [made]
    cotangents = [random(*y.shape, seed=k).to(torch.bfloat16).to(dtype) for k, y in enumerate(results)]
    torch.autograd.backward(results, cotangents)
    return [*(y.detach() for y in results), *(x.grad for x in given)]


def check(f: Function, inputs: Sequence[Tensor], wanted: Sequence[int] = (0, 1, 2), dtype: str = "f32", **options: Any) -> str:
    """Holds results and gradients against the contract. Returns what became of the region, or the reason."""
    reports: list[GraphReport] = []
    given = [x.to(DTYPES[dtype]) if x.is_floating_point() else x for x in inputs]
    ours = found(compiled(f, reports, **options), given, wanted, DTYPES[dtype])
    theirs, best = (found(f, given, wanted, t) for t in (DTYPES[dtype], torch.float64))
    for k, (a, b, c) in enumerate(zip(ours, theirs, best, strict=True)):
        assert (a is None) == (b is None), f"tensor {k}"
        if a is not None:
            assert b is not None and a.dtype == b.dtype
            assert_contract(a, b, c, dtype, f"tensor {k}")  # type: ignore[arg-type]
    regions = [r for g in reports for r in g.regions]
    assert [g.problem for g in reports if g.problem] == []
    return "; ".join(dict.fromkeys(r.status if r.status == "streamed" else r.reason for r in regions))


def qkv(n: int = 70, m: int = 50, heads: int = 4, kv_heads: int | None = None, d: int = 16, e: int = 24) -> list[Tensor]:
    kv = heads if kv_heads is None else kv_heads
    return [random(2, heads, n, d), random(2, kv, m, d, seed=1), random(2, kv, m, e, seed=2)]


# ------------------------------------------------------------------------------------------------ functions


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


def causal(q: Tensor, k: Tensor) -> Tensor:
    return torch.arange(k.shape[-2])[None] > torch.arange(q.shape[-2])[:, None]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1) @ v


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def normalised_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).masked_fill(causal(q, k), -math.inf).softmax(-1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    return torch.where(causal(q, k), torch.finfo(s.dtype).min, s).softmax(-1) @ v


def softcap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (3 * torch.tanh(scores(q, k) / 3)).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = (x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2) for x in (k, v))
    return scores(q, k).softmax(-1) @ v


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(scores(q, k)) @ v


def squared_relu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.relu(scores(q, k)).square() @ v


def log_sums_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s = scores(q, k)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def masked_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1).masked_fill(causal(q, k), 0.0) @ v


def entropy_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = scores(q, k).log_softmax(-1)
    return p.exp() @ v, -(p.exp() * p).sum(-1)


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhnm,bmhe->bnhe", s.softmax(-1), v)


def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (k @ q.mT / math.sqrt(q.shape[-1])).softmax(-2).mT @ v


FUNCTIONS: list[Function] = [
    plain, written_out, normalised_last, masked, filled, softcap, grouped, sigmoid, squared_relu, log_sums_too, masked_after,
    entropy_too, heads_last, keys_first,
]  # fmt: skip


@pytest.mark.parametrize("f", FUNCTIONS)
def test_gradients_of_queries_keys_and_values(f: Function) -> None:
    assert check(f, qkv(kv_heads=2 if f is grouped else None)) == "streamed"


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("f", [plain, masked, written_out, grouped])
def test_halves(f: Function, dtype: str) -> None:
    assert check(f, qkv(kv_heads=2 if f is grouped else None), dtype=dtype) == "streamed"


def peaked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (12 * scores(q, k)).softmax(-1) @ v


def peaked_written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = 12 * scores(q, k)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def kept_and_normalised_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = (6 * scores(q, k)).softmax(-1) * ~causal(q, k)
    return (p / p.sum(-1, keepdim=True)) @ v


def fused_and_peaked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=3.0)


@pytest.mark.parametrize("n", [50, 130])
@pytest.mark.parametrize("f", [peaked, peaked_written_out, kept_and_normalised_again, fused_and_peaked])
def test_rows_in_which_one_key_has_the_weight(f: Function, n: int) -> None:
    """Almost nothing is left of the scores' gradient there, and what is left is as exact as PyTorch's."""
    assert check(f, qkv(n, n)) == "streamed"


def test_what_streams_without_being_told_to() -> None:
    assert check(plain, qkv(256, 256), fuse="auto") == "streamed"
    assert check(plain, qkv(256, 256), dtype="bf16", fuse="auto") == "streamed"
    assert "scaled_dot_product_attention compute 7 products" in check(fused_and_peaked, qkv(256, 256), fuse="auto")
    assert check(fused_and_peaked, qkv(256, 256), dtype="bf16", fuse="auto") == "streamed"


def padded(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return scores(q, k).masked_fill(~keep, -math.inf).softmax(-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (scores(q, k) + mask).softmax(-1) @ v


def per_key(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (scores(q, k) + bias).softmax(-1) @ v


@pytest.mark.parametrize("f", [padded, added])
def test_rows_without_keys_are_as_in_eager(f: Function) -> None:
    """What a mask hides is not left out where a row has no keys: its NaN reach what they reach in PyTorch."""
    keep = torch.arange(50)[None] <= torch.arange(70)[:, None] - 5
    mask = keep if f is padded else torch.where(keep, 0.0, -math.inf)
    assert check(f, [*qkv(), mask]) == "streamed"


def test_rows_that_see_nothing_but_the_smallest_number() -> None:
    keep = (torch.arange(50)[None] < torch.tensor([0, 30])[:, None])[:, None, None, :]
    fill = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
    assert check(added, [*qkv(), fill]) == "streamed"


def with_a_sink(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    s = scores(q, k).masked_fill(causal(q, k), -math.inf)
    s = torch.cat([s, sink[None, :, None, None].expand(s.shape[0], -1, s.shape[2], 1)], -1)
    return (s - s.amax(-1, keepdim=True)).softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_sink_has_a_gradient(dtype: str) -> None:
    assert check(with_a_sink, [*qkv(), random(4)], wanted=(0, 1, 2, 3), dtype=dtype) == "streamed"


def test_a_bias_per_key_has_a_gradient() -> None:
    assert check(per_key, [*qkv(), random(2, 1, 1, 50)], wanted=(0, 1, 2, 3)) == "streamed"


@pytest.mark.parametrize("n, m", [(1, 33), (17, 130), (129, 3)])
def test_lengths(n: int, m: int) -> None:
    check(plain, qkv(n, m))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_only_what_is_asked(wanted: tuple[int, ...]) -> None:
    assert check(plain, qkv(), wanted=wanted) == "streamed"


def test_other_lengths_without_compiling_again() -> None:
    reports: list[GraphReport] = []
    f = compiled(plain, reports, dynamic=True)
    for n, m in ((70, 50), (33, 41), (90, 20)):
        inputs = qkv(n, m)
        ours, theirs, best = (
            found(g, inputs, (0, 1, 2), t) for g, t in ((f, torch.float32), (plain, torch.float32), (plain, torch.float64))
        )
        for a, b, c in zip(ours, theirs, best, strict=True):
            assert_contract(a, b, c, "f32")
    assert all(r.status == "streamed" for g in reports for r in g.regions)


def strided(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = (x @ w).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
    return plain(q, k, v).transpose(1, 2).flatten(2)


def test_views_of_one_projection() -> None:
    assert check(strided, [random(2, 60, 32), random(32, 192)], wanted=(0, 1)) == "streamed"


def test_through_inductor() -> None:
    assert check(strided, [random(2, 60, 32), random(32, 192)], wanted=(0, 1), rest="auto") == "streamed"


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_inputs_that_are_not_row_major(dtype: str) -> None:
    def of_views(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(q.transpose(1, 2), k[:, :, 10:60], v.expand(-1, 4, -1, -1))

    given = [random(2, 70, 4, 16), random(2, 4, 100, 16, seed=1), random(2, 1, 50, 24, seed=2)]
    assert check(of_views, given, dtype=dtype) == "streamed"
    outside = [
        random(2, 70, 4, 16).transpose(1, 2),
        random(2, 4, 16, 50, seed=1).mT,
        random(4, 50, 24, seed=2).expand(2, -1, -1, -1),
    ]
    reports: list[GraphReport] = []
    f = compiled(plain, reports)

    def through(g: Function, t: torch.dtype) -> tuple[Tensor, ...]:
        own = [
            x.to(DTYPES[dtype]).to(t) if k < 2 else x[:1].to(DTYPES[dtype]).to(t).expand(2, -1, -1, -1)
            for k, x in enumerate(outside)
        ]
        leaves = [x.detach().requires_grad_() for x in own]
        y = g(*leaves)
        return torch.autograd.grad(y, leaves, random(*reversed(y.shape)).to(torch.bfloat16).to(t).permute(3, 2, 1, 0))

    ours, theirs, best = through(f, DTYPES[dtype]), through(plain, DTYPES[dtype]), through(plain, torch.float64)
    for k, (a, b, c) in enumerate(zip(ours, theirs, best, strict=True)):
        assert_contract(a, b, c, dtype, f"gradient {k}")  # type: ignore[arg-type]
    assert [(r.status, r.reason) for g in reports for r in g.regions if r.status != "streamed"] == []


# ------------------------------------------------------------------------------------------------ ways of asking


def test_gradients_accumulate_and_frozen_inputs_get_none() -> None:
    reports: list[GraphReport] = []
    f = compiled(plain, reports)
    ours, theirs = ([x.clone().requires_grad_(k != 1) for k, x in enumerate(qkv())] for _ in range(2))
    for g, given in ((f, ours), (plain, theirs)):
        for scale in (1, 2):
            (scale * g(*given)).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    assert [r.status for g in reports for r in g.regions] == ["streamed"]


def test_one_compilation_for_each_gradient_mode() -> None:
    reports: list[GraphReport] = []
    f = compiled(plain, reports)
    given = [x.requires_grad_() for x in qkv()]
    for _ in range(3):
        for on in (True, False):
            with torch.set_grad_enabled(on):
                assert f(*given).requires_grad == on
    assert [r.status for g in reports for r in g.regions] == ["streamed", "streamed"]


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    """Forward and backward under autocast: the types of the gradient's sums are the graph's, not autocast's."""

    def cast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return plain(q, k, v)

    reports: list[GraphReport] = []
    f = compiled(cast, reports)
    ours, theirs = ([x.clone().requires_grad_() for x in qkv()] for _ in range(2))
    best = [x.double().requires_grad_() for x in qkv()]
    plain(*best).float().square().sum().backward()
    for g, given in ((f, ours), (cast, theirs)):
        with torch.autocast("cpu", torch.bfloat16):
            g(*given).float().square().sum().backward()
    for k, (a, b, c) in enumerate(zip(ours, theirs, best, strict=True)):
        assert a.grad is not None and b.grad is not None and a.grad.dtype == b.grad.dtype
        assert_contract(a.grad, b.grad, c.grad, "bf16", f"gradient {k}")


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_around(reentrant: bool) -> None:
    reports: list[GraphReport] = []
    f = compiled(plain, reports)
    ours, theirs = ([x.clone().requires_grad_() for x in qkv()] for _ in range(2))
    torch.utils.checkpoint.checkpoint(f, *ours, use_reentrant=reentrant).square().sum().backward()
    plain(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    assert {r.status for g in reports for r in g.regions} == {"streamed"}


def test_retained_graphs_and_partial_gradients() -> None:
    reports: list[GraphReport] = []
    f = compiled(plain, reports)
    q, k, v = (x.requires_grad_() for x in qkv())
    y = f(q, k, v)
    once = torch.autograd.grad(y.sum(), (q, v), retain_graph=True)  # a cotangent that is one number, expanded
    again = torch.autograd.grad(y.sum(), (q, v))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    expected = torch.autograd.grad(plain(q, k, v).sum(), (q, v))
    torch.testing.assert_close(once, expected)


def test_a_result_may_be_changed_in_place_before_the_gradient() -> None:
    reports: list[GraphReport] = []
    f = compiled(plain, reports)
    ours, theirs = ([x.clone().requires_grad_() for x in qkv()] for _ in range(2))
    for g, given in ((f, ours), (plain, theirs)):
        y = g(*given)
        y += 1
        y.square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def detached_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k.detach()).softmax(-1) @ v + k.sum()


def detached_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores(q, k).softmax(-1).detach() @ v + q.sum() + k.sum()


def without_gradient_inside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        s = scores(q, k)
    return s.softmax(-1) @ v + q.sum() + k.sum()


def one_of_two(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    s = scores(q, k)
    with torch.no_grad():
        top = s.amax(-1)
    return s.softmax(-1) @ v, top * q.sum()


@pytest.mark.parametrize("f", [detached_keys, detached_weights, without_gradient_inside, one_of_two])
def test_what_is_detached_inside_gets_nothing(f: Function) -> None:
    check(f, qkv())


def recorded_inside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        other = q.sum()
        with torch.enable_grad():
            y = plain(q, k, v)
        other = other + v.sum()
    return y * other


def recorded_inside_of_nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.enable_grad():
        return plain(q, k, v)


def recorded_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    y = plain(q, k, v)
    with torch.no_grad():
        z = plain(2 * q, k.cos(), v)
    return y + z


def the_same_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Once without a gradient, once with it: what is equal is one node when a graph is read."""
    with torch.no_grad():
        z = plain(q, k, v)
    y = plain(q, k, v)
    with torch.no_grad():
        x = plain(q, k, v)
    return y + z * x


@pytest.mark.parametrize("rest", ["eager", "auto"])
@pytest.mark.parametrize("f", [recorded_inside, recorded_between])
def test_blocks_with_and_without_gradients(f: Function, rest: str) -> None:
    assert check(f, qkv(), rest=rest) == "streamed"


def test_an_attention_that_is_computed_with_and_without_a_gradient() -> None:
    check(the_same_twice, qkv())


@pytest.mark.parametrize("rest", ["eager", "auto"])
def test_a_gradient_turned_on_where_the_caller_turned_it_off(rest: str) -> None:
    def given() -> list[Tensor]:
        return [x.requires_grad_() for x in qkv()]

    reports: list[GraphReport] = []
    f, ours, theirs = compiled(recorded_inside_of_nothing, reports, rest=rest), given(), given()
    with torch.no_grad():
        made, expected = f(*ours), recorded_inside_of_nothing(*theirs)
    assert made.requires_grad and expected.requires_grad
    torch.autograd.backward([made.sum(), expected.sum()])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_second_derivatives_are_refused() -> None:
    reports: list[GraphReport] = []
    q, k, v = (x.requires_grad_() for x in qkv())
    y = compiled(plain, reports)(q, k, v)
    (g,) = torch.autograd.grad(y.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        g.sum().backward()


@pytest.mark.parametrize("name", ["bias", "table"])
def test_what_is_not_derived_is_left_to_pytorch_with_a_reason(name: str) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        s = scores(q, k)
        at = (torch.arange(50)[None] - torch.arange(70)[:, None]).abs()
        changed = {"bias": lambda: s + x, "table": lambda: s + x[at]}[name]()
        return changed.softmax(-1) @ v

    x = {"bias": random(4, 70, 50), "table": random(70)}[name]
    said = check(f, [*qkv(), x], wanted=(0, 1, 2, 3))
    assert said.startswith("a gradient is asked of it") and said.endswith(")"), said
    assert check(f, [*qkv(), x]) == "streamed"  # where none is asked of it, those of the others are derived


def merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As BLOOM writes it: a tensor that is created, and counts for nothing."""
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    s = torch.baddbmm(q.new_zeros(q.shape[0], q.shape[1], k.shape[1]), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(s.softmax(-1), v)


def test_what_is_created_inside_is_not_detached() -> None:
    assert check(merged_heads, qkv()) == "streamed"


def mask_written_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(q.shape[-2], k.shape[-2])
    mask.masked_fill_(causal(q, k), -math.inf)
    return (scores(q, k) + mask).softmax(-1) @ v


def changed_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * 1.5
    q.add_(1.0)
    return scores(q, k).softmax(-1) @ v


def scores_changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    s.masked_fill_(causal(q, k), -math.inf)
    return s.softmax(-1) @ v


def changed_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    o = scores(q, k).softmax(-1) @ v
    o.mul_(2.0)
    return o


def filled_in_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As rotary embeddings are put together."""
    whole = q.new_empty(q.shape)
    whole[..., :5] = q[..., :5] * 2
    whole[..., 5:] = q[..., 5:].sin()
    return scores(whole, k).softmax(-1) @ v


def scaled_unrecorded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    with torch.no_grad():
        s.mul_(0.5)
    return s.softmax(-1) @ v


WRITTEN = {mask_written_in_place: True, changed_before: True, scores_changed: True, filled_in_parts: True, changed_after: False,
           scaled_unrecorded: False}  # fmt: skip


@pytest.mark.parametrize("f", WRITTEN)
def test_what_is_written_in_place(f: Function) -> None:
    """What the region reads may have been made so, and scores may be; what it makes, and what is not recorded, is left to
    PyTorch."""
    became = check(f, qkv())
    assert (became == "streamed") == WRITTEN[f], became


def test_values_that_change_after_they_were_read() -> None:
    """As in eager, the backward raises: what it needs is no longer there."""

    def f(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v = v * 1.0
        o = scores(q, k).softmax(-1) @ v
        return o, v.zero_()

    for g in (f, compiled(f, [])):
        q, k, v = (x.requires_grad_() for x in qkv())
        o, _ = g(q, k, v)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()


def test_the_report_says_how_gradients_are_computed() -> None:
    (region,) = aicf.explain(plain, *(x.requires_grad_() for x in qkv(128, 128)), options={"fuse": "always"}).regions
    assert region.backward.startswith("3 kernels, 9 products of the size of the scores (forward: 2); saved beside its inputs: ")
    assert f"  backward   {region.backward}" in full_lines([region])
    (region,) = aicf.explain(plain, *qkv(128, 128), options={"fuse": "always"}).regions
    assert region.backward == ""
