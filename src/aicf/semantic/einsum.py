"""Einsum equations, as every frontend spells them.

    parse_einsum("...id,...jd", [4, 4])  ->  ["abid", "abjd"], "abij"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_letters


def parse_einsum(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """One label per axis for each operand and the result, the ellipsis written out with labels of its own.

    Raises ValueError for a label that is repeated within one operand (a diagonal).
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"einsum {equation!r} with {len(ranks)} operands")
    free = [x for x in ascii_letters if x not in text]
    width = max((rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t), default=0)
    dots = free[:width]
    inputs: list[str] = []
    for term, rank in zip(terms, ranks, strict=True):
        own = width and rank - len(term.replace("...", "")) if "..." in term else 0
        full = term.replace("...", "".join(dots[width - own :]))
        if len(set(full)) != len(full):
            raise ValueError(f"einsum {equation!r}, which takes a diagonal")
        inputs.append(full)
    if arrow:
        output = right.replace("...", "".join(dots))
    else:
        letters = re.sub(r"[^a-zA-Z]", "", left)
        output = "".join(dots) + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    if len(set(output)) != len(output):
        raise ValueError(f"einsum {equation!r}, which writes a diagonal")
    return inputs, output
