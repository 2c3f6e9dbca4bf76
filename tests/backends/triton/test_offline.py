"""Kernels compiled for GPUs that are not here: they compile, do not spill, use the matrix units, and take the shared memory that
the schedule said. AICF_ALL_KERNELS=1 compiles the whole set (some ten minutes); else a sample for two targets."""

from __future__ import annotations

import os

import pytest
import torch

from aicf.backends.triton.build import Artifact, compile_offline
from aicf.backends.triton.emit import emit
from aicf.backends.triton.launch import interpreting
from aicf.backends.triton.sass import arithmetic, loops
from aicf.driver import RegionResult
from aicf.frontends.torch.options import backend_options
from aicf.frontends.torch.pipeline import streamed_module
from aicf.report import GraphReport
from aicf.runtime.device import DeviceExecutable
from aicf.scalar import DType
from aicf.schedule import GpuTarget, named_target

from .cases import Own, biased, causal, dense, documents, grouped, kept, softcapped, windowed, with_lse
from .test_emit import golden

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(interpreting(), reason="Triton's interpreter compiles nothing")
EVERYTHING = os.environ.get("AICF_ALL_KERNELS") == "1"
TARGETS = ("a100", "rtx4090", "h100", "b200", "rtx5090", "mi300x")
CASES = {
    "dense": dense, "causal": causal, "grouped": grouped, "kept": kept, "with_lse": with_lse, "biased": biased,
    "windowed": windowed, "softcapped": softcapped, "documents": documents,
}  # fmt: skip
TYPES: dict[DType, torch.dtype] = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def region(name: str, target: str, dtype: DType, d: int, n: int = 4096) -> RegionResult:
    """The streamed region of a case at training size."""
    found: list[GraphReport] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        found.append(streamed_module(gm, inputs, backend_options({"fuse": "always", "target": target}))[0])
        return lambda *_: [torch.empty(0)] * 2  # nothing is computed

    heads = 16
    case = Own(CASES[name], heads=heads, kv_heads=4 if name == "grouped" else heads, d=d, dv=d)
    extra = {
        "kept": {"keep": torch.ones(1, 1, n, n, dtype=torch.bool)},
        "biased": {"bias": torch.ones(heads, n, n, dtype=TYPES[dtype])},
        "documents": {"ids": torch.zeros(1, n, dtype=torch.int64)},
    }
    tensors = case.make(n, n, TYPES[dtype]) | extra.get(name, {})
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(case.fn, backend=backend)(**tensors)
    (result,) = (r for g in found for r in g.regions)
    assert result.status == "streamed", result.reason
    return result


def artifacts(result: RegionResult) -> list[Artifact]:
    assert isinstance(result.executable, DeviceExecutable) and isinstance(result.executable.machine, GpuTarget)
    kernel, machine = result.executable.kernel, result.executable.machine
    source = emit(kernel)
    return [compile_offline(kernel, source, e, machine.arch, machine.warp) for e in source.entries]


def multiplies(result: RegionResult, function: str) -> bool:
    """Whether a function takes products; others make summaries of tiles, or combine parts."""
    after = result.dump("triton").split(f"def {function}(")[1]
    return "tl.dot(" in after.split("@triton.jit")[0]


def account(result: RegionResult) -> int:
    """The bytes of shared memory that the schedule counted on, as its reason says."""
    assert result.schedule is not None
    return int(result.schedule.reason("residency").split()[0])


SAMPLE = [("dense", "h100", "bf16", 64), ("causal", "a100", "bf16", 64)]
ALL = [
    *((c, t, "bf16", d) for c in CASES for t in TARGETS for d in (64, 128)),
    *(("dense", t, "f16", 64) for t in TARGETS),
    *((c, t, "f32", d) for c in ("dense", "causal") for t in TARGETS for d in (64, 128)),
]


@pytest.mark.parametrize(("name", "target", "dtype", "d"), [*SAMPLE, *(x for x in ALL if EVERYTHING and x not in SAMPLE)])
def test_compiles_as_scheduled(name: str, target: str, dtype: DType, d: int):
    result = region(name, target, dtype, d)
    machine = named_target(target)
    assert isinstance(machine, GpuTarget)
    for made in artifacts(result):
        used = made.resources
        assert used.spills == 0, used
        assert used.shared <= machine.shared_per_block
        if dtype != "f32" and multiplies(result, made.name):
            names = " ".join(n for n, _ in used.tensor_core)
            wanted = {"a100": "HMMA", "h100": "HGMMA", "b200": "UTCHMMA", "mi300x": "v_mfma"}.get(target, "HMMA")
            assert wanted in names, used
            assert abs(used.shared - account(result)) <= 0.1 * used.shared, (used.shared, account(result))


# Floating-point and select instructions per score in the loop over full tiles. The maximum, the multiply-add, the exponential,
# the sum and half of a conversion are 4.5; the rest are those of a row. Rescaled accumulators are d_v / tile_n more.
PER_SCORE = {"dense": 5.2, "causal": 5.2, "windowed": 5.2, "softcapped": 11.2}


@pytest.mark.parametrize("name", PER_SCORE)
def test_instructions_per_score(name: str):
    result = region(name, "h100", "bf16", 64)
    assert result.schedule is not None
    schedule, (made,) = result.schedule, artifacts(result)
    scores = schedule.tile_m * schedule.tile_n // (32 * schedule.warps)
    full = min(arithmetic(block) for block in loops(made.sass))
    assert full / scores - 64 / schedule.tile_n <= PER_SCORE[name], (full, scores)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("ones", ["nothing", "sizes", "strides"])
def test_compiles_for_any_call(ones: str, wide: bool):
    """What Triton makes a constant (arguments that are 1: one query, one head), addresses without a known alignment, and 64-bit
    offsets."""
    result = region("causal", "h100", "bf16", 64)
    assert isinstance(result.executable, DeviceExecutable) and isinstance(result.executable.machine, GpuTarget)
    kernel, machine = result.executable.kernel, result.executable.machine
    source = emit(kernel, wide=wide)
    for e in source.entries:
        kinds = {"nothing": (), "sizes": kernel.sizes, "strides": [a for a in e.arguments if "_stride_" in a]}
        made = compile_offline(kernel, source, e, machine.arch, machine.warp, aligned=ones != "nothing", ones=kinds[ones])
        assert "HGMMA" in made.sass and made.resources.shared <= machine.shared_per_block


def test_two_targets_give_different_schedules():
    """One graph, two machines: what is decided differs, and each says why (golden/two_targets.txt)."""
    made = {t: region("causal", t, "bf16", 128) for t in ("h100", "rtx4090")}
    h100, rtx4090 = (r.schedule for r in made.values())
    assert h100 is not None and rtx4090 is not None
    assert (h100.tile_m, h100.tile_n, h100.warps) != (rtx4090.tile_m, rtx4090.tile_n, rtx4090.warps)
    texts: list[str] = []
    for target, result in made.items():
        lines = result.dump("kernel").splitlines()
        loops = [x for x in lines if any(word in x for word in ("per block", "stream ", "per warp"))]
        texts.append("\n".join([target, str(result.schedule), *loops]))
    golden("two_targets.txt", "\n\n".join(texts) + "\n")
