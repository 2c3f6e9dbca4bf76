"""One attention in many spellings: every one streams and keeps the contract, or is refused in words that say why.

None of them is known to the compiler. What they have in common is what their elements mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.contract import assert_contract

from .streamed import assert_streams, compiled

B, H, N, M, D = 2, 3, 19, 37, 16
INF = math.inf
Spelling = Callable[..., Tensor]


def made(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    shapes = {"q": (B, H, N, D), "k": (B, H, M, D), "v": (B, H, M, D), "w": (D, D), "u": (D,), "one": (D,), "x": (B, M, D)}
    arguments = {"k2": (B, H, 20, D), "v2": (B, H, 20, D), "sink": (H,), "bias": (1, H, N, M), "r": (2 * M - 1, D)}
    arguments |= {"v1": (B, M, D), "points": (B, H, M, 5, 3), "grid": (B, H, 5, 7, D), "qr": (B, H, N, 8), "kr": (B, M, 8)}
    return tuple(torch.randn(*{**shapes, **arguments}[a], generator=g).to(dtype) for a in INPUTS[name].split())


INPUTS: dict[str, str] = {}
SPELLINGS: dict[str, Spelling] = {}


def spelling(inputs: str = "q k v") -> Callable[[Spelling], Spelling]:
    def add(fn: Spelling) -> Spelling:
        SPELLINGS[fn.__name__], INPUTS[fn.__name__] = fn, inputs
        return fn

    return add


# ------------------------------------------------------------------------------------------------ products


@spelling()
def broadcast_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = ((q[..., :, None, :] * k[..., None, :, :]).sum(-1) / 4).softmax(-1)
    return (p[..., None] * v[..., None, :, :]).sum(-2)


@spelling()
def broadcast_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = (q @ k.mT / 4).softmax(-1)
    return torch.sum(p.unsqueeze(-1) * v.unsqueeze(2), dim=3)


@spelling("u x x")
def pooling_by_broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = (k @ q / 4).softmax(1)
    return (a.unsqueeze(-1) * v).sum(1)


@spelling("one x")
def a_vector_query(q: Tensor, x: Tensor) -> Tensor:
    return torch.mv(x[0].T, (x[0] @ q / 4).softmax(0))


@spelling()
def einsum_in_odd_orders(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = (torch.einsum("xyad,xybd->bxya", q, k) * 0.25).softmax(0)
    return torch.einsum("cxya,xyce->ayex", p, v)


@spelling("q k v w")
def einsum_of_three(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    p = (torch.einsum("bhid,de,bhje->bhij", q, w, k) / 8).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", p, v)


@spelling()
def values_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (v.mT @ (k @ q.mT / 4).softmax(-2)).mT


@spelling()
def baddbmm_and_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    none = torch.zeros(1, 1, M, dtype=q.dtype)
    s = torch.baddbmm(none, q.reshape(-1, N, D), k.reshape(-1, M, D).mT, beta=1, alpha=0.25)
    return torch.bmm(s.softmax(2), v.reshape(-1, M, D)).view(B, H, N, D)


@spelling()
def addmm_with_a_residual(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.addmm(q[0, 0], (q[0, 0] @ k[0, 0].T / 4).softmax(-1), v[0, 0])


@spelling()
def tensordot_of_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tensordot((torch.tensordot(q[0, 0], k[0, 0].T, dims=1) / 4).softmax(1), v[0, 0], dims=1)


@spelling()
def heads_in_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    qs, ks, vs = (torch.cat(x.transpose(1, 2).flatten(2).split(D, -1), 0) for x in (q, k, v))
    return torch.cat(((qs @ ks.mT / 4).softmax(-1) @ vs).split(B, 0), -1)


@spelling("q k v1")
def values_shared_by_the_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 4).softmax(-1) @ v.unsqueeze(1)


@spelling("q k qr kr v1")
def a_second_part_of_the_keys_and_the_values_shared(q: Tensor, k: Tensor, qr: Tensor, kr: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhnd,bhmd->bhnm", q, k) + torch.einsum("bhnr,bmr->bhnm", qr, kr)
    return torch.einsum("bhnm,bmd->bhnd", (s / 5).softmax(-1), v)


@spelling("q k")
def values_made_of_positions(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT / 4).softmax(-1) @ torch.linspace(-1, 1, M, dtype=q.dtype)


@spelling("q v")
def keys_made_of_positions(q: Tensor, v: Tensor) -> Tensor:
    waves = torch.cos(torch.arange(M)[:, None] * torch.linspace(0, 1, D)).to(q.dtype)
    return (q @ waves.T / 4).softmax(-1) @ v


@spelling("q k points")
def values_that_are_points(q: Tensor, k: Tensor, points: Tensor) -> Tensor:
    return torch.einsum("bhnm,bhmpc->bhnpc", (q @ k.mT / 4).softmax(-1), points)


@spelling("q grid grid")
def keys_on_a_grid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhnd,bhxyd->bhnxy", q, k) / 4
    return torch.einsum("bhnxy,bhxyd->bhnd", s.flatten(-2).softmax(-1).view_as(s), v)


@spelling("points points points")
def products_over_two_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhnm,bhmxy->bhnxy", torch.einsum("bhnxy,bhmxy->bhnm", q, k).softmax(-1), v)


# ------------------------------------------------------------------------------------------------ similarities


@spelling()
def cosine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10).softmax(-1) @ v


@spelling()
def cosine_by_name(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (F.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1) * 10).softmax(-1) @ v


@spelling()
def distances(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    apart = q.pow(2).sum(-1, keepdim=True) + k.pow(2).sum(-1)[..., None, :] - 2 * q @ k.mT
    return (-apart / 8).softmax(-1) @ v


# ------------------------------------------------------------------------------------------------ softmax by hand


@spelling()
def without_a_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(q @ k.mT / 8)
    return (e @ v) / e.sum(-1, keepdim=True)


@spelling()
def with_a_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    e = (s - s.max(-1, keepdim=True).values.detach()).exp()
    return (e / (e.sum(-1, keepdim=True) + 1e-6)) @ v


@spelling()
def by_a_log_sum_exp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    return (s - torch.logsumexp(s, -1, keepdim=True)).exp() @ v


@spelling()
def by_powers_of_a_number(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    e = math.e ** (s - s.amax(-1, keepdim=True))
    return e @ v / e.sum(-1, keepdim=True)


@spelling()
def in_wide_precision(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / 4, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype) @ v


@spelling()
def dropped_in_place_when_nothing_is(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = (q @ k.mT / 4).softmax(-1)
    return F.dropout(p, 0.3, training=False, inplace=True) @ v


@spelling()
def squared_and_normalised_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = (q @ k.mT / 4).softmax(-1) ** 2
    return (p / p.sum(-1, keepdim=True)) @ v


# ------------------------------------------------------------------------------------------------ masks


@spelling()
def masked_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT
    s /= 4
    s.masked_fill_(torch.ones(N, M, dtype=torch.bool).triu(5), -INF)
    return F.softmax(s, dim=-1).matmul(v)


@spelling()
def masked_by_index(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    s[:, :, torch.arange(M)[None] > torch.arange(N)[:, None]] = -INF
    return s.softmax(-1) @ v


@spelling()
def masked_by_a_logarithm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 4 + torch.ones(N, M, dtype=q.dtype).tril().log()).softmax(-1) @ v


@spelling()
def kept_by_the_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    keep = s > 0.5
    p = torch.where(keep.any(-1, keepdim=True), s.masked_fill(~keep, -INF).softmax(-1), 0.0)
    return p.to(q.dtype) @ v


@spelling()
def rows_without_keys_zeroed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.arange(M)[None] < torch.arange(N)[:, None] - 4
    p = (q @ k.mT / 4).masked_fill(~keep, -INF).softmax(-1)
    return p.masked_fill((~keep).all(-1, keepdim=True), 0) @ v


@spelling()
def mean_over_the_kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    keep = s > 0
    return (s * keep) @ v / keep.sum(-1, keepdim=True).clamp(min=1)


@spelling()
def noise_made_in_double(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    noise = torch.linspace(0.1, 0.9, M, dtype=q.dtype)
    return ((q @ k.mT / 4 - torch.log(-torch.log(noise))) / 0.7).softmax(-1) @ v


# ------------------------------------------------------------------------------------------------ keys in parts


@spelling("q k v k2 v2")
def a_cache_before_the_keys(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    keys, values = torch.cat([k2, k], 2), torch.cat([v2, v], 2)
    late = torch.arange(20 + M)[None] > torch.arange(N)[:, None] + 20
    return (q @ keys.mT / 4).masked_fill(late, -INF).softmax(-1) @ values


@spelling("q k v k2 v2")
def two_sets_of_keys_and_one_softmax(q: Tensor, k: Tensor, v: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    p = (torch.cat([q @ k.mT, q @ k2.mT], -1) / 4).softmax(-1)
    return p[..., :M] @ v + p[..., M:] @ v2


@spelling("q k v w")
def two_products_per_position(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    late = torch.ones(N, M, dtype=torch.bool).triu(9)
    p = torch.cat([(q @ k.mT).masked_fill(late, -INF), q @ (k @ w).mT / 4], -1).softmax(-1)
    first, second = p.chunk(2, -1)
    return first @ v + second @ v


@spelling("q k v sink")
def a_sink_on_the_left(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    s = torch.cat([sink.view(1, H, 1, 1).expand(B, H, N, 1), q @ k.mT / 4], -1)
    return s.softmax(-1)[..., 1:] @ v


@spelling()
def a_zero_score_on_the_left(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.pad(q @ k.mT / 4, (1, 0)).softmax(-1)[..., 1:] @ v


@spelling()
def divided_behind_a_view(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The product merges the heads, and what divides it does not: both are of one region, which is one ratio."""
    p = torch.exp(q @ k.mT / 4)
    o = torch.bmm(p.reshape(B * H, N, M), v.reshape(B * H, M, D)).view(B, H, N, D)
    return o / p.sum(-1, keepdim=True)


@spelling()
def statistics_beside_merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / 4
    p = s.softmax(-1)
    o = torch.bmm(p.reshape(B * H, N, M), v.reshape(B * H, M, D)).view(B, H, N, D)
    return torch.cat([o, s.amax(-1, keepdim=True)], -1)


@spelling()
def statistics_beside_heads_in_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q.reshape(B, 1, H, N, D) @ k[:, :1, None].mT / 4).reshape(B, H, N, M)
    p = s.softmax(-1)
    o = (p.reshape(B, 1, H, N, M) @ v[:, :1, None]).reshape(B, H, N, D)
    return torch.cat([o, torch.logsumexp(s, -1, keepdim=True)], -1)


@spelling()
def a_zero_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ F.pad(k, (0, 0, 0, 1)).mT / 4).softmax(-1) @ F.pad(v, (0, 0, 0, 1))


@spelling("k k v r")
def relative_positions_by_a_shift(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    s = torch.einsum("bhid,rd->bhir", q, r)
    s = F.pad(s, (1, 0)).view(B, H, 2 * M, M)[:, :, 1:].view(B, H, M, 2 * M - 1)[..., :M]
    return ((q @ k.mT + s) / 4).softmax(-1) @ v


@pytest.mark.parametrize("name", SPELLINGS)
def test_streams(name: str) -> None:
    assert_streams(SPELLINGS[name], *made(name, torch.float32))


@pytest.mark.parametrize("name", ["broadcast_products", "cosine", "by_powers_of_a_number", "masked_by_index", "a_zero_key"])
def test_streams_in_half_precision(name: str) -> None:
    assert_streams(SPELLINGS[name], *made(name, torch.bfloat16))


# ------------------------------------------------------------------------------------------------ what is refused, and how


def reason(fn: Callable[..., object], inputs: str) -> str:
    INPUTS["refused"] = inputs
    _, regions = compiled(fn, *made("refused", torch.float32))
    assert [r.status for r in regions] == ["refused"]
    return regions[0].reason


def test_scores_that_are_read_by_an_op_that_is_not_followed_must_exist() -> None:
    """The region would compute them once more, a little differently: the threshold would miss its own element."""

    def best_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k.mT / 4
        return s.masked_fill(s < s.topk(5, dim=-1).values[..., -1:], -INF).softmax(-1) @ v

    assert "is also read by" in reason(best_keys, "q k v")
    assert "aten.topk" in reason(best_keys, "q k v")

    def best_key(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s = q @ k.mT  # of max the values are followed, the positions are not
        return s.softmax(-1) @ v, s.max(-1).indices

    assert "aten.max" in reason(best_key, "q k v")


def test_scores_without_products_are_refused_in_words() -> None:
    def graph_attention(q: Tensor, k: Tensor, v: Tensor, u: Tensor) -> Tensor:
        return F.leaky_relu((q @ u)[..., :, None] + (k @ u)[..., None, :]).softmax(-1) @ v

    assert "no product of queries and keys" in reason(graph_attention, "q k v u")


def test_a_softmax_of_a_softmax_is_refused_in_words() -> None:
    assert "an exponential of an exponential" in reason(lambda q, k, v: (q @ k.mT).softmax(-1).softmax(-1) @ v, "q k v")


# ------------------------------------------------------------------------------------------------ scores for two


def both_ways(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    s = q @ k.mT / 4
    return s.softmax(-1) @ k, s.mT.masked_fill(torch.ones(M, N, dtype=torch.bool).triu(9), -INF).softmax(-1) @ q


def test_scores_that_two_attentions_read_are_computed_in_each() -> None:
    q, k, _ = made("values_first", torch.float32)
    run, regions = compiled(both_ways, q, k)
    assert [r.status for r in regions] == ["streamed", "streamed"], [r.reason for r in regions]
    for got, unfused, exact in zip(run(q, k), both_ways(q, k), both_ways(q.double(), k.double()), strict=True):
        assert_contract(got, unfused, exact, "f32")


def test_scores_that_a_third_reads_must_be_written() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        s = q @ k.mT / 4
        return s.softmax(-1) @ v, s.softmax(-2).mT @ q, s.softmax(-2).softmax(-1)

    _, regions = compiled(fn, *made("values_first", torch.float32))
    assert [r.status for r in regions] == ["refused", "refused"]
    assert all("must be written" in r.reason for r in regions), [r.reason for r in regions]


# ------------------------------------------------------------------------------------------------ how far, told by a tensor


@pytest.mark.parametrize("fill", [-INF, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("shape", [(), (1,), (B, 1, 1, 1)])
def test_a_cache_filled_up_to_a_position(shape: tuple[int, ...], fill: float) -> None:
    """One number in a tensor, or one per sequence, bounds the stream when the kernel runs."""

    def decode(q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
        return (q @ k.mT / 4).masked_fill(torch.arange(M) > position, fill).softmax(-1) @ v

    q, k, v = made("values_first", torch.float32)
    for rows in (1, N):
        run, (region,) = compiled(decode, q[:, :, :rows], k, v, torch.zeros(shape, dtype=torch.long))
        assert region.status == "streamed", region.reason
        for position in (0, 15, 16, 20, M - 1, M + 5):
            where = torch.full(shape, position)
            few = q[:, :, :rows]
            exact = decode(few.double(), k.double(), v.double(), where)
            assert_contract(run(few, k, v, where), decode(few, k, v, where), exact, "f32", f"{rows} rows up to {position}")
