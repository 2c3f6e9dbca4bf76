"""Masks as people write them, in words: named by the tensors that they were given, or by what they are of positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

import aicf
from aicf.frontends.torch.capture.retrace import trace
from aicf.frontends.torch.read.reader import Reading, read
from aicf.mcir import AttentionPatternPass
from aicf.mcir.passes.streaming_lowering import detected_meaning
from aicf.scalar import Load, evaluate, variables, walk
from aicf.streaming.masks import keep_of, parts_of
from aicf.streaming.origins import Origins
from tests.frontends.torch.capture import to_numpy

B, H, N, D = 2, 3, 24, 8
INF = float("inf")
MIN = torch.finfo(torch.float32).min

PADDED = torch.zeros(B, N, dtype=torch.bool)
PADDED[:, 20:] = True
LENGTHS = torch.tensor([20, 13])
DOCS = (torch.arange(N) // 7).expand(B, N).clone()
PAIRS = (torch.rand(N, N, generator=torch.Generator().manual_seed(0)) > 0.3) | torch.eye(N, dtype=torch.bool)
PLACES = torch.arange(N).expand(B, N).clone()

Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
CASES: dict[str, list[Case]] = {}


def ones(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(N, N, dtype=dtype)


def case(words: str, make: Callable[..., Tensor], *given: Tensor) -> None:
    CASES.setdefault(words, []).append((make, given))


def fill(words: str, hidden: Callable[..., Tensor], *given: Tensor, value: float = -INF) -> None:
    """Scores where `hidden` are filled."""
    case(words, _with_parameters(lambda s, *more: s.masked_fill(hidden(*more), value), hidden), *given)


def plus(words: str, added: Callable[..., Tensor], *given: Tensor) -> None:
    """Numbers that are added to the scores."""
    case(words, _with_parameters(lambda s, *more: s + added(*more), added), *given)


def _with_parameters(made: Callable[..., Tensor], like: Callable[..., Tensor]) -> Callable[..., Tensor]:
    own = [*inspect.signature(like).parameters.values()]
    made.__signature__ = inspect.Signature([inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD), *own])  # type: ignore[attr-defined]
    return made


def places() -> tuple[Tensor, Tensor]:
    """Of queries and of keys."""
    return torch.arange(N)[:, None], torch.arange(N)[None]


def ahead() -> Tensor:
    """How far a key is behind a query."""
    i, j = places()
    return j - i


def of(condition: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What is hidden when `condition(i, j, …)` is kept."""
    own = [*inspect.signature(condition).parameters.values()][2:]

    def hidden(*more: Tensor) -> Tensor:
        return ~condition(*places(), *more)

    hidden.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return hidden


# Functions of positions, from triangles of numbers and of truth values, compared, converted, added and multiplied.
fill("causal", lambda: ones().tril() == 0)
fill("causal", lambda: ones().triu(1).bool())
fill("causal", lambda: ~ones(torch.bool).tril())
fill("causal", lambda: ones(torch.uint8).tril().view(1, 1, N, N).bool().logical_not(), value=MIN)
fill("causal", lambda: 1 - ones().tril() > 0.5)
fill("causal", of(lambda i, j: i.float() >= j.float()))
fill("causal", of(lambda i, j: i.int() - j.int() > -1))
plus("causal", lambda: torch.full((N, N), -INF).triu(1))
plus("causal", lambda: torch.zeros(N, N).masked_fill(ones(torch.bool).triu(1), -INF))
plus("causal", lambda: ones().tril().log())
plus("causal (by adding finfo.min)", lambda: torch.triu(torch.full((N, N), MIN), 1))
plus("causal (by adding -1e9)", lambda: ones().triu(1) * -1e9)
case("causal (by adding -1e10)", lambda s: s * ones().tril() - 1e10 * (1 - ones().tril()))
fill("(causal with offset -1 or key 0)", of(lambda i, j: (i > j) | (j == 0)))
fill("causal, window 5", lambda: ones().tril() - ones().tril(-5) == 0)
fill("causal, window 5", lambda: (ones().triu(1) + ones().tril(-5)).bool(), value=-65000.0)
fill("band 4 to each side", lambda: ones().triu(-4).tril(4) == 0)
fill("band 4 to each side", of(lambda i, j: (i - j).abs() < 5))
fill("band 3 back and 1 ahead", of(lambda i, j: (j - i <= 1) & (i - j < 4)))
fill("causal, (window 6 or keys before 2)", of(lambda i, j: (j <= i) & ((i - j < 6) | (j < 2))))
fill("within blocks of 8", of(lambda i, j: i // 8 == j // 8))
fill("causal, stride 4", of(lambda i, j: (i >= j) & ((i - j) % 4 == 0)))
fill("all but each query's own key", lambda: torch.eye(N, dtype=torch.bool), value=-5e4)
fill("(keys after the query or query 23)", of(lambda i, j: (j > i) | (i == N - 1)))
fill("all keys but 3", of(lambda i, j: j != 3))

# One tensor: whatever casts, comparisons with constants, views and indexings lie between.
fill("keys that kpm hides", lambda kpm: kpm[:, None, None, :], PADDED)
fill("keys that mask keeps", lambda mask: mask[:, None, None, :] == 0, (~PADDED).float(), value=-1e9)
fill("keys that mask keeps", lambda mask: mask.unsqueeze(1).unsqueeze(2).eq(0), (~PADDED).long(), value=-1e4)
fill("keys that mask keeps", lambda mask: ~mask.to(torch.bool)[:, None, None, :], (~PADDED).long())
fill("keys that mask keeps", lambda mask: (mask < 0.5)[:, None, None, :], (~PADDED).float())
fill("keys that mask keeps", lambda mask: mask[:, None, None, :].lt(1), (~PADDED).int(), value=MIN)
fill("keys that mask keeps", lambda mask: mask[:, 2 : N + 2].bool().logical_not()[:, None, None], torch.ones(B, N + 8))
fill("keys that mask hides", lambda mask, order: mask[order][:, None, None, :], PADDED, torch.tensor([1, 0]))
fill("pairs that mask keeps", lambda mask: mask.view(1, N, N).expand(B, N, N)[:, None].float() == 0, PAIRS)
fill("pairs that blocks keeps", lambda blocks: ~blocks.repeat_interleave(8, 0).repeat_interleave(8, 1), torch.eye(3).bool())
fill("keys where ids != 1", lambda ids: ids.eq(1)[:, None, None], PLACES % 5)
fill("pairs where not isinf(mask)", lambda mask: mask.isinf(), torch.where(PAIRS, 0.0, -INF))
fill("(keys before 4 or keys that mask keeps)", lambda mask: ~torch.nn.functional.pad(mask, (4, 0), value=True)[:, None, None],
     ~PADDED[:, 4:])  # fmt: skip

# Numbers along tokens.
fill("keys before lengths", lambda lengths: ~(torch.arange(N) < lengths[:, None])[:, None, None, :], LENGTHS)
fill("keys before lengths", lambda lengths: (torch.arange(N).int() >= lengths.int()[:, None])[:, None, None, :], LENGTHS)
plus("keys before lengths", lambda lengths: torch.zeros(B, 1, 1, N).masked_fill(
    (torch.arange(N) >= lengths[:, None])[:, None, None], -INF), LENGTHS)  # fmt: skip
# A mean is a sum, and the words say what it is divided by; one of several results is called by the op that makes them.
fill("not (t[j] > sum(t) / 24.0)", lambda t: (t > t.mean(-1, keepdim=True))[:, None, None, :], torch.rand(B, N))
fill("not (sort(t)[i] < t[j])", lambda t: t.sort(-1).values[:, None, :, None] < t[:, None, None, :], torch.rand(B, N))
fill("not (topk(t) > t[j])", lambda t: (t.topk(3).values[:, -1:] > t)[:, None, None, :], torch.rand(B, N))
fill("keys before sum(mask)", lambda mask: (torch.arange(N) >= mask.sum(-1)[:, None])[:, None, None, :], (~PADDED).long())
fill("(causal or keys before prefix)", of(lambda i, j, prefix: (j <= i) | (j < prefix)), torch.tensor(3))
fill("same docs", lambda docs: (docs[:, :, None] != docs[:, None, :])[:, None], DOCS)
fill("same docs, causal", lambda docs: ~((docs[:, :, None] == docs[:, None, :]) & ones(torch.bool).tril())[:, None], DOCS)
fill("same docs, keys where docs != -1", lambda docs: (
    ~((docs[:, :, None] == docs[:, None]) & (docs[:, None] != -1))[:, None]), DOCS)  # fmt: skip
fill("q_docs[i] == k_docs[j]", lambda q_docs, k_docs: (q_docs[:, :, None] != k_docs[:, None, :])[:, None], DOCS, DOCS.clone())
fill("same searchsorted(starts)", lambda starts: (
    (d := torch.searchsorted(starts, torch.arange(N), right=True))[:, None] != d), torch.tensor([0, 5, 12, 24]))  # fmt: skip
fill("same cumsum(pos), causal by pos", lambda pos: ~(
    ((d := (pos == 0).cumsum(-1))[:, :, None] == d[:, None]) & (pos[:, :, None] >= pos[:, None]))[:, None],
    PLACES % 9)  # fmt: skip
fill("causal, window 5 by pos", lambda pos: ~(((d := pos[:, :, None] - pos[:, None]) >= 0) & (d < 5))[:, None], PLACES)
fill("causal, window 5 (queries at offset)", of(lambda i, j, offset: (i := offset[:, None]).ge(j) & (i - j < 5)), torch.arange(N))
fill("causal with offset start", of(lambda i, j, start: j <= i + start), torch.tensor(2))

# Numbers that are added.
plus("keys that mask keeps (by adding -1e9)", lambda mask: (1 - mask[:, None, None, :]) * -1e9, (~PADDED).float())
plus("keys that mask keeps (by adding finfo.min)", lambda mask: (1.0 - mask[:, None, None, :].float()) * MIN, (~PADDED).long())
plus("keys that mask keeps (by adding finfo.min)", lambda mask: (
    (x := 1.0 - mask[:, None, None, :].expand(B, 1, N, N).float()).masked_fill(x.bool(), MIN)), (~PADDED).long())  # fmt: skip
plus("keys that kpm hides (by adding -1e4)", lambda kpm: kpm[:, None, None, :] * -10000.0, PADDED)
plus("keys that kpm hides", lambda kpm: torch.where(kpm[:, None, None, :], -INF, 0.0), PADDED)
plus("queries that mask keeps, keys that mask keeps (by adding -1e4)",
     lambda mask: (1 - (mask[:, :, None] * mask[:, None, :])[:, None]) * -1e4, torch.ones(B, N))  # fmt: skip
plus("mask is added to the scores", lambda mask: mask, torch.where(PAIRS, 0.0, -INF))
plus("bias is added to the scores", lambda bias: bias[:, None, None, :].float(), torch.where(PADDED, -INF, 0.0).double())
plus("table is added to the scores", lambda table: table[ahead().clamp(-4, 4) + 4].permute(2, 0, 1), torch.randn(9, H))
plus("min(a[i, j], b[i, j]) is added to the scores", lambda a, b: torch.minimum(a, b), torch.randn(N, N), torch.randn(N, N))

# More than one.
case("keys that kpm hides, pairs that keep keeps", lambda s, kpm, keep: (
    s.masked_fill(kpm[:, None, None, :], -INF).masked_fill(~keep, -1e9)), PADDED, PAIRS)  # fmt: skip
case("keys that mask keeps (by adding -1e9), causal", lambda s, mask: (
    (s + (1 - mask[:, None, None, :]) * -1e9).masked_fill(ones().triu(1).bool(), -INF)), (~PADDED).float())  # fmt: skip
case("causal, bias is added to the scores", lambda s, bias: torch.where(ones().tril() != 0, s + bias, MIN), torch.randn(H, 1, N))
case("causal, slopes * (j - i) is added to the scores", lambda s, slopes: (
    (s + slopes[:, None, None] * ahead()).masked_fill(ones().triu(1).bool(), -INF)), torch.rand(H))  # fmt: skip
case("causal, slopes * (j - i) is added to the scores", lambda s, slopes: (
    s + (slopes[:, None, None] * ahead()).masked_fill(ones().triu(1).bool(), -INF)), torch.rand(H))  # fmt: skip
fill("pairs that a keeps, pairs that b keeps", lambda a, b: torch.minimum(a, b) == 0, PAIRS.float(), PAIRS.float())
fill("keys that mask keeps, queries that mask keeps", lambda mask: (mask[:, None, None] * mask[:, None, :, None]) == 0,
     torch.ones(B, N))  # fmt: skip
fill("a[i] * b[j] < 6", lambda a, b: (a[:, None] * b) >= 6, torch.arange(N) % 3, torch.arange(N) % 5)
fill("causal, keys that kpm hides", lambda kpm: ones(torch.bool).triu(1) | kpm[:, None, None, :], PADDED)
fill("(band 4 to each side or keys that far keeps or queries that far keeps)",
     lambda far: ~((ahead().abs() <= 4) | far[:, None, None, :] | far[:, None, :, None]), PLACES % 11 == 0)  # fmt: skip


def in_place(s: Tensor, mask: Tensor) -> Tensor:
    """A triangle of the smallest number, into which the padding is written."""
    full = torch.full((N, N), MIN).triu(1)[None, None].expand(B, 1, -1, -1).clone()
    hidden = full[:, :, :, :N] + mask[:, None, None, :] == 0
    full[:, :, :, :N] = full[:, :, :, :N].masked_fill(hidden, MIN)
    return s + full


case("keys that mask keeps, causal (by adding finfo.min)", in_place, (~PADDED).long())


def read_with_names(fn: Callable[..., Tensor], names: list[str], *given: Tensor) -> Reading:
    """`fn` read without Dynamo, its inputs called `names`."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.no_grad():
        traced = trace(fn, mode, [mode.from_tensor(x, static_shapes=True) for x in given])
    for node, name in zip([n for n in traced.graph.nodes if n.op == "placeholder"], names, strict=True):
        node._rename(name)
    return read(traced)


@pytest.mark.parametrize(("words", "n"), [(w, n) for w, found in CASES.items() for n in range(len(found))])
def test_words_of_scores(words: str, n: int) -> None:
    """The words, and that the condition in them is where the weights are not 0."""
    make, given = CASES[words][n]
    names = [*inspect.signature(make).parameters][1:]

    def attention(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        return make(q @ k.mT / 4.0, *more).softmax(-1) @ v

    g = torch.Generator().manual_seed(1)
    q, k = (torch.randn(B, H, N, D, generator=g) for _ in range(2))
    v = torch.eye(N).expand(B, H, N, N).contiguous()
    reading = read_with_names(attention, ["q", "k", "v", *names], q, k, v, *given)
    (region,) = AttentionPatternPass(frozenset(reading.anchors))(reading.graph).regions
    assert region.notes["mask"] == words

    found = detected_meaning(region)
    keep = keep_of(parts_of(found, Origins(found.loads, found.extents).traced))
    tensors = {name: to_numpy(x) for name, x in zip(names, given, strict=True)}
    if keep is None or not {x.tensor for x in walk(keep) if isinstance(x, Load)} <= {*tensors}:
        return
    b, h = (v.name for v in found.batch)
    shape = {b: (B, 1, 1, 1), h: (H, 1, 1), found.row.name: (N, 1), found.stream.name: (N,)}
    env = {name: np.arange(s[0]).reshape(s) for name, s in shape.items() if name in {v.name for v in variables(keep)}}
    weights = attention(q, k, v, *given).numpy()
    np.testing.assert_array_equal(np.broadcast_to(evaluate(keep, env, tensors), weights.shape), weights > 0)


@pytest.mark.parametrize(
    ("words", "fn", "given"),
    [
        ("causal (after the softmax)", lambda s, v: (p := s.softmax(-1) * ones().tril()) / p.sum(-1, keepdim=True) @ v, ()),
        ("keys that mask keeps", lambda s, v, mask: (e := s.exp() * mask[:, None, None]) / e.sum(-1, True) @ v, (~PADDED,)),
        ("keys that kpm hides", lambda s, v, kpm: (
            s.masked_fill(kpm[:, None, None], -INF).softmax(-1).masked_fill(kpm[:, None, None], 0.0) @ v), (PADDED,)),
        ("mask multiplies the weights", lambda s, v, mask: s.softmax(-1) * mask[:, None, None] @ v, (torch.rand(B, N),)),
        ("causal", lambda s, v: (s * ones().tril()) @ v, ()),
        ("causal, gamma ** (i - j) multiplies the weights", lambda s, v, gamma: (
            s * torch.where(ahead() <= 0, gamma[:, None, None] ** -ahead(), 0.0)) @ v, (torch.rand(H),)),
    ],
)  # fmt: skip
def test_words_of_weights(words: str, fn: Callable[..., Tensor], given: tuple[Tensor, ...]) -> None:
    names = [*inspect.signature(fn).parameters][2:]
    q, k, v = (torch.randn(B, H, N, D) for _ in range(3))
    reading = read_with_names(lambda q, k, v, *more: fn(q @ k.mT, v, *more), ["q", "k", "v", *names], q, k, v, *given)
    (region,) = AttentionPatternPass(frozenset(reading.anchors))(reading.graph).regions
    assert region.notes["mask"] == words


class Buffered(torch.nn.Module):
    """GPT-2's way: the triangle is a buffer of the module."""

    causal: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("causal", ones().tril().view(1, 1, N, N))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.where(self.causal[:, :, :N, :N] != 0, q @ k.mT, MIN)
        return (scores + mask).softmax(-1) @ v


def test_a_buffer_and_an_argument_in_a_report() -> None:
    q, k, v = (torch.randn(B, H, N, D) for _ in range(3))
    with torch.no_grad():
        report = str(aicf.explain(Buffered(), q, k, v, torch.zeros(B, 1, 1, N), options={"fuse": "always"}))
    assert "  mask       pairs that causal keeps, mask is added to the scores\n" in report


def test_names_of_what_is_passed_on_or_written_out() -> None:
    def attention(q: Tensor, mask: Tensor) -> Tensor:
        known = torch.tensor([True] * 20 + [False] * (N - 20))
        return (q @ q.mT).masked_fill(mask[:, None, None] | ~known, -INF).softmax(-1) @ q

    def call(**kwargs: Tensor) -> Tensor:
        return attention(**kwargs)

    with torch.no_grad():
        report = aicf.explain(call, q=torch.randn(B, H, N, D), mask=PADDED, options={"fuse": "always"})
    assert [r.mask for r in report.regions] == ["keys that mask hides, keys that constant0 keeps"]


@pytest.mark.parametrize(
    ("padding", "pairs", "words"),
    [
        (PADDED, ~PAIRS, "pairs that pairs hides, keys that padding hides"),
        (torch.where(PADDED, -INF, 0.0), torch.where(PAIRS, 0.0, -INF),
         "pairs is added to the scores, padding is added to the scores"),
        (PADDED, None, "keys that padding hides"),
    ],
)  # fmt: skip
def test_both_masks_of_multihead_attention(padding: Tensor, pairs: Any, words: str) -> None:
    layer = torch.nn.MultiheadAttention(24, 3, batch_first=True).eval()

    def attend(x: Tensor, padding: Tensor, pairs: Tensor | None) -> Tensor:
        return layer(x, x, x, key_padding_mask=padding, attn_mask=pairs, need_weights=False)[0]

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        report = str(aicf.explain(attend, torch.randn(B, N, 24), padding, pairs, options={"fuse": "always"}))
    assert f"  mask       {words}\n" in report


def test_a_long_condition_on_one_tensor_is_named_by_it() -> None:
    """Words are never what a graph is lost by."""

    def hidden(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        far = (((m * 1.2345678 + 0.1234567) * 3.4567891 - 0.7654321).abs() * 2.3456789 + 1.1111111) > 0.5000001
        return (q @ k.mT).masked_fill(far, -INF).softmax(-1) @ v

    q, k, v = (torch.randn(B, H, N, D) for _ in range(3))
    (region,) = aicf.explain(hidden, q, k, v, torch.randn(N, N), options={"fuse": "always"}).regions
    assert (region.status, region.mask) == ("streamed", "pairs where a condition on m")
