"""Imports go one way, and heavy packages stay where they belong. Every file is read, function-local imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted((SOURCE / "aicf").rglob("*.py"))

# Lowest first: a package imports itself and what stands before it.
ORDER = [
    "version", "errors", "scalar", "contract", "semantic", "streaming", "gradient", "mcir", "schedule", "kernel", "filetests",
    "decide",
    "backends", "runtime", "driver", "report", "frontends", "bench", "cli", "__main__",
]  # fmt: skip
# Knowledge that a package must not have although it stands lower.
BARRED = {
    "backends": {"semantic", "streaming", "mcir"},
    "kernel": {"semantic", "streaming", "schedule"},  # kernels follow from MCIR alone
}
CORE = ORDER[: ORDER.index("backends")]
# Packages whose parts must not know each other.
APART = ("aicf.backends", "aicf.frontends")
# `bench` measures PyTorch beside the kernels.
HEAVY = {
    "torch": ("aicf.frontends.torch", "aicf.bench"),
    "llvmlite": ("aicf.backends.llvm",),
    "triton": ("aicf.backends.triton",),
    "onnx": ("aicf.frontends.onnx",),
}
# The parts of the PyTorch frontend, lowest first, as packages are above.
TORCH = "aicf.frontends.torch"
TORCH_ORDER = [
    "fx", "capture", "diagnostics", "read", "options", "run", "rewrite", "pipeline", "backend", "random_inputs", "api",
]  # fmt: skip


@dataclass(frozen=True)
class Import:
    """One import statement's target, in the module that holds it."""

    module: str
    target: str
    line: int
    local: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[Import]:
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(), str(path))
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    inside = {child for f in functions for child in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(module, name.name, node.lineno, node in inside)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, base]).rstrip(".")
            for name in node.names:
                # `from aicf import kernel` imports the package aicf.kernel; likewise for the parts of the PyTorch frontend.
                full = f"{base}.{name.name}" if base in ("aicf", TORCH) else base
                yield Import(module, full, node.lineno, node in inside)


ALL = [i for path in FILES for i in imports(path)]


def belongs(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def part(module: str) -> str:
    """aicf.kernel.ir -> kernel; the root package itself -> ''."""
    return [*module.split("."), ""][1]


def listing(wrong: list[Import], why: str) -> str:
    return "\n".join(f"{i.module}:{i.line} imports {i.target}: {why}" for i in wrong)


def test_every_package_has_its_place_in_the_order():
    found = {part(module_name(p)) for p in FILES} - {""}
    assert found <= set(ORDER), f"not in ORDER: {sorted(found - set(ORDER))}"


def test_imports_go_downward():
    def upward(i: Import) -> bool:
        source, target = part(i.module), part(i.target)
        return source in ORDER and target in ORDER and ORDER.index(target) > ORDER.index(source)

    wrong = [i for i in ALL if belongs(i.target, "aicf") and upward(i)]
    assert not wrong, listing(wrong, "that is higher up")


def test_imports_go_downward_in_the_pytorch_frontend():
    def place(module: str) -> int:
        return TORCH_ORDER.index(module.removeprefix(TORCH + ".").split(".")[0])

    own = [i for i in ALL if i.module.startswith(TORCH + ".") and i.target.startswith(TORCH + ".")]
    wrong = [i for i in own if place(i.target) > place(i.module)]
    assert own and not wrong, listing(wrong, "that is higher up")


def test_nothing_imports_the_root_package():
    wrong = [i for i in ALL if i.target == "aicf" and part(i.module)]
    assert not wrong, listing(wrong, "name the package that defines what you need")


def test_backends_see_only_kernel_ir():
    wrong = [i for i in ALL if part(i.target) in BARRED.get(part(i.module), set()) and belongs(i.target, "aicf")]
    assert not wrong, listing(wrong, "a backend sees Kernel IR and nothing above it")


def test_backends_and_frontends_do_not_know_each_other():
    def sibling(module: str) -> str:
        return ".".join(module.split(".")[:3])

    wrong = [
        i for i in ALL for p in APART
        if i.module.startswith(p + ".") and i.target.startswith(p + ".") and sibling(i.module) != sibling(i.target)
    ]  # fmt: skip
    assert not wrong, listing(wrong, "parts of one kind must not know each other")


def test_heavy_packages_stay_in_the_package_of_their_name():
    wrong = [
        i for i in ALL for heavy, homes in HEAVY.items()
        if belongs(i.target, heavy) and not any(belongs(i.module, home) for home in homes)
    ]  # fmt: skip
    assert not wrong, "\n".join(listing([i], f"only {HEAVY[i.target.split('.')[0]]} may") for i in wrong)


def test_the_core_needs_numpy_and_the_standard_library_only():
    def outside(target: str) -> bool:
        top = target.split(".")[0]
        return top not in ("aicf", "numpy") and top not in sys.stdlib_module_names

    wrong = [i for i in ALL if part(i.module) in CORE and outside(i.target)]
    assert not wrong, listing(wrong, "the core imports NumPy and the standard library only")


def test_no_import_hides_in_a_function():
    def allowed(i: Import) -> bool:
        return any(belongs(i.module, home) for home in HEAVY.get(i.target.split(".")[0], ()))

    wrong = [i for i in ALL if i.local and not allowed(i)]
    assert not wrong, listing(wrong, "move it to the top of the file")


PROBE = "import sys, time; t = time.perf_counter(); import {names}; print(time.perf_counter() - t, *sys.modules)"


def probe(names: str) -> tuple[float, set[str]]:
    done = subprocess.run([sys.executable, "-c", PROBE.format(names=names)], capture_output=True, text=True, check=True)
    seconds, *modules = done.stdout.split()
    return float(seconds), set(modules)


@pytest.mark.parametrize("names", ["aicf", ", ".join(f"aicf.{p}" for p in CORE)])
def test_importing_loads_nothing_heavy(names: str):
    _, modules = probe(names)
    assert not modules & {*HEAVY, "sympy", "scipy", "transformers", "matplotlib"}


def test_import_aicf_is_quick():
    # The best of a few, so that a busy machine does not decide.
    assert min(probe("aicf")[0] for _ in range(5)) < 0.5
