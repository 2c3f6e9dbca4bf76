"""Which operand of a Contract is broadcast, and which is loaded as vectors."""

from __future__ import annotations

from dataclasses import dataclass

from aicf.kernel import Contract, Tile


@dataclass(frozen=True)
class Roles:
    """The operands of a Contract as the micro-kernel sees them: `a` is broadcast along `y`, `b` is loaded in vectors of `y`."""

    a: Tile
    b: Tile
    x: str | None
    y: str
    outer: tuple[str, ...]


def free_axes(s: Contract) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of a and of b that the result keeps."""
    return tuple(x for x in s.tile.axes if x in s.a.axes), tuple(x for x in s.tile.axes if x in s.b.axes)


def roles_along(s: Contract, y: str | None) -> Roles | None:
    """The roles in a Contract whose result has the vector axis `y`; None for a dot product, which has none."""
    xs, ys = free_axes(s)
    if y in xs:
        a, b, xs, ys = s.b, s.a, ys, xs
    elif y in ys:
        a, b = s.a, s.b
    else:
        return None
    x = xs[-1] if xs else None
    return Roles(a, b, x, y, tuple(o for o in (*xs, *ys) if o not in (x, y)))
