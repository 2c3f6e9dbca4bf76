"""Every fact that a dump prints counts: change one, and the kernel is another one or the change is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from aicf.kernel import lower_to_kernel, print_kernel
from aicf.mcir import MCModule, dump_module, parse_module
from tests.mcir.handmade import attention_module
from tests.mcir.modules import CASES

_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")
# Names of regions, nodes, extents, stored tiles and references say nothing: any other name would do. What is a default may be
# left out.
_NAMES = re.compile(
    r"^\s*(?:\w+Region\((\w+)\)|Node\((\w+),|(\w+): (?:stream|row|contracted|column|batch) "
    r"|outputs: (\w+)\[[\d,]*\]:\w+@global$|(?:reference|old): (\w+)$)"
)
_DEFAULTS = re.compile(r"^\s*(?:carried: |attrs: pattern=scaled_dot_product_attention, has_mask=False$)")


def kernel_text(module: MCModule) -> str:
    return print_kernel(lower_to_kernel(module.regions[0]))


def bare() -> MCModule:
    module = attention_module()
    module.regions[0].attrs["has_mask"] = False
    return module


def modules() -> dict[str, MCModule]:
    return {"by hand": bare(), **{name: case.module() for name, case in CASES.items()}}


def changes(text: str) -> Iterator[tuple[str, str]]:
    """(what, the text with one fact changed): each line left out with what stands below it, each number another number, each word
    another word."""
    lines = text.splitlines()
    for n, line in enumerate(lines):
        if n == 0 or not line.strip() or line.lstrip().startswith("#"):
            continue
        before, after = lines[:n], lines[n + 1 :]
        if not _DEFAULTS.match(line):
            depth = len(line) - len(line.lstrip())
            below = next((k for k, x in enumerate(after) if x.strip() and len(x) - len(x.lstrip()) <= depth), len(after))
            yield f"without {line.strip()!r}", "\n".join([*before, *after[below:]])
        free = {m.span(g) for m in [_NAMES.match(line)] if m is not None for g in (1, 2, 3, 4, 5)}
        words = list(dict.fromkeys(m[0] for m in _WORD.finditer(line)))
        for m in (*_NUMBER.finditer(line), *_WORD.finditer(line)):
            if m.span() in free:
                continue
            others = [w for w in (*words[:2], "zz", "M") if w != m[0]] if m[0][0].isalpha() or m[0][0] == "_" else [_more(m[0])]
            for other in others:
                changed = line[: m.start()] + other + line[m.end() :]
                yield f"{line.strip()!r} as {changed.strip()!r}", "\n".join([*before, changed, *after])


def _more(number: str) -> str:
    return str(float(number) * 2 or 1.5) if "." in number else str(int(number) + 1)


@pytest.mark.parametrize("name", ["by hand", *CASES])
def test_every_fact_counts(name: str):
    module = modules()[name]
    base, text = kernel_text(module), dump_module(module, verbose=True)
    idle: list[str] = []
    tried = 0
    for what, changed in changes(text):
        tried += 1
        try:
            if kernel_text(parse_module(changed)) == base:
                idle.append(what)
        except ValueError:  # of the syntax, of the rules, or no kernel: each says what is wrong
            pass
    assert idle == [] and tried > 100


@pytest.mark.parametrize("name", ["by hand", *CASES])
def test_the_text_is_the_module(name: str):
    module = modules()[name]
    text = dump_module(module, verbose=True)
    again = parse_module(text)
    assert dump_module(again, verbose=True) == text
    assert kernel_text(again) == kernel_text(module)
