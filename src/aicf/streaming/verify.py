"""Is a stream program well formed? Every problem is reported at once, with the line of the program and what is wrong with it.

    base B_m = max of s            reads the element and the row, no state
    sum G_l = sum of exp(s - ref_m), rescale exp(old_m - ref_m)
                                   reads the references of its own bases, and moves with them as its body says
    out o = G_o / G_l              reads states, the row and earlier results, never the element

Run between the derivation and the lowering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from aicf.scalar import EXTREMA, Expr, Load, Var, call, const, is_float, is_int, show, variables, walk
from aicf.semantic.types import Location
from aicf.streaming.shift_invariance import rebases, rescales
from aicf.streaming.stream_program import Base, StreamProgram, Sum


class StreamProgramError(ValueError):
    """A stream program that is not well formed; `problems` says all that is wrong, `source` the user's line that it is for."""

    def __init__(self, problems: list[str], source: Location | None = None) -> None:
        place = f" (for {source})" if source else ""
        super().__init__(f"the derived stream program{place} is not well formed:\n" + "\n".join(f"  {p}" for p in problems))
        self.problems, self.source = problems, source


def check_program(p: StreamProgram, payload: Collection[Var] | None = None, source: Location | None = None) -> None:
    """Raise StreamProgramError when `verify_program` finds anything. `source`: the user's line that it is for."""
    problems = verify_program(p, payload)
    if problems:
        raise StreamProgramError(problems, source)


def verify_program(p: StreamProgram, payload: Collection[Var] | None = None) -> list[str]:
    """All that is wrong with `p`, one sentence each; empty when it is well formed. `payload`: the index variables that sums may
    keep, when they are known."""
    return _Verifier(p, None if payload is None else frozenset(payload)).all()


class _Verifier:
    def __init__(self, p: StreamProgram, payload: frozenset[Var] | None) -> None:
        self.p = p
        self.problems: list[str] = []
        self.payload = frozenset(v for s in p.sums for v in s.payload) if payload is None else payload
        self.bases = {b.name: b for b in p.bases}
        self.sums = {s.name: s for s in p.sums}
        self.element = {p.stream.name, *(a.name for a in p.scores)}
        self.states = {**{b.name: b.dtype for b in p.bases}, **{s.name: s.dtype for s in p.sums}}
        self.references = {b.ref.name for b in p.bases}
        self.old = {b.old.name for b in p.bases}

    def all(self) -> list[str]:
        self.names()
        for b in self.p.bases:
            self.base(b)
        for s in self.p.sums:
            self.sum(s)
        self.finalize()
        return self.problems

    def problem(self, where: str, what: str) -> None:
        self.problems.append(f"{where}: {what}")

    def names(self) -> None:
        p = self.p
        names = [p.stream.name, *(a.name for a in p.scores), *(s.name for s in p.sums)]
        names += [n for b in p.bases for n in (b.name, b.ref.name, b.old.name)]
        for name in (n for n, k in Counter(names).items() if k > 1):
            self.problem(f"name {name}", "it is used twice")
        for name in (n for n in p.finalize if n in names):
            self.problem(f"let {name}", "it has the name of a state, a reference or a streamed value")
        for name in (n for n, k in Counter(p.outputs).items() if k > 1):
            self.problem(f"out {name}", "it is listed twice")
        for name in p.outputs:
            if name not in p.finalize:
                self.problem(f"out {name}", "nothing says what it is")

    def reads(self, where: str, e: Expr, allowed: Collection[str], what: str) -> None:
        """Of the names of the program, `e` may use `allowed` only. Other integers are the row's positions and sizes; what else
        the row holds is loaded."""
        known = {*self.element, *self.states, *self.references, *self.old, *self.p.finalize}
        for name in sorted({v.name for v in variables(e) if v.name not in known and not is_int(v.dtype)}):
            self.problem(where, f"it reads {name}, which nothing defines")
        for name in sorted({v.name for v in variables(e)} & known - set(allowed)):
            self.problem(where, f"it reads {name}, {self.kind(name)}; {what}")
        for v in variables(e):
            if v.name in self.states and v.dtype != self.states[v.name]:
                self.problem(where, f"it reads {v.name} as {v.dtype}, which is {self.states[v.name]}")

    def kind(self, name: str) -> str:
        if name in self.element:
            return "which is streamed"
        if name in self.states:
            return "a state"
        return "a reference" if name in self.references | self.old else "a result"

    def base(self, b: Base) -> None:
        where = f"base {b.name} = {b.op} of {show(b.body)}"
        if b.op not in EXTREMA:
            self.problem(where, f"{b.op} is no extremum")
        self.reads(where, b.body, self.element, "an extremum is of what the element and the row hold")
        if b.init is not None:
            self.reads(f"{where}, from {show(b.init)}", b.init, (), "a start is known before anything is streamed")
        if b.ref.dtype != b.old.dtype:
            self.problem(where, f"its references are {b.ref.dtype} and {b.old.dtype}")
        if is_float(b.body.dtype) != is_float(b.dtype):
            self.problem(where, f"it is kept as {b.dtype}, its elements are {b.body.dtype}")
        if variables(b.body) & self.payload:
            self.problem(where, "it depends on a column, and extrema are kept per row")

    def sum(self, s: Sum) -> None:
        where = f"sum {s.name} = sum of {show(s.body)}"
        for name, _ in s.stabilisers:
            if name not in self.bases:
                self.problem(where, f"it is relative to {name}, which is no base")
        own = [self.bases[name] for name, _ in s.stabilisers if name in self.bases]
        centre = self.bases.get(s.shift.base) if s.shift is not None else None
        seen = {b.ref.name for b in (*own, *([centre] if centre is not None else []))}
        self.reads(where, s.body, self.element | seen, "a summand reads the element, the row and its own references")
        self.weight(where, s)
        if s.dtype == "bool" or (is_float(s.body.dtype) and not is_float(s.dtype)):
            self.problem(where, f"it is kept as {s.dtype}, its summands are {s.body.dtype}")
        if bool(s.stabilisers) != (s.scale is not None):
            self.problem(where, "a sum has a scale exactly when it is relative to a base")
        self.shift(where, s, centre)
        powers = dict(s.stabilisers)
        if s.shift is None and not rebases(s.body, {b.ref.name: powers[b.name] for b in own}):
            self.problem(where, "it does not move with its references as its stabilisers say")
        if s.scale is not None:
            where = f"{where}, rescale {show(s.scale)}"
            moved = {n for b in own for n in (b.ref.name, b.old.name)}
            self.reads(where, s.scale, moved, "a scale is made of its bases' old and new references")
            if not rescales(s.scale, [(b.old, b.ref, powers[b.name]) for b in own]):
                self.problem(where, "it is not what its stabilisers say")

    def weight(self, where: str, s: Sum) -> None:
        whole = s.weight if s.value is None else s.value if _is_one(s.weight) else call("mul", s.weight, s.value)
        if whole is not s.body:
            self.problem(where, "it is not its weight times its value")
        if variables(s.weight) & self.payload:
            self.problem(where, f"its weight {show(s.weight)} depends on a column")
        columns = frozenset(v for v in self.payload if v in variables(s.body))
        if frozenset(s.payload) != columns or len(set(s.payload)) != len(s.payload):
            kept, held = (", ".join(sorted(v.name for v in vs)) or "none" for vs in (s.payload, columns))
            self.problem(where, f"it keeps the columns {kept}, and its summands have {held}")
        if s.value is not None and not columns:
            self.problem(where, f"its value {show(s.value)} has no column, so that it is part of the weight")

    def shift(self, where: str, s: Sum, centre: Base | None) -> None:
        if s.shift is None:
            return
        partner = self.sums.get(s.shift.partner)
        if centre is None:
            self.problem(where, f"it is centred at {s.shift.base}, which is no base")
        if partner is None or partner is s:
            self.problem(where, f"its partner {s.shift.partner} is no other sum")
        elif (partner.stabilisers, partner.payload) != (s.stabilisers, s.payload):
            self.problem(where, f"its partner {partner.name} is relative to other bases, or has other columns")
        if centre is not None:
            allowed = {centre.ref.name, centre.old.name}
            self.reads(where, s.shift.distance, allowed, "a distance is between the old and the new reference of its base")

    def finalize(self) -> None:
        earlier: list[str] = []
        for name, e in self.p.finalize.items():
            where = f"{'out' if name in self.p.outputs else 'let'} {name} = {show(e)}"
            allowed = {*self.states, *self.references, *earlier}
            self.reads(where, e, allowed, "a result is made of states, the row and earlier results")
            for x in walk(e):
                if isinstance(x, Load) and any(self.p.stream in variables(i) for i in x.index):
                    self.problem(where, f"it reads {show(x)} along the stream, which is over")
            earlier.append(name)


def _is_one(e: Expr) -> bool:
    return e is const(1, e.dtype)


__all__ = ["StreamProgramError", "check_program", "verify_program"]
