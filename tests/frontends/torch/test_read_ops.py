"""Every op that the reader covers: a small function of each, read from Dynamo's graph, has eager's values node by node."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aicf.frontends.torch.read.context import DROPOUT

from .capture import capture, capture_directly, check


def cases(**functions: Callable[..., Any]) -> list[Any]:
    return [pytest.param(f, id=name) for name, f in functions.items()]


def sample(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors [2, 3, 4] and [3, 4] with signs, zeros and ordinary values."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 4, generator=g), torch.randn(3, 4, generator=g)
    x[0, 0, 0] = 0.0
    return x.to(dtype), y.to(dtype)


ELEMENTWISE = cases(
    add=lambda x, y: x + y,
    add_scalar=lambda x, y: x + 0.3,
    add_int=lambda x, y: 2 + x,
    add_alpha=lambda x, y: torch.add(x, y, alpha=0.7),
    add_scalar_alpha=lambda x, y: torch.add(x, 3, alpha=2),
    sub=lambda x, y: x - y,
    rsub=lambda x, y: 0.3 - x,
    rsub_fn=lambda x, y: torch.rsub(x, y, alpha=2),
    sub_alpha=lambda x, y: torch.sub(x, y, alpha=3),
    mul=lambda x, y: x * y,
    mul_scalar=lambda x, y: 0.1 * x,
    div=lambda x, y: x / y,
    div_scalar=lambda x, y: x / 3.0,
    rdiv=lambda x, y: 3.0 / (y.abs() + 1),
    div_floor=lambda x, y: torch.div(x, y, rounding_mode="floor"),
    div_trunc=lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    floordiv=lambda x, y: x // y,
    mod=lambda x, y: x % 0.75,
    fmod=lambda x, y: torch.fmod(x, 0.75),
    square=lambda x, y: x**2,
    cube=lambda x, y: x**3,
    sqrt=lambda x, y: x.abs().sqrt(),
    pow_half=lambda x, y: x.abs() ** 0.5,
    pow_minus_half=lambda x, y: (x.abs() + 1) ** -0.5,
    pow_minus_one=lambda x, y: (x.abs() + 1) ** -1,
    pow_minus_two=lambda x, y: (x.abs() + 1) ** -2,
    pow_zero=lambda x, y: x**0,
    pow_one=lambda x, y: x**1,
    pow_tensor=lambda x, y: x.abs() ** y,
    pow_base=lambda x, y: 0.97**x,
    rsqrt=lambda x, y: (x.abs() + 1).rsqrt(),
    neg=lambda x, y: -x,
    abs=lambda x, y: x.abs(),
    sign=lambda x, y: x.sign(),
    reciprocal=lambda x, y: (y.abs() + 1).reciprocal(),
    maximum=lambda x, y: torch.maximum(x, y),
    minimum=lambda x, y: torch.minimum(x, y),
    max_other=lambda x, y: torch.max(x, y),
    exp=lambda x, y: x.exp(),
    exp2=lambda x, y: x.exp2(),
    expm1=lambda x, y: x.expm1(),
    log=lambda x, y: (x.abs() + 0.1).log(),
    log2=lambda x, y: (x.abs() + 0.1).log2(),
    log1p=lambda x, y: x.abs().log1p(),
    log10=lambda x, y: (x.abs() + 0.1).log10(),
    sin=lambda x, y: x.sin(),
    cos=lambda x, y: x.cos(),
    tan=lambda x, y: x.tan(),
    tanh=lambda x, y: x.tanh(),
    sigmoid=lambda x, y: x.sigmoid(),
    erf=lambda x, y: x.erf(),
    floor=lambda x, y: (x * 3).floor(),
    ceil=lambda x, y: (x * 3).ceil(),
    trunc=lambda x, y: (x * 3).trunc(),
    round=lambda x, y: (x * 3).round(),
    frac=lambda x, y: (x * 3).frac(),
    relu=lambda x, y: x.relu(),
    relu6=lambda x, y: F.relu6(x * 9),
    hardtanh=lambda x, y: F.hardtanh(x),
    gelu=lambda x, y: F.gelu(x),
    gelu_tanh=lambda x, y: F.gelu(x, approximate="tanh"),
    silu=lambda x, y: F.silu(x),
    mish=lambda x, y: F.mish(x),
    softplus=lambda x, y: F.softplus(x),
    softplus_beta=lambda x, y: F.softplus(x, beta=2.0, threshold=1.5),
    leaky=lambda x, y: F.leaky_relu(x, 0.1),
    elu=lambda x, y: F.elu(x, alpha=0.7),
    selu=lambda x, y: F.selu(x),
    hardsigmoid=lambda x, y: F.hardsigmoid(x),
    hardswish=lambda x, y: F.hardswish(x),
    logsigmoid=lambda x, y: F.logsigmoid(x),
    threshold=lambda x, y: F.threshold(x, 0.1, -3.0),
    clamp=lambda x, y: x.clamp(-0.5, 0.5),
    clamp_min=lambda x, y: x.clamp(min=0.1),
    clamp_max=lambda x, y: x.clamp_max(0.1),
    clamp_tensor=lambda x, y: torch.clamp(x, min=y),
    lt=lambda x, y: x < y,
    le=lambda x, y: x <= 0.3,
    gt=lambda x, y: x > 0,
    ge=lambda x, y: x >= y,
    eq=lambda x, y: x == 0,
    ne=lambda x, y: x != 0,
    logical=lambda x, y: torch.logical_and(x > 0, y > 0) | torch.logical_not(x > 1) ^ torch.logical_or(x, y),
    logical_xor=lambda x, y: torch.logical_xor(x, y),
    where=lambda x, y: torch.where(x > 0, x, y),
    where_scalar=lambda x, y: torch.where(x > 0, x, -1.5),
    where_other=lambda x, y: torch.where(x > 0, 0.0, x),
    where_scalars=lambda x, y: torch.where(x > 0, 1.0, 2.0),
    masked_fill=lambda x, y: x.masked_fill(y > 0, -math.inf),
    masked_fill_min=lambda x, y: x.masked_fill(y > 0, torch.finfo(x.dtype).min),
    masked_fill_tensor=lambda x, y: x.masked_fill(y > 0, torch.tensor(2.0)),
    addcmul=lambda x, y: torch.addcmul(x, y, y, value=0.3),
    addcdiv=lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.5),
    lerp=lambda x, y: torch.lerp(x, y, 0.3),
    lerp_far=lambda x, y: torch.lerp(x, y, 0.8),
    lerp_tensor=lambda x, y: torch.lerp(x, y, torch.sigmoid(y)),
    isnan=lambda x, y: (x / x).isnan(),
    isinf=lambda x, y: (1 / x).isinf(),
    isfinite=lambda x, y: (x / x).isfinite(),
    isneginf=lambda x, y: torch.isneginf(-1 / x.abs()),
    isposinf=lambda x, y: torch.isposinf(1 / x.abs()),
    nan_to_num=lambda x, y: torch.nan_to_num(x / x, nan=0.25),
    nan_to_num_inf=lambda x, y: torch.nan_to_num(1 / x.abs()),
    nan_to_num_given=lambda x, y: torch.nan_to_num(-1 / x.abs(), neginf=-7.0, posinf=9.0),
    heads_gate=lambda x, y: torch.sigmoid(x) * y,
    zero_dim=lambda x, y: x * torch.tensor(0.3) + torch.tensor(2),
    bool_times_float=lambda x, y: (x > 0) * 0.5,
    float_of_bool=lambda x, y: (x > 0).to(x.dtype),
    one_minus=lambda x, y: (1.0 - (x > 0).to(x.dtype)) * -10000.0,
    softcap=lambda x, y: 20.0 * torch.tanh(x / 20.0),
    no_ops=lambda x, y: x.clone().contiguous().detach() + y,
    dropout=lambda x, y: F.dropout(x, 0.5, training=False) * 2,
    identity_dropout=lambda x, y: F.dropout(x, 0.0, training=True) * 2,
    type_as=lambda x, y: (x > 0).type_as(y),
    casts=lambda x, y: x.float().half().to(torch.bfloat16).double().to(x.dtype),
    to_int=lambda x, y: (x * 3).long(),
    copysign_free=lambda x, y: torch.square(x) + y.positive(),
)

INTEGERS = cases(
    arithmetic=lambda i, j: i * 3 + j - 2,
    div=lambda i, j: i / 4,
    div_floor=lambda i, j: i // 3,
    mod=lambda i, j: i % 3,
    remainder_negative=lambda i, j: (i - 5) % 3,
    floor_negative=lambda i, j: (i - 5) // 3,
    trunc_negative=lambda i, j: torch.div(i - 5, 3, rounding_mode="trunc"),
    fmod=lambda i, j: torch.fmod(i - 5, 3),
    add_float=lambda i, j: i + 0.5,
    times_float=lambda i, j: i * 0.5,
    bitwise=lambda i, j: (i & 3) | (j ^ 5) & ~i,
    shifts=lambda i, j: (i << 2) + (i >> 1),
    compare=lambda i, j: (i <= j) & (i - j < 2),
    compare_float=lambda i, j: i > 2.5,
    abs=lambda i, j: (i - j).abs(),
    exp=lambda i, j: (-i).exp(),
    float=lambda i, j: i.float().log1p(),
    small=lambda i, j: i.int() + j.short(),
    bytes=lambda i, j: i.to(torch.uint8) + 1,
    bool_sum=lambda i, j: (i > 2).sum(),
    int_sum=lambda i, j: i.int().sum(0),
    mean=lambda i, j: i.float().mean(),
    max=lambda i, j: i.amax(0),
    clamp=lambda i, j: i.clamp(1, 3),
    clamp_float=lambda i, j: i.clamp(max=2.5),
    square=lambda i, j: i**2,
    where=lambda i, j: torch.where(i > j, i, 0),
    where_float=lambda i, j: torch.where(i > j, i, -1e9),
    masked_fill=lambda i, j: i.masked_fill(i > 2, 7),
    bool_arithmetic=lambda i, j: (i > 2) * (j > 1) + (i > 1),
    bool_int=lambda i, j: (i > 2) * 3,
    t5_buckets=lambda i, j: torch.where(
        (j - i).abs() < 2,
        (j - i).abs(),
        (2 + torch.log((j - i).abs().clamp(min=1).float() / 2) / math.log(4) * 2).long().clamp(max=3),
    ),
    one_hot=lambda i, j: F.one_hot(i % 4, 4),
    any=lambda i, j: (i > 3).any(),
    all=lambda i, j: (i > 3).all(1),
    max_int=lambda i, j: torch.maximum(i, torch.tensor(3)),
    floor=lambda i, j: i.floor(),
    neg=lambda i, j: -i,
    cumulative_free=lambda i, j: i.prod(1),
)

VIEWS = cases(
    view=lambda x, y: x.view(6, 4),
    view_minus=lambda x, y: x.view(-1, 2),
    reshape=lambda x, y: x.transpose(0, 1).reshape(3, 8),
    permute=lambda x, y: x.permute(2, 0, 1),
    transpose=lambda x, y: x.transpose(-1, 0),
    t=lambda x, y: y.t(),
    capital_t=lambda x, y: y.T,
    mT=lambda x, y: x.mT,
    swapaxes=lambda x, y: x.swapaxes(0, 2),
    movedim=lambda x, y: x.movedim(0, -1),
    movedims=lambda x, y: torch.movedim(x, (0, 1), (2, 0)),
    expand=lambda x, y: y.expand(5, 3, 4),
    expand_minus=lambda x, y: y[:, None].expand(-1, 2, -1),
    expand_as=lambda x, y: y.expand_as(x),
    broadcast_to=lambda x, y: torch.broadcast_to(y, (2, 3, 4)),
    unsqueeze=lambda x, y: x.unsqueeze(-2),
    squeeze=lambda x, y: x[:, :1].squeeze(1),
    squeeze_all=lambda x, y: x[:1, :1].squeeze(),
    squeeze_none=lambda x, y: x.squeeze(0),
    flatten=lambda x, y: x.flatten(1),
    unflatten=lambda x, y: x.unflatten(-1, (2, 2)),
    select=lambda x, y: x[1],
    select_negative=lambda x, y: x[:, -1],
    slice=lambda x, y: x[:, 1:],
    slice_step=lambda x, y: x[..., ::2],
    slice_negative=lambda x, y: x[..., -3:-1],
    slice_far=lambda x, y: x[:, 1:100],
    slice_both=lambda x, y: x[:, -100:2],
    narrow=lambda x, y: x.narrow(2, 1, 2),
    split=lambda x, y: x.split(2, dim=-1)[1],
    split_sizes=lambda x, y: x.split([1, 3], -1)[1],
    chunk=lambda x, y: sum(x.chunk(3, dim=1)),
    chunk_uneven=lambda x, y: x.chunk(2, dim=1)[1],
    unbind=lambda x, y: x.unbind(1)[2],
    tensor_split=lambda x, y: x.tensor_split(3, dim=2)[0],
    flip=lambda x, y: x.flip(1, -1),
    cat=lambda x, y: torch.cat([x, y[None]], 0),
    cat_last=lambda x, y: torch.cat([-x[..., 2:], x[..., :2]], -1),
    cat_promotes=lambda x, y: torch.cat([x, (y > 0)[None]], 0),
    cat_empty=lambda x, y: torch.cat([torch.zeros(0, dtype=x.dtype), x], 1),
    stack=lambda x, y: torch.stack([x, -x], 1),
    pad=lambda x, y: F.pad(x, (1, 2)),
    pad_value=lambda x, y: F.pad(x, (0, 1, 2, 0), value=-1.5),
    pad_crop=lambda x, y: F.pad(x, (-1, 1)),
    repeat=lambda x, y: y.repeat(2, 3),
    repeat_more=lambda x, y: y.repeat(2, 1, 3),
    tile=lambda x, y: y.tile(2),
    repeat_interleave=lambda x, y: x.repeat_interleave(2, dim=1),
    repeat_interleave_flat=lambda x, y: torch.repeat_interleave(y, 2),
    repeat_kv=lambda x, y: x[:, :, None].expand(2, 3, 5, 4).reshape(2, 15, 4),
    roll=lambda x, y: torch.roll(x, 1, -1),
    roll_two=lambda x, y: torch.roll(x, (1, -1), (1, 2)),
    roll_flat=lambda x, y: y.roll(2),
    meshgrid=lambda x, y: sum(torch.meshgrid(y[0], y[:, 0], indexing="ij")),
    meshgrid_xy=lambda x, y: sum(torch.meshgrid(y[0], y[:, 0], indexing="xy")),
    broadcast_tensors=lambda x, y: torch.broadcast_tensors(x, y)[1],
    view_as=lambda x, y: x.reshape(6, 4).view_as(x),
    slice_from_end=lambda x, y: x[:, -y.shape[0] :],
    slice_from_length=lambda x, y: x[..., y.shape[0] :],
    shifted=lambda x, y: F.pad(x, (1, 0)).reshape(2, 5, 3)[:, 1:],
)

CREATION = cases(
    arange=lambda x, y: torch.arange(4),
    arange_range=lambda x, y: torch.arange(3, 11, 2),
    arange_down=lambda x, y: torch.arange(5, 0, -1),
    arange_float=lambda x, y: torch.arange(0.0, 1.0, 0.3),
    arange_dtype=lambda x, y: torch.arange(4, dtype=torch.float16),
    arange_half_steps=lambda x, y: torch.arange(0, 4, 2) / 4,
    full=lambda x, y: torch.full((3, 4), -math.inf, dtype=x.dtype) + 0 * y,
    full_like=lambda x, y: torch.full_like(x, 2),
    zeros=lambda x, y: torch.zeros(3, 4) + y,
    ones=lambda x, y: torch.ones(3, 4, dtype=torch.bool),
    zeros_like=lambda x, y: torch.zeros_like(x),
    ones_like=lambda x, y: torch.ones_like(y, dtype=torch.int32),
    new_zeros=lambda x, y: x.new_zeros(2, 2),
    new_ones=lambda x, y: x.new_ones((2,)),
    new_full=lambda x, y: x.new_full((2, 3), 0.3),
    scalar=lambda x, y: torch.tensor(0.3) + y,
    scalar_tensor=lambda x, y: torch.scalar_tensor(2.5),
    eye=lambda x, y: torch.eye(4),
    eye_wide=lambda x, y: torch.eye(3, 5, dtype=x.dtype),
    tril=lambda x, y: torch.ones(3, 4, dtype=torch.bool).tril(),
    tril_offset=lambda x, y: y.tril(1),
    triu=lambda x, y: torch.full((4, 4), -math.inf).triu(1),
    triu_negative=lambda x, y: x.triu(-1),
    linspace=lambda x, y: torch.linspace(0, 1, 5),
    linspace_odd=lambda x, y: torch.linspace(-1, 2.5, 4),
    rope=lambda x, y: (torch.arange(5)[:, None] * (10000.0 ** (-torch.arange(0, 4, 2) / 4))[None]).cos(),
    causal=lambda x, y: torch.where(torch.arange(4)[:, None] >= torch.arange(4)[None], 0.0, -math.inf),
    alibi=lambda x, y: (
        torch.exp2(-8.0 * torch.arange(1, 5) / 4)[:, None, None] * (torch.arange(3)[None] - torch.arange(3)[:, None])
    ),
)

INDEXING = cases(
    embedding=lambda x, y: F.embedding(torch.tensor([[0, 2], [1, 1]]), y),
    take_rows=lambda x, y: y[torch.tensor([2, 0])],
    take_middle=lambda x, y: x[:, torch.tensor([2, 0, 1])],
    take_two=lambda x, y: x[torch.tensor([1, 0]), :, torch.tensor([3, 1])],
    take_pair=lambda x, y: x[:, torch.tensor([[0], [2]]), torch.tensor([1, 3])],
    take_negative=lambda x, y: y[torch.tensor([-1, 0])],
    index_select=lambda x, y: x.index_select(2, torch.tensor([3, 0])),
    gather=lambda x, y: x.gather(2, torch.tensor([[[0, 3], [1, 1], [2, 0]]]).expand(2, 3, 2)),
    gather_rows=lambda x, y: y.gather(0, torch.tensor([[2, 1]])),
    take_along=lambda x, y: torch.take_along_dim(x, torch.tensor([[[1], [0], [3]]]), -1),
    bias_table=lambda x, y: y[(torch.arange(3)[None] - torch.arange(3)[:, None]).clamp(0, 2)].permute(2, 0, 1),
)

REDUCTIONS = cases(
    sum=lambda x, y: x.sum(),
    sum_dim=lambda x, y: x.sum(-1),
    sum_dims=lambda x, y: x.sum((0, 2), keepdim=True),
    sum_dtype=lambda x, y: x.sum(1, dtype=torch.float32),
    mean=lambda x, y: x.mean(),
    mean_dim=lambda x, y: x.mean(-1, keepdim=True),
    amax=lambda x, y: x.amax(-1, keepdim=True),
    amin=lambda x, y: x.amin((0, 1)),
    max=lambda x, y: x.max(),
    max_dim=lambda x, y: x.max(dim=-1, keepdim=True).values,
    min_dim=lambda x, y: x.min(1)[0],
    prod=lambda x, y: y.prod(),
    prod_dim=lambda x, y: y.prod(1),
    any=lambda x, y: (x > 1).any(-1),
    all=lambda x, y: (x > -9).all(),
    aminmax=lambda x, y: torch.aminmax(x, dim=1).max,
    var=lambda x, y: x.var(-1),
    var_biased=lambda x, y: x.var(-1, unbiased=False),
    var_correction=lambda x, y: x.var((1, 2), correction=0, keepdim=True),
    std=lambda x, y: x.std(),
    var_mean=lambda x, y: torch.var_mean(x, -1)[1],
    norm=lambda x, y: x.norm(dim=-1),
    norm_all=lambda x, y: x.norm(),
    normalize=lambda x, y: F.normalize(x, dim=-1),
    vector_norm_1=lambda x, y: torch.linalg.vector_norm(x, 1, dim=-1),
    vector_norm_inf=lambda x, y: torch.linalg.vector_norm(x, math.inf, dim=(0, 1)),
    count_nonzero=lambda x, y: torch.count_nonzero(x, dim=1),
    softmax=lambda x, y: x.softmax(-1),
    softmax_dim=lambda x, y: torch.softmax(x, 1),
    softmax_f32=lambda x, y: F.softmax(x, -1, dtype=torch.float32).to(x.dtype),
    softmax_masked=lambda x, y: x.masked_fill(y > 0, -math.inf).softmax(-1),
    log_softmax=lambda x, y: x.log_softmax(-1),
    logsumexp=lambda x, y: x.logsumexp(-1, keepdim=True),
    logsumexp_dim=lambda x, y: torch.logsumexp(x, dim=1),
    decomposed=lambda x, y: (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True),
    layer_norm_by_hand=lambda x, y: (
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt() * y[0]
    ),
    rms=lambda x, y: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt(),
)

CONTRACTIONS = cases(
    matmul=lambda x, y: x @ y.T,
    matmul_batched=lambda x, y: x @ x.mT,
    vector_right=lambda x, y: x @ y[0],
    vector_left=lambda x, y: y[:, 0] @ y,
    vectors=lambda x, y: y[0] @ y[1],
    broadcast=lambda x, y: x[:, None] @ x.mT[None],
    mm=lambda x, y: torch.mm(y, y.t()),
    bmm=lambda x, y: torch.bmm(x, x.mT),
    mv=lambda x, y: torch.mv(y, y[0]),
    dot=lambda x, y: torch.dot(y[0], y[1]),
    inner=lambda x, y: torch.inner(x, y),
    outer=lambda x, y: torch.outer(y[0], y[1]),
    linear=lambda x, y: F.linear(x, y),
    linear_bias=lambda x, y: F.linear(x, y, y[:, 0]),
    addmm=lambda x, y: torch.addmm(y[:, :3], y, y.t(), beta=0.5, alpha=0.25),
    addmm_plain=lambda x, y: torch.addmm(y[0, :3], y, y.t()),
    baddbmm=lambda x, y: torch.baddbmm(x[:, :, :3], x, x.mT, beta=0, alpha=0.125),
    baddbmm_beta=lambda x, y: torch.baddbmm(x[:, :, :3], x, x.mT, alpha=0.3),
    addbmm=lambda x, y: torch.addbmm(y[:, :3], x, x.mT),
    einsum=lambda x, y: torch.einsum("bij,kj->bik", x, y),
    einsum_implicit=lambda x, y: torch.einsum("bij, kj", x, y),
    einsum_ellipsis=lambda x, y: torch.einsum("...j,kj->...k", x, y),
    einsum_scores=lambda x, y: torch.einsum("bid,bjd->bij", x, x),
    einsum_sum=lambda x, y: torch.einsum("bij->j", x),
    einsum_transpose=lambda x, y: torch.einsum("bij->jib", x),
    einsum_three=lambda x, y: torch.einsum("bij,kj,k->bi", x, y, y[:, 0]),
    tensordot=lambda x, y: torch.tensordot(x, y.T, dims=1),
    tensordot_count=lambda x, y: torch.tensordot(x, y, dims=2),
)

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=FLOATS, ids=["f32", "f16", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def read_all(fn: Callable[..., Any], *args: Tensor, dynamic: bool = False, ulps: float = 4) -> None:
    """Read without boundaries, equal to eager."""
    one = capture_directly(fn, *args, dynamic=dynamic)
    assert list(one.reading.boundaries.values()) == []
    assert check(one, ulps=ulps) > 0 or one.reading.graph.outputs


@pytest.mark.parametrize("fn", ELEMENTWISE)
def test_elementwise(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    read_all(fn, *sample(dtype))


@pytest.mark.parametrize("fn", INTEGERS)
def test_integers(fn: Callable[..., Any]) -> None:
    read_all(fn, torch.arange(12).reshape(3, 4) % 7, torch.arange(4))


@pytest.mark.parametrize("fn", VIEWS)
def test_views(fn: Callable[..., Any]) -> None:
    read_all(lambda x, y: fn(x, y) + 0, *sample(torch.float32))


@pytest.mark.parametrize("fn", CREATION)
def test_creation(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    read_all(lambda x, y: (fn(x, y), x + 1), *sample(dtype))


@pytest.mark.parametrize("fn", INDEXING)
def test_indexing(fn: Callable[..., Any]) -> None:
    read_all(lambda x, y: fn(x, y) + 0, *sample(torch.float32))


@pytest.mark.parametrize("fn", REDUCTIONS)
def test_reductions(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    read_all(fn, *sample(dtype))


@pytest.mark.parametrize("fn", CONTRACTIONS)
def test_contractions(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    read_all(fn, *sample(dtype))


@pytest.mark.parametrize("fn", VIEWS)
def test_views_of_symbolic_sizes(fn: Callable[..., Any]) -> None:
    """Whatever PyTorch can do with symbolic sizes is read, or becomes a boundary; never something else."""
    check(capture_directly(lambda x, y: fn(x, y) + 0, *sample(torch.float32), dynamic=True))


@pytest.mark.parametrize("fn", [*REDUCTIONS, *CONTRACTIONS])
def test_symbolic_sizes(fn: Callable[..., Any]) -> None:
    check(capture_directly(fn, *sample(torch.float32), dynamic=True))


# ------------------------------------------------------------------------------------------------ attention of PyTorch's own


def qkv(
    heads: int = 4, kv_heads: int = 4, dtype: torch.dtype = torch.float32, n: int = 6, m: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return (
        torch.randn(2, heads, n, 8, generator=g).to(dtype),
        torch.randn(2, kv_heads, m, 8, generator=g).to(dtype),
        torch.randn(2, kv_heads, m, 5, generator=g).to(dtype),
    )


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first row sees no key: PyTorch's own attention gives zeros there."""
    keep = torch.arange(8)[None] < torch.arange(6)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


SDPA = cases(
    plain=lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    causal=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    scale=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    empty_row=masked,
    additive=lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.where(torch.arange(8)[None] > torch.arange(6)[:, None] + 2, -math.inf, 0.5).to(q.dtype)
    ),
)


@pytest.mark.parametrize("fn", SDPA)
@pytest.mark.parametrize("dynamic", [False, True])
def test_scaled_dot_product_attention(fn: Callable[..., Any], dynamic: bool, dtype: torch.dtype) -> None:
    read_all(fn, *qkv(dtype=dtype), dynamic=dynamic, ulps=16)


def test_grouped_heads() -> None:
    read_all(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *qkv(heads=4, kv_heads=2))


def test_dropout_that_is_on_is_a_marked_boundary() -> None:
    for fn in (
        lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.1, training=True) @ v,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
    ):
        (one,) = capture(fn, *qkv())
        assert list(one.reading.boundaries.values()) == [DROPOUT]


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention(need_weights: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    (one,) = capture(lambda x: layer(x, x, x, need_weights=need_weights)[0], x)
    assert one.reading.boundaries == {}
    assert check(one) > 5


# ------------------------------------------------------------------------------------------------ what is not followed


def test_the_rest_is_read_around_an_unknown_op() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return F.layer_norm(x * 2, (4,)).cumsum(-1).softmax(-1) @ y.T

    (one,) = capture(fn, *sample(torch.float32))
    assert [(n.name, why) for n, why in one.reading.boundaries.items()] == [
        ("layer_norm", "aten.layer_norm is not followed"),
        ("cumsum", "aten.cumsum is not followed"),
    ]
    assert check(one) == 4


def test_complex_numbers_are_boundaries() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.reshape(2, 3, 2, 2)) * 1j).flatten(-2) @ y.T

    (one,) = capture(fn, *sample(torch.float32))
    assert len(one.reading.boundaries) == 1
    check(one)


def test_boolean_indexing_breaks_no_reading() -> None:
    for one in capture(lambda x, y: (x[x > 0].sum() + y).softmax(-1), *sample(torch.float32)):
        check(one)


# ------------------------------------------------------------------------------------------------ in place


def in_place(x: Tensor, y: Tensor) -> Tensor:
    s = x @ y.T
    s /= 2.0
    s.masked_fill_(s > 1, -1.0)
    s += 1
    return s.softmax(-1)


def through_a_view(x: Tensor, y: Tensor) -> Tensor:
    s = x * 2
    row = s[:, 0]
    before = row.sum()
    s.mul_(3)
    return row + before


def a_part(x: Tensor, y: Tensor) -> Tensor:
    s = x * 2
    s[:, 0] = 7.0
    return s.softmax(-1)


def parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    s = x * 2
    before = s[0]
    s[..., -1] = y[:, 0]
    s[1:, 1] += 1
    s[:2, 1:3].mul_(x[:2, 1:3])
    s[1:-1] = 5.0
    s[:] -= 1
    t = x + 1
    t[::2] = 0.0
    return s.softmax(-1), before + 1, t.softmax(-1)


def narrowing(x: Tensor, y: Tensor) -> Tensor:
    s = (x * 10).long()
    s += 2
    return s.add_(y.long())


def of_an_input(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z.add_(1).mul_(y)
    y.zero_()
    return z + y


def copied(x: Tensor, y: Tensor) -> Tensor:
    z = torch.empty_like(x)
    z.copy_(y)
    w = torch.empty_like(x)
    w.fill_(0.5)
    return z + w


@pytest.mark.parametrize(
    "fn",
    cases(
        in_place=in_place,
        through_a_view=through_a_view,
        a_part=a_part,
        parts=parts,
        narrowing=narrowing,
        of_an_input=of_an_input,
        copied=copied,
    ),
)
def test_in_place(fn: Callable[..., Any]) -> None:
    (one,) = capture(fn, *sample(torch.float32))
    assert check(one) > 0
