"""The instruction sets that code is generated for, and those of them that this machine can run.

An AVX-512 machine runs code for AVX2 and for SSE2 too, so that numeric tests run there for all three. Code that only another
machine can run is compiled and looked at (test_targets.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from aicf.backends.llvm.build import host_target, target_of
from aicf.backends.llvm.codegen import Target

_SSE2 = "+sse,+sse2"
_AVX2 = f"{_SSE2},+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
_AVX512 = f"{_AVX2},+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx512cd"
_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


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


SSE2 = Path("sse2", _X86, "x86-64", _SSE2)
AVX2 = Path("avx2", _X86, "x86-64-v3", _AVX2)
AVX512 = Path("avx512", _X86, "x86-64-v4", _AVX512)
AVX512_BF16 = Path("avx512_bf16", _X86, "cooperlake", f"{_AVX512},+avx512vnni,+avx512bf16")
AMX = Path("amx", _X86, "sapphirerapids", f"{_AVX512},+avx512vnni,+avx512bf16,+avx512fp16,+amx-tile,+amx-bf16")
NEON = Path("neon", _ARM, "neoverse-n1", "+neon,+fullfp16")
PATHS = (SSE2, AVX2, AVX512, AVX512_BF16, AMX, NEON)


def _host() -> Path:
    host = host_target()
    return Path("host", host.triple, host.cpu, host.features)


# This processor as it is, and the kinds with narrower vectors that it can run besides.
EXECUTABLE = (_host(), *(p for p in (SSE2, AVX2, AVX512) if p.runs_here and p.target.lanes < host_target().lanes))
