"""GPU backend, the portable tier: Kernel IR to Triton source, for NVIDIA and AMD. Triton is imported when something is built."""

from pathlib import Path

from aicf.backends import Backend

BACKEND = Backend(
    name="triton",
    kinds=("gpu",),
    machine="a GPU",
    stages=("triton", "ptx", "sass", "resources"),
    memory="device",
    module="aicf.backends.triton.code",
    folder=Path(__file__).parent,
    libraries=("triton",),
)
