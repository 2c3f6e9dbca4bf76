"""Benchmark: cases in plain PyTorch, ways to run them, and how they are timed."""
