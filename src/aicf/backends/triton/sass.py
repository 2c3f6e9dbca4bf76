"""Counting what a GPU executes per score: the loops of a disassembled function, and the arithmetic in them.

loops(sass)            ->  one Counter of instruction names per basic block that multiplies matrices and takes exponentials
arithmetic(counter)    ->  its floating-point and select instructions
"""

from __future__ import annotations

import re
from collections import Counter

_LABEL = re.compile(r"^\.(L_x_\d+|text\S*):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_MATRIX = re.compile(r"HMMA|HGMMA|UTCHMMA")
ARITHMETIC = frozenset({"FADD", "FMUL", "FFMA", "FMNMX", "FMNMX3", "FSETP", "FSET", "FSEL", "SEL", "MUFU", "F2F", "F2FP", "FCHK"})


def basic_blocks(sass: str) -> dict[str, Counter[str]]:
    """Instruction names of each basic block by its label, predicates and modifiers left out."""
    blocks: dict[str, Counter[str]] = {}
    label = ""
    for line in sass.splitlines():
        found = _LABEL.match(line)
        if found:
            label = found.group(1)
            continue
        instruction = _INSTRUCTION.search(line)
        if instruction:
            blocks.setdefault(label, Counter())[instruction.group(1)] += 1
    return blocks


def loops(sass: str) -> list[Counter[str]]:
    """The basic blocks that take a tile of scores to the output: they have matrix instructions and exponentials."""
    return [b for b in basic_blocks(sass).values() if b["MUFU"] > 8 and any(_MATRIX.fullmatch(name) for name in b)]


def arithmetic(block: Counter[str]) -> int:
    """Floating-point and select instructions of a block, matrix instructions not counted."""
    return sum(n for name, n in block.items() if name in ARITHMETIC)


__all__ = ["arithmetic", "basic_blocks", "loops"]
