"""The little that code generation must know of a target: vector width and how many vector registers there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """`lanes` f32 lanes in a vector register, `registers` of them; triple, CPU and features as LLVM names them."""

    triple: str
    cpu: str
    features: str
    lanes: int
    registers: int

    @property
    def columns(self) -> int:
        """Columns of a packed panel: two vectors."""
        return 2 * self.lanes

    @property
    def clears(self) -> bool:
        """Whether the upper halves of vector registers are to be cleared before code that knows of none (x86 with AVX)."""
        return self.triple.startswith(("x86_64", "i686")) and self.lanes >= 8

    @property
    def converts(self) -> bool:
        """Whether conversions of f16 are functions: no instruction makes them."""
        return self.triple.startswith(("x86_64", "i686")) and not {"+f16c", "+avx512f"} & set(self.features.split(","))

    @property
    def lookup(self) -> str | None:
        """LLVM's name of the instruction that takes for each lane the element of a vector of `lanes` which the low bits of an
        index say, if there is a fast one."""
        features = self.features.split(",")
        return "llvm.x86.avx2.permps" if self.lanes == 8 and self.clears and "+avx2" in features else None

    @property
    def rows(self) -> int:
        """Rows of the largest register tile: what two B vectors and one broadcast leave, in pairs of accumulators."""
        return max(1, min((self.registers - 4) // 2, 14))


def vector_shape(triple: str, features: str) -> tuple[int, int]:
    """(f32 lanes, registers) for a feature string such as `+avx2,+fma`."""
    on = {f[1:] for f in features.split(",") if f.startswith("+")}
    if triple.startswith(("aarch64", "arm64")):
        return 4, 32
    if {"avx512f", "avx512vl", "avx512dq"} <= on:
        return 16, 32
    if "avx" in on:
        return 8, 16
    return 4, 16
