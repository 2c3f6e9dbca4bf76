"""The inputs of the function to compile, from the command line.

--shape q=2x8x512x64:bf16     a random tensor for parameter q
--value causal=True           a Python literal for a parameter that is no tensor
--inputs make_inputs          a function of the same file (or OTHER.py:FUNCTION) that returns them all
"""

from __future__ import annotations

import ast
import inspect
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aicf.cli.errors import CommandError
from aicf.cli.silence import users_prints_dropped
from aicf.cli.source import load_callable, split
from aicf.frontends.torch.random_inputs import DTYPES, random_tensor


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        named = [(f"argument {n}", a) for n, a in enumerate(self.args, 1)] + list(self.kwargs)
        return ", ".join(f"{name} {describe(value)}" for name, value in named) or "no arguments"


@dataclass(frozen=True)
class TensorSpec:
    """`q=2x8x512x64:bf16`, read."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def gather(options: Namespace, fn: Callable[..., Any], spec: str) -> Inputs:
    """The inputs that `options` give for `fn`, which was named by `spec`. Raises CommandError when some are missing or wrong."""
    if options.inputs:
        if options.shape or options.value:
            raise CommandError("give either --inputs or --shape and --value, not both")
        return from_function(options.inputs, spec)
    tensors = [parse_shape(text) for text in options.shape]
    values = [parse_value(text) for text in options.value]
    given: dict[str, Any] = {}
    for seed, t in enumerate(tensors):
        try:
            given[_fresh(t.name, given)] = random_tensor(t.shape, t.dtype, seed)
        except (RuntimeError, MemoryError, OverflowError, TypeError) as e:
            raise CommandError(f"--shape {options.shape[seed]}: no such tensor can be made ({str(e).splitlines()[0]})") from e
    for name, value in values:
        given[_fresh(name, given)] = value
    return bind(fn, given, spec)


def parse_shape(text: str) -> TensorSpec:
    """`q=2x8x512x64[:dtype]`; the type is f32 when left out, and `q=:f32` is a scalar tensor."""
    name, equals, rest = text.partition("=")
    if not equals or not name:
        raise CommandError(f"--shape {text}: write NAME=SIZES, as in q=2x8x512x64 or q=2x8x512x64:bf16")
    sizes, _, dtype = rest.partition(":")
    dims: list[int] = []
    for size in re.split("[x,]", sizes) if sizes else []:
        if not size.isascii() or not size.isdigit():
            raise CommandError(f"--shape {text}: {size!r} is not a size; write whole numbers joined by x, as in 2x8x512x64")
        dims.append(int(size))
    if dtype and dtype not in DTYPES:
        raise CommandError(f"--shape {text}: there is no type {dtype!r}; use one of {', '.join(DTYPES)}")
    return TensorSpec(name, tuple(dims), dtype or "f32")


def parse_value(text: str) -> tuple[str, Any]:
    """`scale=0.125`: a Python literal; anything else is taken as a string."""
    name, equals, literal = text.partition("=")
    if not equals or not name:
        raise CommandError(f"--value {text}: write NAME=VALUE, as in causal=True or scale=0.125")
    try:
        return name, ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return name, literal


def bind(fn: Callable[..., Any], given: dict[str, Any], spec: str) -> Inputs:
    """`given` as a call of `fn`: names are checked against its parameters."""
    target = getattr(fn, "forward", fn)
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return Inputs(kwargs=tuple(given.items()))
    parameters = signature.parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [n for n in given if n not in names]
    if unknown and not takes_any:
        raise CommandError(f"{spec} has no parameter {_words(unknown)}; its parameters are {_words(names)}")
    missing = [p.name for p in parameters if p.name in names and p.default is p.empty and p.name not in given]
    if missing:
        example = f"--shape {missing[0]}=2x8x512x64"
        raise CommandError(f"{spec} also needs {_words(missing)}: give each as {example}, or all by --inputs FUNCTION")
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in given]
    return Inputs(tuple(given[n] for n in positional), tuple((n, v) for n, v in given.items() if n not in positional))


def from_function(name: str, spec: str) -> Inputs:
    """What the function `name` returns: a tuple of arguments, a dict of named ones, or one tensor.

    It is looked for in the file of `spec`, unless it is FILE.py:FUNCTION itself.
    """
    path, _ = split(spec)
    full = name if ":" in name else f"{path}:{name}"
    try:
        make = load_callable(full)
        with users_prints_dropped():
            made = make()
    except CommandError:
        raise
    except Exception as e:
        raise CommandError(f"--inputs {full} failed: {type(e).__name__}: {e}") from e
    if isinstance(made, dict):
        return Inputs(kwargs=tuple((str(k), v) for k, v in made.items()))
    if isinstance(made, (tuple, list)):
        return Inputs(tuple(made))
    if made is None:
        raise CommandError(f"--inputs {full} returned nothing; return a tuple of arguments or a dict of named ones")
    return Inputs((made,))


def describe(value: object) -> str:
    """A tensor as `float32[2, 8, 512, 64]`, anything else as Python shows it."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    return repr(value)


def _fresh(name: str, given: dict[str, Any]) -> str:
    if name in given:
        raise CommandError(f"{name} is given twice")
    return name


def _words(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
