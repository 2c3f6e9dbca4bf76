"""The target for the tensors of a call: CUDA tensors mean kernels for their GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from aicf.driver import Options

# By compute capability; a newer minor version runs what its family's oldest described member does.
NVIDIA = {(8, 0): "a100", (8, 9): "rtx4090", (9, 0): "h100", (10, 0): "b200", (12, 0): "rtx5090"}


def for_device(options: Options, inputs: Sequence[Any]) -> Options:
    """`options` with the target that the inputs are on, where none was named."""
    if options.target is not None:
        return options
    device = next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"), None)
    return options if device is None else replace(options, target=target_name(device))


def target_name(device: torch.device) -> str:
    """The described target nearest to a CUDA (or ROCm) device: the same family, not newer. Raises RuntimeError for GPUs older
    than all that are described."""
    if torch.version.hip is not None:
        return "mi300x"
    return nearest(torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device))


def nearest(capability: tuple[int, int], name: str) -> str:
    """The target for a compute capability. Raises RuntimeError when there is none."""
    known = [c for c in NVIDIA if c <= capability]
    if not known:
        raise RuntimeError(f"{name} has compute capability {capability[0]}.{capability[1]}; kernels are made for 8.0 and newer")
    found = NVIDIA[max(known)]
    return "h200" if found == "h100" and "H200" in name else found
