"""What is measured: attentions in plain PyTorch, each with the forms in which PyTorch's own fused calls can say it.

A case is written once. Its mask, as a function of indices, serves Flex Attention's block mask and the count of the scores that
have to be computed at all; its plain form is what AICF and torch.compile get, and the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Tensors = dict[str, Tensor]
Call = Callable[..., Any]
Mask = Callable[[Any, Any, Any, Any], Any]  # batch, head, query, key -> is the score kept?
Score = Callable[[Any, Any, Any, Any, Any], Any]  # score, batch, head, query, key -> score

WINDOW = 256
CAP = 30.0
DOCUMENT = 256  # tokens of a document, on average
PREFIX = 4  # one in so many tokens is prefix
PADDED = 4  # one in so many tokens is padding


@dataclass(frozen=True)
class Size:
    """Batch, query heads, tokens (keys; also queries, unless a case has only one) and head size."""

    batch: int
    heads: int
    n: int
    d: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.heads}x{self.n}x{self.d}"


def _nothing(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    return {}


def _first_three(attention: Call) -> Call:
    """Further inputs are in the mask and the score function already."""
    return lambda q, k, v, *_: attention(q, k, v)


@dataclass(frozen=True)
class Case:
    """An attention. Every callable takes the tensors in their order: q, k, v, then those of `extra`.

    `plain`: the code. `axes`: what the dimensions of each further input are, by letter: b batch, h query heads (others do not
    matter). `mask` and `score`: the case in Flex Attention's terms, made from the tensors; `flex`: the call around its
    `attention(q, k, v)`, which may add `more_keys`; None where it cannot be said so. `sdpa`: the call of
    scaled_dot_product_attention, made from the tensors (a mask is built once, before timing); None where it cannot be said so.
    `share`: query heads per key head. `rows`: queries, as many as keys when None. `maps`: score matrices.
    """

    name: str
    what: str
    plain: Call
    extra: Callable[[Size, torch.dtype, torch.Generator], Tensors] = _nothing
    axes: Mapping[str, str] = field(default_factory=dict[str, str])
    mask: Callable[[Tensors], Mask] | None = None
    score: Callable[[Tensors], Score] | None = None
    flex: Callable[[Call], Call] | None = _first_three
    sdpa: Callable[[Tensors], Call] | None = None
    share: int = 1
    rows: int | None = None
    maps: int = 1
    more_keys: int = 0


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5


def _ahead(q: Tensor, k: Tensor) -> Tensor:
    """Key position minus query position, [N, M]; above 0 lies in the future."""
    queries, keys = torch.arange(q.shape[-2], device=q.device), torch.arange(k.shape[-2], device=q.device)
    return keys[None, :] - queries[:, None]


# ------------------------------------------------------------------------------------------------ the code, as written


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _scores(q, k).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _scores(q, k).masked_fill(_ahead(q, k) > 0, float("-inf")).softmax(-1) @ v


def documents(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    keep = (ids[:, None, :, None] == ids[:, None, None, :]) & (_ahead(q, k) <= 0)
    return _scores(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor, slope: Tensor) -> Tensor:
    ahead = _ahead(q, k)
    scores = _scores(q, k) + slope[:, None, None] * ahead.to(q.dtype)
    return scores.masked_fill(ahead > 0, float("-inf")).softmax(-1) @ v


def softcap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = CAP * torch.tanh(_scores(q, k) / CAP)
    return scores.masked_fill(_ahead(q, k) > 0, float("-inf")).softmax(-1) @ v


def prefix(q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
    keep = (_ahead(q, k) <= 0) | (torch.arange(k.shape[-2], device=q.device) < length[:, None, None, None])
    return _scores(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


def padding(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
    return _scores(q, k).masked_fill(~real[:, None, None, :], float("-inf")).softmax(-1) @ v


def bias(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Tensor:
    return (_scores(q, k) + added).softmax(-1) @ v


def sink(q: Tensor, k: Tensor, v: Tensor, logit: Tensor) -> Tensor:
    scores = _scores(q, k).masked_fill(_ahead(q, k) > 0, float("-inf"))
    extra = logit[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, extra], -1).softmax(-1)[..., :-1] @ v


def gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    share = q.shape[1] // k.shape[1]
    return causal(q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1))


def differential(q: Tensor, k: Tensor, v: Tensor, q2: Tensor, k2: Tensor, weight: Tensor) -> Tensor:
    return (_scores(q, k).softmax(-1) - weight * _scores(q2, k2).softmax(-1)) @ v


def decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    share = q.shape[1] // k.shape[1]
    return dense(q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1))


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(_scores(q, k)) @ v


# ------------------------------------------------------------------------------------------------ their further inputs


def _document_ids(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    cuts = torch.randint(1, size.n, (size.batch, max(1, size.n // DOCUMENT - 1)), generator=generator)
    starts = torch.zeros(size.batch, size.n, dtype=torch.int64).scatter_(1, cuts, 1)
    return {"ids": starts.cumsum(1)}


def _slopes(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    return {"slope": torch.exp2(-8.0 * torch.arange(1, size.heads + 1) / size.heads).to(dtype)}


def _prefix_length(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    return {"length": torch.full((size.batch,), size.n // PREFIX)}


def _real_tokens(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    return {"real": (torch.arange(size.n) < size.n - size.n // PADDED).expand(size.batch, -1).contiguous()}


def _added(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    return {"added": torch.randn(size.heads, size.n, size.n, generator=generator).to(dtype)}


def _sink_logit(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    return {"logit": torch.randn(size.heads, generator=generator).to(dtype)}


def _second_map(size: Size, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    shape = (size.batch, size.heads, size.n, size.d)
    q, k = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return {"q2": q, "k2": k, "weight": torch.tensor(0.8, dtype=dtype)}


# ------------------------------------------------------------------------------------------------ in Flex Attention's terms


def _past(t: Tensors) -> Mask:
    return lambda b, h, i, j: j <= i


def _same_document(t: Tensors) -> Mask:
    ids = t["ids"]
    return lambda b, h, i, j: (ids[b, i] == ids[b, j]) & (j <= i)


def _prefix_or_past(t: Tensors) -> Mask:
    length = t["length"]
    return lambda b, h, i, j: (j <= i) | (j < length[b])


def _real(t: Tensors) -> Mask:
    real = t["real"]
    return lambda b, h, i, j: real[b, j]


def _past_or_sink(t: Tensors) -> Mask:
    last = t["k"].shape[-2]
    return lambda b, h, i, j: (j <= i) | (j == last)


def _sloped(t: Tensors) -> Score:
    slope = t["slope"]
    return lambda s, b, h, i, j: s + slope[h] * (j - i)


def _capped(t: Tensors) -> Score:
    return lambda s, b, h, i, j: CAP * torch.tanh(s / CAP)


def _biased(t: Tensors) -> Score:
    added = t["added"]
    return lambda s, b, h, i, j: s + added[h, i, j]


def _sunk(t: Tensors) -> Score:
    logit, last = t["logit"], t["k"].shape[-2]
    return lambda s, b, h, i, j: torch.where(j == last, logit[h], s)


def _with_one_more_key(attention: Call) -> Call:
    """A sink as a key of its own, whose value is nothing."""
    return lambda q, k, v, logit: attention(q, F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)))


def _minus(attention: Call) -> Call:
    return lambda q, k, v, q2, k2, weight: attention(q, k, v) - weight * attention(q2, k2, v)


# ------------------------------------------------------------------------------------------------ as SDPA calls

_sdpa = F.scaled_dot_product_attention


def _dense_call(t: Tensors) -> Call:
    return _sdpa


def _causal_call(t: Tensors) -> Call:
    return lambda q, k, v: _sdpa(q, k, v, is_causal=True)


def _grouped_call(t: Tensors) -> Call:
    return lambda q, k, v: _sdpa(q, k, v, is_causal=q.shape[-2] > 1, enable_gqa=True)


def _masked(mask: Callable[[Tensors], Mask]) -> Callable[[Tensors], Call]:
    """A call with the whole mask as a tensor, made beforehand."""

    def make(t: Tensors) -> Call:
        b, _, n, _ = t["q"].shape
        batch, rows, keys = (torch.arange(x, device=t["q"].device) for x in (b, n, t["k"].shape[-2]))
        keep = mask(t)(batch[:, None, None, None], None, rows[:, None], keys[None, :])
        return lambda q, k, v, *_: _sdpa(q, k, v, attn_mask=keep)

    return make


def _padded_call(t: Tensors) -> Call:
    return lambda q, k, v, real: _sdpa(q, k, v, attn_mask=real[:, None, None, :])


def _biased_call(t: Tensors) -> Call:
    return lambda q, k, v, added: _sdpa(q, k, v, attn_mask=added[None])


def _sloped_call(t: Tensors) -> Call:
    q, k, slope = t["q"], t["k"], t["slope"]
    ahead = _ahead(q, k)
    added = (slope[:, None, None] * ahead.to(q.dtype)).masked_fill(ahead > 0, float("-inf"))[None]
    return lambda q, k, v, slope: _sdpa(q, k, v, attn_mask=added)


def _difference_call(t: Tensors) -> Call:
    return lambda q, k, v, q2, k2, weight: _sdpa(q, k, v) - weight * _sdpa(q2, k2, v)


def windowed(width: int) -> Case:
    """The case of a sliding window of so many keys."""

    def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ahead = _ahead(q, k)
        return _scores(q, k).masked_fill((ahead > 0) | (ahead <= -width), float("-inf")).softmax(-1) @ v

    def near(t: Tensors) -> Mask:
        return lambda b, h, i, j: (j <= i) & (i - j < width)

    return Case("window", f"causal, the last {width} keys only", window, mask=near, sdpa=_masked(near))


CASES: tuple[Case, ...] = (
    Case("dense", "softmax(q k^T / sqrt(d)) v", dense, sdpa=_dense_call),
    Case("causal", "queries see themselves and the past", causal, mask=_past, sdpa=_causal_call),
    windowed(WINDOW),
    Case(
        "documents", f"causal, within documents of about {DOCUMENT} tokens", documents, _document_ids, {"ids": "bn"},
        mask=_same_document, sdpa=_masked(_same_document),
    ),
    Case(
        "alibi", "causal, a slope per head by distance", alibi, _slopes, {"slope": "h"},
        mask=_past, score=_sloped, sdpa=_sloped_call,
    ),
    Case("softcap", f"causal, scores bounded by {CAP:g} tanh(s / {CAP:g})", softcap, mask=_past, score=_capped),
    Case(
        "prefix", f"causal, but the first 1/{PREFIX} is seen by all (prefix-LM)", prefix, _prefix_length, {"length": "b"},
        mask=_prefix_or_past, sdpa=_masked(_prefix_or_past),
    ),
    Case(
        "padding", f"the last 1/{PADDED} of the keys is padding", padding, _real_tokens, {"real": "bn"},
        mask=_real, sdpa=_padded_call,
    ),
    Case("bias", "a bias per head, query and key is added", bias, _added, {"added": "hnn"}, score=_biased, sdpa=_biased_call),
    Case(
        "sink", "causal, with a learned logit per head in the sum", sink, _sink_logit, {"logit": "h"},
        mask=_past_or_sink, score=_sunk, flex=_with_one_more_key, more_keys=1,
    ),
    Case("gqa", "causal, 4 query heads per key head", gqa, mask=_past, sdpa=_grouped_call, share=4),
    Case(
        "differential", "the difference of two attention maps, times v", differential, _second_map,
        {"q2": "bhnd", "k2": "bhnd", "weight": ""}, flex=_minus, sdpa=_difference_call, maps=2,
    ),
    Case("decode", "one query, 4 query heads per key head", decode, sdpa=_grouped_call, share=4, rows=1),
    Case("sigmoid", "sigmoid(q k^T / sqrt(d)) v, no softmax", sigmoid, flex=None),
)  # fmt: skip


def make_inputs(case: Case, size: Size, dtype: torch.dtype) -> Tensors:
    """The tensors of a call, the same in every run, on the default device. Raises ValueError when the heads cannot be grouped."""
    if size.heads % case.share:
        raise ValueError(f"{case.name} shares each key head among {case.share} query heads; {size.heads} cannot be grouped so")
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    keys = (size.batch, size.heads // case.share, size.n, size.d)
    shapes = {"q": (size.batch, size.heads, case.rows or size.n, size.d), "k": keys, "v": keys}
    made = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return made | case.extra(size, dtype, generator)


def kept(case: Case, tensors: Tensors) -> float:
    """The share of scores that the mask keeps: what has to be computed at all."""
    if case.mask is None:
        return 1.0
    mask, (b, _, n, _), m = case.mask(tensors), tensors["q"].shape, tensors["k"].shape[-2]
    device = tensors["q"].device
    count, batch, keys = 0, torch.arange(b, device=device)[:, None, None], torch.arange(m, device=device)[None, None, :]
    for start in range(0, n, 1024):  # never the whole mask
        rows = torch.arange(start, min(n, start + 1024), device=device)[None, :, None]
        found = torch.as_tensor(mask(batch, None, rows, keys))
        count += int(found.expand(b, rows.shape[1], m).sum())
    return count / (b * n * m)


def flop(case: Case, tensors: Tensors) -> float:
    """Multiplications and additions of the contractions that the call needs, masked scores not counted."""
    b, h, n, d = tensors["q"].shape
    m, dv = tensors["v"].shape[-2:]
    return 2.0 * b * h * n * m * (case.maps * d + dv) * kept(case, tensors)


def traffic(case: Case, tensors: Tensors) -> int:
    """Bytes that a call must move: its inputs, once, and its result."""
    b, h, n, _ = tensors["q"].shape
    v = tensors["v"]
    return sum(t.nbytes for t in tensors.values()) + b * h * n * v.shape[-1] * v.element_size()


def head_groups(case: Case, tensors: Tensors) -> list[tuple[int, int]]:
    """(batch, key head) of everything that can be computed by itself."""
    b, g = tensors["k"].shape[:2]
    return [(x, y) for x in range(b) for y in range(g)]


def part(case: Case, tensors: Tensors, batch: int, head: int) -> Tensors:
    """The inputs of one key head and the query heads that share it, as views."""
    axes = {"q": "bhnd", "k": "bgmd", "v": "bgmd", **case.axes}
    heads = slice(head * case.share, (head + 1) * case.share)
    places = {"b": slice(batch, batch + 1), "h": heads, "g": slice(head, head + 1)}
    return {name: t[tuple(places.get(a, slice(None)) for a in axes[name])] for name, t in tensors.items()}


__all__ = ["CASES", "Case", "Size", "Tensors", "flop", "head_groups", "kept", "make_inputs", "part", "traffic"]
