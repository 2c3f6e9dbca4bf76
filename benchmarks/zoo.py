"""Models as people run them: their real sizes, random weights, attention written out in plain PyTorch (`eager`).

Nothing is downloaded: `transformers` builds each from its configuration. Weights and inputs are the same in every run.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

Inputs = dict[str, Any]
EAGER: dict[str, Any] = {"attn_implementation": "eager"}


@cache
def transformers() -> Any:
    """The package, imported when a model is asked for: that takes seconds. A torchvision that was made for another PyTorch fails
    to import, and transformers, which needs none here, with it: it is hidden."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except Exception:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    found = importlib.import_module("transformers")
    found.logging.set_verbosity_error()
    return found


@dataclass(frozen=True)
class Entry:
    """A model of the zoo: what it is, for people, and how to make it with its inputs, some of its configuration given."""

    title: str
    what: str
    make: Callable[[dict[str, Any]], tuple[torch.nn.Module, Inputs]]


def _bert(given: dict[str, Any]) -> tuple[torch.nn.Module, Inputs]:
    ids = torch.randint(1000, 30000, (2, 512))
    mask = torch.ones(2, 512, dtype=torch.int64)
    mask[1, 384:] = 0  # the second text is shorter
    t = transformers()
    return t.BertModel(t.BertConfig(**EAGER, **given)), {"input_ids": ids, "attention_mask": mask}


def _gpt2(given: dict[str, Any]) -> tuple[torch.nn.Module, Inputs]:
    t = transformers()
    config = t.GPT2Config(use_cache=False, **EAGER, **given)
    return t.GPT2Model(config), {"input_ids": torch.randint(0, config.vocab_size, (1, 1024))}


def _llama(given: dict[str, Any]) -> tuple[torch.nn.Module, Inputs]:
    t = transformers()
    sizes = {
        "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048, "use_cache": False,
    }  # fmt: skip
    config = t.LlamaConfig(**EAGER, **sizes | given)
    return t.LlamaModel(config), {"input_ids": torch.randint(0, config.vocab_size, (1, 1024))}


def _vit(given: dict[str, Any]) -> tuple[torch.nn.Module, Inputs]:
    t = transformers()
    return t.ViTModel(t.ViTConfig(**EAGER, **given)), {"pixel_values": torch.randn(2, 3, 224, 224)}


MODELS: dict[str, Entry] = {
    "bert": Entry("BERT-base", "12 layers, 12 heads of 64; batch 2, 512 tokens, the second text padded from 384 on", _bert),
    "gpt2": Entry("GPT-2 small", "12 layers, 12 heads of 64; batch 1, 1024 tokens, causal", _gpt2),
    "llama": Entry("Llama-shaped", "12 layers, 12 query heads sharing 4 key heads, rotary; batch 1, 1024 tokens, causal", _llama),
    "vit": Entry("ViT-B/16", "12 layers, 12 heads of 64; 2 images of 224 x 224, so 197 tokens, no mask", _vit),
}


def make(name: str, layers: int | None = None) -> tuple[torch.nn.Module, Inputs]:
    """The model in evaluation mode and its inputs; `layers`: so many instead of its own. KeyError for a name that is not in
    MODELS."""
    entry = MODELS[name]
    transformers()
    torch.manual_seed(0)
    model, inputs = entry.make({} if layers is None else {"num_hidden_layers": layers})
    return model.eval(), inputs


def with_sdpa(model: Any) -> torch.nn.Module:
    """The same model, sharing its parameters, with the attention that transformers takes by itself: PyTorch's
    scaled_dot_product_attention."""
    kept = {id(x): x for x in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, kept)
    other.set_attn_implementation("sdpa")
    return other


def hidden(call: Callable[..., Any], inputs: Inputs) -> torch.Tensor:
    """The last hidden state that a call of the model gives."""
    return call(**inputs).last_hidden_state


def exact(model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    """The result in float64: the same model with its parameters and inputs converted (and back again afterwards, exactly)."""
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    try:
        return hidden(model.double(), wide)
    finally:
        model.float()


__all__ = ["MODELS", "Entry", "Inputs", "exact", "hidden", "make", "with_sdpa"]
