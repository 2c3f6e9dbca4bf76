"""Inputs of a `transformers` model from the signature of its `forward`: text, images, video, audio, time series."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Given where `forward` takes them, beside the main input and what has no default.
USUAL = ("attention_mask", "decoder_input_ids")


@dataclass(frozen=True)
class Form:
    """How many rows of what length, on which side the last one is padded, and the type of floating point inputs."""

    batch: int
    length: int
    padding: str
    dtype: torch.dtype


def make_inputs(model: Any, form: Form) -> dict[str, Any]:
    """Inputs that the model runs on; raises what the last of the likely shapes raised."""
    parameters = inspect.signature(type(model).forward).parameters
    main = model.main_input_name
    mains = [main] if isinstance(main, str) else list(main)
    if "input_ids" in parameters and "pixel_values" in parameters and "visual_feats" not in parameters:
        mains = ["input_ids", "pixel_values"] if _sees(model.config) else mains
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and n != "self"]
    names = list(dict.fromkeys([*(m for m in mains if m in parameters), *needed]))
    names += [n for n in USUAL if n in parameters and n not in names and (n != "attention_mask" or "input_ids" in names)]
    names += [n for n in ("visual_feats", "visual_pos") if n in parameters and n not in names]
    shapes = {n: SHAPES[n](model.config, form) if n in SHAPES else [] for n in names}
    unknown = [n for n, s in shapes.items() if not s]
    if unknown:
        raise ValueError(f"no rule for the inputs {', '.join(unknown)}")
    failed: Exception = ValueError("no inputs")
    for k in range(max(len(s) for s in shapes.values())):
        inputs = {n: s[min(k, len(s) - 1)]() for n, s in shapes.items()}
        try:
            with torch.no_grad():
                model.eval()(**inputs)
        except Exception as e:
            failed = e
            continue
        return {n: x.to(form.dtype) if x.is_floating_point() else x for n, x in inputs.items()}
    raise failed


def _sees(config: Any) -> bool:
    return getattr(config, "vision_config", None) is not None or getattr(config, "image_config", None) is not None


# ------------------------------------------------------------------------------------------------ one input each


Maker = Callable[[], Tensor]


def number(config: Any, *names: str, default: int) -> int:
    """The first of the attributes that the configuration, or one inside it, has."""
    inner = (
        getattr(config, n, None) for n in ("vision_config", "image_config", "audio_config", "text_config", "backbone_config")
    )
    for part in (config, *inner):
        for name in names:
            value = getattr(part, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int):
                return value
    return default


def normal(*shape: int) -> Maker:
    return lambda: torch.randn(shape)


def _ids(config: Any, form: Form, length: int) -> list[Maker]:
    words = min(number(c, "vocab_size", default=200) for c in (config, getattr(config, "text_config", config)))
    return [lambda: torch.randint(min(5, words - 2), min(words - 1, 250), (form.batch, length))]


def _mask(config: Any, form: Form) -> list[Maker]:
    def padded() -> Tensor:
        mask = torch.ones(form.batch, form.length, dtype=torch.int64)
        n = max(1, form.length // 4)
        if form.padding == "right":
            mask[-1, -n:] = 0
        elif form.padding == "left":
            mask[-1, :n] = 0
        return mask

    return [padded]


def _pixels(config: Any, form: Form) -> list[Maker]:
    size = number(config, "image_size", default=64)
    channels = number(config, "num_channels", "in_channels", "in_chans", default=3)
    frames = number(config, "num_frames", "frames_per_clip", default=2)
    image = [normal(form.batch, channels, n, n) for n in (size, 64, 224)]
    video = [normal(form.batch, frames, channels, size, size)]
    return video + image if hasattr(config, "num_frames") or hasattr(config, "tubelet_size") else image + video


def _sound(config: Any, form: Form) -> list[Maker]:
    bins = number(config, "num_mel_bins", "feature_size", "input_feat_per_channel", default=64)
    steps = 2 * number(config, "max_source_positions", default=32)
    waves = [(4000,), (1, 4000)]
    spectra = [(number(config, "max_length", default=64), bins), (bins, steps), (steps, bins), (1, 64, bins)]
    if hasattr(config, "subsampling_conv_channels"):  # Gemma's: 128 bins, said nowhere in the configuration
        spectra = [(steps, 128), *spectra]
    return [normal(form.batch, *s) for s in waves + spectra]


def _spectrum(config: Any, form: Form) -> list[Maker]:
    found = _sound(config, form)
    return found[2:] + found[:2]


def _past(config: Any, form: Form) -> list[Maker]:
    steps = number(config, "context_length", default=16)
    lags = max(getattr(config, "lags_sequence", None) or [0])
    return [normal(form.batch, steps, number(config, "num_input_channels", default=1)), normal(form.batch, steps + lags)]


def _vectors(config: Any, form: Form) -> list[Maker]:
    return [normal(form.batch, form.length, number(config, "hidden_size", "d_model", default=64))]


SHAPES: dict[str, Callable[[Any, Form], list[Maker]]] = {
    "input_ids": lambda c, f: _ids(c, f, f.length),
    "decoder_input_ids": lambda c, f: _ids(c, f, max(2, f.length // 2)),
    "attention_mask": _mask,
    "pixel_values": _pixels,
    "input_features": _spectrum,
    "input_features_mask": lambda c, f: [lambda: torch.ones(f.batch, 2 * number(c, "max_source_positions", default=32)).long()],
    "input_values": _sound,
    "past_values": _past,
    "bbox": lambda c, f: [lambda: torch.randint(0, 100, (f.batch, f.length, 4)).sort(-1).values],
    "visual_feats": lambda c, f: [normal(f.batch, 7, number(c, "visual_feat_dim", default=2048))],
    "visual_pos": lambda c, f: [lambda: torch.rand(f.batch, 7, 4)],
    "hidden_states": _vectors,
    "inputs_embeds": _vectors,
    "inputs": lambda c, f: [normal(f.batch, f.length, number(c, "d_model", default=64))],
}
