"""What a call does on the host, with stand-ins for tensors, Triton's functions and the device: grid, arguments, widths of
integers, scratch memory, device. Nothing here needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from aicf.backends.triton import BACKEND
from aicf.backends.triton.emit import emit
from aicf.backends.triton.launch import GpuKernel, options
from aicf.frontends.torch.run import region_op
from aicf.kernel import Kernel
from aicf.kernel.placement import map_to_blocks
from aicf.runtime.device import CALLS, DeviceExecutable
from aicf.scalar import DType
from aicf.schedule import GpuTarget, named_target
from aicf.schedule.gpu import register_limit
from tests.kernel import programs
from tests.kernel.handmade import attention


@dataclass
class Calls:
    """Stands for a compiled function: remembers the grid, the arguments and the options of every call."""

    seen: list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list[Any])

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **keywords: self.seen.append((grid, arguments, keywords))


def watched(kernel: Kernel) -> tuple[GpuKernel, dict[bool, dict[str, Calls]]]:
    """`kernel` with stand-ins for its functions, for 32-bit offsets (False) and for 64-bit ones (True)."""
    made, calls = GpuKernel(kernel, interpreted=False), dict[bool, dict[str, Calls]]()
    for wide in (False, True):
        source = emit(kernel, wide=wide)
        calls[wide] = {e.name: Calls() for e in source.entries}
        made._modules[wide] = (source, dict(calls[wide]))
    return made, calls


def none_asked(shape: tuple[int, ...], dtype: DType) -> Any:
    raise AssertionError(f"memory was asked for: {shape} {dtype}")


def tensors(n: int = 50, d: int = 8, dv: int = 12) -> dict[str, torch.Tensor]:
    widths = {"Q": d, "K": d, "V": dv, "O": dv}
    return {name: torch.empty(2, 3, n, w, device="meta") for name, w in widths.items()}


def test_grid_arguments_and_options():
    kernel = map_to_blocks(attention(d=8, dv=12, tile_m=16, tile_n=16), warps=4, stages=2, registers=255)
    made, calls = watched(kernel)
    given = tensors()
    made.launch(given, {"B": 2, "H": 3, "N": 50, "M": 50}, {}, none_asked)
    (entry,) = made.source().entries
    ((grid, arguments, keywords),) = calls[False][entry.name].seen
    assert grid == (2 * 3 * 4, 1, 1)
    assert arguments[:4] == tuple(given[name] for name in "QKVO")
    values = dict(zip(entry.arguments, arguments, strict=True))
    assert (values["N"], values["M"], values["Q_stride_2"], values["O_stride_1"]) == (50, 50, 8, 50 * 12)
    assert keywords == {"num_warps": 4, "num_stages": 2, "maxnreg": 255, "enable_fp_fusion": True} == options(entry)


def test_a_tensor_with_far_elements_takes_64_bits():
    """Decided from ranges: the same kernel, one call with strides that reach past 2**31 elements."""
    made, calls = watched(map_to_blocks(attention(d=8, dv=12, tile_m=16, tile_n=16), warps=4, stages=2))
    (entry,) = made.source().entries
    sizes = {"B": 2, "H": 3, "N": 50, "M": 50}
    far = torch.empty_strided((2, 3, 50, 8), (2**31, 400, 8, 1), device="meta")
    for q in (tensors()["Q"], far, tensors()["Q"]):
        made.launch({**tensors(), "Q": q}, sizes, {}, none_asked)
    assert len(calls[False][entry.name].seen) == 2 and len(calls[True][entry.name].seen) == 1


def test_functions_run_in_order_and_scratch_is_asked_for():
    made, calls = watched(map_to_blocks(programs.split_kv(), warps=4, stages=1))
    asked: list[tuple[int, ...]] = []

    def empty(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        asked.append(shape)
        return torch.empty(shape, device="meta")

    made.launch(tensors(), {"B": 2, "H": 3, "N": 50, "M": 50, "chunk": 1}, {}, empty)
    first, second = made.source().entries
    assert len(calls[False][first.name].seen) == len(calls[False][second.name].seen) == 1
    scratch = [t for t in made.kernel.tensors if t.role == "scratch"]
    assert len(asked) == len(scratch) > 0


def test_an_unexpected_stride_is_refused():
    made, _ = watched(map_to_blocks(attention(d=8, dv=12, tile_m=16, tile_n=16), warps=4, stages=1))
    given = tensors()
    given["K"] = torch.empty(2, 3, 8, 50, device="meta").mT
    with pytest.raises(ValueError, match=r"dimension 3 of K has stride 50; kernel .* was built for stride 1"):
        made.launch(given, {"B": 2, "H": 3, "N": 50, "M": 50}, {}, none_asked)


def test_nothing_is_started_for_no_items():
    made, calls = watched(map_to_blocks(attention(d=8, dv=12, tile_m=16, tile_n=16), warps=4, stages=1))
    made.launch(tensors(), {"B": 0, "H": 3, "N": 50, "M": 50}, {}, none_asked)
    assert all(not c.seen for c in calls[False].values())


class Launches(DeviceExecutable):
    """Stands for an executable: remembers the device that was current when it was launched, and its outputs."""

    def __init__(self, current: list[torch.device]) -> None:
        self.backend = BACKEND
        self.current, self.seen = current, list[tuple[torch.device, list[torch.Tensor]]]()

    def launch(self, inputs: Any, outputs: Any, sizes: Any, empty: Any, *, checked: bool = True) -> None:
        scratch = empty((4,), "f32")
        self.seen.append((self.current[-1], [*outputs, scratch]))


def test_launched_on_the_device_of_the_inputs(monkeypatch: pytest.MonkeyPatch):
    """The inputs' device is current during the launch, and only then; outputs and scratch are on it. (A meta device stands for
    the GPU.)"""
    current = [torch.device("cpu")]

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", on)
    executable = Launches(current)
    entry = region_op.Entry(executable, (0,), ((lambda *sizes: ((*sizes, 8), (8, 1)), torch.bfloat16),))
    (out,) = region_op._launch(entry, executable, [torch.empty(5, 8, device="meta")], [5])
    ((device, made),) = executable.seen
    assert device.type == "meta" and current == [torch.device("cpu")]
    assert made[0] is out and out.shape == (5, 8) and out.dtype == torch.bfloat16
    assert all(t.device.type == "meta" for t in made)


def test_what_a_call_remembers_is_bounded():
    """Lengths that change with every call do not pile up."""
    made, _ = watched(map_to_blocks(attention(d=8, dv=12, tile_m=16, tile_n=16), warps=4, stages=1))
    for n in range(1, CALLS + 20):
        made.launch(tensors(n), {"B": 2, "H": 3, "N": n, "M": n}, {}, none_asked)
    assert len(made._narrow) <= CALLS


def test_threads_get_the_registers_that_let_a_block_run():
    h100, mi300x = named_target("h100"), named_target("mi300x")
    assert isinstance(h100, GpuTarget) and isinstance(mi300x, GpuTarget)
    assert [register_limit(h100, warps) for warps in (4, 8, 16)] == [255, 255, 128]
    assert register_limit(mi300x, 4) == 0
