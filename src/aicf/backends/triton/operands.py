"""In which type contractions run: halves that stand for themselves stay halves, so that tensor cores take them.

A tile that a LoadTile fills from an f16 or bf16 tensor is kept in that type: nothing is lost. A computed operand (the weights p)
that meets such a tile is rounded to the same type when every output that the product reaches has that type: the unfused graph
rounds it there too. f16 overflows at 65504, so there the computed operand must also be bounded by its form, as exp(u - max u) is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from aicf.kernel import Contract, Fill, Kernel, LoadTile, Map, Reduce, StoreTile, statements, written
from aicf.scalar import Call, Const, DType, Expr, Load, Var, is_half, variables, walk

Precision = Literal["half", "ieee", "tf32"]


@dataclass(frozen=True)
class DotTypes:
    """The type of both operands of a product, and Triton's `input_precision` where that is f32."""

    dtype: DType
    precision: Precision


class Operands:
    """The types of one kernel's tiles and contractions."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.statements = tuple(statements(kernel.body))
        self.maps: dict[str, list[Expr]] = {}
        self.reduces: dict[str, list[Reduce]] = {}
        self.held: dict[str, DType] = {}
        loaded: dict[str, set[DType]] = {}
        computed: set[str] = set()
        for s in self.statements:
            match s:
                case LoadTile():
                    loaded.setdefault(s.tile.name, set()).add(kernel.tensor(s.tensor).dtype)
                case Map():
                    self.maps.setdefault(s.tile.name, []).append(s.expr)
                    computed.add(s.tile.name)
                case Reduce():
                    self.reduces.setdefault(s.tile.name, []).append(s)
                    computed.add(s.tile.name)
                case Contract() | Fill():
                    computed.add(s.tile.name)
                case _:
                    pass
            tile = written(s)
            if tile is not None:
                self.held[tile.name] = tile.dtype
        for name, types in loaded.items():
            if name not in computed and len(types) == 1:
                (dtype,) = types
                if is_half(dtype) and self.held[name] == "f32":
                    self.held[name] = dtype
        self.flows = _flows(self.statements)

    def dot(self, s: Contract) -> DotTypes:
        """The types in which a contraction multiplies."""
        a, b = self.held[s.a.name], self.held[s.b.name]
        if a == b and is_half(a):
            return DotTypes(a, "half")
        halves: list[Literal["f16", "bf16"]] = [t for t in (a, b) if t in ("f16", "bf16")]
        if len(halves) == 1:
            other = s.b if is_half(a) else s.a
            if all(t == halves[0] for t in self._outputs(s.tile.name)):
                if halves[0] == "bf16" or self._bounded(other.name):
                    return DotTypes(halves[0], "half")
                return DotTypes("f32", "tf32")
        return DotTypes("f32", "ieee")

    def _outputs(self, tile: str) -> list[DType]:
        """The types of the out tensors that depend on a tile."""
        seen: set[str] = set()
        todo = [tile]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self.flows.get(name, ())
        return [t.dtype for t in self.kernel.tensors if t.role == "out" and t.name in seen]

    def _bounded(self, tile: str) -> bool:
        found = self.maps.get(tile, [])
        return bool(found) and all(self._small(e) for e in found)

    def _small(self, e: Expr) -> bool:
        """Whether |e| is at most 1 (or a small constant) by its form."""
        match e:
            case Const():
                return abs(float(e.value)) <= 1.0
            case Call(fn="sigmoid"):
                return True
            case Call(fn="where"):
                return self._small(e.args[1]) and self._small(e.args[2])
            case Call(fn="mul"):
                return self._small(e.args[0]) and self._small(e.args[1])
            case Call(fn="exp" | "exp2", args=(Call(fn="sub", args=(score, Var() as reference)),)):
                return self._at_least(reference, score)
            case _:
                return False

    def _at_least(self, reference: Var, score: Expr) -> bool:
        """Whether a tile is the maximum of `score` taken in (or 0 where there is none)."""

        seen = {reference.name}

        def maxima(e: Expr) -> bool:
            match e:
                case Call(fn="where", args=(Call(fn="eq"), Const(), kept)):
                    return maxima(kept)
                case Call(fn="max"):
                    return any(maxima(a) for a in e.args)
                case Var() if e.name not in seen:
                    seen.add(e.name)
                    reduced = self.reduces.get(e.name, [])
                    if reduced:
                        return all(r.op == "max" and r.expr is score for r in reduced)
                    mapped = self.maps.get(e.name, [])
                    return bool(mapped) and all(maxima(m) for m in dict.fromkeys(mapped))
                case _:
                    return False

        mapped = self.maps.get(reference.name, [])
        return bool(mapped) and all(maxima(m) for m in dict.fromkeys(mapped))


def _flows(body: Iterable[object]) -> dict[str, set[str]]:
    """From a tile or tensor name to the names that are computed from it."""
    flows: dict[str, set[str]] = {}

    def edge(sources: Iterable[str], target: str) -> None:
        for s in sources:
            flows.setdefault(s, set()).add(target)

    for s in body:
        match s:
            case Map() | Reduce():
                edge(_names(s.expr), s.tile.name)
            case LoadTile():
                edge((s.tensor,), s.tile.name)
            case Contract():
                edge((s.a.name, s.b.name, *((s.rescale.name,) if s.rescale else ())), s.tile.name)
            case StoreTile():
                edge(_names(s.expr), s.tensor)
            case _:
                pass
    return flows


def _names(e: Expr) -> set[str]:
    return {v.name for v in variables(e)} | {x.tensor for x in walk(e) if isinstance(x, Load)}
