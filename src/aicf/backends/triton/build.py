"""Compiling for a GPU that need not be here: the module's functions through Triton to PTX and machine code, and what they use.

    compile_offline(kernel, source, entry, "sm_90", 32)  ->  ptx, sass, Resources(registers, spills, shared, tensor_core)

Launched kernels are compiled by Triton itself on their first call; this is for `aicf dump`, `aicf explain` and tests.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aicf.backends.triton.emit import Entry, Source
from aicf.backends.triton.launch import load_module, options
from aicf.kernel import Kernel
from aicf.scalar import DType

_POINTER: dict[DType, str] = {
    "bool": "*i1", "u8": "*u8", "i8": "*i8", "i16": "*i16", "i32": "*i32", "i64": "*i64", "f16": "*fp16", "bf16": "*bf16",
    "f32": "*fp32", "f64": "*fp64",
}  # fmt: skip
_SCALAR: dict[DType, str] = {**{d: p[1:] for d, p in _POINTER.items()}, "f16": "fp32", "bf16": "fp32"}
# Instructions of the matrix units: Volta to Ada (HMMA and kin), Hopper (HGMMA), datacentre Blackwell (UTCxMMA); AMD (MFMA).
_TENSOR_CORE = re.compile(r"\b(HMMA|IMMA|DMMA|QMMA|OMMA|HGMMA|IGMMA|QGMMA|UTC[A-Z]*MMA)\b|\b(v_mfma_\w+|v_wmma_\w+)")


@dataclass(frozen=True)
class Resources:
    """What one function takes. `registers`: of a thread; `spills`: 32-bit accesses to local memory in its code (AMD: spilled
    registers); `shared`: bytes of a block; `tensor_core`: matrix instructions by name."""

    registers: int
    spills: int
    shared: int
    tensor_core: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        matrix = ", ".join(f"{n} {name}" for name, n in self.tensor_core) or "no tensor-core instructions"
        return f"{self.registers} registers, {self.spills} spills, {self.shared} bytes of shared memory, {matrix}"


@dataclass(frozen=True)
class Artifact:
    """One function compiled for a device: its intermediate text (PTX; AMD: LLVM IR), machine code as text, and what it uses."""

    name: str
    ptx: str
    sass: str
    resources: Resources

    def text(self, stage: str) -> str:
        """The artifact at a stage: ptx, sass or resources."""
        if stage == "ptx":
            return self.ptx
        return self.sass if stage == "sass" else f"{self.name}: {self.resources}"


def compile_offline(
    kernel: Kernel, source: Source, entry: Entry, arch: str, warp: int, *, aligned: bool = True, ones: Collection[str] = ()
) -> Artifact:  # fmt: skip
    """A function of `source` compiled for `arch` ("sm_90", "gfx942"), with no device needed.

    `aligned`: addresses and strides are multiples of 16, as those of contiguous tensors are. `ones`: arguments that are 1, which
    Triton compiles as constants. Raises RuntimeError when Triton interprets in this process, and whatever Triton raises when it
    cannot compile.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = load_module(source)[entry.name]
    if not hasattr(function, "cache_key"):
        raise RuntimeError("Triton interprets in this process (TRITON_INTERPRET=1), so it compiles nothing: unset it")
    amd = arch.startswith("gfx")
    target = GPUTarget("hip", arch, warp) if amd else GPUTarget("cuda", int(arch.removeprefix("sm_")), warp)
    parameters = inspect.signature(function.fn).parameters
    signature = {p: _type(kernel, name) for p, name in zip(parameters, entry.arguments, strict=True)}
    attributes = {
        (k,): [["tt.divisibility", 16]]
        for k, name in enumerate(entry.arguments)
        if aligned and (signature[list(signature)[k]].startswith("*") or "_stride_" in name)
    }
    constants = {(k,): 1 for k, name in enumerate(entry.arguments) if name in ones}
    for p, name in zip(parameters, entry.arguments, strict=True):
        if name in ones:
            signature[p] = "constexpr"
    attributes = {at: kept for at, kept in attributes.items() if at not in constants}
    made: Any = triton.compile(
        ASTSource(function, signature, constants, attributes), target=target, options=options(entry)
    )
    shared = int(made.metadata.shared)
    if amd:
        code = str(made.asm["amdgcn"])
        return Artifact(entry.name, str(made.asm["llir"]), code, _amd(code, shared))
    code, registers = disassemble(made.asm["cubin"])
    spills = len(re.findall(r"\b(?:STL|LDL)\b", code))
    return Artifact(entry.name, str(made.asm["ptx"]), code, Resources(registers, spills, shared, _matrix(code)))


def _type(kernel: Kernel, name: str) -> str:
    for t in kernel.tensors:
        if t.name == name:
            return _POINTER[t.dtype]
    for s in kernel.scalars:
        if s.name == name:
            return _SCALAR[s.dtype]
    return "i32"


def _matrix(code: str) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for found in _TENSOR_CORE.finditer(code):
        name = found.group(1) or found.group(2)
        counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts.items()))


def _amd(code: str, shared: int) -> Resources:
    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s*(\d+)", code)
        return int(found.group(1)) if found else 0

    # The count of vector registers includes the accumulation registers.
    return Resources(number("vgpr_count"), number("vgpr_spill_count"), shared, _matrix(code))


def disassemble(cubin: bytes) -> tuple[str, int]:
    """(SASS, registers of a thread) of a cubin, by the disassembler that comes with Triton."""
    import triton.backends.nvidia as nvidia

    tools = Path(str(nvidia.__file__)).parent / "bin"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        sass = _tool(tools / "nvdisasm", "-c", str(file))
        usage = _tool(tools / "cuobjdump", "--dump-resource-usage", str(file))
    found = re.search(r"REG:(\d+)", usage)
    return sass, int(found.group(1)) if found else 0


def _tool(path: Path, *arguments: str) -> str:
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{path.name} {' '.join(arguments[:-1])} failed: {done.stderr.strip()}")
    return done.stdout
