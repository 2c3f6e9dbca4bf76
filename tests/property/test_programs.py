"""A sample of the random programs, for a minute at most; thousands are run by `python -m tests.property.run`."""

from __future__ import annotations

import time

import pytest
import torch

from tests.property.choices import SHARED, SIZED
from tests.property.grammar import program
from tests.property.levels import Rounded, where_finite
from tests.property.run import one, smallest

SECONDS = 45
PROGRAMS = 120
FIRST = 7_000_000  # seeds that no long run uses


def test_a_sample_of_random_programs_is_clean_at_every_level() -> None:
    started, ran = time.monotonic(), set[str]()
    for k in range(PROGRAMS):
        # Two programs of each text: sizes and data differ, the kernel is compiled once.
        seed = FIRST + k // 2 * SHARED + k % 2 * SIZED
        out = one(seed)
        ran.update(out.ran)
        if out.failed is not None:
            kept = smallest(seed, out.failed)
            raise AssertionError(f"{out.failed[0]}: {out.failed[1]}\n{program(seed, kept)}")
        if time.monotonic() - started > SECONDS:
            break
    assert ran == {"semantic", "stream", "kernel", "cpu"}


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_wide_halves_are_rounded_as_halves(kind: torch.dtype) -> None:
    """What a program in halves is compared with where it leaves their range: the same digits, more range."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(kind)

    def run(x: torch.Tensor) -> torch.Tensor:
        return (x * x / 10 + 3).exp() / 7 - x

    with Rounded(11 if kind == torch.float16 else 8):
        wide = run(x.float())
        large = (x.float().abs() + 1) * 1e6
    assert torch.equal(wide.to(kind), run(x))
    assert large.isfinite().all() and not torch.equal(large, (x.float().abs() + 1) * 1e6)


def test_results_outside_the_range_of_halves() -> None:
    """Where a source in halves has NaN because something before its result overflowed, the result may be the infinity that it
    is when nothing else overflows, and no other."""
    inf, nan = float("inf"), float("nan")
    got, eager, wide = (
        torch.tensor(x, dtype=torch.float16)
        for x in ([-inf, -inf, -inf, 1.0, nan], [nan, nan, nan, nan, nan], [-inf, inf, 2.0, 1.5, 3.0])
    )
    (held,) = where_finite([got], [eager], [wide])
    assert held.isneginf().tolist() == [True, False, False, False, False]
    assert held.isnan().tolist() == [False, True, True, False, True]
    assert float(held[3]) == 1.5
