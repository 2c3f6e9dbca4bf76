"""AICF: derives FlashAttention-like kernels from plain attention graphs.

    fast = aicf.compile(model)             # or torch.compile(model, backend="aicf")
    print(aicf.explain(model, *inputs))    # what streams, what does not, and why

Importing the package is quick; PyTorch is imported with the first use of a name that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aicf.version import VERSION as __version__

if TYPE_CHECKING:
    from aicf.errors import NotStreamed
    from aicf.frontends.torch.api import compile, explain
    from aicf.report import Report

__all__ = ["NotStreamed", "Report", "__version__", "compile", "explain"]

_HOMES = {
    "compile": "aicf.frontends.torch.api",
    "explain": "aicf.frontends.torch.api",
    "NotStreamed": "aicf.errors",
    "Report": "aicf.report",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'aicf' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as e:
        if e.name is not None and e.name.partition(".")[0] in ("torch", "llvmlite"):
            raise ImportError(f"aicf.{name} needs {e.name}: pip install 'aicf[torch]'") from e
        raise
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
