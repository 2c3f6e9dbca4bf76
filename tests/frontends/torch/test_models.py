"""Real model code, tiny and with random weights: all of its ops but the known boundaries are read, with PyTorch's values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, ViTConfig, ViTModel

import aicf

from .capture import capture, check

NOT_FOLLOWED = {"aten.layer_norm", "aten.conv2d", "aten.cumsum", "aten.diff"}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def bert() -> tuple[Any, dict[str, Any]]:
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, 17:] = 0
    config = BertConfig(**SMALL, vocab_size=64, **EAGER)
    return BertModel(config), {"input_ids": torch.randint(0, 64, (2, 24)), "attention_mask": mask}


def gpt2() -> tuple[Any, dict[str, Any]]:
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, bos_token_id=0, eos_token_id=0, **EAGER)
    return GPT2Model(config), {"input_ids": torch.randint(0, 64, (2, 24)), "use_cache": False}


def vit() -> tuple[Any, dict[str, Any]]:
    config = ViTConfig(**SMALL, image_size=32, patch_size=8, **EAGER)
    return ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


@pytest.mark.parametrize("make", [bert, gpt2, vit])
def test_read(make: Any) -> None:
    model, inputs = make()
    graphs = capture(model.eval(), **inputs)
    for one in graphs:
        unread = {why.removesuffix(" is not followed") for why in one.reading.boundaries.values()}
        assert unread <= NOT_FOLLOWED
    assert sum(check(one, ulps=8) for one in graphs) > 40


@pytest.mark.parametrize("make", [bert, gpt2, vit])
def test_streams(make: Any) -> None:
    model, inputs = make()
    model.eval()
    torch._dynamo.reset()
    with torch.no_grad():
        report = aicf.explain(model, **inputs)
        assert len(report.regions) == 2
        assert "eager_attention_forward" in str(report.regions[0].source)
        ours = aicf.compile(model, fuse="always", require="streamed")(**inputs)[0]
        torch.testing.assert_close(ours, model(**inputs)[0], rtol=1e-4, atol=1e-5)
