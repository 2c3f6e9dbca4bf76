"""`aicf bench`: a table of times and errors, one row per case and size."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence

from aicf.cli.errors import FAILED, OK, CommandError
from aicf.cli.progress import say
from aicf.cli.source import load_callable
from aicf.frontends.torch.bench import CASES, Case, Timing, measure
from aicf.frontends.torch.inputs import DTYPES

DEFAULT_SIZE = "1x8x1024x64"
_ROW = "{:10s} {:>14s} {:>10s} {:>10s} {:>10s} {:>8s} {:>10s} {:>8s}"
_LEGEND = """\
eager: the code as written. aicf: compiled. sdpa: PyTorch's own fused call, where it means the same. All in ms, best round.
speed: eager / aicf. scores: the score matrix that eager keeps and aicf does not. error: aicf's maximum error over eager's,
! where it is more than twice eager's and one rounding of the result."""


def run(options: Namespace) -> int:
    """Measure the named cases (all when none is named) at each size. FAILED when a case could not be compiled."""
    if options.list:
        for case in CASES:
            print(f"{case.name:10s} {case.what}")
        return OK
    if options.dtype not in DTYPES:
        raise CommandError(f"--dtype {options.dtype}: use one of {', '.join(DTYPES)}")
    if options.repeat < 1:
        raise CommandError(f"--repeat {options.repeat}: at least one round is needed")
    if options.threads is not None and options.threads < 1:
        raise CommandError(f"--threads {options.threads}: at least one thread is needed")
    cases = [find(name) for name in options.case] or list(CASES)
    sizes = [parse_size(text) for text in options.size or [DEFAULT_SIZE]]
    print(_ROW.format("case", "BxHxNxD", "eager", "aicf", "sdpa", "speed", "scores", "error"))
    code = OK
    for case in cases:
        for size in sizes:
            say(f"measuring {case.name} {shape(size)} {options.dtype}")
            try:
                timing = measure(case, size, DTYPES[options.dtype], repeat=options.repeat, threads=options.threads)
            except Exception as e:
                say(f"{case.name} {shape(size)}: {type(e).__name__}: {e}")
                code = FAILED
                continue
            print(row(case, size, timing), flush=True)
    print(_LEGEND)
    return code


def find(name: str) -> Case:
    """The built-in case `name`, or the function FILE.py:FUNCTION as one."""
    for case in CASES:
        if case.name == name:
            return case
    if ":" in name or name.endswith(".py"):
        return Case(name.rpartition(":")[2], f"from {name}", load_callable(name))
    raise CommandError(f"there is no case {name!r}; there are {', '.join(c.name for c in CASES)}, or name FILE.py:FUNCTION")


def parse_size(text: str) -> tuple[int, ...]:
    """BxHxNxD as four positive integers."""
    parts = re.split("[x,]", text)
    if len(parts) != 4 or not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts):
        raise CommandError(f"--size {text}: write batch x heads x sequence x head size, as in {DEFAULT_SIZE}")
    return tuple(map(int, parts))


def shape(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def row(case: Case, size: Sequence[int], t: Timing) -> str:
    """One line of the table."""

    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds * 1e3:.2f}"

    if t.eager_error is None or t.compiled_error is None:
        error = "-"
    else:
        error = f"{t.compiled_error / t.eager_error:.2f}" if t.eager_error else f"{t.compiled_error:.1e}"
    if t.compiled_error is not None and t.allowed_error is not None and t.compiled_error > t.allowed_error:
        error += " !"
    scores = f"{t.score_bytes / 2**20:.1f} MiB"
    return _ROW.format(
        case.name, shape(size), ms(t.eager), ms(t.compiled), ms(t.fused), f"{t.eager / t.compiled:.2f}x", scores, error
    )
