"""AICF: derives FlashAttention-like kernels from plain attention graphs."""
