"""What a row gives, per form of mask: partly and fully masked rows equal eager PyTorch, in every precision.

Each case has rows that see all, some and none of the keys, over several tiles, so that whole tiles are skipped where that is
allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import aicf
from tests.contract import assert_contract
from tests.frontends.torch.streamed import assert_streams, compiled

INF = math.inf
N, M, D, EMPTY = 40, 70, 8, 10
Form = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def tensors(dtype: torch.dtype, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, D, generator=g) for n in (N, M, M))
    return (q * scale).to(dtype), k.to(dtype), v.to(dtype)


def kept() -> torch.Tensor:
    """Rows 0 to 9 see nothing, row i the keys up to 2 (i - 10)."""
    return torch.arange(M)[None, :] <= 2 * (torch.arange(N)[:, None] - EMPTY)


def attention(form: Form, fill: float) -> Callable[..., torch.Tensor]:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = form(q @ k.transpose(-2, -1) / math.sqrt(D), kept(), fill)
        return torch.softmax(s, -1) @ v

    return run


def _bias(s: torch.Tensor, keep: torch.Tensor, fill: float) -> torch.Tensor:
    return torch.zeros(keep.shape, dtype=s.dtype).masked_fill(~keep, fill)


FORMS: dict[str, Form] = {
    "filled": lambda s, keep, fill: s.masked_fill(~keep, fill),
    "where": lambda s, keep, fill: torch.where(keep, s, fill),
    "added": lambda s, keep, fill: s + _bias(s, keep, fill),
    "added on the left": lambda s, keep, fill: _bias(s, keep, fill) + s,
}
FINITE: dict[str, Form] = {
    **FORMS,
    "one minus": lambda s, keep, fill: s + (1.0 - keep.to(s.dtype)) * fill,
    "one minus times the score": lambda s, keep, fill: s * keep.to(s.dtype) + fill * (1 - keep.to(s.dtype)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_infinite_fills_give_nan_rows(form: str, dtype: torch.dtype) -> None:
    got = assert_streams(attention(FORMS[form], -INF), *tensors(dtype))
    assert got[:, :, :EMPTY].isnan().all() and not got[:, :, EMPTY:].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fill", ["lowest", -1e4, -1e9, -30.0])
@pytest.mark.parametrize("form", FINITE)
def test_finite_fills_are_values(form: str, fill: float | str, dtype: torch.dtype) -> None:
    value = torch.finfo(dtype).min if isinstance(fill, str) else fill
    if abs(value) > torch.finfo(dtype).max:
        pytest.skip("PyTorch refuses a fill that the type cannot hold")
    got = assert_streams(attention(FINITE[form], value), *tensors(dtype))
    assert got.isfinite().all()


@pytest.mark.parametrize("fill", ["lowest", -1e9, -1e4])
@pytest.mark.parametrize("after", [lambda s: s * 0.2, lambda s: F.leaky_relu(s, 0.3), lambda s: s * 0.25 * 0.5])
def test_a_fill_that_is_scaled_counts_in_rows_that_have_nothing_else(
    after: Callable[[torch.Tensor], torch.Tensor], fill: float | str
) -> None:
    """Rows 36 to 39 have no key, and share their tiles with row 35, which has the last three: keys that are skipped for all of
    them count in rows without any."""
    value = torch.finfo(torch.float32).min if isinstance(fill, str) else fill

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keep = torch.arange(N)[:, None] // 9 == torch.arange(30)[None, :] // 9
        s = after((q @ k.mT / math.sqrt(D)).masked_fill(~keep, value))
        return torch.softmax(s, -1) @ v

    q, k, v = tensors(torch.float32)
    k, v = k[:, :, :30], v[:, :, :30]
    with torch.no_grad():
        schedule = {"tile_m": 5, "tile_n": 16, "rows": 1, "order": "q_major"}
        got = aicf.compile(run, fuse="always", require="streamed", schedule=schedule)(q, k, v)
        assert_contract(got, run(q, k, v), run(q.double(), k.double(), v.double()), "f32")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_filled_row_is_the_mean_of_all_values(dtype: torch.dtype) -> None:
    q, k, v = tensors(dtype)
    got = assert_streams(attention(FORMS["filled"], torch.finfo(dtype).min), q, k, v)
    mean = v.float().mean(-2, keepdim=True).expand(-1, -1, EMPTY, -1)
    assert torch.allclose(got[:, :, :EMPTY].float(), mean, atol=4 * torch.finfo(dtype).eps)


def test_a_small_additive_fill_leaves_the_softmax_of_the_raw_scores() -> None:
    q, k, v = tensors(torch.float32)
    got = assert_streams(attention(FORMS["added"], -1e4), q, k, v)
    plain = torch.softmax(q @ k.mT / math.sqrt(D), -1) @ v
    assert torch.allclose(got[:, :, :EMPTY], plain[:, :, :EMPTY], atol=1e-2)  # -1e4 leaves three digits of a score


def test_the_lowest_half_does_not_absorb_every_score() -> None:
    """fp16: numbers near -65504 are 32 apart, so that scores above 16 move the sum and scores below -16 make it -inf."""
    s = torch.tensor([[0.5, 20.0, -20.0, 3.0]], dtype=torch.float16)
    q = torch.ones(1, 1, 1, 1, dtype=torch.float16)
    v = torch.eye(4, dtype=torch.float16)[None, None]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        hidden = torch.arange(4) >= 0
        return torch.softmax(q @ k.mT + torch.zeros(4, dtype=q.dtype).masked_fill(hidden, -65504.0), -1) @ v

    run_streamed, regions = compiled(run, q, s.reshape(1, 1, 4, 1), v)
    assert regions[0].status == "streamed"
    assert run_streamed(q, s.reshape(1, 1, 4, 1), v).flatten().tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_additive_lowest_fills_are_minus_infinity(dtype: torch.dtype) -> None:
    low = torch.finfo(dtype).min
    both = attention(lambda s, keep, _: s + _bias(s, keep, low) + _bias(s, keep, low), 0.0)
    got = assert_streams(both, *tensors(dtype))
    assert got[:, :, :EMPTY].isnan().all() and not got[:, :, EMPTY:].isnan().any()


@pytest.mark.parametrize("form", ["added", "added on the left"])
def test_the_lowest_number_absorbs_no_score_that_is_as_large(form: str) -> None:
    """fp32: scores of 1e28 are rounded away, and -1e32 below the lowest number is -inf."""
    q, k, v = tensors(torch.float32)
    low = torch.finfo(torch.float32).min
    for size in (1e28, 1e32):
        got = assert_streams(attention(FORMS[form], low), q * size, k, v)
        mean = v.mean(-2, keepdim=True).expand(-1, -1, EMPTY, -1)
        assert torch.allclose(got[:, :, :EMPTY], mean, atol=1e-6) == (size < 1e31)


@pytest.mark.parametrize("form", FORMS)
def test_rows_without_keys_have_no_log_sum_and_log_probabilities_of_nan(form: str) -> None:
    def lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = FORMS[form](q @ k.mT / math.sqrt(D), kept(), -INF)
        return torch.logsumexp(s, -1), torch.softmax(s, -1) @ v

    def logs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(FORMS[form](q @ k.mT / math.sqrt(D), kept(), -INF), -1).exp() @ v

    run, regions = compiled(lse, *tensors(torch.float32))
    assert [r.status for r in regions] == ["streamed"]
    got, eager = run(*tensors(torch.float32))[0], lse(*tensors(torch.float32))[0]
    assert (got[:, :, :EMPTY] == -INF).all() and torch.allclose(got, eager)
    assert assert_streams(logs, *tensors(torch.float32))[:, :, :EMPTY].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["bool", "-inf", "lowest", "causal"])
def test_sdpa(kind: str, dtype: torch.dtype) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if kind == "causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        fill = -INF if kind == "-inf" else torch.finfo(q.dtype).min if q.dtype != torch.float64 else torch.finfo(dtype).min
        mask = kept() if kind == "bool" else torch.zeros(N, M, dtype=q.dtype).masked_fill(~kept(), fill)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    got = assert_streams(run, *tensors(dtype))
    if kind in ("bool", "-inf"):
        assert (got[:, :, :EMPTY] == 0).all()
    assert got.isfinite().all()


def _log_guarded(s: torch.Tensor) -> torch.Tensor:
    lse = torch.logsumexp(s, -1)
    return torch.exp(s - torch.where(lse == -INF, 0.0, lse)[..., None])


FLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no scores": lambda s: torch.where((s == -INF).all(-1, keepdim=True), 0.0, torch.softmax(s, -1)),
    "log guarded": _log_guarded,
}


@pytest.mark.parametrize("form", FLEX)
def test_rows_without_keys_are_zero_as_in_flex_attention(form: str) -> None:
    """Its meaning, spelt out: a row without scores has no probabilities, and the log of an empty sum is -inf."""

    def spelt(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s = (q @ k.mT / math.sqrt(D)).masked_fill(~kept(), -INF)
        return FLEX[form](s) @ v, torch.logsumexp(s, -1)

    q, k, v = tensors(torch.float32)
    run, regions = compiled(spelt, q, k, v)
    assert [r.status for r in regions] == ["streamed"], [r.reason for r in regions]
    mask = create_block_mask(lambda b, h, i, j: j <= 2 * (i - EMPTY), None, None, N, M, device="cpu")
    theirs: Any = flex_attention(q, k, v, block_mask=mask, return_lse=True)
    for ours, other, exact in zip(run(q, k, v), theirs, spelt(q.double(), k.double(), v.double()), strict=True):
        assert_contract(ours, other, exact, "f32")
    assert (theirs[0][:, :, :EMPTY] == 0).all() and (theirs[1][:, :, :EMPTY] == -INF).all()


def _finite(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == -INF, 0.0, x)


def _maximum_guarded(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    total = p.sum(-1, keepdim=True)
    return (p @ v) / torch.where(total == 0, 1.0, total)


def _both_guarded(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    top = s.amax(-1, keepdim=True)
    top = top.masked_fill(torch.isinf(top), 0.0)
    lse = top + torch.exp(s - top).sum(-1, keepdim=True).log()
    return torch.exp(s - _finite(lse)) @ v


GUARDED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "maximum": _maximum_guarded,
    "maximum and log": _both_guarded,
    "log": lambda s, v: torch.exp(s - _finite(torch.logsumexp(s, -1, keepdim=True))) @ v,
    "clamped log": lambda s, v: torch.exp(s - torch.logsumexp(s, -1, keepdim=True).clamp(min=-1e4)) @ v,
    "nan to num": lambda s, v: torch.exp(s - torch.nan_to_num(torch.logsumexp(s, -1, keepdim=True), neginf=0.0)) @ v,
    "not guarded": lambda s, v: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v,
    "another infinity": lambda s, v: torch.exp(s - torch.nan_to_num(torch.logsumexp(s, -1, keepdim=True), neginf=-INF)) @ v,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", GUARDED)
def test_a_row_of_minus_infinity_may_be_guarded_where_it_is_subtracted(form: str, dtype: torch.dtype) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return GUARDED[form]((q @ k.mT / math.sqrt(D)).masked_fill(~kept(), -INF), v)

    empty = assert_streams(run, *tensors(dtype))[:, :, :EMPTY]
    assert empty.isnan().all() if form in ("not guarded", "another infinity") else (empty == 0).all()


AFTER: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "times": lambda p, keep: p * keep,
    "filled": lambda p, keep: p.masked_fill(~keep, 0.0),
    "renormalised": lambda p, keep: (p * keep) / (p * keep).sum(-1, keepdim=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", AFTER)
def test_masks_after_the_softmax_count_every_key(form: str, dtype: torch.dtype) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return AFTER[form](torch.softmax(q @ k.mT / math.sqrt(D), -1), kept()) @ v

    got = assert_streams(run, *tensors(dtype))
    empty = got[:, :, :EMPTY]
    assert empty.isnan().all() if form == "renormalised" else (empty == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_rows_replaced_by_zero(dtype: torch.dtype) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = (q @ k.mT / math.sqrt(D)).masked_fill(~kept(), -INF)
        return torch.nan_to_num(torch.softmax(s, -1), nan=0.0) @ v

    assert (assert_streams(run, *tensors(dtype))[:, :, :EMPTY] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mask_multiplied_into_scores_is_no_mask(dtype: torch.dtype) -> None:
    got = assert_streams(attention(lambda s, keep, _: s * keep, 0.0), *tensors(dtype))
    mean = tensors(dtype)[2].float().mean(-2, keepdim=True).expand(-1, -1, EMPTY, -1)
    assert torch.allclose(got[:, :, :EMPTY].float(), mean, atol=4 * torch.finfo(dtype).eps)


# ------------------------------------------------------------------------------------------------ NaN and infinities under a mask


@pytest.mark.parametrize("value", [math.nan, INF, -INF], ids=str)
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("form", [*FORMS, "sdpa bool", "sdpa causal"])
def test_strict_mode_has_what_eager_has_under_a_mask(form: str, where: str, value: float) -> None:
    """The last keys are hidden from most rows by whole tiles; what is in them shows where eager shows it."""
    q, k, v = tensors(torch.float32)
    (k if where == "k" else v)[..., -3, 2] = value

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if form == "sdpa causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=kept())

    run = sdpa if form.startswith("sdpa") else attention(FORMS[form], -INF)
    assert_streams(run, q, k, v, strict=True)


@pytest.mark.parametrize("form", ["times", "filled", "nan_to_num", "rows filled", *(f"guarded: {form}" for form in GUARDED)])
def test_strict_mode_multiplies_zeros_with_what_they_meet(form: str) -> None:
    """0 * NaN is NaN, in rows without keys too; weights that are made 0 after the softmax are no exception."""
    q, k, v = tensors(torch.float32)
    v[..., -3, 2] = math.nan

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = q @ k.mT / math.sqrt(D)
        if form in AFTER:
            return AFTER[form](torch.softmax(s, -1), kept()) @ v
        p = torch.softmax(s.masked_fill(~kept(), -INF), -1)
        if form == "nan_to_num":
            return torch.nan_to_num(p, nan=0.0) @ v
        if form.startswith("guarded"):
            return GUARDED[form.removeprefix("guarded: ")](s.masked_fill(~kept(), -INF), v)
        return p.masked_fill((~kept()).all(-1, keepdim=True), 0.0) @ v

    assert assert_streams(run, q, k, v, strict=True)[..., 2].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["minimum", "filled", "added"])
def test_fills_of_two_masks_are_rounded_alike(form: str, dtype: torch.dtype) -> None:
    """In rows that one mask hides whole, keys that the other one hides too count as much as the others: -1e9 in bf16 is neither
    -1e9 nor lower than itself. The rows' mask is computed outside, the keys' mask inside of the region."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = q @ k.mT / math.sqrt(D)
        row, keep = torch.arange(N)[:, None] >= EMPTY, kept()
        rows, keys = (torch.where(c, 0.0 if form == "added" else INF, -1e9).to(s.dtype) for c in (row, keep))
        if form == "added":
            return torch.softmax(s + torch.minimum(rows, keys), -1) @ v
        if form == "filled":
            return torch.softmax(torch.where(row, torch.where(keep, s, keys), rows), -1) @ v
        return torch.softmax(torch.minimum(torch.minimum(s, rows), keys), -1) @ v

    assert_streams(run, *tensors(dtype))


HIDING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "minimum": lambda s, keep: torch.minimum(s, torch.where(keep, INF, -1e4)),
    "added": lambda s, keep: s + torch.where(keep, 0.0, -INF),
    "subtracted": lambda s, keep: torch.where(keep, 0.0, -INF) - s,
    "filled": lambda s, keep: s.masked_fill(~keep, -INF),
}


@pytest.mark.parametrize("form", HIDING)
def test_a_mask_that_only_adds_or_bounds_does_not_hide_what_an_earlier_one_made_nan(form: str) -> None:
    """silu(-inf) is -inf * 0. The later mask hides whole tiles of such scores; only a selection hides NaN."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        near = torch.arange(M)[None, :] <= torch.arange(N)[:, None]
        s = F.silu((q @ k.mT / math.sqrt(D)).masked_fill(torch.arange(M)[None, :] > torch.arange(N)[:, None] + 6, -INF))
        return torch.softmax(HIDING[form](s, near), -1) @ v

    got = assert_streams(run, *tensors(torch.float32))
    assert got.isfinite().all() if form == "filled" else got.isnan().all()


def test_without_strict_mode_hidden_tiles_are_skipped_and_taken_for_finite() -> None:
    q, k, v = tensors(torch.float32)
    v[..., -3, 2] = math.nan
    run = attention(FORMS["filled"], -INF)
    with pytest.raises(AssertionError, match="differ in being NaN"):
        assert_streams(run, q, k, v)


def test_the_parts_of_a_concatenation_are_read_inside_of_their_tensors() -> None:
    """One query, and old and new values: both parts are read at every position, and only one is selected."""
    q, k, v = tensors(torch.float32)

    def run(q: torch.Tensor, k: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(q @ k.mT) @ torch.cat([old, new], dim=2)

    _, regions = compiled(run, q[:, :, :1], k, v[:, :, :20], v[:, :, 20:])
    assert_streams(run, q[:, :, :1], k, v[:, :, :20], v[:, :, 20:])
    for r in regions:
        if "V[b, h, j - 20, e]" in r.dump("kernel"):
            raise AssertionError(r.dump("kernel"))


def entropy(s: torch.Tensor) -> torch.Tensor:
    logp = s.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1, keepdim=True)


def test_an_entropy_is_relative_to_the_maximum_of_its_own_softmax():
    """Not to that of the softmax of -s beside it, of which s is a multiple too; and a reference may move by 3e38."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = q @ k.transpose(-2, -1) + (1.0 - kept().flip(1).to(q.dtype)) * torch.finfo(torch.float32).min
        return torch.cat([torch.softmax(-s, -1) @ v, entropy(s)], -1)

    assert_streams(run, *tensors(torch.float32))


def test_an_entropy_beside_a_mask_that_whole_tiles_keep():
    """What such tiles know of the mask is a number, and other numbers of that value stay themselves."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = (q @ k.transpose(-2, -1)).masked_fill(~kept().flip(1), -INF)
        p = torch.softmax(s, -1).masked_fill(~kept(), 0.0)
        return torch.cat([p @ v, entropy(s)], -1)

    assert_streams(run, *tensors(torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_renormalised_after_a_mask_far_below_the_maximum(dtype: torch.dtype, scale: float):
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        p = (q @ k.transpose(-2, -1)).float().softmax(-1) * (torch.arange(M)[None, :] > torch.arange(N)[:, None])
        return (p / p.sum(-1, keepdim=True)).to(v.dtype) @ v

    assert_streams(run, *tensors(dtype, scale))


def test_an_entropy_over_what_a_minimum_hides_is_nan_as_in_the_source():
    """0 times -inf: tiles that hide scores in this way are no empty ones."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = torch.minimum(q @ k.transpose(-2, -1), torch.where(torch.arange(M) < 20, INF, -INF))
        return torch.cat([torch.softmax(s, -1) @ v, entropy(s)], -1)

    assert_streams(run, *tensors(torch.float32))


def decayed(s: torch.Tensor) -> torch.Tensor:
    n, m = s.shape[-2:]
    return s * 0.97 ** (torch.arange(n)[:, None] - torch.arange(m)[None, :]).abs().to(s.dtype)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_an_entropy_of_scores_with_an_exponential_factor(scale: float):
    """It is as exact where one probability is nearly 1: what the sum adds up is relative to the maximum."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = decayed(q @ k.transpose(-2, -1))
        return torch.cat([torch.softmax(s, -1) @ v, 1e4 * entropy(s)], -1)

    assert_streams(run, *tensors(torch.float32, scale))


def test_rows_without_scores_meet_a_mask_after_the_softmax():
    """What it selects there is NaN, and what it does not select is 0."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = q @ k.transpose(-2, -1) + kept().to(q.dtype).log()
        p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))
        return p.masked_fill(torch.arange(N)[:, None] < 4, 0.0) @ v

    got = assert_streams(run, *tensors(torch.float32))
    assert (got[:, :, :4] == 0).all() and got[:, :, 4:EMPTY].isnan().all() and not got[:, :, EMPTY:].isnan().any()

    def rest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = q @ k.transpose(-2, -1) + kept().to(q.dtype).log()
        p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))
        return p.masked_fill(torch.arange(M)[None, :] < 60 + torch.arange(N)[:, None], 0.0) @ v

    got = assert_streams(rest, *tensors(torch.float32))
    assert got[:, :, :EMPTY].isnan().all() and (got[:, :, EMPTY:] == 0).all()


@pytest.mark.parametrize("hidden", ["log", "filled", "loaded"])
def test_a_mask_multiplied_onto_scores_that_are_infinite_is_nan_there(hidden: str):
    """0 times -inf: a tile that the second mask hides is no empty one."""
    shown = torch.arange(M)[None, :] >= 2 * torch.arange(N)[:, None] - 40
    bias = torch.zeros(N, M).masked_fill(~shown, -INF)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        s = q @ k.transpose(-2, -1)
        if hidden == "log":
            s = s + shown.to(q.dtype).log()
        else:
            s = s.masked_fill(~shown, -INF) if hidden == "filled" else s + bias
        keep = (torch.arange(M)[None, :] >= 16).to(q.dtype).expand(N, M)
        s = s * keep - 1e4 * (1 - keep)
        return torch.sigmoid(s) @ v

    got = assert_streams(run, *tensors(torch.float32), bias)
    assert got.isnan().any() and not got.isnan().all()
