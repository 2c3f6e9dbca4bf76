"""Random attention programs with a gradient asked of all their floating inputs: `python -m tests.property.gradients --count 200`.

Each program of the grammar runs twice: in eager PyTorch, and compiled as users compile it, forward and backward. Gradients of
the same cotangents are held against float64 by the same judge as the results of `levels`. A program whose regions cannot be
trained is left to PyTorch; how many streamed both ways is printed.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch

import aicf

from .grammar import Program, program
from .levels import Wrong, compared, eager_results, exact_results, in_range, judge, quiet


class Gradients(Program):
    """A program whose results are the gradients of all its floating inputs."""

    def function(self, double: bool = False, wide: bool = False) -> Callable[..., Any]:
        """The gradients as a function of the arguments; see `Program.function`."""
        return lambda *args: gradients(super(Gradients, self).function(double, wide), args, self.seed)


def gradients(f: Callable[..., Any], args: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """What autograd gives for the floating ones of `args`, of cotangents drawn from `seed`; zeros where no result depends on
    one."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in args]
        results = f(*leaves)
        results = [x for x in (results if isinstance(results, tuple | list) else [results]) if x.requires_grad]
        wanted = [x for x in leaves if x.requires_grad]
        if not results:
            return [torch.zeros_like(x) for x in wanted]
        g = torch.Generator().manual_seed(seed)
        cotangents = [torch.randn(x.shape, generator=g).bfloat16().to(x.dtype) for x in results]
        found: list[Any] = list(torch.autograd.grad(results, wanted, cotangents, allow_unused=True))
    return [torch.zeros_like(x) if d is None else d.detach() for x, d in zip(wanted, found, strict=True)]


def check(seed: int, fuse: str = "always") -> tuple[str | None, bool]:
    """What is wrong with the gradients of the program of `seed`, and whether they came from a region that streams both ways."""
    plain = program(seed)
    p = Gradients(**{f.name: getattr(plain, f.name) for f in fields(plain)})
    torch._dynamo.reset()
    compiled = torch.compile(
        plain.function(), backend="aicf", dynamic=plain.symbolic, options={"fuse": fuse, "strict": plain.strict, "rest": "eager"}
    )
    from aicf.frontends.torch.run import training

    before = len(training._TRAININGS)  # pyright: ignore[reportPrivateUsage]
    try:
        with quiet():
            run = lambda args: gradients(compiled, args, seed)  # noqa: E731
            args = p.arguments()
            got = run(args)
            eager, exact = eager_results(p, args), exact_results(p, args)
            judge(p, "cpu", run, got, compared("cpu", got, eager, in_range(p, args, eager), exact), exact, False)
    except Wrong as e:
        return str(e), len(training._TRAININGS) > before  # pyright: ignore[reportPrivateUsage]
    except Exception as e:
        return f"{type(e).__name__}: {e}", False
    return None, len(training._TRAININGS) > before  # pyright: ignore[reportPrivateUsage]


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when no gradient is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.gradients", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=int, default=32, help="draw one seed of so many: with 32, no two share a text")
    a = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started, kinds, failed = time.time(), collections.Counter[str](), 0
    for k, seed in enumerate(range(a.seed, a.seed + a.count * a.step, a.step), 1):
        problem, streamed = check(seed)
        kinds["streamed both ways" if streamed else "left to PyTorch"] += 1
        if problem:
            failed += 1
            print(f"seed {seed} FAILED: {problem[:400]}", flush=True)
        if k % 25 == 0 or k == a.count:
            print(f"{k} programs, {failed} failed, {dict(kinds)}, {time.time() - started:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["aicf", "check", "gradients"]
