"""The custom op `aicf::region`: one call runs one streamed region.

    %region = aicf.region.default(4711, [%q, %k, %v], [%s0])    ->    a list of fresh tensors

The first argument is the key of an entry in this process's table. It is a hash of the region's content, so that a graph from
Inductor's disk cache means the same region in another process, or is not found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aicf.driver import RegionResult
from aicf.frontends.torch.fx.symbols import TORCH_DTYPE
from aicf.kernel import kernel_fingerprint
from aicf.runtime.device import DeviceExecutable
from aicf.runtime.executable import ArrayRef, Executable
from aicf.scalar import Const, DType, fingerprint, show, variables
from aicf.semantic import Node

Order = tuple[int, ...]  # dimensions, the outermost in memory first
Numbers = tuple[Any, ...]
Place = tuple[Numbers, Numbers] | Callable[..., tuple[Numbers, Numbers]]  # shape and strides; fixed, or a function of the sizes


@dataclass(frozen=True)
class Entry:
    """A region that can be called: its executable, which of the given sizes that takes, and how to make its outputs: shape,
    strides, type. `original`: what runs where one of the given sizes numbered by `possibly_empty` is below 1, called on the
    inputs and all sizes from `own` on."""

    executable: Executable
    picks: tuple[int, ...]
    outputs: tuple[tuple[Place, torch.dtype], ...]
    original: torch.fx.GraphModule | None = None
    possibly_empty: tuple[int, ...] = ()
    own: int = 0


_ENTRIES: dict[int, Entry] = {}
_ADDRESS, _STRIDES = torch.Tensor.data_ptr, torch.Tensor.stride
_MODES: Callable[[], int] = torch._C._len_torch_dispatch_stack  # pyright: ignore[reportAttributeAccessIssue]


def _empty_on_cpu(shape: Numbers, strides: Numbers, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


# What Inductor's code calls, where this version of PyTorch has it: a third of the time.
_EMPTY: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _empty_on_cpu)  # type: ignore[attr-defined]


def size_names(result: RegionResult) -> list[str]:
    """The size symbols that a call of the region gives: those of its kernel and of its outputs' shapes."""
    shapes = {v.name for node in result.outputs for d in node.type.shape for v in variables(d)}
    return sorted({*result.size_names, *shapes})


def register(
    result: RegionResult,
    orders: Sequence[Order],
    original: torch.fx.GraphModule | None = None,
    possibly_empty: Collection[str] = (),
) -> int:
    """Enters a streamed region in the table and returns its number. `orders`: the dimensions of each output, outermost in memory
    first, the last dimension innermost. `original`: what runs where one of the sizes `possibly_empty` is below 1; it takes the
    inputs and what a call gives beyond `size_names`."""
    executable = result.executable
    assert executable is not None
    names = size_names(result)
    outputs = tuple(
        (_place(node, names, order), TORCH_DTYPE[node.type.dtype]) for node, order in zip(result.outputs, orders, strict=True)
    )
    picks, unsure = (tuple(names.index(n) for n in own) for own in (result.size_names, [n for n in names if n in possibly_empty]))
    entry = Entry(executable, picks, outputs, original, unsure, len(names))
    handle = _content(result, executable, orders, original.code if original is not None else "")
    _ENTRIES[handle] = entry
    return handle


def _content(result: RegionResult, executable: Executable, orders: Sequence[Order], original: str) -> int:
    """A hash of all that decides what a call does: the meaning, and the kernel, machine and threads that options have led to."""
    nodes = [(n.name, n.op, [x.name for x in n.inputs], n.attrs, n.type) for n in result.nodes]
    ends = [[(n.name, n.type) for n in own] for own in (result.inputs, result.outputs)]
    machine = executable.machine if isinstance(executable, DeviceExecutable) else None
    binding = executable.binding
    bound = [dict(binding.inputs), dict(binding.outputs)]
    built = (kernel_fingerprint(executable.kernel), bound, binding.sizes, executable.threads, executable.backend.name, machine)
    return int(fingerprint(nodes, ends, result.size_names, orders, original, *built)[:15], 16)


def _place(node: Node, names: Sequence[str], order: Order) -> Place:
    """Shape and strides of `node`, its dimensions in `order` in memory. As a function of the sizes it works on numbers and on
    PyTorch's symbols alike."""
    dims = node.type.shape
    if all(isinstance(d, Const) for d in dims):
        shape = tuple(int(d.value) for d in dims if isinstance(d, Const))
        return shape, tuple(math.prod(max(1, shape[x]) for x in order[order.index(k) + 1 :]) for k in range(len(shape)))
    # The text of an integer expression is Python: names, numbers, + - * // % and calls of min and max.
    texts = [show(d) for d in dims]
    strides = ["*".join(["1", *(f"({texts[x]})" for x in order[order.index(k) + 1 :])]) for k in range(len(texts))]
    source = f"lambda {', '.join([*names, '*_'])}: (({', '.join(texts)},), ({', '.join(strides)},))"
    return eval(source, {"min": torch.sym_min, "max": torch.sym_max})


def run_region(handle: int, inputs: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
    """The op. Called directly, it skips PyTorch's dispatcher, which takes longer than a small kernel; this is valid for plain
    tensors without a negative bit. It goes through the dispatcher when a dispatch mode is active (a FakeTensorMode, a FLOP
    counter)."""
    if _MODES():
        return REGION(handle, inputs, sizes)
    entry = _ENTRIES[handle]
    if entry.original is not None and any(sizes[k] < 1 for k in entry.possibly_empty):
        return _run_original(entry, entry.original, inputs, sizes)
    if isinstance(entry.executable, DeviceExecutable):
        return _launch(entry, entry.executable, inputs, sizes)
    # C functions and loops only: under torch.compile each call of a Python function costs a microsecond.
    made: list[torch.Tensor] = []
    for place, dtype in entry.outputs:
        shape, strides = place if isinstance(place, tuple) else place(*sizes)
        made.append(_EMPTY(shape, strides, dtype))
    tensors = [*inputs, *made]
    entry.executable.call(
        list(map(_ADDRESS, tensors)),
        tuple(map(_STRIDES, tensors)),
        tuple(map(sizes.__getitem__, entry.picks)),
        lambda: (_described(inputs), _described(made)),
    )
    return made


def _empty(entry: Entry, sizes: list[Any], device: torch.device) -> list[torch.Tensor]:
    """A region's outputs, uninitialised."""
    made: list[torch.Tensor] = []
    for place, dtype in entry.outputs:
        shape, strides = place if isinstance(place, tuple) else place(*sizes)
        made.append(torch.empty_strided(shape, strides, dtype=dtype, device=device))
    return made


def _run_original(
    entry: Entry, module: torch.fx.GraphModule, inputs: list[torch.Tensor], sizes: list[int]
) -> list[torch.Tensor]:
    """The results of the region's original ops, in the memory layout of its outputs."""
    found = module(*inputs, *sizes[entry.own :])
    return [new.copy_(x) for new, x in zip(_empty(entry, sizes, inputs[0].device), found, strict=True)]


def _described(tensors: list[torch.Tensor]) -> list[ArrayRef]:
    return [ArrayRef(t.data_ptr(), t.shape, t.stride()) for t in tensors]


def _launch(entry: Entry, executable: DeviceExecutable, inputs: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
    """On the inputs' device and its current stream; all memory from PyTorch's allocator; nothing waits."""
    device = inputs[0].device
    unfit = executable.unfit(device.type)
    if unfit is not None:
        raise RuntimeError(unfit)

    def empty(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        return torch.empty(shape, dtype=TORCH_DTYPE[dtype], device=device)

    made = _empty(entry, sizes, device)
    chosen = [sizes[k] for k in entry.picks]
    if device.type == "cpu":
        executable.launch(inputs, made, chosen, empty)
        return made
    with torch.cuda.device(device):
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        executable.launch(inputs, made, chosen, empty, checked=not capturing)
    return made


def _fake(handle: int, inputs: list[torch.Tensor], sizes: list[Any]) -> list[torch.Tensor]:
    return _empty(_ENTRIES[handle], sizes, inputs[0].device)


_LIBRARY = torch.library.Library("aicf", "FRAGMENT")
_LIBRARY.define(
    "region(int handle, Tensor[] inputs, SymInt[] sizes) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)
_LIBRARY.impl("region", run_region, "CPU")
_LIBRARY.impl("region", run_region, "CUDA")
torch.library.register_fake("aicf::region", _fake, lib=_LIBRARY)
REGION = torch.ops.aicf.region.default
