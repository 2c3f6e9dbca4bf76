"""GPU backend, the portable tier: Kernel IR to Triton source, for NVIDIA and AMD. Triton is imported when something is built."""

from aicf.backends.triton.emit import Source, emit

__all__ = ["Source", "emit"]
