"""Derivation: a cascade of reductions over one axis becomes a program that reads the axis once.

    m = max s;  l = sum exp(s - m);  o = sum exp(s - m) / l * v
        ->  base B_m = max s;  sums G_l = exp(s - ref_m), G_o = exp(s - ref_m) * v;  o = G_o / G_l

Every body is separated (separate.py) into row factors times streamed factors. The streamed factors become carried sums; a
row factor `exp(-p B)` stays beside the streamed factor `exp(p u)` that it keeps in range, B being the running extremum of u;
everything else is hoisted behind the stream, which is exact because a sum is linear. Nothing here knows what a softmax is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aicf.scalar import (
    EXTREMA,
    MONOIDS,
    Call,
    Const,
    DType,
    Expr,
    Var,
    call,
    cast,
    const,
    is_float,
    is_half,
    is_int,
    substitute,
    var,
    variables,
    walk,
)
from aicf.scalar import show as show_expr
from aicf.semantic.refusal import Refusal, Refused
from aicf.streaming.context import (
    RANK_LIMIT,
    Context,
    KnownExtremum,
    Match,
    bounding,
    matching,
    new_base,
    positive,
    some,
)
from aicf.streaming.equality import same_value
from aicf.streaming.extrema import extremum
from aicf.streaming.mask_references import with_mask_references
from aicf.streaming.separate import canon, separate
from aicf.streaming.shift_invariance import shift_invariant_references
from aicf.streaming.stream_program import Base, Reduction, Shift, StreamProgram, Sum
from aicf.streaming.terms import (
    NOTHING,
    Term,
    add_up,
    expanded,
    exponential,
    inverse,
    merge,
    multiply_powers,
    product,
    scaled,
    split,
    term_poly,
    to_expr,
)
from aicf.streaming.terms import key as term_key


def derive(
    cascade: Sequence[Reduction],
    outputs: Mapping[str, Expr],
    stream: Var,
    *,
    scores: Sequence[Var] = (),
    payload: Sequence[Var] = (),
    strict: bool = False,
) -> StreamProgram | Refusal:
    """The one-pass program of `cascade`, or why there is none.

    `stream` is the streamed index; `scores` name values that have one element per streamed position (a tile-local
    contraction such as a score). `payload` names index variables of further axes that sums may keep (the value width).
    `outputs` are expressions of reductions and of inputs of the row; without any, the reductions themselves are the outputs.
    `strict`: elements may be infinite or NaN also where the row multiplies them by 0.
    Raises ValueError for a cascade that is not well formed: names used twice or out of order, an output that is streamed.
    """
    _check(cascade, outputs, stream, scores)
    wanted = dict(outputs) if outputs else {r.name: var(r.name, r.body.dtype) for r in cascade}
    bodies = [r.body for r in cascade]
    dtype: DType = "f64" if any(n.dtype == "f64" for e in [*bodies, *wanted.values()] for n in walk(e)) else "f32"
    c = Context(streamed=frozenset({stream, *scores}), dtype=dtype, strict=strict)
    state = _States(c, tuple(payload), {}, {}, {}, {}, set())
    done: dict[str, Expr] = {}
    types: dict[str, DType] = {}
    for r in cascade:
        c.reduction = r.name
        body = _retyped(r.body, types)
        try:
            value = _reduction(state, r, body)
        except Refused as no:
            where = None if no.where is None else substitute(no.where, _source_names(c))
            return Refusal(r.name, no.reason, where=where)
        name = var(r.name, "bool" if r.op in ("any", "all") else _wide(body.dtype, dtype))
        types[r.name] = name.dtype
        value = cast(value, name.dtype)
        c.row.add(name)
        done[r.name] = value
        if r.op != "sum" or isinstance(value, Var):
            c.values[name] = value
        c.canonical.clear()
    results: dict[str, Expr] = {}
    for name, e in wanted.items():
        value = canon(c, _retyped(e, types))
        if name in done and value in (done[name], var(name, value.dtype)):
            value = done[name]
        results[name] = value
    for name in [n for n in results if n in done and results[n] is not done[n]]:
        # The output took the name of a reduction that it is not: the reduction is put in place instead of named.
        every = [*done.values(), *results.values()]
        named: dict[Expr, Expr] = {v: done[name] for e in every for v in variables(e) if v.name == name}
        done = {n: substitute(e, named) for n, e in done.items() if n != name}
        results = {n: substitute(e, named) for n, e in results.items()}
    return _assembled(state, done, _empty_rows(state, done, results), stream, tuple(scores))


def _source_names(c: Context) -> dict[Expr, Expr]:
    """Carried values in the source's names: B_m is m, and an extremum that starts from c is max(c, m)."""
    named: dict[Expr, Expr] = {value: name for name, value in c.values.items() if isinstance(value, Var)}
    for base, carried in c.bases.items():
        alike = next((n for v, n in named.items() if v in c.bases and c.bases[v].body is carried.body), None)
        if base not in named and alike is not None:
            named[base] = alike if carried.init is None else call(carried.op, carried.init, alike)
    return named


def _check(cascade: Sequence[Reduction], outputs: Mapping[str, Expr], stream: Var, scores: Sequence[Var]) -> None:
    names = [r.name for r in cascade]
    taken = [stream.name, *(a.name for a in scores), *names]
    for i, r in enumerate(cascade):
        if taken.count(r.name) > 1:
            raise ValueError(f"the name '{r.name}' is used twice in the cascade: give every reduction its own name")
        late = sorted(v.name for v in variables(r.body) if v.name in names[i:])
        if late:
            raise ValueError(f"reduction '{r.name}' refers to '{late[0]}', which comes at or after it: order the cascade")
    for name, e in outputs.items():
        if not variables(e).isdisjoint({stream, *scores}):
            raise ValueError(f"output '{name}' keeps the streamed axis: {show_expr(e)}; only reductions of it can be outputs")


def _wide(dtype: DType, working: DType) -> DType:
    return working if is_half(dtype) or dtype == "bool" else dtype


def _retyped(e: Expr, types: Mapping[str, DType]) -> Expr:
    """`e` with references to earlier reductions in the type in which they are carried."""
    return substitute(e, {v: var(v.name, types[v.name]) for v in variables(e) if v.name in types})


# ------------------------------------------------------------------------------------------------ reductions


@dataclass
class _States:
    """The carried sums found so far: body -> Sum."""

    c: Context
    payload: tuple[Var, ...]
    sums: dict[tuple[object, ...], Sum]
    terms: dict[Var, Term]
    centred: dict[Expr, Var]
    # What an exponential is relative to, seen from the extremum that bounds it: B - r -> B.
    away: dict[Expr, Var]
    # Sums of such exponentials in strict mode: in a row without scores, exp(-inf - r) times what the element holds.
    relative: set[Var]


def _reduction(s: _States, r: Reduction, body: Expr) -> Expr:
    lifted = MONOIDS[r.op].lift(body, s.c.dtype)
    match r.op:
        case "sum":
            return _sum(s, r.name, lifted)
        case "max" | "min":
            return extremum(s.c, lifted, r.op)
        case "any":
            return _any(s.c, body)
        case "all":
            return call("not", _any(s.c, call("not", body)))
        case "prod":
            return _prod(s, r.name, body)


def _any(c: Context, body: Expr) -> Expr:
    """any of a condition on the element."""
    if c.mixed(body):
        raise Refused("a condition that mixes the streamed element and earlier reductions", body)
    if not c.has_streamed(body):
        return canon(c, body)
    if isinstance(body, Call) and body.fn == "not" and isinstance(body.args[0], Call) and body.args[0].fn == "eq":
        body = call("ne", *body.args[0].args)
    if isinstance(body, Call) and body.fn == "ne":
        for op in EXTREMA:
            if body.args[1] is MONOIDS[op].nothing(body.args[1].dtype) and is_float(body.args[1].dtype):
                # Some u is not -inf exactly when their maximum is not (a NaN is neither, and propagates).
                extreme = new_base(c, body.args[0], op, ())
                return call("ne", extreme, MONOIDS[op].nothing(extreme.dtype))
    return some(c, (body,))


def _prod(s: _States, name: str, body: Expr) -> Expr:
    """prod g as exp(sum log|g|) with the sign from the parity of the negative factors."""
    c = s.c
    if c.has_row(body):
        raise Refused("a product over the stream of an expression that uses earlier reductions", body)
    wide = cast(body, c.dtype)
    size = _sum(s, name, call("log", call("abs", wide)))
    negative = _sum(s, name, call("where", call("lt", wide, const(0, c.dtype)), const(1, c.dtype), const(0, c.dtype)))
    sign = call("sub", const(1, c.dtype), call("mul", const(2, c.dtype), call("mod", negative, const(2, c.dtype))))
    return call("mul", sign, call("exp", size))


def _sum(s: _States, name: str, body: Expr) -> Expr:
    """The value of `sum over the stream of body`, by carried sums."""
    c = s.c
    dtype = body.dtype if is_int(body.dtype) else _wide(body.dtype, c.dtype)
    terms = _centred(s, [x for t in separate(c, body, "terms") for x in _unless_nothing(c, _bounded(s, t))])
    parts = [(NOTHING, t, replace(t, powers=t.powers[1:], keep=(), rows=())) if _only_row(c, t) else _carried(s, name, t, dtype)
             for t in terms]  # fmt: skip
    if len({g for g, _, _ in parts}) > RANK_LIMIT:
        raise Refused(f"its rank is above the limit of {RANK_LIMIT}", body)
    sums = [(g, rest) for g, _, rest in parts if isinstance(g, Var)]
    if sums and all(_positive_sum(s, g, rest) for g, rest in sums):
        for me in [var(name, dtype), *(g for g, _ in sums if len(parts) == 1)]:
            c.positive.add(me)
            c.covers[me] = [s.terms[g] for g, rest in sums if rest == Term()]
    done = [(t, _restored(s, g, rest), _outer(t, rest)) for g, t, rest in parts]
    return _chosen(c, done, dtype, lambda t, g: _zeros(s, name, t, g, dtype))


def _only_row(c: Context, t: Term) -> bool:
    return t.powers[:1] == ((NOTHING, 1),) and not any(c.has_streamed(a) for a, _ in t.powers) and not any_streamed(c, t)


def _unless_nothing(c: Context, t: Term) -> list[Term]:
    """`where(row_condition, 0, p) / r` keeps the division by r where the condition selects 0: 0 / 0 must stay NaN.

    Of the factors only those of the row are kept, which may be what 0 times them is NaN for; without any the term is gone.
    Strict mode keeps the factors of the element as well.
    """
    if not any(a is NOTHING for a, _ in t.powers):
        return [t]
    if c.strict and any(c.has_streamed(a) for a, _ in t.powers):
        return [t]
    rows = tuple(p for p in t.powers if c.has_row(p[0]) and not c.has_streamed(p[0]))
    matches = matching(c, t)
    own = [m.base.state for m in matches]
    apart = tuple(e for e in t.exponent if not any(c.has_streamed(a) or a in own for a, _ in e.powers)
                  and any(c.has_row(a) for a, _ in e.powers))  # fmt: skip
    # Each exponential exp(u - max u) is at most 1, and NaN where the maximum is not finite.
    finite = [call("lt", call("abs", b), const(float("inf"), b.dtype)) for b in own if is_float(b.dtype)]
    one, nan = const(1, c.dtype), const(float("nan"), c.dtype)
    checks = tuple((call("where", k, one, nan), 1) for k in dict.fromkeys(finite))
    if not (rows or checks or apart):
        return []
    under = any(a in own for e in t.inner[1] for a, _ in e.powers)
    inner = (
        tuple(p for p in t.inner[0] if p in rows) + (checks if under else ()),
        tuple(e for e in t.inner[1] if e in apart),
    )
    return [Term(powers=((NOTHING, 1), *rows, *checks), exponent=apart, keep=t.keep, rows=t.rows, inner=inner)]


def _zeros(s: _States, name: str, t: Term, g: Expr, dtype: DType) -> Expr:
    """What the carried sum `g` of `t` is in a row of which no element is selected: 0, or in strict mode NaN where 0 met what is
    not finite. `g` itself may be NaN because of its reference alone."""
    if not s.c.strict:
        return const(0, dtype)
    if not t.exponent:
        return g
    mine = tuple(p for p in t.powers if s.c.has_streamed(p[0]))
    return _carried(s, name, Term(powers=((NOTHING, 1), *mine)), dtype)[0] if mine else const(0, dtype)


def _restored(s: _States, g: Expr, rest: Term) -> Term:
    """The carried sum `g` times its hoisted factor. A sum divided by itself stays written: it is 1, or NaN where `g` is 0 or
    NaN."""
    if rest == Term(powers=((g, -1),)):
        return Term(powers=((call("div", g, g), 1),))
    value: Expr = g
    for base in (s.away[a] for e in rest.exponent for a, _ in e.powers if a in s.away and g not in s.relative):
        # No reference was subtracted in the source: a row without scores adds up exp(-inf - r), 0 unless r is -inf too.
        value = call("where", call("eq", base, MONOIDS[s.c.bases[base].op].nothing(base.dtype)), const(0, g.dtype), value)
    return product(Term(powers=((value, 1),)), rest)


def _outer(t: Term, rest: Term) -> Term:
    """Of the hoisted factor `rest`, what stands outside of the conditions on the element."""
    if not t.keep:
        return Term()
    powers = multiply_powers(rest.powers, tuple((a, -n) for a, n in t.inner[0]))
    return Term(powers=powers, exponent=tuple(e for e in rest.exponent if e not in t.inner[1]))


def _bounded(s: _States, t: Term) -> Term:
    """`t` with exponentials of the element relative to their extremum: `exp(u - r)` as `exp(u - B) * exp(B - r)`, B = max u.

    r is anything of the row that is not, in its form, the extremum and more: a log-sum-exp with -inf replaced by 0, the sum of
    two extrema of the same u. The source's largest summand is `exp(B - r)`: what overflows or vanishes here does so there.
    """
    c = s.c
    matches = matching(c, t)
    used = {m for match in matches for m in match.used}
    own = [m.base.state for m in matches]
    rows = [e for e in t.exponent if any(c.has_row(a) for a, _ in e.powers) and not any(a in own for a, _ in e.powers)]
    open_ = [e for e in t.exponent if any(c.has_streamed(a) for a, _ in e.powers)]
    open_ = [e for e in open_ if not any(m in used for strict in (True, False) for m in term_poly(e, strict))]
    if not rows or not open_:
        return t
    if any(not variables(a).isdisjoint(s.payload) for e in open_ for a, _ in e.powers):
        raise Refused("an exponential relative to something that does not bound it", to_expr(rows[0], c.dtype))
    inert = [e for e in t.exponent if not any(c.has_streamed(a) or c.has_row(a) for a, _ in e.powers)]
    bound = bounding(c, open_, inert, rows, t.keep)
    if bound is None:
        state = new_base(c, add_up(open_, c.dtype), "max", t.keep)
        assert isinstance(state, Var)
        base, p, mine = state, Term(), open_
    else:
        base, p = bound.base.state, bound.p
        mine = open_ + [e for e in inert if frozenset(term_poly(e, bound.exact)) <= bound.used]
    above = product(p, Term(powers=((base, 1),)))
    apart = [*rows, *(e for e in inert if e not in mine)]
    away = add_up(_differences(c, above, c.bases[base], apart), c.dtype)
    s.away[away] = base
    kept = tuple(e for e in t.exponent if e not in apart)
    made = (scaled(above, -1.0), Term(powers=((away, 1),)))
    under = any(e in t.inner[1] for e in apart)
    inner = (t.inner[0], (*(e for e in t.inner[1] if e not in apart), *(made if under else ())))
    return replace(t, exponent=(*kept, *made), inner=inner)


def _differences(c: Context, above: Term, base: KnownExtremum, apart: list[Term]) -> list[Term]:
    """`above`, a multiple of an extremum, and the terms `apart` that it is relative to, in an order that rounds little: each
    running extremum is paired with the multiple of `base` whose scores match its own. The difference of such a pair is small,
    whatever the scores' size."""
    if above.powers != ((base.state, 1),):
        return [above, *apart]
    own = expanded(base.body, False)
    left, out = above.coef, list[Term]()
    for e in apart:
        (atom, n), *others = e.powers or ((None, 0),)
        other = c.bases.get(atom) if isinstance(atom, Var) and n == 1 and not others else None
        theirs = {} if other is None else expanded(other.body, False)
        shares = {k / own[m] for m, k in theirs.items() if m in own and any(c.has_streamed(a) for a, _ in m)}
        if other is None or other.op != base.op or len(shares) != 1 or min(shares) <= 0:
            out.append(e)
            continue
        (share,) = shares
        mine = base.state if share == 1 else call("mul", const(share, base.state.dtype), base.state)
        out.append(Term(coef=-e.coef, powers=((call("sub", mine, other.state), 1),)))
        left += e.coef * share
    return out if abs(left) <= 1e-12 else [replace(above, coef=left), *out]


def _centred(s: _States, terms: list[Term]) -> list[Term]:
    """`u * exp(p * u)` written as `((u - ref) + ref) * exp(p * u)`; ref is the extremum that keeps the exponential in range.

    The sum of the first product is of the size of the scores' spread, and the second one joins the sum of `exp(p * u)`;
    what was subtracted from u in the source cancels against ref instead of against the size of the scores.
    """
    c = s.c
    out: list[Term] = []
    for t in terms:
        centre = next((x for m in matching(c, t) for x in _multiple(c, t, m.base)), None)
        if centre is None:
            out.append(t)
            continue
        base, factor, rest = centre
        factor, rest = _constants(factor, rest)
        distance = call("sub", base.body, reference(base.state))
        s.centred[distance] = base.state
        out.append(product(scaled(rest, factor), Term(powers=((distance, 1),))))
        out.append(product(scaled(rest, factor), Term(powers=((base.state, 1),))))
    return merge(out)


def _constants(factor: float, t: Term) -> tuple[float, Term]:
    """`factor` times the constant powers of `t`, and `t` without them: `c * u / c` is u, and cancels against it exactly."""
    for a, n in t.powers:
        if isinstance(a, Const) and a.value:
            factor *= float(a.value) ** n
    whole = round(factor)
    if whole and abs(factor / whole - 1) < 1e-12:
        factor = float(whole)
    return factor, replace(t, powers=tuple((a, n) for a, n in t.powers if not (isinstance(a, Const) and a.value)))


def _multiple(c: Context, t: Term, base: KnownExtremum) -> list[tuple[KnownExtremum, float, Term]]:
    """(base, k, rest) if the streamed powers of `t`, or all that are free of earlier reductions, are k times the base's body."""
    if not is_float(base.state.dtype):
        return []
    body = expanded(base.body, True)
    whole = separate(c, base.body)
    if len(whole) == 1 and whole[0].exponent and not whole[0].keep and not whole[0].rows:
        # A score with an exponential as a factor: in `t` that stands among the exponents.
        t = replace(t, exponent=tuple(merge([*t.exponent, *(scaled(e, -1.0) for e in whole[0].exponent)])))
        body = term_poly(replace(whole[0], exponent=()), True)
        if not any(m.base is base and m.whole for m in matching(c, t)):
            return []
    streamed = tuple(p for p in t.powers if c.has_streamed(p[0]))
    for mine in (streamed, tuple(p for p in t.powers if not c.has_row(p[0]))):
        have = term_poly(Term(powers=mine), True)
        factors = [have[m] / body[m] for m in have if m in body]
        # Products of constants multiplied out in another order differ in their last digits.
        if mine and set(have) == set(body) and all(abs(f / factors[0] - 1) < 1e-12 for f in factors):
            return [(base, factors[0], replace(t, powers=tuple(p for p in t.powers if p not in mine)))]
    return []


def _positive_sum(s: _States, g: Var, rest: Term) -> bool:
    t = s.terms[g]
    return rest.coef > 0 and not t.keep and all(n % 2 == 0 or positive(s.c, a) for a, n in t.powers + rest.powers)


def _carried(s: _States, name: str, t: Term, dtype: DType) -> tuple[Var, Term, Term]:
    """(the carried sum of the streamed factor of `t`, `t`, the factor that is hoisted)."""
    c = s.c
    streamed, hoisted = split(t, lambda a: a is NOTHING or c.has_streamed(a))
    matches = matching(c, t)
    inside: list[Term] = []
    outside: list[Term] = []
    for e in t.exponent:
        if any(c.has_streamed(a) for a, _ in e.powers):
            inside.append(e)
        elif any(m.base.state is a for m in matches for a, _ in e.powers):
            pass
        elif any(c.has_row(a) for a, _ in e.powers):
            outside.append(e)
        else:
            # An addend of the row: what the extremum's own body holds stays with it, and so does everything that
            # nothing keeps in range, as in the source.
            kept = not matches or any(frozenset(term_poly(e, m.exact)) <= m.used for m in matches)
            (inside if kept and any_streamed(c, t) else outside).append(e)
    rest = Term(coef=t.coef, powers=hoisted, exponent=tuple(outside))
    weight, value, payload = _body(s, Term(powers=streamed, keep=t.keep), inside, matches, dtype)
    body = weight if value is None else value if weight is const(1, weight.dtype) else call("mul", weight, value)
    stabilisers = tuple((m.base.state.name, to_expr(m.p, c.dtype)) for m in matches)
    relative = c.strict and any(a in s.away for e in t.exponent for a, _ in e.powers)
    carried = s.sums.get((body, stabilisers, relative))
    if carried is None:
        shift = _shift(s, name, t, dtype)
        taken = {x.name for x in s.sums.values()}
        stem = f"G_{name}"
        label = next(n for n in (stem, *(f"{stem}_{i}" for i in range(1, 1 + len(taken)))) if n not in taken)
        carried = Sum(label, body, weight, value, stabilisers, _scale(c, matches), payload, dtype, shift)
        s.sums[body, stabilisers, relative] = carried
        if relative:
            s.relative.add(carried.state)
        s.terms[carried.state] = replace(t, coef=1.0, powers=streamed, rows=())
        c.row.add(carried.state)
    return carried.state, t, rest


def _shift(s: _States, name: str, t: Term, dtype: DType) -> Shift | None:
    """How a centred sum moves with its reference: by the distance times the sum without the centred factor."""
    for atom, _ in t.powers:
        if atom in s.centred:
            base = s.centred[atom]
            rest = replace(t, powers=tuple(p for p in t.powers if p[0] is not atom), rows=())
            partner, _, _ = _carried(s, name, rest, dtype)
            start = call("eq", before(base), MONOIDS[s.c.bases[base].op].nothing(base.dtype))
            distance = call("sub", before(base), reference(base))
            return Shift(partner.name, base.name, call("where", start, const(0, base.dtype), distance))
    return None


def any_streamed(c: Context, t: Term) -> bool:
    return any(c.has_streamed(a) for e in t.exponent for a, _ in e.powers)


def reference(base: Var) -> Var:
    return var("ref" + base.name[1:], base.dtype)


def before(base: Var) -> Var:
    return var("old" + base.name[1:], base.dtype)


def _body(
    s: _States, t: Term, inside: list[Term], matches: list[Match], dtype: DType
) -> tuple[Expr, Expr | None, tuple[Var, ...]]:
    """(weight, value, payload variables) of the streamed factor at the reference."""
    c = s.c
    payload = frozenset(s.payload)
    order = sorted(t.powers, key=lambda p: (p[1] < 0, show_expr(p[0])))
    mine = tuple(p for p in order if variables(p[0]).isdisjoint(payload))
    wide = tuple(p for p in order if not variables(p[0]).isdisjoint(payload))
    weight: Expr | None = None
    if inside:
        if len(matches) == 1 and matches[0].exact:
            (m,) = matches
            distance = call("sub", m.body, reference(m.base.state))
            weight = exponential([replace(m.p, powers=(*m.p.powers, (distance, 1))), *m.left], c.dtype)
        else:
            references = [product(scaled(m.p, -1.0), Term(powers=((reference(m.base.state), 1),))) for m in matches]
            weight = exponential([*inside, *references], c.dtype)
    if mine or weight is None:
        others = to_expr(Term(powers=mine), dtype)
        weight = others if weight is None else _with_powers(weight, mine, dtype)
    for condition in t.keep:
        weight = call("where", condition, weight, const(0, weight.dtype))
    value = to_expr(Term(powers=wide), dtype) if wide else None
    if len(wide) == 1 and wide[0][1] == 1:
        value = wide[0][0]
    read = variables(weight) | (variables(value) if value is not None else frozenset[Var]())
    return weight, value, tuple(v for v in s.payload if v in read)


def _with_powers(weight: Expr, powers: tuple[tuple[Expr, int], ...], dtype: DType) -> Expr:
    up = tuple(p for p in powers if p[1] > 0)
    down = tuple((a, -n) for a, n in powers if n < 0)
    out = call("mul", weight, to_expr(Term(powers=up), dtype)) if up else weight
    return call("div", out, to_expr(Term(powers=down), dtype)) if down else out


def _scale(c: Context, matches: list[Match]) -> Expr | None:
    """exp(sum of p * (old - ref)): what moves a sum from the old references to the new ones."""
    moved = [replace(m.p, powers=(*m.p.powers, (call("sub", before(m.base.state), reference(m.base.state)), 1))) for m in matches]
    return exponential(moved, c.dtype) if moved else None


def _chosen(
    c: Context, parts: list[tuple[Term, Term, Term]], dtype: DType, zeros: Callable[[Term, Expr], Expr]
) -> Expr:
    """The sum of (term, carried sum times hoisted factor, the hoisted factor's part that is outside of conditions). `zeros`: what
    a carried sum of a term is where nothing is selected.

    Row conditions select between whole sums: the side not taken may hold NaN.
    """
    for t, _, _ in parts:
        for condition in t.rows:
            base = condition.args[0] if isinstance(condition, Call) and condition.fn == "not" else condition
            contrary = call("not", base)
            yes = [(replace(u, rows=_less(u.rows, base)), h, o) for u, h, o in parts if contrary not in u.rows]
            no = [(replace(u, rows=_less(u.rows, contrary)), h, o) for u, h, o in parts if base not in u.rows]
            return call("where", base, _chosen(c, yes, dtype, zeros), _chosen(c, no, dtype, zeros))
    groups: dict[object, list[tuple[Term, Term, Term]]] = {}
    for t, h, outer in parts:
        selected = product(h, inverse(outer))
        # The first power is the carried sum itself.
        risky = bool(t.keep) and any(
            c.has_row(a) for a, _ in selected.powers[1:] + tuple(p for e in selected.exponent for p in e.powers)
        )
        groups.setdefault((t.keep, term_key(outer)) if risky else (), []).append((t, selected if risky else h, outer))
    total: Expr | None = None
    for group, members in groups.items():
        value = add_up([h for _, h, _ in members], dtype)
        if group:
            # No element was selected: the source adds up zeros, whatever the row's factor under the condition is.
            t, _, outer = members[0]
            none = add_up([Term(powers=((zeros(u, h.powers[0][0]), 1),)) for u, h, _ in members], dtype)
            value = call("where", some(c, t.keep), value, none)
            value = value if outer == Term() else to_expr(product(Term(powers=((value, 1),)), outer), dtype)
        total = value if total is None else call("add", total, value)
    return const(0, dtype) if total is None else total


def _less(conditions: tuple[Expr, ...], condition: Expr) -> tuple[Expr, ...]:
    return tuple(k for k in conditions if k is not condition)


# ------------------------------------------------------------------------------------------------ rows without elements


def _empty_rows(s: _States, done: dict[str, Expr], results: dict[str, Expr]) -> dict[str, Expr]:
    """Outputs that are as written also where an extremum is still the identity.

    In a row whose scores are all -inf the source adds up `exp(-inf - -inf)`, which is NaN, where the carried sum is 0; a sum
    over what a condition selects is NaN if it selects anything. Mostly both end as NaN (0 / 0); an output for which they don't
    selects the source's value: `m + log(l)` is NaN there, not -inf.
    """
    out = dict(results)
    for base, carried in list(s.c.bases.items()):
        low = MONOIDS[carried.op].nothing(base.dtype)
        starts = _arguments(carried.op, carried.init)
        if any(isinstance(x, Const) and x.value != low.value for x in starts):
            continue  # it never is the identity
        mine = [x.state for x in s.sums.values() if any(b == base.name for b, _ in x.stabilisers) and x.state not in s.relative]
        identity: dict[Expr, Expr] = {x: const(low.value, x.dtype) for x in (base, *starts)}
        zero = identity | {g: const(0, g.dtype) for g in mine}
        nan = identity | {g: _sum_of_nan(s, g) for g in mine}
        if mine:
            for name, e in out.items():
                whole = _inlined(done, e)
                ours, source = substitute(whole, zero), substitute(whole, nan)
                if not variables(whole).isdisjoint(mine) and not same_value(ours, source):
                    nothing = const(float("nan"), e.dtype)
                    always = not any(s.terms[g].keep for g in mine if g in variables(whole)) and same_value(source, nothing)
                    written = nothing if always else source
                    out[name] = call("where", call("eq", base, low), written, e)
    return out


def _sum_of_nan(s: _States, g: Var) -> Expr:
    """The sum `g` when all of its summands are NaN."""
    keep, nan = s.terms[g].keep, const(float("nan"), g.dtype)
    return call("where", some(s.c, keep), nan, const(0, g.dtype)) if keep else nan


def _arguments(op: str, e: Expr | None) -> list[Expr]:
    """The arguments of nested calls of `op`."""
    if isinstance(e, Call) and e.fn in (op, "cast"):
        return [x for a in e.args for x in _arguments(op, a)]
    return [] if e is None else [e]


def _inlined(done: dict[str, Expr], e: Expr) -> Expr:
    """`e` in terms of states."""
    for name in reversed(done):
        e = substitute(e, {v: done[name] for v in variables(e) if v.name == name})
    return e


# ------------------------------------------------------------------------------------------------ the program


def _assembled(
    s: _States, done: dict[str, Expr], results: dict[str, Expr], stream: Var, scores: tuple[Var, ...]
) -> StreamProgram:
    """Only what the outputs need, in order; reductions that cost no further state stay for the reader."""
    everything = {**done, **results}
    needed: set[str] = set()
    states: set[str] = set()
    stack = [results[name] for name in results]
    needed.update(results)
    by_sum = {x.name: x for x in s.sums.values()}
    while stack:
        for v in variables(stack.pop()):
            if v.name in by_sum:
                states.add(v.name)
                states.update(b for b, _ in by_sum[v.name].stabilisers)
                shift = by_sum[v.name].shift
                states.update(() if shift is None else (shift.partner, shift.base))
            elif v in s.c.bases:
                states.add(v.name)
            elif v.name in done and v.name not in needed:
                needed.add(v.name)
                stack.append(done[v.name])
    carried = set(by_sum) | {b.name for b in s.c.bases}
    for name in done:
        used = {v.name for v in variables(done[name])}
        if used & carried <= states and (used & set(done)) <= needed:
            needed.add(name)
    order = [n for n in done if n in needed] + [n for n in results if n not in done]
    new = _short_names([b for b in s.c.bases if b.name in states])
    put: dict[Expr, Expr] = {}
    for b, n in new.items():
        for head in ("B", "ref", "old"):
            put[var(head + b.name[1:], b.dtype)] = var(head + n[1:], b.dtype)
    bases = tuple(
        Base(n, f.op, f.body, f.init, var("ref" + n[1:], b.dtype), var("old" + n[1:], b.dtype))
        for b, n in new.items() for f in (s.c.bases[b],)
    )  # fmt: skip
    labels = {b.name: n for b, n in new.items()}
    sums = tuple(
        replace(
            x, body=substitute(x.body, put), weight=substitute(x.weight, put),
            scale=None if x.scale is None else substitute(x.scale, put),
            stabilisers=tuple((labels[b], p) for b, p in x.stabilisers),
            shift=None if x.shift is None
            else Shift(x.shift.partner, labels[x.shift.base], substitute(x.shift.distance, put)),
        )
        for x in s.sums.values() if x.name in states
    )  # fmt: skip
    finalize = {n: substitute(everything[n], put) for n in order}
    p = with_mask_references(StreamProgram(stream, scores, bases, sums, finalize, tuple(results)))
    free = shift_invariant_references(p)
    return replace(p, bases=tuple(replace(b, shift_invariant=b.name in free) for b in p.bases))


def _short_names(bases: list[Var]) -> dict[Var, str]:
    """Names of the extrema that are left: one whose first form was replaced (`max(B_m, sink)` is `B_m_1`) takes its name."""
    out: dict[Var, str] = {}
    for b in bases:
        stem, _, number = b.name.rpartition("_")
        free = number.isdigit() and stem not in out.values() and all(x.name != stem for x in bases)
        out[b] = stem if free and stem.startswith("B_") else b.name
    return out
