"""Numbers as people read them."""

from __future__ import annotations

import re


def size_text(n: int) -> str:
    """Bytes."""
    value, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def plural(n: int, what: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def unnumbered(reason: str) -> str:
    """A reason without the numbers in tensor names, in which the layers of a model differ."""
    return re.sub(r"_\d+\b", "", reason)
