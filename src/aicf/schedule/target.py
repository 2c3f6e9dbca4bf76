"""What a schedule is chosen for: the caches, registers and rates of a CPU or a GPU.

`host_target()` reads this machine; `named_target("avx2")` or `named_target("h100")` gives a described one, so that schedules for
other machines can be looked at anywhere. Where a figure is not known it is a stated default, never a guess made later.
Figures of GPUs are vendors' published ones, each with its document; where `derived` stands, by the formula given; where
`estimate` stands nobody publishes one, or nobody who built the thing, and the comment says what it rests on.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class CpuTarget:
    """A CPU. Cache sizes in bytes: L1 data and L2 of one core, L3 shared by `l3_cores`; 0 where there is none.

    `vector_bits` and `registers`: the vector registers used. `fma_per_cycle`: vector FMA instructions that a core starts in a
    cycle; `fma_latency`: cycles until the result can be used; `load_per_cycle`: vector loads. `lane_broadcast`: an FMA can take
    one lane of a register as its scalar operand (Arm), instead of a broadcast load. `matrix_flops`: flop per cycle and core of a
    matrix unit for 16-bit inputs, 0 for none. `ghz`: clock, None when unknown. `bytes_per_cycle_l3` and `_dram`: what one core
    streams in. `llvm_cpu`, `llvm_triple` and `llvm_features`: for code generation; CPU "native" means that LLVM is asked about
    this machine. Code for it is what runs; code for another CPU is shown. `kind`: a backend says which kinds it makes code for.
    """

    name: str
    cores: int
    vector_bits: int
    registers: int
    fma_per_cycle: int
    l1d: int
    l2: int
    l3: int
    l1_ways: int = 8
    l3_cores: int = 1
    fma_latency: int = 4
    load_per_cycle: int = 2
    lane_broadcast: bool = False
    matrix_flops: int = 0
    ghz: float | None = None
    bytes_per_cycle_l3: float = 10.0
    bytes_per_cycle_dram: float = 4.0
    llvm_cpu: str = "native"
    llvm_triple: str = ""
    llvm_features: tuple[str, ...] = ()
    kind: str = "cpu"

    def __str__(self) -> str:
        return describe(self)


@dataclass(frozen=True)
class Mma:
    """A matrix instruction for 16-bit operands with fp32 accumulation.

    `rows`: of the tile, that one instruction takes; `warps`: how many issue it together; `flops`: dense flop per clock and SM;
    `shared`: it reads its operands from shared memory, asynchronously, where others have warps load them into registers first.
    """

    name: str
    rows: int
    warps: int
    flops: int
    shared: bool = False


@dataclass(frozen=True)
class GpuTarget:
    """A GPU. `sms`: streaming multiprocessors (AMD: compute units). Memory in bytes, rates per clock and SM unless said
    otherwise.

    `shared_per_block` and `shared_per_sm`: usable shared memory (AMD: LDS); `shared_rate`: bytes per clock. `registers_per_sm`:
    32-bit registers; `registers_per_thread`: the most one thread may have. `warp`: threads in lock-step. `mma`: matrix
    instructions, the best first; a tile that is too small for one takes the next. `fp32_flops`: outside the matrix units.
    `exps`: exponentials per clock and SM. `bandwidth`: bytes/s of device memory. `l2_bandwidth`: bytes/s. `async_copy`: copies
    into shared memory overlap with computing. `kind`: a backend says which kinds it makes code for.
    """

    name: str
    arch: str
    sms: int
    ghz: float
    shared_per_block: int
    shared_per_sm: int
    registers_per_sm: int
    registers_per_thread: int
    threads_per_sm: int
    warp: int
    mma: tuple[Mma, ...]
    fp32_flops: int
    exps: int
    bandwidth: float
    l2: int
    l2_bandwidth: float
    async_copy: bool = True
    shared_rate: int = 128
    kind: str = "gpu"

    @property
    def mma_flops(self) -> int:
        """The best matrix instruction's rate."""
        return self.mma[0].flops

    def mma_for(self, tile_m: int, warps: int) -> Mma:
        """The best matrix instruction whose rows a tile fills and for which there are warps; else the smallest."""
        return next((m for m in self.mma if tile_m >= m.rows and warps >= m.warps), self.mma[-1])

    def __str__(self) -> str:
        return describe(self)


Target: TypeAlias = CpuTarget | GpuTarget

_KIB, _MIB = 1024, 1024 * 1024

# ------------------------------------------------------------------------------------------------ GPUs  Shared memory,
# registers and threads: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Exponentials: the same
# guide's table of arithmetic throughput, row "reciprocal, …, base 2 exponential": 16 per clock and SM for 8.0 to 12.0. Shared
# memory: the same guide, 32 banks of 4 bytes a clock. Flops of the best matrix instruction are derived: peak / (SMs * boost
# clock). l2_bandwidth is derived: the A100 white paper gives 5120 bytes per clock for 108 SMs, 47 for one; for the later ones,
# without a published figure, the same is an estimate. Rows and warps of matrix instructions: PTX ISA, `mma.sync` m16n8k16 (one
# warp), `wgmma.mma_async` m64nNk16 (four warps), `tcgen05.mma` m64 and m128 (issued for the block; Triton takes four warps or
# more).


def _nvidia(
    name: str, arch: str, sms: int, ghz: float, *, shared: int, threads: int, mma: tuple[Mma, ...], fp32: int, bandwidth: float,
    l2: int,
) -> GpuTarget:  # fmt: skip
    return GpuTarget(
        name, arch, sms, ghz,
        shared_per_block=shared * _KIB, shared_per_sm=(shared + 1) * _KIB,  # the guide: 1 KiB per block is reserved
        threads_per_sm=threads, mma=mma, fp32_flops=fp32, bandwidth=bandwidth * 1e9, l2=l2 * _MIB,
        l2_bandwidth=47 * sms * ghz * 1e9,
        registers_per_sm=65536, registers_per_thread=255, warp=32, exps=16,
    )  # fmt: skip


A100 = _nvidia(
    "a100", "sm_80",
    sms=108, ghz=1.41,  # NVIDIA A100 Tensor Core GPU Architecture white paper, table 4
    shared=163, threads=2048,  # CUDA guide, compute capability 8.0
    mma=(Mma("HMMA", 16, 1, 2048),),  # derived: 312 TFLOPS bf16 dense (A100 data sheet) / (108 * 1.41 GHz)
    fp32=128,  # white paper: 64 FP32 cores per SM
    bandwidth=2039,  # A100 80GB SXM data sheet, GB/s
    l2=40,  # white paper
)  # fmt: skip
RTX4090 = _nvidia(
    "rtx4090", "sm_89",
    sms=128, ghz=2.52,  # NVIDIA Ada GPU Architecture white paper, appendix A
    shared=99, threads=1536,  # CUDA guide, compute capability 8.9
    mma=(Mma("HMMA", 16, 1, 512),),  # derived: 165.2 TFLOPS fp16 with fp32 accumulation, dense (appendix A) / (128 * 2.52 GHz)
    fp32=256,  # 128 FP32 cores per SM
    bandwidth=1008,  # appendix A
    l2=72,  # appendix A
)  # fmt: skip
H100 = _nvidia(
    "h100", "sm_90",
    sms=132, ghz=1.83,  # NVIDIA H100 Tensor Core GPU Architecture white paper, SXM5 column
    shared=227, threads=2048,  # CUDA guide, compute capability 9.0
    mma=(
        Mma("HGMMA", 64, 4, 4096, shared=True),  # derived: 989.4 TFLOPS bf16 dense (data sheet: 1979 sparse) / (132 * 1.83 GHz)
        # estimate: without wgmma about 63 % of the peak can be had (Hazy Research, "GPUs Go Brrr", 12 May 2024)
        Mma("HMMA", 16, 1, 2560),
    ),
    fp32=256,  # white paper: 128 FP32 cores per SM
    bandwidth=3350,  # H100 SXM data sheet
    l2=50,  # white paper
)  # fmt: skip
H200 = replace(H100, name="h200", bandwidth=4800e9)  # H200 data sheet: the H100's chip with 4.8 TB/s of memory
B200 = _nvidia(
    "b200", "sm_100",
    # estimates: no data sheet has them. 148 SMs are what the device reports (Chips and Cheese, "Nvidia's B200"); with twice the
    # flops of the H100's SM, 2250 TFLOPS need 1.86 GHz
    sms=148, ghz=1.85,
    shared=227, threads=2048,  # CUDA guide, compute capability 10.0
    mma=(
        # derived: 2250 TFLOPS bf16 dense per GPU (HGX B200 data sheet: 36 PFLOPS sparse for 8) / (148 * 1.85 GHz), rounded to a
        # power of two
        Mma("UTCHMMA", 64, 4, 8192, shared=True),
        Mma("HMMA", 16, 1, 2048),  # estimate: the rate of the A100's SM, which has the same instruction
    ),
    fp32=256,  # 128 FP32 cores per SM
    bandwidth=8000,  # DGX B200 data sheet: 64 TB/s for 8
    l2=126,  # estimate: as the device reports it (Chips and Cheese)
)  # fmt: skip
RTX5090 = _nvidia(
    "rtx5090", "sm_120",
    sms=170, ghz=2.407,  # NVIDIA RTX Blackwell GPU Architecture white paper, appendix
    shared=99, threads=1536,  # CUDA guide, compute capability 12.0
    mma=(Mma("HMMA", 16, 1, 512),),  # derived: 209.5 TFLOPS fp16 with fp32 accumulation, dense (white paper) / (170 * 2.407 GHz)
    fp32=256,  # 128 FP32 cores per SM
    bandwidth=1792,  # white paper
    l2=96,  # white paper
)  # fmt: skip
MI300X = GpuTarget(
    "mi300x", "gfx942",
    sms=304, ghz=2.1,  # AMD Instinct MI300X data sheet: compute units, peak engine clock
    shared_per_block=64 * _KIB, shared_per_sm=64 * _KIB,  # ROCm documentation, GPU specifications: LDS
    registers_per_sm=131072,  # the same: VGPR file of 512 KiB per compute unit
    registers_per_thread=512,  # AMD Instinct MI300 ISA guide: VGPRs and accumulation VGPRs of a lane together
    threads_per_sm=2048, warp=64,  # ISA guide: 8 waves of 64 on each of 4 SIMDs; the same document: wavefront size
    mma=(
        Mma("v_mfma 32x32x8", 32, 1, 2048),  # derived: 1307.4 TFLOPS bf16 dense (data sheet) / (304 * 2.1 GHz)
        Mma("v_mfma 16x16x16", 16, 1, 2048),  # ISA guide: 4 passes for half of the 8-pass 32x32x8's work, the same rate
    ),
    fp32_flops=256,  # derived: 163.4 TFLOPS fp32 vector (data sheet) / (304 * 2.1 GHz)
    exps=16,  # derived: 64 lanes at the quarter rate that LLVM's model has for transcendentals (SISchedule.td, WriteTrans32)
    bandwidth=5300e9,  # data sheet
    l2=32 * _MIB,  # ROCm documentation: 4 MiB for each of 8 dies
    l2_bandwidth=2048 * 8 * 2.1e9,  # CDNA3 white paper: 2 KiB per clock for each of 8 dies
    shared_rate=128,  # the same: LDS, 128 bytes per clock
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ CPUs
#
# FMA rate and latency, load rate: Intel and Arm optimisation manuals; AMD Software Optimization Guide for family 19h. Each of
# these stands for a class of machines; host_target() reads the real one.

_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_SSE2_FEATURES = ("sse", "sse2")
_AVX2_FEATURES = (
    *_SSE2_FEATURES, "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe",
)  # fmt: skip
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512cd")
_AMX_FEATURES = (*_AVX512_FEATURES, "avx512vnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-bf16")

AVX2 = CpuTarget(
    "avx2", cores=8, vector_bits=256, registers=16, fma_per_cycle=2, l1d=32 * _KIB, l2=512 * _KIB, l3=32 * _MIB, l3_cores=8,
    ghz=3.0, llvm_cpu="x86-64-v3", llvm_triple=_X86, llvm_features=_AVX2_FEATURES,
)  # fmt: skip
AVX512 = CpuTarget(
    "avx512", cores=16, vector_bits=512, registers=32, fma_per_cycle=2, l1d=48 * _KIB, l1_ways=12, l2=2 * _MIB, l3=30 * _MIB,
    l3_cores=16, ghz=2.5, llvm_cpu="x86-64-v4", llvm_triple=_X86, llvm_features=_AVX512_FEATURES,
)  # fmt: skip
NEON = CpuTarget(
    "neon", cores=16, vector_bits=128, registers=32, fma_per_cycle=2, l1d=64 * _KIB, l1_ways=4, l2=1 * _MIB, l3=32 * _MIB,
    l3_cores=16, ghz=2.6, lane_broadcast=True, llvm_cpu="neoverse-n1", llvm_triple=_ARM, llvm_features=("neon", "fullfp16"),
)  # fmt: skip
AMX = CpuTarget(
    "amx", cores=16, vector_bits=512, registers=32, fma_per_cycle=2, l1d=48 * _KIB, l1_ways=12, l2=2 * _MIB, l3=30 * _MIB,
    l3_cores=16, ghz=2.5, matrix_flops=2048, llvm_cpu="sapphirerapids", llvm_triple=_X86, llvm_features=_AMX_FEATURES,
)  # fmt: skip

TARGETS: dict[str, Target] = {
    t.name: t for t in (AVX2, AVX512, AMX, NEON, A100, RTX4090, H100, H200, B200, RTX5090, MI300X)
}  # fmt: skip


def named_target(name: str) -> Target:
    """The target called `name`; "host" is this machine. Raises KeyError with the known names."""
    if name == "host":
        return host_target()
    if name not in TARGETS:
        raise KeyError(f"no target {name!r}; known: host, {', '.join(TARGETS)}")
    return TARGETS[name]


# ------------------------------------------------------------------------------------------------ this machine


def host_target() -> CpuTarget:
    """This machine's CPU, as the operating system tells it; conservative defaults where it does not.

    The cores are those that this process may use, hardware threads of one core counted once.
    """
    machine = platform.machine().lower()
    flags, vendor, family = _cpuinfo(Path("/proc/cpuinfo"))
    cores = _cores(Path("/sys/devices/system/cpu"))
    base = _instructions(machine, flags, vendor, family)
    caches = _linux_caches(Path("/sys/devices/system/cpu")) if platform.system() == "Linux" else {}
    if platform.system() == "Darwin":
        caches = _darwin_caches(_sysctl)
    l1d, l1_ways, _ = caches.get(1, (base.l1d, base.l1_ways, 1))
    l2, _, l2_cores = caches.get(2, (base.l2, 0, 1))
    l3, _, l3_cores = caches.get(3, (base.l3, 0, cores)) if caches else (base.l3, 0, cores)
    return replace(
        base,
        name="host", cores=cores, l1d=l1d, l1_ways=l1_ways, l2=l2 // max(1, min(l2_cores, cores)), l3=l3, l3_cores=l3_cores,
        ghz=_clock(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"), Path("/proc/cpuinfo")),
        llvm_cpu="native", llvm_triple="", llvm_features=(),
    )  # fmt: skip


def _instructions(machine: str, flags: frozenset[str], vendor: str, family: int) -> CpuTarget:
    """The class of CPU by its vector instructions; its caches serve where the machine's own are not known."""
    if machine in ("aarch64", "arm64"):
        return NEON
    if "avx512f" in flags:
        made = AMX if {"amx_tile", "amx_bf16"} <= flags else AVX512
        # Zen 4 (family 25) runs a 512-bit FMA as two of 256 bits.
        return replace(made, fma_per_cycle=1) if (vendor, family) == ("AuthenticAMD", 25) else made
    if {"avx2", "fma"} <= flags or not flags:
        return AVX2
    return replace(AVX2, name="sse2", vector_bits=128, llvm_cpu="x86-64", llvm_features=_SSE2_FEATURES)


def _cpuinfo(path: Path) -> tuple[frozenset[str], str, int]:
    """(instruction-set flags, vendor, family) of the first processor; empty where there is no such file."""
    flags, vendor, family = frozenset[str](), "", 0
    for line in _read(path).splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
        elif key == "vendor_id" and not vendor:
            vendor = value
        elif key == "cpu family" and not family and value.isdigit():
            family = int(value)
    return flags, vendor, family


def _cores(root: Path) -> int:
    """Physical cores that this process may run on."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    seen: set[tuple[str, str]] = set()
    for cpu in allowed:
        topology = root / f"cpu{cpu}" / "topology"
        package, core = _read(topology / "physical_package_id").strip(), _read(topology / "core_id").strip()
        seen.add((package or "?", core or f"cpu{cpu}"))
    return max(1, len(seen))


def _linux_caches(root: Path) -> dict[int, tuple[int, int, int]]:
    """Level -> (bytes, ways, processors that share it), of data and unified caches of processor 0."""
    caches: dict[int, tuple[int, int, int]] = {}
    for place in sorted((root / "cpu0" / "cache").glob("index*")):
        level, kind = _read(place / "level").strip(), _read(place / "type").strip()
        size = _bytes(_read(place / "size").strip())
        if kind in ("Data", "Unified") and level.isdigit() and size:
            ways = _read(place / "ways_of_associativity").strip()
            caches[int(level)] = (size, int(ways) if ways.isdigit() else 8, _count(_read(place / "shared_cpu_list").strip()))
    return caches


def _darwin_caches(ask: Callable[[str], str]) -> dict[int, tuple[int, int, int]]:
    """The same from macOS' sysctl, performance cores first."""
    caches: dict[int, tuple[int, int, int]] = {}
    for level, name in {1: "l1dcachesize", 2: "l2cachesize", 3: "l3cachesize"}.items():
        size = ask(f"hw.perflevel0.{name}") or ask(f"hw.{name}")
        if size.isdigit() and int(size) > 0:
            shared = ask("hw.perflevel0.cpusperl2") if level == 2 else "1"
            caches[level] = (int(size), 8, int(shared) if shared.isdigit() else 1)
    return caches


def _sysctl(name: str) -> str:
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=2, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _clock(maximum: Path, cpuinfo: Path) -> float | None:
    """The highest clock in GHz, else the present one, else None."""
    khz = _read(maximum).strip()
    if khz.isdigit():
        return round(int(khz) / 1e6, 2)
    for line in _read(cpuinfo).splitlines():
        if line.startswith("cpu MHz"):
            return round(float(line.partition(":")[2]) / 1000, 2)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _bytes(text: str) -> int:
    """`512K` as a number."""
    units: Mapping[str, int] = {"K": _KIB, "M": _MIB, "G": _KIB * _MIB}
    number = text.rstrip("KMG")
    return int(number) * units.get(text[-1:], 1) if number.isdigit() else 0


def _count(text: str) -> int:
    """How many processors `0-3,8` lists."""
    total = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            total += int(last) - int(first) + 1 if last.isdigit() else 1
    return max(1, total)


# ------------------------------------------------------------------------------------------------ text


def describe(target: Target) -> str:
    """A few lines about a target, for people."""
    if isinstance(target, CpuTarget):
        t = target
        matrix = f"; matrix unit {t.matrix_flops} flop/cycle (16-bit)" if t.matrix_flops else ""
        return "\n".join([
            f"{t.name}: cpu, {t.cores} cores, {'clock unknown' if t.ghz is None else f'{t.ghz:g} GHz'}, llvm cpu {t.llvm_cpu}",
            f"  vectors  {t.vector_bits} bits, {t.registers} registers; "
            f"{t.fma_per_cycle} FMA per cycle, latency {t.fma_latency}{matrix}",
            f"  caches   L1d {_size(t.l1d)} ({t.l1_ways} ways), L2 {_size(t.l2)} a core, L3 {_size(t.l3)} for {t.l3_cores} cores",
            f"  memory   a core streams {t.bytes_per_cycle_l3:g} bytes per cycle from L3, {t.bytes_per_cycle_dram:g} from memory",
        ])  # fmt: skip
    t = target
    peak = t.mma_flops * t.sms * t.ghz / 1000
    mma = ", ".join(f"{m.name} {m.rows} rows, {m.flops} flop" for m in t.mma)
    return "\n".join([
        f"{t.name}: gpu {t.arch}, {t.sms} SMs, {t.ghz:g} GHz",
        f"  compute  {peak:.0f} TFLOPS 16-bit; per clock and SM: {mma}; {t.exps} exponentials",
        f"  SM       shared memory {_size(t.shared_per_block)} a block, warps of {t.warp}, "
        f"{t.registers_per_sm} registers, at most {t.registers_per_thread} a thread",
        f"  memory   {t.bandwidth / 1e9:.0f} GB/s, L2 {_size(t.l2)}",
    ])  # fmt: skip


def _size(count: int) -> str:
    if not count:
        return "none"
    return f"{count / _MIB:g} MiB" if count >= _MIB else f"{count / _KIB:g} KiB"
