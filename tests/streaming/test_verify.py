"""The stream program's verifier: derived programs pass, and every change of one part of them is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from aicf.scalar import Expr, call, const, var, variables
from aicf.semantic.types import Location
from aicf.streaming.stream_program import Shift, StreamProgram
from aicf.streaming.verify import StreamProgramError, check_program, verify_program

from .cascades import E, J, S, T, V, derived, log, p, r, reduction, row, softmax


def _made(*given: Any) -> StreamProgram:
    made = derived(*given)
    assert isinstance(made, StreamProgram)
    return made


def attention() -> StreamProgram:
    return _made([*softmax(), reduction("o", "sum", p() * V)], {"o": r("o")})


def entropy() -> StreamProgram:
    weight = p()
    return _made([*softmax(), reduction("h", "sum", weight * log(weight))], {"h": r("h"), "lse": r("m") + log(r("l"))})


def differential() -> StreamProgram:
    difference = p() - row("lam") * p(T, "m2", "l2")
    return _made([*softmax(), *softmax(T, "m2", "l2"), reduction("o", "sum", difference * V)], {"o": r("o")})


def squared() -> StreamProgram:
    return _made([*softmax(), reduction("c", "sum", p() * p())], {"c": r("c")})


PROGRAMS = {"attention": attention, "entropy": entropy, "differential": differential, "squared": squared}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derived_programs_are_well_formed(name: str) -> None:
    assert verify_program(PROGRAMS[name](), [E]) == []


def changed(made: StreamProgram) -> Iterator[tuple[str, StreamProgram]]:
    """`made` with one thing changed, and what was."""
    for k, b in enumerate(made.bases):

        def base(k: int = k, b: Any = b, **new: Any) -> StreamProgram:
            return replace(made, bases=(*made.bases[:k], replace(b, **new), *made.bases[k + 1 :]))

        yield f"{b.name} renamed", base(name="elsewhere")
        yield f"{b.name} of a state", base(body=call("add", b.body, made.sums[0].state))
        yield f"{b.name} of its own reference", base(body=call("sub", b.body, b.ref))
        yield f"{b.name} from the element", base(init=S.e)
        yield f"{b.name} without its reference", base(ref=var("ref_x", b.dtype))
        yield f"{b.name} without its old reference", base(old=var("old_x", b.dtype))
        yield f"{b.name} in another type", base(ref=cast_var(b.ref, "f32"))
        yield f"{b.name} per column", base(body=call("mul", b.body, V.e))
        yield f"{b.name} left out", replace(made, bases=made.bases[:k] + made.bases[k + 1 :])
        yield f"{b.name} twice", replace(made, bases=(*made.bases, b))
        yield f"{b.name} as a sum", base(op="sum")
    for k, s in enumerate(made.sums):

        def summed(k: int = k, s: Any = s, **new: Any) -> StreamProgram:
            return replace(made, sums=(*made.sums[:k], replace(s, **new), *made.sums[k + 1 :]))

        yield f"{s.name} renamed", summed(name="elsewhere")
        yield f"{s.name} without columns", summed(payload=() if s.payload else (E,))
        yield f"{s.name} of another weight", summed(weight=call("mul", s.weight, T.e))
        yield f"{s.name} of another body", summed(body=call("add", s.body, T.e))
        yield f"{s.name} of a result", both(summed, s, next(iter(made.finalize)))
        yield f"{s.name} of a state", both(summed, s, made.bases[0].name)
        yield f"{s.name} as a condition", summed(dtype="bool")
        yield f"{s.name} left out", replace(made, sums=made.sums[:k] + made.sums[k + 1 :])
        if s.scale is not None:
            (name, power), *others = s.stabilisers
            yield f"{s.name} without a scale", summed(scale=None)
            yield f"{s.name} with the scale upside down", summed(scale=call("div", const(1.0, s.dtype), s.scale))
            yield f"{s.name} with twice the scale", summed(scale=call("mul", const(2.0, s.dtype), s.scale))
            yield f"{s.name} relative to nothing", summed(stabilisers=())
            yield f"{s.name} relative to something else", summed(stabilisers=(("elsewhere", power), *others))
            if s.shift is None:
                twice = call("mul", const(2.0, power.dtype), power)
                yield f"{s.name} with another power", summed(stabilisers=((name, twice), *others))
        if s.shift is not None:
            for partner, base_name, distance in (
                ("elsewhere", s.shift.base, s.shift.distance),
                (s.name, s.shift.base, s.shift.distance),
                (s.shift.partner, "elsewhere", s.shift.distance),
                (s.shift.partner, s.shift.base, S.e),
            ):
                yield f"{s.name} shifted by {distance}, {partner}", summed(shift=Shift(partner, base_name, distance))
    for name, e in made.finalize.items():
        for what, more in (("the element", S.e), ("an old reference", made.bases[0].old), ("itself", var(name, e.dtype))):
            yield f"{name} of {what}", replace(made, finalize={**made.finalize, name: call("add", e, more)})
        yield f"{name} read along the stream", replace(made, finalize={**made.finalize, name: call("add", e, V.e)})
        if name in made.outputs:
            left = {n: x for n, x in made.finalize.items() if n != name}
            yield f"{name} left out", replace(made, finalize=left)
            yield f"{name} first", replace(made, finalize={name: e, **left})
    yield "an output twice", replace(made, outputs=(*made.outputs, made.outputs[0]))
    yield "an atom called like the stream", replace(made, scores=(*made.scores, var(J.name, "f32")))
    yield "a result called like a state", replace(made, finalize={**made.finalize, made.sums[0].name: const(0.0, "f64")})


def cast_var(v: Any, dtype: Any) -> Any:
    return var(v.name, dtype)


def both(summed: Callable[..., StreamProgram], s: Any, name: str) -> StreamProgram:
    """`s` whose weight is multiplied with the value `name` of the program."""
    weight: Expr = call("mul", s.weight, var(name, s.dtype))
    return summed(weight=weight, body=weight if s.value is None else call("mul", weight, s.value))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_change_of_a_part_is_noticed(name: str) -> None:
    made = PROGRAMS[name]()
    missed = [what for what, other in changed(made) if not verify_program(other, [E])]
    reads = {n: {v.name for v in variables(e)} & set(made.finalize) for n, e in made.finalize.items()}
    # Results that read no other one may be in any order.
    harmless = [f"{n} first" for n, others in reads.items() if not others]
    assert [m for m in missed if m not in harmless] == []


def test_all_problems_are_said_at_once_with_their_lines() -> None:
    made = attention()
    wrong = replace(made, sums=(replace(made.sums[0], scale=None), *made.sums[1:]), outputs=("o", "o"))
    with pytest.raises(StreamProgramError) as no:
        check_program(wrong, [E])
    assert no.value.problems == [
        "out o: it is listed twice",
        "sum G_l = sum of exp(s - ref_m): a sum has a scale exactly when it is relative to a base",
    ]
    with pytest.raises(StreamProgramError, match=r"stream program \(for model\.py:7 in attention\) is not well formed"):
        check_program(wrong, [E], Location("model.py", 7, "attention"))


def test_the_fields_that_are_changed_are_all_there_are() -> None:
    """A field added to the program has to be verified, and changed above."""
    assert [f.name for f in fields(StreamProgram)] == ["stream", "scores", "bases", "sums", "finalize", "outputs"]
    made = entropy()
    assert [f.name for f in fields(made.bases[0])] == ["name", "op", "body", "init", "ref", "old", "shift_invariant"]
    assert [f.name for f in fields(made.sums[0])] == [
        "name", "body", "weight", "value", "stabilisers", "scale", "payload", "dtype", "shift",
    ]  # fmt: skip
