"""Random choices that can be taken back one by one.

Every choice has a name and is drawn from the seed and that name alone, so that no choice shifts another. A choice that is
overridden takes the value given; the first option of every choice is its plainest, and `reduced` turns as many choices as it can
to that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
SHARED = 32  # neighbouring seeds that draw the same structure and differ in sizes and data
SIZED = 16  # neighbouring seeds that draw the same sizes where sizes are numbers in the traced graph


class Choices:
    """The choices of one seed. `made` maps each name that was asked for to the position of what was chosen, `plain` to that of
    the plainest."""

    def __init__(self, seed: int, overrides: Mapping[str, int] | None = None) -> None:
        self.seed = seed
        self.overrides = dict(overrides or {})
        self.made: dict[str, int] = {}
        self.sized = 1  # neighbouring seeds that draw the same sizes

    def pick(self, name: str, *options: T, often: int = 1) -> T:
        """One of `options`; the first is the plainest and is drawn as if it stood there `often` times."""
        chosen = self.overrides.get(name)
        if chosen is None:
            # Structure is drawn from a seed that neighbours share: their kernels are the same then, and compiled once.
            shared = {"size": self.sized, "data": 1}.get(name.partition(" ")[0], SHARED)
            own = self.seed // shared
            n = random.Random(f"{own} {name}").randrange(len(options) - 1 + often)
            chosen = max(0, n - often + 1)
        self.made[name] = chosen = min(chosen, len(options) - 1)
        return options[chosen]

    def number(self, name: str, low: int, high: int) -> int:
        """An integer from `low`, the plainest, to `high`."""
        return self.pick(name, *range(low, high + 1))

    def flag(self, name: str, chance: float) -> bool:
        """True with a probability; False is plainer."""
        return self.pick(name, *([False] * round(100 * (1 - chance)) + [True] * round(100 * chance)))


def reduced(
    seed: int,
    made: Callable[[Mapping[str, int]], Mapping[str, int]],
    fails: Callable[[Mapping[str, int]], bool],
    limit: int = 120,
) -> dict[str, int]:
    """Overrides for which `seed` still fails, with as many choices as possible turned to their plainest. `made(overrides)` gives
    all choices of a program; `fails` is called at most `limit` times."""
    kept: dict[str, int] = {}
    tried: set[str] = set()
    while limit > 0:
        open_names = [name for name, chosen in made(kept).items() if chosen != 0 and name not in tried]
        if not open_names:
            break
        name = open_names[0]
        tried.add(name)
        limit -= 1
        if fails({**kept, name: 0}):
            kept[name] = 0
    return kept
