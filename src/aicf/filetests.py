"""Tests that are files in MCIR's own text, and what running one means.

    ; run: N=37 M=45                     sizes; inputs are random, from one seed
    ; fault: tile_k is 32                the module is refused, with these words
    ExecutionRegion(attention_region)
      …
    ; kernel                             from here on: the kernel that the module lowers to
    kernel aicf_scaled_dot_product_attention
      …

Every file is parsed, printed again and compared. Without `fault` its module is verified and lowered to a kernel, which is
verified too. With `run` the module is executed tile by tile and its kernel in the interpreter of Kernel IR; both must keep
the numeric contract against the kernel in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aicf.contract import judge
from aicf.kernel import Kernel, allocate, bound_kernel, check_kernel, print_kernel, run_kernel
from aicf.kernel.lowering import Binding
from aicf.mcir import MCModule, dump_module, evaluate_module, parse_module, validate_module
from aicf.scalar import integer, is_float, numpy_dtype, round_to, variables

SEED = 0


class FileTestError(ValueError):
    """A file that is no test: the line, and what a line may say."""


class Failed(AssertionError):
    """A file whose module is not what the file says; the message shows both."""


@dataclass
class FileTest:
    """A parsed file: the module's text, the kernel that is expected of it, the fault that is, the sizes that it runs with."""

    text: str
    kernel: str | None = None
    fault: str | None = None
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    runs: bool = False


def read(path: Path) -> FileTest:
    """The test in a file. Raises FileTestError, and OSError where there is no file."""
    lines = path.read_text().splitlines()
    test = FileTest("")
    body: list[str] = []
    kernel: list[str] | None = None
    for number, line in enumerate(lines, 1):
        if not line.startswith(";"):
            (body if kernel is None else kernel).append(line)
            continue
        key, _, value = line[1:].strip().partition(":")
        match key.strip():
            case "run":
                test.runs = True
                test.sizes = dict(map(size, value.split()))
            case "fault":
                test.fault = value.strip()
            case "kernel":
                kernel = []
            case _:
                raise FileTestError(f"{path.name}:{number}: {line!r}; such a line begins with `; run:`, `; fault:` or `; kernel`")
    test.text = "\n".join(body).strip("\n")
    test.kernel = None if kernel is None else "\n".join(kernel).strip("\n")
    return test


def size(text: str) -> tuple[str, int]:
    """`N=128` as a name and a number. Raises FileTestError."""
    name, equals, value = text.partition("=")
    if not (name and equals and value.isdigit()):
        raise FileTestError(f"{text!r} is no size; write N=128")
    return name, int(value)


def check(test: FileTest) -> str:
    """Runs a test, and says what was found. Raises Failed, and what parsing, verifying and lowering raise where no fault is
    expected."""
    if test.fault is not None:
        try:
            lowered(test)
        except ValueError as refused:  # of the syntax, of the rules, or no kernel
            if test.fault not in str(refused):
                raise Failed(f"the module is refused with other words than {test.fault!r}:\n{refused}") from None
            return f"refused, as expected: {test.fault}"
        raise Failed(f"the module is accepted; expected was a fault with the words {test.fault!r}")
    module, kernel, binding = lowered(test)
    said = ["the text is the module"]
    if test.kernel is not None:
        if print_kernel(kernel).strip("\n") != test.kernel:
            raise Failed(f"the kernel is another one than the file's:\n{print_kernel(kernel)}")
        said.append("its kernel is the file's")
    if test.runs:
        said += [
            f"{name} keeps the contract ({share:.2f} of what is allowed)" for name, share in run(test, module, kernel, binding)
        ]
    return "; ".join(said)


def lowered(test: FileTest) -> tuple[MCModule, Kernel, Binding]:
    """The module of a test, verified, with its kernel."""
    module = parse_module(test.text)
    if dump_module(module, verbose=True) != test.text:
        raise Failed(f"the module prints otherwise than the file:\n{dump_module(module, verbose=True)}")
    validate_module(module)
    (region,) = module.regions
    kernel, binding = bound_kernel(region)
    check_kernel(kernel)
    return module, kernel, binding


def run(test: FileTest, module: MCModule, kernel: Kernel, binding: Binding) -> list[tuple[str, float]]:
    """(output, its error as a share of what the contract allows) of the kernel, on random inputs. Raises Failed."""
    known = {v.name for e in binding.sizes.values() for v in variables(e)}
    wrong = [name for name in test.sizes if name not in known]
    if wrong:
        they = f"they are {', '.join(sorted(known))}" if known else "all of them are numbers"
        raise FileTestError(f"no size in the shapes of the module's tensors is called {', '.join(wrong)}: {they}")
    sizes = {name: integer(e, test.sizes) for name, e in binding.sizes.items()}
    inputs = random_inputs(kernel, sizes)
    found: dict[bool, dict[str, Any]] = {}
    for double in (False, True):
        tensors = {name: _as_double(x) if double else x for name, x in inputs.items()}
        tensors |= allocate(kernel, sizes, ("out",), double=double)
        run_kernel(kernel, tensors, sizes, double=double)
        found[double] = {binding.outputs[name]: tensors[name] for name in binding.outputs}
    of_module = evaluate_module(module, {binding.inputs[name]: x for name, x in inputs.items()}, test.sizes)
    shares: list[tuple[str, float]] = []
    for name, output in binding.outputs.items():
        dtype = kernel.tensor(name).dtype
        for got, other in ((found[False], of_module), (of_module, found[False])):
            verdict = judge(got[output], other[output], found[True][output], dtype)
            if verdict.problem:
                raise Failed(f"{output}: {verdict.problem}")
        shares.append((output, judge(found[False][output], of_module[output], found[True][output], dtype).share))
    return shares


def random_inputs(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Arrays for a kernel's inputs: normal numbers, truth values of which most hold, small integers in rising order."""
    rng = np.random.default_rng(SEED)
    made: dict[str, Any] = {}
    for t in kernel.tensors:
        if t.role != "in":
            continue
        shape = [integer(d, sizes) for d in t.shape]
        if t.dtype == "bool":
            made[t.name] = rng.random(shape) < 0.7
        elif is_float(t.dtype):
            made[t.name] = round_to(rng.standard_normal(shape), t.dtype)
        else:
            made[t.name] = np.sort(rng.integers(0, 4, shape)).astype(numpy_dtype(t.dtype))
    return made


def _as_double(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype.kind == "f" else x
