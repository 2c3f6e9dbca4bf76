"""Kernel IR to running code: one package for each way (see `manifest.py`)."""

from aicf.backends.manifest import Backend, Empty, backend_for, backends, named_target, stages, target_names

__all__ = ["Backend", "Empty", "backend_for", "backends", "named_target", "stages", "target_names"]
