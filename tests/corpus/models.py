"""Tiny models with random weights of the architectures of `transformers`, by model type; nothing is downloaded.

    model, inputs = build("llama")
    model, inputs = build("t5", attention="sdpa", batch=3, length=21, dtype=torch.bfloat16)

The default configuration is made small by a table of attribute names (`SIZES`), also in the configurations inside it; what
some architectures want besides is in `SPECIAL`. Inputs follow from the signature of `forward` (tests/corpus/inputs.py).
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, cast

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.corpus.inputs import Form, make_inputs

LAYERS, WIDTH, HEADS, HEAD, WORDS = 2, 64, 4, 16, 300

# The largest value of an attribute, by its name.
SIZES: dict[str, int] = {
    name: size
    for size, names in {
        LAYERS: """num_hidden_layers num_layers n_layer n_layers depth encoder_layers decoder_layers num_encoder_layers
            num_decoder_layers num_blocks num_experts_per_tok num_experts_per_token moe_topk top_k_experts
            linear_num_key_heads num_kv_heads n_head_kv index_n_heads num_self_attends_per_block""",
        1: "first_k_dense_replace n_group topk_group max_window_layers decoder_depth num_cross_attends_per_block",
        HEADS: """num_attention_heads n_head num_heads n_heads attention_heads encoder_attention_heads decoder_attention_heads
            num_key_value_heads num_self_attention_heads num_cross_attention_heads linear_num_value_heads
            num_experts num_local_experts n_routed_experts""",
        8: "sliding_window sliding_window_size local_attention index_topk num_queries qk_rope_head_dim rotary_dim",
        HEAD: """head_dim global_head_dim attention_head_dim d_kv kv_channels qk_nope_head_dim v_head_dim index_head_dim
            linear_key_head_dim linear_value_head_dim query_pre_attn_scalar mamba_d_head num_latents""",
        24: "qk_head_dim",
        32: "q_lora_rank kv_lora_rank moe_intermediate_size shared_expert_intermediate_size",
        WIDTH: """hidden_size d_model n_embd dim hidden_dim embed_dim embedding_size emb_dim encoder_hidden_size
            decoder_hidden_size text_hidden_size vision_hidden_size projection_dim out_hidden_size word_embed_proj_dim
            text_embed_dim vision_embed_dim max_source_positions d_latents mask_feature_size""",
        128: """intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff mlp_dim n_inner ffn_hidden_size inner_dim
            shared_intermediate_size dim_feedforward encoder_feedforward_dim decoder_intermediate_size""",
        256: "max_position_embeddings n_positions",
        WORDS: "vocab_size text_vocab_size",
    }.items()
    for name in names.split()
}
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
STAGED = ("depths", "hidden_sizes")  # vision models in stages: their lists of widths and heads fit each other as they are
# What saved models have and a new configuration does not take.
SAVED = ("model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path")

# Attributes that one architecture needs beside the table; a key with a dot is that of an inner configuration.
SPECIAL: dict[str, dict[str, Any]] = {
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [8, 32]},
    "xlnet": {"d_head": HEAD},
}
# What is None by default although the model does not run without it.
MISSING = {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "head_dim": HEAD, "num_key_value_heads": HEADS}

TASKS = (
    "",
    "FOR_CAUSAL_LM_",
    "FOR_UNIVERSAL_SEGMENTATION_",
    "FOR_IMAGE_TEXT_TO_TEXT_",
    "FOR_SEQ_TO_SEQ_CAUSAL_LM_",
    "FOR_BACKBONE_",
)


def build(
    name: str,
    *,
    attention: str = "eager",
    batch: int = 2,
    length: int = 14,
    padding: str = "right",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model of the type `name` in eval mode, without a cache, and inputs for `model(**inputs)`: the same whenever asked.

    `padding` is the side of it in the last row of the attention mask: "right", "left" or "none".
    """
    config = small_config(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = cast(Any, model_class(type(config)))
        # Experts as batched products: the default is an op of its own.
        model = made._from_config(config, attn_implementation=attention, experts_implementation="batched_mm")
        _disturb(model)
        for module in model.modules():
            if getattr(getattr(module, "config", None), "use_cache", False):
                module.config.use_cache = False
        inputs = make_inputs(model, Form(batch, length, padding, dtype))
    return model.to(dtype).eval(), inputs


def small_config(name: str) -> Any:
    """The default configuration of the type `name`, made small."""
    kind = cast(Any, CONFIG_MAPPING[name])
    fields = shrink(kind().to_dict())
    for key, value in SPECIAL.get(name, {}).items():
        *path, last = key.split(".")
        inner = fields
        for part in path:
            inner = inner[part]
        inner[last] = value
    return kind.from_dict({k: v for k, v in fields.items() if k not in SAVED})


def shrink(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration by the table; lists with an entry for each layer keep one of each kind."""
    staged = any(isinstance(fields.get(n), list) for n in STAGED)
    depth = 0 if staged else next((fields[n] for n in DEPTHS if isinstance(fields.get(n), int)), 0)
    kept = _layers_kept(fields, depth)
    small: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, dict) and not key.endswith(("2label", "2id")) and "rope" not in key:
            small[key] = shrink(cast("dict[str, Any]", value))
        elif key == "depths":
            small[key] = [min(n, 2) if k == 0 else 1 for k, n in enumerate(value)]
        elif isinstance(value, list) and depth > 2 and len(value) == depth:
            small[key] = [value[k] for k in kept]
        elif value is None:
            small[key] = MISSING.get(key)
        elif depth and key.lstrip("_") in ("out_features", "out_indices"):
            small[key] = None  # the last layer
        elif depth and key in DEPTHS and isinstance(value, int):
            small[key] = min(value, len(kept))
        elif key == "image_size" and not staged:
            small[key] = _image(value, fields.get("patch_size"))
        elif isinstance(value, int) and not isinstance(value, bool):
            small[key] = value if staged and key == "embed_dim" else _small(key, value)
        elif key != "stage_names":  # those follow from the depth
            small[key] = value
    return small


def _small(key: str, value: int) -> int:
    if key.endswith(("_token_id", "_token_index")):
        return value if value < WORDS else WORDS - 1 - value % 7
    return min(value, SIZES.get(key, value))


def _image(size: Any, patch: Any) -> Any:
    """Four patches by four."""
    side = patch[0] if isinstance(patch, list) else patch
    if isinstance(side, int) and isinstance(size, list):
        return [4 * side, 4 * side]
    return min(size, 4 * side) if isinstance(side, int) and isinstance(size, int) else size


def _layers_kept(fields: dict[str, Any], depth: int) -> list[int]:
    kinds = [v for v in fields.values() if isinstance(v, list) and depth > 2 and len(v) == depth and isinstance(v[0], str)]
    rows = list(zip(*kinds, strict=True)) if kinds else []
    first = sorted({rows.index(row) for row in rows})[:4]
    return first if len(first) > 1 else [0, 1]


def _disturb(model: torch.nn.Module) -> None:
    """Biases, gates and scales start as zeros or ones, which would hide that one of them is used wrongly."""
    for p in model.parameters():
        if p.is_floating_point() and p.numel() and p.min() == p.max():
            p.data += 0.1 * torch.randn_like(p)


def model_class(kind: type[Any]) -> type[Any]:
    """The plain model of a configuration class, that of a task, or, for the parts of models, what its module has."""
    for table in ("MODEL_MAPPING", *(f"MODEL_FOR_{task}_MAPPING" for task in TASKS)):
        mapping = getattr(modeling_auto, table)
        if kind in mapping:
            found = mapping[kind]
            return found[0] if isinstance(found, tuple) else found
    module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    own = [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, transformers.PreTrainedModel) and "PreTrained" not in name
        if getattr(value, "config_class", None) is kind
    ]
    if not own:
        raise ValueError(f"no model class belongs to {kind.__name__}")
    return min(own, key=lambda c: (not c.__name__.endswith(("Model", "Encoder")), len(c.__name__)))
