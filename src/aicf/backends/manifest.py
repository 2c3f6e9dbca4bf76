"""What a backend is, and which there are: each package of `aicf.backends` whose `__init__` has a `BACKEND`.

    backend_for(target)        the one that makes code for a target
    stages()                   everything that can be dumped, of all of them
    named_target("host")       a target by name, those that backends bring along included

Finding them imports their `__init__` alone, which is small. What a backend needs (LLVM, Triton) is imported with its `code`, when
it is first used. To add a backend is to add a package: no other file names one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import aicf.backends
from aicf.kernel import Kernel
from aicf.scalar import DType
from aicf.schedule import target as targets
from aicf.schedule.target import TARGETS, Target

SHARED_STAGES = ("semantic", "mcir", "kernel")  # what every region has, whatever its target
Empty = Callable[[tuple[int, ...], DType], Any]  # memory for a tensor of that shape and type
Memory = Literal["host", "device"]


# ------------------------------------------------------------------------------------------------ kernels in host memory


class Frame(Protocol):
    """A call's words in memory."""

    words: Any


class Launcher(Protocol):
    """Calls a kernel from a list of words: addresses, strides and sizes at places that it chooses."""

    def words(
        self,
        tensors: Mapping[str, tuple[int, tuple[int, ...]]],
        sizes: Mapping[str, int],
        scalars: Mapping[str, float | int],
    ) -> list[int]:
        """The words of a call: tensors as (address, strides in elements). Addresses may be changed later."""
        ...

    def place(self, tensor: str) -> int:
        """Which of the words is a tensor's address."""
        ...

    def ask(self, words: list[int], checks: Iterable[int]) -> None:
        """Of the kernel's checks run those alone whose numbers these are."""
        ...

    def try_checks(self, words: list[int], threads: int) -> None:
        """Runs the checks that `words` ask for, and nothing else. Raises OutOfRange."""
        ...

    def frame(self, words: list[int]) -> Frame:
        """`words` where the kernel finds them, for `start`, one call at a time."""
        ...

    def start(self, frame: Any, threads: int) -> None:
        """One call. Raises OutOfRange where a check fails, before anything is computed."""
        ...


class HostKernel(Protocol):
    """A kernel that runs on addresses. `object`: what the disk cache keeps of it; empty when there is nothing to keep."""

    @property
    def launcher(self) -> Launcher: ...

    @property
    def object(self) -> bytes: ...


class HostCode(Protocol):
    """What the module of a backend with `memory` "host" defines."""

    def identity(self) -> str:
        """What the code depends on beside the kernel, the sources and the libraries' versions: the machine."""
        ...

    def build(self, kernel: Kernel) -> HostKernel: ...

    def load(self, kernel: Kernel, code: bytes) -> HostKernel:
        """A kernel from the `object` of one that was built. Raises RuntimeError for bytes that are none."""
        ...

    def dump(self, kernel: Kernel, stage: str, target: Target) -> str: ...


# ------------------------------------------------------------------------------------------------ kernels in a device's memory


class DeviceKernel(Protocol):
    """A kernel that runs on a library's tensors, on their device, and returns at once."""

    @property
    def kernel(self) -> Kernel: ...

    def launch(
        self, tensors: Mapping[str, Any], sizes: Mapping[str, int], scalars: Mapping[str, float], empty: Empty
    ) -> None: ...


class DeviceCode(Protocol):
    """What the module of a backend with `memory` "device" defines."""

    def build(self, kernel: Kernel) -> DeviceKernel: ...

    def unfit(self, device: str) -> str | None:
        """Why kernels cannot run on tensors of this kind of device ("cuda", "cpu"); None where they can."""
        ...

    def dump(self, kernel: Kernel, stage: str, target: Target) -> str: ...


# ------------------------------------------------------------------------------------------------ the manifest


@dataclass(frozen=True)
class Backend:
    """One way to run kernels. `kinds`: of targets that it makes code for (`Target.kind`); `machine`: what these are, in words;
    `targets`: such as it brings along. `stages`: what it can dump. `memory`: where its kernels' tensors are. `module`: defines
    the functions of HostCode or DeviceCode, and is imported on first use. `folder`: all sources of its own; with the versions
    of `libraries` they are part of the key of everything that is kept."""

    name: str
    kinds: tuple[str, ...]
    machine: str
    stages: tuple[str, ...]
    memory: Memory
    module: str
    folder: Path
    libraries: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()

    @property
    def host_code(self) -> HostCode:
        """Its functions; TypeError when its kernels do not run on addresses."""
        return cast("HostCode", self._code("host"))

    @property
    def device_code(self) -> DeviceCode:
        """Its functions; TypeError when its kernels do not run on a device's tensors."""
        return cast("DeviceCode", self._code("device"))

    def _code(self, memory: Memory) -> object:
        if self.memory != memory:
            raise TypeError(f"kernels of backend {self.name} live in {self.memory} memory, not in {memory} memory")
        return importlib.import_module(self.module)

    def dump(self, kernel: Kernel, stage: str, target: Target) -> str:
        """`kernel` at one of `stages`. ValueError for a stage of another backend, saying which targets have it."""
        if stage in self.stages:
            code = self.host_code if self.memory == "host" else self.device_code
            return code.dump(kernel, stage, target)
        own = f"its stages are {', '.join(self.stages)}" if self.stages else "it has no stages of its own"
        cure = next((f"; {_how(b)}" for b in backends() if stage in b.stages), "")
        raise ValueError(f"the kernel is for {self.machine}, so there is no {stage} of it ({own}){cure} to see it")


def _how(owner: Backend) -> str:
    known = [t.name for t in (*TARGETS.values(), *owner.targets) if t.kind in owner.kinds]
    return f"name {owner.machine} as the target (--target {', '.join(known[:2])}{', …' if len(known) > 2 else ''})"


def backends() -> tuple[Backend, ...]:
    """All backends, by name."""
    return _found(tuple(aicf.backends.__path__))


@cache
def _found(path: tuple[str, ...]) -> tuple[Backend, ...]:
    names = sorted(m.name for m in pkgutil.iter_modules(path) if m.ispkg)
    made: list[Backend] = []
    for name in names:
        package = importlib.import_module(f"aicf.backends.{name}")
        backend = getattr(package, "BACKEND", None)
        if not isinstance(backend, Backend):
            raise TypeError(f"{package.__name__} is no backend: its __init__.py defines BACKEND, an aicf.backends.Backend")
        made.append(backend)
    for what, entries in (("kind of target", [k for b in made for k in b.kinds]), ("stage", [s for b in made for s in b.stages])):
        twice = sorted({e for e in entries if entries.count(e) > 1})
        if twice:
            owners = [b.name for b in made if twice[0] in (*b.kinds, *b.stages)]
            raise TypeError(f"{what} {twice[0]} belongs to several backends ({', '.join(owners)}); it can have one")
    return tuple(made)


def backend_for(target: Target) -> Backend:
    """The backend that makes code for `target`. ValueError when there is none."""
    for backend in backends():
        if target.kind in backend.kinds:
            return backend
    known = ", ".join(k for b in backends() for k in b.kinds)
    raise ValueError(f"target {target.name} is of kind {target.kind!r}, for which there is no backend (known kinds: {known})")


def stages() -> tuple[str, ...]:
    """All stages that can be dumped, from the graph down to machine code."""
    return (*SHARED_STAGES, *(s for b in backends() for s in b.stages))


def target_names() -> tuple[str, ...]:
    """Names that `named_target` knows."""
    return ("host", *TARGETS, *(t.name for b in backends() for t in b.targets))


def named_target(name: str) -> Target:
    """The target called `name`; "host" is this machine. Raises KeyError with the known names."""
    for target in (t for b in backends() for t in b.targets):
        if target.name == name:
            return target
    if name not in target_names():
        raise KeyError(f"no target {name!r}; known: {', '.join(target_names())}")
    return targets.named_target(name)
