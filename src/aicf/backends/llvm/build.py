"""Building: LLVM IR to an object, and an object to code in this process. No compiler but LLVM's own, through llvmlite.

    Kernel -> emit_module -> parse, optimise -> object bytes (position independent) -> load -> Compiled

The object is what a disk cache keeps: `load` links it without compiling.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from aicf.backends.llvm.codegen import Slots, Target, emit_module, slots, vector_shape, worker_names
from aicf.backends.llvm.codegen.module import ENTRY, buffer_bytes
from aicf.backends.llvm.launch import Launcher
from aicf.kernel import Kernel
from aicf.schedule.target import CpuTarget

# What generated code may call: looked up once, so that loading an object never depends on what the process has loaded.
_LIBRARY = ("exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sin", "cos", "pow", "fmod")
_INSTRUCTIONS = ("fma", "floor", "ceil", "trunc", "rint")  # what is a function on a processor that has no instruction for it


@dataclass(frozen=True)
class Compiled:
    """A kernel ready to run; `object` is all that need be kept of it."""

    kernel: Kernel
    target: Target
    object: bytes
    launcher: Launcher
    engine: object

    def run(
        self,
        tensors: dict[str, tuple[int, tuple[int, ...]]],
        sizes: dict[str, int],
        scalars: dict[str, float | int],
        threads: int,
    ) -> None:
        """Run on tensors given as (address, strides in elements), all of the kernel's parameters included.

        Raises KeyError for a missing argument and ValueError for a stride that contradicts the kernel's `unit`.
        """
        self.launcher.run(tensors, sizes, scalars, threads)

    @property
    def llvm(self) -> str:
        """The LLVM IR, as emitted."""
        return emit_module(self.kernel, self.target)

    @property
    def asm(self) -> str:
        """The assembly; compiled again, since nobody needs it but people."""
        return assembly(self.kernel, self.target)


@cache
def _initialised() -> bool:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    names = [n + suffix for n in (*_LIBRARY, *_INSTRUCTIONS) for suffix in ("", "f")]
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    for name in names:
        llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    llvm.add_symbol("memcpy", ctypes.cast(ctypes.memmove, ctypes.c_void_p).value)
    llvm.add_symbol("memset", ctypes.cast(ctypes.memset, ctypes.c_void_p).value)
    return True


def host_target() -> Target:
    """The processor that this process runs on."""
    _initialised()
    return target_of(llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def llvm_version() -> str:
    """The LLVM that makes the code: llvmlite can be built with several."""
    return ".".join(map(str, llvm.llvm_version_info))


def processor_of(machine: CpuTarget) -> Target:
    """The processor that a described CPU stands for."""
    if machine.llvm_cpu == "native":
        return host_target()
    return target_of(machine.llvm_triple, machine.llvm_cpu, ",".join(f"+{f}" for f in machine.llvm_features))


def target_of(triple: str, cpu: str, features: str) -> Target:
    """A target by LLVM's names."""
    lanes, registers = vector_shape(triple, features)
    return Target(triple, cpu, features, lanes, registers)


def machine_of(target: Target) -> llvm.TargetMachine:
    """LLVM's own description of a target, as code generation wants it."""
    _initialised()
    if not target.triple.startswith(llvm.get_default_triple().split("-")[0]):
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    made = llvm.Target.from_triple(target.triple)
    return made.create_target_machine(cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small")


def compile_text(text: str, target: Target, *, assembly: bool = False) -> bytes:
    """The object (or assembly text) of a module. Raises RuntimeError with LLVM's message when the text is no valid module."""
    machine = machine_of(target)
    module = llvm.parse_assembly(text)
    module.verify()
    # The emitted code is what it should be; only stack slots and repeated address arithmetic are left to clean up.
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return machine.emit_assembly(module).encode() if assembly else machine.emit_object(module)


def assembly(kernel: Kernel, target: Target) -> str:
    """The assembly of `kernel` for any processor."""
    return compile_text(emit_module(kernel, target), target, assembly=True).decode()


def emit(kernel: Kernel, triple: str | None = None, cpu: str | None = None, features: str | None = None) -> str:
    """LLVM IR of `kernel` before optimisation, for this processor or for another."""
    return emit_module(kernel, _chosen(triple, cpu, features))


def _chosen(triple: str | None, cpu: str | None, features: str | None) -> Target:
    host = host_target()
    if triple is None and cpu is None and features is None:
        return host
    return target_of(triple or host.triple, cpu or host.cpu, features if features is not None else host.features)


def build(kernel: Kernel, cpu: str | None = None, features: str | None = None) -> Compiled:
    """Compile `kernel` for this processor, or for another CPU or feature set of the same family."""
    target = _chosen(None, cpu, features)
    return _linked(kernel, compile_text(emit_module(kernel, target), target), target)


def load(kernel: Kernel, code: bytes, cpu: str | None = None, features: str | None = None) -> Compiled:
    """A compiled kernel from the object bytes that `build` made for the same kernel and target."""
    return _linked(kernel, code, _chosen(None, cpu, features))


def _linked(kernel: Kernel, code: bytes, target: Target) -> Compiled:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_of(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    entry = engine.get_function_address(ENTRY)
    workers = tuple(engine.get_function_address(name) for name in worker_names(kernel))
    where: Slots = slots(kernel)
    return Compiled(kernel, target, code, Launcher(kernel, where, entry, workers, buffer_bytes(kernel, target)), engine)
