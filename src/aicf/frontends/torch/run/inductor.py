"""Inductor for the rest of a graph, with workarounds for two of its bugs.

Attention patterns (PyTorch 2.10 to 2.13, pytorch#196468 and #195320). Inductor replaces subgraphs of the form
softmax(q k^T) v by its own attention. The patterns come precompiled, with every number and list of
numbers left out, and are compared only in this form. A softmax over the queries or the batch, another permutation of K, another
scale or another fill value therefore match as well, and the result is wrong.

    softmax(q @ k^T, -2) @ v      is taken for      softmax(q @ k^T, -1) @ v

PyTorch also has the exact comparison: a pattern that is not precompiled is traced for the sizes at hand and compared again,
numbers included. Here each match must pass that comparison. Otherwise the ops stay as they are.

C++ wrapper. Calling a region from Inductor's C++ wrapper crashes the process (a Python op that returns a list of tensors), so
graphs with regions use the Python wrapper.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.fx_passes import joint_graph

from .region_op import REGION
from .training import TRAINED

_PATTERNS = "_sfdp_pattern"
_KEPT = "search_fn_pattern"  # what PyTorch's check calls the pattern from disk; where there is none, it makes an exact one


def through_inductor(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """`module` compiled by Inductor, with attention patterns compared exactly. Raises whatever that raises."""
    changed: dict[str, Any] = {"joint_custom_pre_pass": ExactPatterns(inductor_config.joint_custom_pre_pass)}
    if any(n.target in (REGION, TRAINED) for n in module.graph.nodes):
        changed["cpp_wrapper"] = False
    with _restored_patterns():
        return compile_fx(module, list(inputs), config_patches=changed)


def missing_directory(error: BaseException | None) -> str:
    """What an error of Inductor's says where the reason is a folder or file that this user may not write, or that is not there;
    empty for other errors. Read-only systems and users without a home have such."""
    while error is not None:
        if isinstance(error, OSError):
            return f"{type(error).__name__}: {error}"
        error = getattr(error, "inner_exception", None) or error.__cause__
    return ""


class ExactPatterns(CustomGraphPass):
    """Makes Inductor's attention patterns exact. It is part of the key of Inductor's cache, so that code compiled without it is
    not reused. `others`: passes that the user has set; they run first."""

    def __init__(self, others: Any) -> None:
        self.others: list[Any] = [] if others is None else [*others] if isinstance(others, list | tuple) else [others]

    def __call__(self, graph: torch.fx.Graph) -> None:
        for other in self.others:
            other(graph)
        for entry in _entries():
            if not isinstance(entry.extra_check, _Exact):
                entry.extra_check = _Exact(entry.extra_check)

    def uuid(self) -> Any:
        asked = [getattr(other, "uuid", lambda: None)() for other in self.others]
        return None if None in asked else [get_hash_for_files((__file__,)), *asked]


class _Exact:
    """PyTorch's check of a match, made without the pattern from disk. A match that cannot be checked is none."""

    def __init__(self, loose: Any) -> None:
        self.loose = loose
        self.exact = _exact_check(loose)

    def __call__(self, match: Any) -> bool:
        return self.exact is not None and self.exact(match)


def _exact_check(check: Any) -> Callable[[Any], bool] | None:
    """The function `check` with the variable that holds the pattern from disk empty; None where it has no such variable."""
    if not isinstance(check, types.FunctionType) or _KEPT not in check.__code__.co_freevars:
        return None
    names, cells = check.__code__.co_freevars, check.__closure__ or ()
    own = tuple(types.CellType(None) if n == _KEPT else c for n, c in zip(names, cells, strict=True))
    return types.FunctionType(check.__code__, check.__globals__, check.__name__, check.__defaults__, own)


def _entries() -> Iterator[Any]:
    for some in joint_graph.pass_patterns:
        for entries in some.patterns.values():
            for entry in entries:
                if str(getattr(entry, "pattern_name", None) or "").startswith(_PATTERNS):
                    yield entry


@contextlib.contextmanager
def _restored_patterns() -> Iterator[None]:
    """Leaves the patterns to other backends as they were."""
    try:
        yield
    finally:
        for entry in _entries():
            if isinstance(entry.extra_check, _Exact):
                entry.extra_check = entry.extra_check.loose
