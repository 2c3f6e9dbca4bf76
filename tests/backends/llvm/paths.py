"""The instruction sets that code is generated for, and those of them that this machine can run.

An AVX-512 machine runs code for AVX2 and for SSE2 too, so that numeric tests run there for all three. Code that only another
machine can run is compiled and looked at (test_targets.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from aicf.backends.llvm.build import host_target, processor_of, target_of
from aicf.backends.llvm.codegen import Target
from aicf.schedule.target import CpuTarget, named_target


@dataclass(frozen=True)
class Path:
    """LLVM's names of a kind of processor."""

    name: str
    triple: str
    cpu: str
    features: str

    @property
    def target(self) -> Target:
        return target_of(self.triple, self.cpu, self.features)

    @property
    def runs_here(self) -> bool:
        """Whether this machine has all of its instructions."""
        host = host_target()
        here = {f for f in host.features.split(",") if f.startswith("+")}
        return host.triple.split("-")[0] == self.triple.split("-")[0] and set(self.features.split(",")) <= here


def _path(name: str) -> Path:
    processor = processor_of(cast("CpuTarget", named_target(name)))
    return Path(name, processor.triple, processor.cpu, processor.features)


AVX2, AVX512, AMX, NEON = map(_path, ("avx2", "avx512", "amx", "neon"))
SSE2 = Path("sse2", AVX2.triple, "x86-64", "+sse,+sse2")
AVX512_BF16 = Path("avx512_bf16", AVX2.triple, "cooperlake", f"{AVX512.features},+avx512vnni,+avx512bf16")
PATHS = (SSE2, AVX2, AVX512, AVX512_BF16, AMX, NEON)


def _host() -> Path:
    host = host_target()
    return Path("host", host.triple, host.cpu, host.features)


# This processor as it is, and the kinds with narrower vectors that it can run besides.
EXECUTABLE = (_host(), *(p for p in (SSE2, AVX2, AVX512) if p.runs_here and p.target.lanes < host_target().lanes))
