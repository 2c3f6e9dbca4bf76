"""Where streaming could start: contractions that sum, over some axis j, the product of a tensor P computed from scores and a V.

Scores are a contraction over another axis whose one operand does not have j (the row side) and whose other operand has only j
(the streamed side). Nothing here looks at names or spellings: the roles follow from which index variables each operand is read
with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aicf.scalar import FUNCTIONS, Const, Expr, Var, call, extents, index, integer_const, is_float, substitute, variables
from aicf.semantic import Node
from aicf.semantic.ops import At
from aicf.semantic.types import is_one, product
from aicf.streaming.pull import output_index, step

T = TypeVar("T")
CONTRACTIONS = ("matmul", "einsum")
CREATED = ("scalar", "iota")
SOFTMAXES = ("softmax", "log_softmax", "logsumexp")
EXPONENTIALS = tuple(f.name for f in FUNCTIONS.values() if f.cost == "exponential")
WIDER = 2  # a row of scores beside what its products contract: from here on it is an intermediate that is large


@dataclass
class Candidate:
    """A value contraction, the variable it sums over, its operands P (`weights`, read at `place`) and V (`values`; None for
    another reduction, of P alone), the row variables that only P has, the view of the contraction whose elements the variables
    index (`seen`, at `plain`; mostly itself), the score contractions below P, and the contractions that mix P's rows
    (`blocked`; `additive`: the scores are of the additive form, sum(w * f(row, key)), and no product of rows and keys;
    `elsewhere`: one has the summed variable as a batch). `products`: the element-wise products that belong to contractions
    spelt as a product and a sum. `softmax_like`: exponentials of the scores are taken on the way (and the scores not only
    normalised, as by a norm between two linear layers). `whole`: the same with rows, where this one has none left because a
    product has keys of its own for each row (relative positions); that product is stored there."""

    node: Node
    at: At
    known: dict[Var, Expr]
    stream: Var
    length: Expr
    weights: Node
    place: At
    values: Node | None
    rows: frozenset[Var]
    seen: Node
    plain: At
    scores: list[Node] = field(default_factory=list[Node])
    blocked: list[Node] = field(default_factory=list[Node])
    products: list[Node] = field(default_factory=list[Node])
    softmax_like: bool = False
    additive: bool = False
    elsewhere: bool = False
    whole: Candidate | None = None


def free(at: At) -> frozenset[Var]:
    """The variables of an index."""
    return frozenset[Var]().union(*(variables(e) for e in at))


def candidates(node: Node, views: Sequence[Node] = ()) -> list[Candidate]:
    """All ways to see `node` as sum_j P[.., j] V[j, ..] with scores below P; those with score contractions first.

    `views`: what leads from `node` to a view of it; the candidates' variables index that view then. The heads that a product of
    matrices merges for its own sake (`bmm`) are apart there, as they are in everything else.
    """
    seen = views[-1] if views else node
    plain, known = output_index(seen)
    at = plain
    for n in reversed(views):
        below = step(n, at, known)
        if below is None or len(below.accesses) != 1 or below.bound:
            return []
        at = below.accesses[0][1]
    here = contraction(node, at, known)
    if here is None or len(here.operands) != 2:
        return []
    result: list[Candidate] = []
    for one in [here, *([whole] if (whole := _folded(node, here)) is not None else [])]:
        result += _of_contraction(node, one, at, known, views, seen, plain)
    return sorted(result, key=lambda c: (not c.scores, not c.softmax_like))


def _folded(node: Node, here: Contraction) -> Contraction | None:
    """A contraction over several axes that both operands have (the query heads of a group, and their queries) as one over a
    single axis, whose position counts through all of them."""
    shared = {v: n for v, n in here.bound.items() if all(v in free(a) for _, a in here.operands) and not is_one(n)}
    if len(shared) < 2:
        return None
    over = index(f"{node.name}.all")
    length = product(shared.values())
    with extents({over: length}):
        places = digits(over, shared)
    operands = tuple((x, tuple(substitute(e, places) for e in a)) for x, a in here.operands)
    return Contraction(operands, {over: length}, here.products)


def digits(over: Var, axes: Mapping[Var, Expr]) -> dict[Expr, Expr]:
    """The position on each of `axes`, the last one fastest, of position `over` on the axis that they make together."""
    values: dict[Expr, Expr] = {}
    rest: Expr = over
    for k, (v, extent) in enumerate(reversed(tuple(axes.items()))):
        outermost = k == len(axes) - 1
        values[v] = rest if outermost else call("mod", rest, extent)
        rest = call("floordiv", rest, extent)
    return values


def _of_contraction(
    node: Node, here: Contraction, at: At, known: dict[Var, Expr], views: Sequence[Node], seen: Node, plain: At
) -> list[Candidate]:
    result: list[Candidate] = []
    for over, length in here.bound.items():
        if isinstance(length, Const) and length.value == 1 and len(here.bound) > 1:
            continue
        if not all(over in free(a) for _, a in here.operands):
            continue
        for n, (weights, own) in enumerate(here.operands):
            values, other = here.operands[1 - n]
            if here.products and free(at) <= free(own):
                continue  # the sum of what weights keep: a normaliser
            rows = free(own) - free(other) - {over}
            if views and not _apart(node, n, at, rows):
                continue
            c = Candidate(node, at, {**known, **here.bound}, over, length, weights, own, values, rows, seen, plain)
            batch = _walk(c, here)
            if c.blocked and batch:  # the values are shared along axes that queries and keys have
                narrowed = Candidate(node, at, c.known, over, length, weights, own, values, rows - batch, seen, plain)
                _walk(narrowed, here)
                if c.scores and not narrowed.rows:
                    narrowed.whole = c
                c = c if narrowed.blocked else narrowed
            if c.scores or c.blocked:
                result.append(c)
    return result


def reduction_candidates(node: Node, narrow: bool = False) -> list[Candidate]:
    """All ways to see `node`, a reduction over one axis (a maximum, a log-sum-exp, whether any), as one of a tensor computed from
    scores. `narrow`: also where a row of scores is no larger than what it is made of."""
    if node.op not in ("reduce", "logsumexp"):
        return []
    at, known = output_index(node)
    here = step(node, at, known)
    if here is None or (node.op == "reduce" and len(here.bound) != 1):
        return []
    over, length = next(iter(here.bound.items()))
    own = next((a for _, a in here.accesses if over in free(a)), None)
    if own is None:
        return []
    rows = free(own) - {over}
    c = Candidate(node, at, {**known, over: length}, over, length, node.inputs[0], own, None, rows, node, at)
    batch = _walk(c, None)
    if c.blocked and batch:
        narrowed = Candidate(node, at, c.known, over, length, c.weights, own, None, rows - batch, node, at)
        _walk(narrowed, None)
        c = narrowed
    return [c] if c.scores and not c.blocked and (narrow or _wide(c)) else []


def _wide(c: Candidate) -> bool:
    """Whether a row of scores is larger than what it is made of: statistics of a layer's features are none of this kind."""
    made_of: Expr = integer_const(0)
    for a in c.scores:
        here = step(a, *output_index(a))
        assert here is not None
        made_of = call("add", made_of, product(here.bound.values()))
    return not (isinstance(made_of, Const) and isinstance(c.length, Const)) or c.length.value >= WIDER * made_of.value


def _apart(node: Node, n: int, at: At, rows: frozenset[Var]) -> bool:
    """Whether `at`, the index of `node` in a view's variables, has `rows` and the columns by themselves. Operand `n` has the
    rows; batch axes may be merged or split by the view."""
    plain, known = output_index(node)
    here = contraction(node, plain, known)
    assert here is not None
    own, other = (free(here.operands[k][1]) for k in (n, 1 - n))
    if bool(rows) != any(v in own and v not in other for v in plain) or not all(v in at for v in rows):
        return False
    columns = [k for k, v in enumerate(plain) if v in other and v not in own]
    rest = free(tuple(e for k, e in enumerate(at) if k not in columns))
    mine = [v for k in columns for v in variables(at[k])]
    return all(isinstance(at[k], Var | Const) for k in columns) and len({*mine}) == len(mine) and rest.isdisjoint(mine)


@dataclass(frozen=True)
class Contraction:
    """A sum of products: the operands and where they are read, what is summed over, and the element-wise product when the
    source has one of its own."""

    operands: tuple[tuple[Node, At], ...]
    bound: dict[Var, Expr]
    products: tuple[Node, ...] = ()


def contraction(node: Node, at: At, known: dict[Var, Expr]) -> Contraction | None:
    """`node` at `at` as a contraction, when it is one: a matmul, an einsum, or the sum of an element-wise product."""
    summed = node.op == "reduce" and node.attrs["op"] == "sum" and node.inputs[0].op == "mul"
    if node.op not in CONTRACTIONS and not summed:
        return None
    here = step(node, at, known)
    if here is None:
        return None
    if not summed:
        return Contraction(tuple((node.inputs[k], own) for k, own in here.accesses), here.bound)
    product = node.inputs[0]
    factors = step(product, here.accesses[0][1], {**known, **here.bound})
    if factors is None:
        return None
    return Contraction(tuple((product.inputs[k], own) for k, own in factors.accesses), here.bound, (product,))


def without_products(node: Node) -> list[Node] | None:
    """The inputs and contractions that the scores are made of, when `node` contracts a softmax over keys with one element per row
    and key; None when it does not."""
    at, known = output_index(node)
    here = contraction(node, at, known)
    if here is None or len(here.operands) != 2:
        return None
    for n, (weights, own) in enumerate(here.operands):
        for over in here.bound:
            rows = free(own) - free(here.operands[1 - n][1]) - {over}
            if over not in free(own) or not rows or free(at) <= free(own):
                continue
            read = _read(weights, own)
            if any(x.op in SOFTMAXES and over in variables(where[x.attrs["axis"]]) for x, where in read):
                return list(dict.fromkeys(x for x, where in read if x.op == "input" or contraction(x, where, {}) is not None))
    return None


def _read(node: Node, at: At) -> list[tuple[Node, At]]:
    """`node` and what its element at `at` is made of, with the indices, as far as the next contraction."""

    def onward(key: tuple[Node, At]) -> list[tuple[Node, At]]:
        here = step(*key, {})
        if here is None or contraction(*key, {}) is not None:
            return []
        return [(key[0].inputs[k], own) for k, own in here.accesses]

    return _reached([(node, at)], onward)


def single_key(node: Node) -> bool:
    """Whether `node` contracts the softmax of scores that have only one key, along an axis of extent 1."""
    if node.op not in CONTRACTIONS:
        return False
    softmaxes = [n for n in _through(node.inputs) if n.op in SOFTMAXES and is_one(n.type.shape[n.attrs["axis"]])]
    return any(n.op in CONTRACTIONS for softmax in softmaxes for n in _through(softmax.inputs))


def after_softmax(node: Node, sources: Mapping[Node, Collection[Node]]) -> Node | None:
    """The input, computed from `sources` in a way that is not followed, that stands between a softmax of products and the
    contraction `node`; None when there is none. What is no number of each weight is no attention's weights: the positions of a
    selection, or fewer elements than the softmax has (the experts that a router chooses)."""
    if node.op not in CONTRACTIONS:
        return None
    for x in _through(node.inputs):
        if not is_float(x.type.dtype):
            continue
        size = product(x.type.shape)
        if any(product(n.type.shape) == size for n, _ in _softmaxes(_through([*sources.get(x, ())]))):
            return x
    return None


def of_attention(c: Candidate, sources: Mapping[Node, Collection[Node]]) -> bool:
    """Whether what `c` takes for values is an attention's weights: a softmax of products over the summed axis, also below what
    is computed from `sources` in a way that is not followed. What `c` takes for scores makes the values of that attention."""
    here = contraction(c.node, c.at, c.known)
    read = [x for o in (() if here is None else here.operands) if o != (c.weights, c.place) for x in _read(*o)]
    for node, at in read:
        for normalised, axis in _softmaxes(_through([node, *sources.get(node, ())])):
            if normalised.type.shape == node.type.shape and c.stream in variables(at[axis]):
                return True
    return False


def _softmaxes(nodes: Iterable[Node]) -> Iterator[tuple[Node, int]]:
    """The softmaxes of products among `nodes`, those written out as a sum of exponentials too: a tensor of the shape of what is
    normalised, and the axis."""
    for n in nodes:
        if n.op in SOFTMAXES:
            found, axis, whole = n, n.attrs["axis"], True
        elif n.op == "reduce" and n.attrs["op"] == "sum" and len(n.attrs["axes"]) == 1:
            found, axis, whole = n.inputs[0], n.attrs["axes"][0], False
        else:
            continue
        below = _through(n.inputs)
        if any(x.op in CONTRACTIONS for x in below) and (whole or any(x.op == "exp" for x in below)):
            yield found, axis


def _through(nodes: Sequence[Node]) -> list[Node]:
    """`nodes` and what they are made of, as far as the next contraction or softmax."""
    return _reached(nodes, lambda n: () if n.op in (*CONTRACTIONS, *SOFTMAXES) else n.inputs)


def _reached(sources: Iterable[T], onward: Callable[[T], Iterable[T]]) -> list[T]:
    """`sources` and all that `onward` leads to from them, each once."""
    reached: dict[T, None] = {}
    stack = list(sources)
    while stack:
        x = stack.pop()
        if x not in reached:
            reached[x] = None
            stack += onward(x)
    return list(reached)


def two_axis(at: At, stream: Collection[Var], rows: frozenset[Var]) -> bool:
    """Whether an element read at `at` varies both along the streamed axis and from row to row."""
    here = free(at)
    return any(s in here for s in stream) and (not rows or bool(here & rows))


def _walk(c: Candidate, values: Contraction | None) -> frozenset[Var]:
    """Collects the score contractions that P's element depends on at (i, j), through element-wise ops, views and softmaxes.
    Returns the row variables that both sides of a blocked one have: a batch of products, not one of each row with each key."""
    stack = [(c.weights, c.place)]
    seen: set[tuple[Node, At]] = set()
    batch: frozenset[Var] = frozenset()
    c.products += values.products if values is not None else ()
    users: dict[Node, list[Node]] = {}
    whole = False
    while stack:
        node, at = stack.pop()
        if (node, at) in seen:
            continue
        seen.add((node, at))
        here = step(node, at, c.known)
        if here is None:
            continue
        reads = [(node.inputs[k], own) for k, own in here.accesses]
        summed = contraction(node, at, c.known)
        if summed is not None:
            mixed = [own for _, own in summed.operands if c.rows and two_axis(own, (c.stream,), c.rows)]
            row_side = [own for _, own in summed.operands if c.stream not in free(own)]
            if not mixed and row_side and len(row_side) < len(summed.operands):
                if node not in c.scores:
                    c.scores.append(node)
                    c.products += summed.products
                continue
            if not summed.products:
                if node not in c.blocked:
                    c.blocked.append(node)
                    batch |= frozenset[Var]().union(*(free(a) & free(b) & c.rows for a in mixed for b in row_side))
                    c.additive = c.additive or _additive(c, summed)
                    c.elsewhere = c.elsewhere or all(c.stream in free(own) for _, own in summed.operands)
                continue
        whole = whole or node.op in SOFTMAXES
        for source, own in reversed(reads):
            if two_axis(own, (c.stream,), c.rows):
                stack.append((source, own))
                users.setdefault(source, []).append(node)
    c.softmax_like = whole or any(n.op in EXPONENTIALS for n in _reached([*c.scores, *c.blocked], lambda n: users.get(n, ())))
    return batch


def _additive(c: Candidate, summed: Contraction) -> bool:
    """Whether `summed` weighs, with what is the same for all rows and keys, elements that are made without any such product."""
    mixed = [(x, own) for x, own in summed.operands if two_axis(own, (c.stream,), c.rows)]
    others = [own for x, own in summed.operands if (x, own) not in mixed]
    if len(mixed) != 1 or any(free(own) & (c.rows | {c.stream}) for own in others):
        return False
    made = _read(*mixed[0])
    return not any(two_axis(own, (c.stream,), c.rows) and contraction(x, own, {}) is not None for x, own in made)


def pure(nodes: list[Node]) -> set[Node]:
    """The nodes that depend on nothing but sizes, positions and literals: cheap to compute anywhere."""
    known: set[Node] = set()
    for n in nodes:
        literal = n.op in CREATED or (n.op == "constant" and (n.type.rank == 0 or step(n, output_index(n)[0], {}) is not None))
        if literal or (n.inputs and all(i in known for i in n.inputs) and n.op not in CONTRACTIONS):
            known.add(n)
    return known
