"""A sample of the corpus that every test run takes: a few small transformers models, and the counter that judges detection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from aicf.frontends.torch.capture.retrace import trace
from tests.corpus.blocks import attention_blocks
from tests.corpus.measure import float_tensors, measure

transformers = pytest.importorskip("transformers")
try:
    transformers.PreTrainedModel  # noqa: B018 (transformers imports lazily)
except ModuleNotFoundError as e:
    pytest.skip(f"transformers does not import here: {e}", allow_module_level=True)

build = pytest.importorskip("tests.corpus.models").build

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100}


def ids(*shape: int) -> Tensor:
    return torch.randint(3, 99, shape, generator=torch.Generator().manual_seed(0))


def bert() -> tuple[nn.Module, dict[str, Any]]:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    model = transformers.BertModel(transformers.BertConfig(**SIZES, attn_implementation="eager"))
    return model, {"input_ids": ids(2, 12), "attention_mask": mask}


def llama() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, use_cache=False, attn_implementation="eager")
    return transformers.LlamaModel(config), {"input_ids": ids(2, 12)}


def t5() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=100, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, use_cache=False, attn_implementation="eager"
    )
    return transformers.T5Model(config), {"input_ids": ids(1, 12), "decoder_input_ids": ids(1, 7)}


@pytest.mark.parametrize("build, blocks", [(bert, 1), (llama, 1), (t5, 3)], ids=lambda x: getattr(x, "__name__", str(x)))
def test_every_block_streams(build: Callable[[], tuple[nn.Module, dict[str, Any]]], blocks: int) -> None:
    model, inputs = build()
    m = measure(model.eval(), inputs)
    assert (m.blocks, m.streamed, m.reasons, m.others, m.problems, m.wrong) == (blocks, blocks, [], [], [], "")


# ------------------------------------------------------------------------------------------------ the counter


def count(fn: Callable[..., Tensor], *shapes: tuple[int, ...], weights: tuple[int, ...] = ()) -> int:
    mode = FakeTensorMode()
    with torch.no_grad():
        gm = trace(fn, mode, [mode.from_tensor(torch.zeros(s)) for s in shapes])
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return len(attention_blocks(gm, [inputs[k] for k in weights]))


QKV = ((2, 6, 4),) * 3


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(q @ k.mT - 1)
    return (e / e.sum(-1, keepdim=True)) @ v


def by_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = torch.softmax((q[:, :, None] * k[:, None]).sum(-1), -1)
    return (p[..., None] * v[:, None]).sum(2)


def test_the_counter_sees_attention_however_it_is_written():
    assert count(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *QKV) == 1
    assert count(lambda q, k, v: torch.einsum("bij,bjd->bid", torch.softmax(q @ k.mT, -1), v), *QKV) == 1
    assert count(written_out, *QKV) == 1
    assert count(by_products, *QKV) == 1
    assert count(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *QKV) == 1
    assert count(lambda q, k, v: torch.softmax(torch.softmax(q @ k.mT, -1) @ v @ k.mT, -1) @ v, *QKV) == 2


def test_the_counter_does_not_count_what_is_no_attention():
    assert count(lambda q, k, v: torch.softmax(q @ k.mT, -1), *QKV) == 0
    assert count(lambda q, k, v: torch.relu(q @ k.mT) @ v, *QKV) == 0
    # A router: the scores come from a linear layer, whichever op it is written with.
    assert count(lambda x, w, v: torch.softmax(x @ w.mT, -1) @ v, (6, 4), (5, 4), (5, 4), weights=(1,)) == 0
    assert count(lambda x, w, v: torch.softmax(F.linear(x, w), -1) @ v, (6, 4), (5, 4), (5, 4), weights=(1,)) == 0
    # A classifier over attention weights.
    assert count(lambda q, k, w: torch.softmax(q @ k.mT, -1) @ w, (2, 6, 4), (2, 6, 4), (6, 3), weights=(2,)) == 0


# ------------------------------------------------------------------------------------------------ the tiny models


@pytest.mark.parametrize("name, main", [("qwen2", "input_ids"), ("bart", "decoder_input_ids"), ("vit", "pixel_values")])
def test_tiny_models_are_built_from_their_type_alone(name: str, main: str) -> None:
    model, inputs = build(name, attention="sdpa", batch=3, length=9, dtype=torch.bfloat16)
    assert main in inputs and all(x.shape[0] == 3 for x in inputs.values())
    assert all(p.dtype == torch.bfloat16 and p.numel() < 1 << 20 for p in model.parameters())
    with torch.no_grad():
        outputs = list(float_tensors(model(**inputs)))
    assert outputs and all(x.isfinite().all() for x in outputs)


def test_padding_lies_where_it_is_asked_for() -> None:
    for side, row in (("left", [0, 1, 1, 1]), ("right", [1, 1, 1, 0]), ("none", [1, 1, 1, 1])):
        mask = build("bert", length=4, padding=side)[1]["attention_mask"]
        assert mask.tolist() == [[1, 1, 1, 1], row]
