"""A region for a GPU at every stage, on a machine that has none; devices and the targets that they mean."""

from __future__ import annotations

import pytest

from aicf.backends.triton.launch import interpreting
from aicf.frontends.torch.run.devices import nearest

from .test_offline import region

pytest.importorskip("triton")


@pytest.mark.skipif(interpreting(), reason="Triton's interpreter compiles nothing")
def test_every_stage():
    result = region("causal", "h100", "bf16", 64)
    assert "per block of" in result.dump("kernel") and "stages 2" in result.dump("kernel")
    assert "@triton.jit" in result.dump("triton") and "tl.dot(Q_tile, tl.trans(K_tile))" in result.dump("triton")
    assert "wgmma.mma_async" in result.dump("ptx")
    assert "HGMMA" in result.dump("sass")
    assert "0 spills" in result.dump("resources")
    with pytest.raises(ValueError, match="the kernel is for a GPU, so there is no asm of it"):
        result.dump("asm")


def test_the_cpu_has_no_triton_stage():
    with pytest.raises(ValueError, match=r"the kernel is for a CPU, so there is no triton of it .* name a GPU as the target"):
        region("causal", "host", "f32", 16, n=64).dump("triton")


def test_devices():
    assert [nearest(c, "some GPU") for c in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 1))] == [
        "a100", "a100", "rtx4090", "h100", "b200", "rtx5090",
    ]  # fmt: skip
    assert nearest((9, 0), "NVIDIA H200") == "h200"
    with pytest.raises(RuntimeError, match=r"has compute capability 7\.5; kernels are made for 8\.0 and newer"):
        nearest((7, 5), "T4")
