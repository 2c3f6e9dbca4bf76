"""Random tensors for calls that are made on the command line."""

from __future__ import annotations

import torch

# Each type by the names that people know it by: this project's, PyTorch's, the specification's.
DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16, "float16": torch.float16, "fp16": torch.float16, "half": torch.float16,
    "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
    "f32": torch.float32, "float32": torch.float32, "fp32": torch.float32, "float": torch.float32,
    "f64": torch.float64, "float64": torch.float64, "fp64": torch.float64, "double": torch.float64,
    "i8": torch.int8, "int8": torch.int8, "u8": torch.uint8, "uint8": torch.uint8, "i16": torch.int16, "int16": torch.int16,
    "i32": torch.int32, "int32": torch.int32, "i64": torch.int64, "int64": torch.int64, "bool": torch.bool,
}  # fmt: skip


def random_tensor(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    """Normal numbers, or 0 and 1 for integers and booleans; the same for the same seed. Raises KeyError for an unknown type."""
    kind = DTYPES[dtype]
    generator = torch.Generator().manual_seed(seed)
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind)
    return torch.randint(0, 2, shape, generator=generator).to(kind)
