"""What is found in graphs as models have them, and what is said of the rest. Kinds of attention, each in its smallest form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aicf.driver import Options, RegionResult, compile_graph
from aicf.frontends.torch.read.reader import read
from aicf.mcir.passes.streaming_lowering import detected_meaning

from .capture import capture_directly


def regions(fn: Callable[..., Any], *args: Tensor, weights: tuple[int, ...] = ()) -> list[RegionResult]:
    """What becomes of `fn(*args)`; `weights`: the positions of those arguments that are parameters."""
    gm = capture_directly(fn, *args).traced
    reading = read(gm, [k in weights for k in range(len(args))])
    return compile_graph(reading.graph, Options(fuse="always"), frozenset(reading.anchors), reading.parameters).regions


def statuses(fn: Callable[..., Any], *args: Tensor, weights: tuple[int, ...] = ()) -> list[str]:
    return [r.status for r in regions(fn, *args, weights=weights)]


X, W = torch.zeros(2, 6, 8), torch.zeros(8, 8)
Q, K, V = (torch.zeros(2, 3, 6, 4) for _ in range(3))


# ------------------------------------------------------------------------------------------------ what is no attention


def test_a_norm_between_linear_layers_is_no_attention():
    def layers(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        x = F.linear(x, first)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return F.linear(y, second), y

    assert regions(layers, X, W, W, weights=(1, 2)) == []


def test_an_activation_between_linear_layers_is_no_attention():
    def layers(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        y = F.gelu(F.linear(x, first))
        return F.linear(y, second), y

    assert regions(layers, X, W, W, weights=(1, 2)) == []


def test_similarities_of_normalised_projections_are_no_attention():
    def clip(text: Tensor, image: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
        text = F.linear(text, projection)
        text = text / text.norm(dim=-1, keepdim=True)
        return text @ image.t(), text

    assert regions(clip, X[0], X[1], W, weights=(2,)) == []


def test_experts_of_a_mixture_are_no_attention():
    def experts(x: Tensor, up: Tensor, down: Tensor, chosen: Tensor) -> Tensor:
        h = torch.bmm(up[chosen], x.unsqueeze(-1)).squeeze(-1)
        return torch.bmm(down[chosen], F.silu(h).unsqueeze(-1)).squeeze(-1)

    x, up, down = torch.zeros(6, 8), torch.zeros(4, 16, 8), torch.zeros(4, 8, 16)
    assert regions(experts, x, up, down, torch.tensor([0, 1, 3, 3, 2, 0]), weights=(1, 2)) == []


# ------------------------------------------------------------------------------------------------ what is not taken, and why


def test_alternating_normalisers_are_refused_with_a_reason():
    def sinkhorn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = torch.exp(q @ k.mT)
        for _ in range(2):
            p = p / p.sum(-1, keepdim=True)
            p = p / p.sum(-2, keepdim=True)
        return p @ v

    (r,) = regions(sinkhorn, Q, K, V)
    assert r.status == "refused"
    assert "normaliser runs along one axis of the scores and the sum with the values along another" in r.reason


def test_refusals_say_what_is_in_the_way():
    def additive(q: Tensor, k: Tensor, v: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return (torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w).softmax(-1) @ v

    def additive_of_projections(q: Tensor, k: Tensor, v: Tensor, w: Tensor, m: Tensor) -> Tensor:
        q, k = F.linear(q, m), F.linear(k, m)
        return (torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w).softmax(-1) @ v

    def heads_before(q: Tensor, k: Tensor, v: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return F.linear((q @ k.mT).movedim(1, -1), m[:3, :3]).movedim(-1, 1).softmax(-1) @ v

    def heads_after(q: Tensor, k: Tensor, v: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return F.linear((q @ k.mT).softmax(-1).movedim(1, -1), m[:3, :3]).movedim(-1, 1) @ v

    def heads_before_shared_values(q: Tensor, k: Tensor, v: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return F.linear((q @ k.mT).movedim(1, -1), m[:3, :3]).movedim(-1, 1).softmax(-1) @ v[:, :1]

    said = {
        heads_before_shared_values: "sums over an axis of the score tensor itself",
        additive: "not as a product of the two (additive attention)",
        additive_of_projections: "not as a product of the two (additive attention)",
        heads_before: "sums over an axis of the score tensor itself",
        heads_after: "heads mixed after the softmax",
    }
    for fn, reason in said.items():
        (r,) = regions(fn, Q, K, V, torch.ones(4), torch.ones(4, 4), weights=(3, 4))
        assert r.status == "refused" and reason in r.reason, (fn.__name__, r.reason)


def test_a_projection_that_stands_for_scores_is_called_one():
    """A softmax over the positions of the keys, which are one part of a linear layer's result."""

    def linear_attention(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = F.linear(x, w).chunk(3, -1)
        return q @ (k.softmax(1).mT @ v)

    (r,) = regions(linear_attention, X, torch.ones(24, 8), weights=(1,))
    assert r.status == "refused" and "the projection by weights, which stands for the scores here" in r.reason, r.reason


def test_dropout_that_is_on_is_named_also_behind_projections():
    def self_attention(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = F.linear(x, w).chunk(3, -1)
        return F.dropout((q @ k.mT).softmax(-1), 0.5, training=True) @ v

    (r,) = regions(self_attention, X, torch.ones(24, 8), weights=(1,))
    assert r.status == "refused" and "between the softmax and the sum with the values: dropout is on" in r.reason, r.reason


def test_linear_layers_with_normalised_weights_are_no_attention():
    def layers(x: Tensor, v: Tensor, g: Tensor) -> Tensor:
        return F.linear(F.linear(x, W), v * (g / torch.linalg.vector_norm(v, dim=1, keepdim=True)))

    assert statuses(layers, X, torch.ones(8, 8), torch.ones(8, 1), weights=(1, 2)) == []


def test_a_mask_after_the_softmax_that_hides_everything_leaves_nothing_to_stream():
    def hidden(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        return ((q @ k.mT).softmax(-1) * (j < i - 100)) @ v

    (r,) = regions(hidden, Q, K, V)
    assert r.status == "refused"
    assert "nothing is left to stream" in r.reason


def test_a_single_key_is_said_to_be_one():
    for rows in (6, 1):
        q, k, v = (torch.zeros(2, 3, n, 4) for n in (rows, 1, 1))
        (r,) = regions(softmax_attention, q, k, v)
        assert r.status == "refused"
        assert "single key" in r.reason


# ------------------------------------------------------------------------------------------------ what is taken


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / 2, -1) @ v


def test_weights_that_nobody_uses_do_not_matter():
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    assert statuses(lambda x: attention(x, x, x)[0], X) == ["streamed"]


def test_a_bias_gathered_from_a_linear_layer():
    """ProphetNet: the biases of a query's relative positions are computed from the query's own vector."""

    def fn(x: Tensor, w: Tensor, b: Tensor, k: Tensor, v: Tensor, bucket: Tensor) -> Tensor:
        bias = F.linear(x, w, b).gather(-1, bucket)
        return torch.softmax(x @ k.mT + bias, -1) @ v

    bucket = torch.zeros(2, 6, 6, dtype=torch.long)
    assert statuses(fn, X, torch.zeros(5, 8), torch.zeros(5), X, X, bucket, weights=(1, 2)) == ["streamed"]


def test_projections_whose_parts_are_taken_by_index() -> None:
    """Queries, the key and the value as parts of one linear layer, taken by index lists: one attention, not two."""

    def shared_key(x: Tensor, w: Tensor) -> Tensor:
        fused = (x @ w.mT).view(2, -1, 6, 8)
        q, k, v = fused[:, :, :-2], fused[:, :, [-2]], fused[:, :, [-1]]
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        return (q @ k.mT).softmax(-1) @ v

    found = regions(shared_key, torch.randn(2, 9, 32), torch.randn(48, 32), weights=(1,))
    assert [r.status for r in found] == ["streamed"]


def test_scores_behind_a_concatenation_are_the_same_product_as_beside_it() -> None:
    """The reshape of the keys is seen through in both places, though positions go on behind the keys in one."""

    def sink(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
        b, h, n, d = q.shape
        m = k.shape[2]
        s = torch.bmm(q.reshape(b * h, n, d), k.reshape(b * h, m, d).mT).view(b, h, n, m)
        return torch.cat([s, sink[None, :, None, None].expand(b, -1, n, 1)], -1).softmax(-1)[..., :-1] @ v

    q, k, v = torch.zeros(2, 1, 9, 8), torch.zeros(2, 1, 17, 10)[..., 1:9], torch.zeros(2, 1, 17, 8)
    (r,) = regions(sink, q, k, v, torch.zeros(1))
    assert r.status == "streamed" and r.region is not None
    assert len(detected_meaning(r.region).scores) == 1
