"""Recognising streamed regions in a graph: from a value contraction to all that goes with it, or the reason why it can't be.

One region is: score contractions, its outputs, and everything between the two. An output is a tensor that is needed outside: the
value contraction, row statistics (log-sum-exp, entropy), further value contractions with the same scores. The outputs' elements
are pulled into scalar expressions, and these taken apart into a cascade. A tensor of rows x keys that
is also needed outside makes the region refused: it would have to be written anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from aicf.scalar import (
    FUNCTIONS,
    Const,
    Expr,
    Load,
    Var,
    affine,
    extents,
    index,
    integer_const,
    is_float,
    promote,
    show,
    substitute,
    variables,
    walk,
)
from aicf.semantic import Node, users_of
from aicf.semantic.ops import At
from aicf.semantic.refusal import Refusal, Refused, refused, score_bytes
from aicf.semantic.types import is_one
from aicf.streaming.candidates import (
    CONTRACTIONS,
    SOFTMAXES,
    Candidate,
    after_softmax,
    candidates,
    digits,
    free,
    of_attention,
    pure,
    reduction_candidates,
    single_key,
    two_axis,
    without_products,
)
from aicf.streaming.cascade import Extraction, ScoreContraction, numbered
from aicf.streaming.derive import Reduction
from aicf.streaming.places import Places
from aicf.streaming.products import making, of_pairs
from aicf.streaming.pull import Puller, output_index, step
from aicf.streaming.simplify import fold_comparisons, in_fp32

VIEWS = ("reshape", "permute", "expand", "slice")
REDUCTIONS = (*CONTRACTIONS, "reduce")

# How the reason of a refusal ends where a tensor has a dimension of 0: nothing is missed there.
NO_ELEMENTS = "has no elements, so there is nothing to stream"


@dataclass(frozen=True)
class RegionOutput:
    """A tensor that leaves the region: its node, the index of its elements in the region's variables, and its element in terms
    of the cascade's results. `columns`: the variables that only this output has."""

    node: Node
    at: At
    expr: Expr
    columns: tuple[Var, ...]


@dataclass(frozen=True)
class Recognised:
    """A region: still semantics, no tiles. Variables: `batch` shared by everything, `row`, `stream`, columns of each output.
    `leaks`: what else reads a tensor of rows x keys of it, with the refusal if that is not within a region of its own.
    `stored`: what it reads of that size which the graph computes. `values`: it has a sum with values; without one it is a
    reduction of scores. `smaller`: the region with fewer products in its tiles, for when the tensor of one of them has to be
    written anyway. `places`: the ops that its expressions come from."""

    value: Node
    scores: tuple[ScoreContraction, ...]
    cascade: tuple[Reduction, ...]
    outputs: tuple[RegionOutput, ...]
    loads: Mapping[str, Node]
    batch: tuple[Var, ...]
    row: Var
    stream: Var
    columns: tuple[Var, ...]
    extents: Mapping[Var, Expr]
    inside: tuple[Node, ...]
    softmax_like: bool
    leaks: tuple[tuple[Node, Refusal], ...] = ()
    stored: tuple[Stored, ...] = ()
    values: bool = True
    smaller: Recognised | None = field(default=None, repr=False, compare=False)
    places: Places | None = field(default=None, repr=False, compare=False)

    @property
    def unfused_bytes(self) -> Expr:
        """Bytes of the tensors of rows x stream positions that the unfused form has alive at once."""
        dims = (self.extents[v] for v in (*self.batch, self.row, self.stream))
        return score_bytes(dims, self.scores[0].row.dtype if self.scores else "f32")


@dataclass(frozen=True)
class Stored:
    """A tensor of rows x stream positions that a region reads although the graph computes it: it is written before the region
    runs. `reason`: why it is no part of the region."""

    node: Node
    reason: str


@dataclass
class Settings:
    """What recognition may assume: `anchors`, the nodes whose tensors exist outside (None: all); `parameters`, model weights;
    `readers`, nodes that something outside of the graph reads, and what that is; `unknown`, inputs that the program computes in a
    way that is not followed, and why; `sources`, what those are computed from; `narrow`, whether reductions of scores are regions
    whatever the scores are made of."""

    anchors: Collection[Node] | None = None
    parameters: Collection[Node] = field(default_factory=frozenset[Node])
    readers: Mapping[Node, str] = field(default_factory=dict[Node, str])
    unknown: Mapping[Node, str] = field(default_factory=dict[Node, str])
    sources: Mapping[Node, Collection[Node]] = field(default_factory=dict[Node, Collection[Node]])
    narrow: bool = False


def recognise(
    nodes: list[Node], outputs: Collection[Node] | None = None, settings: Settings | None = None
) -> list[Recognised | Refusal]:
    """All regions of a graph given as its nodes in topological order, in the order of their value contractions.

    `outputs`: the nodes returned to the caller (nodes without users, when None). The cost is linear in the number of
    nodes plus the sizes of the regions.
    """
    context = _Context(_live(nodes, outputs, settings or Settings()), outputs, settings or Settings())
    results: list[Recognised | Refusal] = []
    taken: set[Node] = set()
    for node in context.nodes:
        if node in taken:
            continue
        best: Recognised | Refusal | None = None
        layer: Recognised | None = None  # it makes the values of an attention; what becomes of that is what counts
        for c in candidates(node):
            result = _attempt(context, c)
            if isinstance(result, Recognised) and not c.softmax_like and of_attention(c, context.settings.sources):
                layer = layer or result
            elif isinstance(result, Recognised):
                best = result
                break
            else:
                best = best or result
        best = _seen_through_views(context, node, best)
        unread = after_softmax(node, context.settings.sources) if best is None and context.settings.sources else None
        if unread is not None:
            why = context.settings.unknown.get(unread, "it is not followed")
            guilty = unread if unread.location and unread.location.file else None
            best = refused(node, f"{unread.name} stands between the softmax and the sum with the values: {why}", guilty)
        if best is None and context.single_keys and single_key(node):
            best = refused(node, "it attends to a single key: all weights are 1, and there is nothing to stream")
        made_of = without_products(node) if best is None and context.softmaxes else None
        if made_of is not None:
            guilty = next((n for n in made_of if n.location and n.location.file), None)
            best = refused(node, _no_products(made_of, context.settings.unknown), guilty)
        best = best or _seen_through_views(context, node, layer)
        if best is None:
            continue
        results.append(best)
        if isinstance(best, Recognised):
            taken.update(best.inside)
            taken.update(e.node for e in best.outputs)
    alone = _reductions(context, taken)
    results = _needed(_settled([*results, *alone]), context.outputs)
    # What reduces scores alone and cannot be taken is left as it is: nothing is lost that anybody counts on.
    results = [f for f in results if isinstance(f, Recognised) or f.node not in {r.value for r in alone}]
    taken = {n for f in results if isinstance(f, Recognised) for n in (*f.inside, *(e.node for e in f.outputs))}
    return [f for f in results if isinstance(f, Recognised) or f.node not in taken]


def _reductions(context: _Context, taken: set[Node]) -> list[Recognised]:
    """Regions without values: reductions over an axis of scores that no other region computes."""
    regions: list[Recognised] = []
    taken = set(taken)
    for node in context.nodes:
        if node in taken:
            continue
        for c in reduction_candidates(node, context.settings.narrow):
            result = _attempt(context, c)
            if isinstance(result, Recognised):
                regions.append(result)
                taken.update(result.inside)
                taken.update(e.node for e in result.outputs)
    return regions


def _settled(results: list[Recognised | Refusal]) -> list[Recognised | Refusal]:
    """Scores that two regions read are computed in each of them, and written by none: a softmax over the keys and one over the
    queries. What leaves a region to anywhere else must be written, and the region is refused."""
    while True:
        inside = {n for f in results if isinstance(f, Recognised) for n in f.inside}
        left = [_first_leak(f, inside) if isinstance(f, Recognised) else None for f in results]
        if not any(left):
            return results
        results = [f if leak is None else _without_leak(f, leak) for f, leak in zip(results, left, strict=True)]


def _needed(results: list[Recognised | Refusal], outputs: Collection[Node]) -> list[Recognised | Refusal]:
    """Without the regions of which nothing is read: all that they are for is computed in the tiles of others."""
    maker = {e.node: f for f in results if isinstance(f, Recognised) for e in f.outputs}
    needed: set[Node] = set()
    stack = [*outputs]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            made = maker.get(node)
            stack += node.inputs if made is None else made.loads.values()
    return [f for f in results if isinstance(f, Refusal) or any(e.node in needed for e in f.outputs)]


def _without_leak(region: Recognised | Refusal, leak: Refusal) -> Recognised | Refusal:
    """What is left of a region of which something must be written: the same with fewer products, or the refusal."""
    smaller = with_less(region, leak.reason) if isinstance(region, Recognised) else None
    return smaller or leak


def with_less(region: Recognised, why: str) -> Recognised | None:
    """The region with less computed in its tiles, if there is one; `why`: why the rest is stored."""
    return None if region.smaller is None else _explained(region.smaller, why)


def _explained(region: Recognised, why: str) -> Recognised:
    """`region` with the reason why what it stores could not be computed in its tiles."""
    return replace(region, stored=tuple(s if s.reason else replace(s, reason=why) for s in region.stored))


def _first_leak(region: Recognised, inside: Collection[Node]) -> Refusal | None:
    return next((why for user, why in region.leaks if user not in inside), None)


def _live(nodes: list[Node], outputs: Collection[Node] | None, settings: Settings) -> list[Node]:
    """The nodes that something is made of. Two views that undo each other leave the first without a reader."""
    if outputs is None:
        return nodes
    kept = {*outputs, *settings.readers}
    for node in reversed(nodes):
        if node in kept:
            kept.update(node.inputs)
    return [n for n in nodes if n in kept]


def _seen_through_views(context: _Context, node: Node, best: Recognised | Refusal | None) -> Recognised | Refusal | None:
    """`best`, or the region found when the result is indexed as a view of it is: where the heads that `bmm` merges stand apart
    again, other tensors of the region are indexed so too, and what divides the view belongs to the region."""
    if best is None or (isinstance(best, Recognised) and best.outputs[0].node is not node):
        return best
    views: list[Node] = []
    last = node
    while last not in context.outputs:
        users = context.users.get(last, [])
        if len(users) != 1 or users[0].op not in VIEWS or not context.anchor(users[0]):
            break
        last = users[0]
        views.append(last)
    whole = isinstance(best, Recognised) and not best.leaks
    if not views or (whole and not all(u.op in FUNCTIONS for u in context.users.get(last, []))):
        return best
    for c in candidates(node, views):
        result = _attempt(context, c)
        if isinstance(result, Recognised) and (not (whole or result.leaks) or result.outputs[0].node is not last):
            return result
    return best


class _Context:
    """Facts about the whole graph, computed once."""

    def __init__(self, nodes: list[Node], outputs: Collection[Node] | None, settings: Settings) -> None:
        self.nodes = nodes
        self.users = users_of(nodes)
        self.order = {n: k for k, n in enumerate(nodes)}
        self.outputs = set(outputs) if outputs is not None else {n for n in nodes if not self.users[n]}
        self.outputs.update(settings.readers)
        self.pure = pure(nodes)
        self.sizes = sorted({v.name for dim in {d for n in nodes for d in n.type.shape} for v in variables(dim)})
        self.softmaxes = any(n.op in SOFTMAXES for n in nodes)
        self.single_keys = any(n.op in SOFTMAXES and is_one(n.inputs[0].type.shape[n.attrs["axis"]]) for n in nodes)
        self.settings = settings

    def anchor(self, node: Node) -> bool:
        return self.settings.anchors is None or node in self.settings.anchors or node.op == "input"

    def downstream(self, scores: list[Node]) -> _Downstream:
        return _Downstream(scores, min((self.order.get(a, 0) for a in scores), default=0), self.order)


class _Downstream:
    """Which nodes depend on the scores; walks back no further than the first score contraction."""

    def __init__(self, scores: list[Node], first: int, order: dict[Node, int]) -> None:
        self.known: dict[Node, bool] = dict.fromkeys(scores, True)
        self.first, self.order = first, order

    def __contains__(self, node: Node) -> bool:
        stack = [node]
        while stack:
            n = stack[-1]
            if n in self.known:
                stack.pop()
            elif self.order.get(n, -1) < self.first:
                self.known[n] = False
            else:
                open_inputs = [i for i in n.inputs if i not in self.known]
                if open_inputs:
                    stack += open_inputs
                else:
                    self.known[n] = any(self.known[i] for i in n.inputs)
        return self.known[node]


class _Pull:
    """The cut policy of one region: go through what depends on the scores, what varies along both axes, and views;
    stop at everything that the rest of the graph can compute once per row or once per key."""

    def __init__(self, context: _Context, c: Candidate, written_out: bool = True) -> None:
        self.context, self.c = context, c
        self.written_out = written_out  # whether sums of a few terms for each pair are
        self.below = context.downstream(c.scores)
        self.scores = frozenset(c.scores)
        self.products = frozenset(c.products)
        self.counted: set[Node] = set()
        # What has an element for each row and stream position and is not computed in the tile, with the reason; products that
        # could be, and sums that are written out in it.
        self.stored: dict[Node, str] = {}
        self.further: dict[Node, tuple[Node, ...]] = {}
        self.unrolled: set[Node] = set()
        # Operands made of positions alone are loaded all the same: a region says which tensors its products are made of.
        operands = [*([] if c.values is None else [c.values]), *(x for a in c.scores for x in a.inputs)]
        self.operands = frozenset(_held(context, x) for x in operands if x in context.pure)
        self.puller = Puller(self.cut)
        self.puller.extents.update(c.known)

    def streamed(self, v: Var) -> bool:
        """Whether `v` runs along the streamed axis."""
        if v is self.c.stream:
            return True
        binder = self.puller.binders.get(v)
        if binder is None or binder in self.scores or binder in self.unrolled:
            return False
        return binder in self.below or binder in self.counted

    def _position(self, v: Var) -> Expr:
        """What stands, in terms of the stream's own variable, for one that a reduction along the stream binds."""
        binder = self.puller.binders.get(v)
        if binder is None or binder.op not in REDUCTIONS or self.puller.extents[v] is self.c.length:
            return self.c.stream
        here = step(binder, *output_index(binder))
        assert here is not None
        return digits(self.c.stream, {x: n for x, n in here.bound.items() if self.streamed(x) and not is_one(n)})[v]

    def few(self, v: Var) -> bool:
        """Whether `v` runs over the terms of a sum that is written out."""
        return self.puller.binders.get(v) in self.unrolled

    def cut(self, node: Node, at: At) -> bool:
        if node in self.context.pure:
            return self._closed(node, at) or node in self.operands
        if node in self.products:
            return False
        if node in self.below:
            if node in self.c.blocked:
                return self._store(node, at)
            if node.op in REDUCTIONS and node not in self.scores:
                self._store(node, at)  # for its short sums; what is below the scores exists nowhere else
            return False
        if not self.context.anchor(node):
            return False
        here = free(at)
        bound = [v for v in here if v in self.puller.binders and not self.streamed(v) and not self.few(v)]
        along = [v for v in here if self.streamed(v)]
        if not bound and along and two_axis(at, along, self.c.rows):
            return (self._reduces(node) or _narrows(node)) and self._store(node, at)
        return not self._transparent(node, at)

    def _store(self, node: Node, at: At) -> bool:
        """Whether `node`, which sums over something and is read along both axes, is computed outside: not when the tile can make
        it by short sums."""
        own: dict[Expr, Expr] = {v: self._position(v) for v in free(at) if self.streamed(v)}
        with extents(self.puller.extents):
            at = tuple(substitute(e, own) for e in at)
        if any(self.few(v) for v in free(at)):
            return False  # below a sum that is written out, which was looked into as a whole
        if not self._of_pairs(node, at):
            return True
        made = making(node, at, self.c, self.puller.extents)
        if made.sums and not self.written_out:
            self.stored[node] = made.problem  # mostly none: who finds such sums too slow knows why
            return True
        if not made.problem and not made.products.keys() - self.scores:
            self.unrolled.update(made.sums)
            return False
        if not made.problem:
            self.further.update(made.products)
        self.stored[node] = made.problem
        return True

    def _of_pairs(self, node: Node, at: At) -> bool:
        return of_pairs(node, at, self.c.rows, self.c.stream, self.puller.extents)

    def _closed(self, node: Node, at: At) -> bool:
        """Whether `node` is a function of positions that is computed outside all the same: in float64, which kernels don't have,
        or by a reduction that is not along the stream. Along it (has the row any key at all?) it is one more reduction of the
        region, which needs no tensor of rows x keys."""
        if _narrows(node):
            return self.context.anchor(node)
        here = step(node, *output_index(node))
        if here is None or not here.bound:
            return False
        if len(here.bound) == 1 and [*here.bound.values()] == [self.c.length] and not any(self.streamed(v) for v in free(at)):
            self.counted.add(node)
            return False
        return self.context.anchor(node)

    def _reduces(self, node: Node) -> bool:
        """Whether `node` sums over something, itself or in steps whose tensors exist nowhere (a linear layer with a bias)."""
        here = step(node, *output_index(node))
        return here is None or bool(here.bound) or any(not self.context.anchor(i) and self._reduces(i) for i in node.inputs)

    def _transparent(self, node: Node, at: At) -> bool:
        """Views, and conversions that lose nothing, are seen through as long as the index stays affine along each tile axis."""
        if node.op == "cast":
            source = node.inputs[0].type.dtype
            return is_float(source) and is_float(node.type.dtype) and promote(source, node.type.dtype) == node.type.dtype
        if node.op not in VIEWS:
            return False
        tile = tuple(sorted((v for v in free(at)), key=lambda v: v.name))
        here = step(node, at, self.puller.known(node, at))
        if here is None:
            return False
        batch = self.c.known.keys() - self.c.rows - {self.c.stream}
        moving = tuple(v for v in tile if v not in batch or v in self.puller.binders)
        return all(affine(e, moving) is not None for _, own in here.accesses for e in own)


def _narrows(node: Node) -> bool:
    """Whether `node` is the first one that is not in float64, which kernels don't have."""
    return node.type.dtype != "f64" and any(i.type.dtype == "f64" and i.type.rank > 0 for i in node.inputs)


def _held(context: _Context, node: Node) -> Node:
    """The tensor of the source that `node` is a view of."""
    while not context.anchor(node) and len(node.inputs) == 1:
        (node,) = node.inputs
    return node


def _attempt(context: _Context, c: Candidate, written_out: bool = True) -> Recognised | Refusal | None:
    """The region of a candidate, with every product of rows and stream positions that any of its outputs reads in its tiles: what
    one output reads beside the scores is known only when that output is pulled, so that products are added until none is left."""
    whole = None if c.whole is None else _attempt(context, c.whole, written_out)
    best = whole if isinstance(whole, Recognised) else None
    while True:
        policy = _Pull(context, c, written_out)
        try:
            result = _region(context, c, policy)
        except Refused as problem:  # it grows too far
            result = refused(c.node, problem.reason, problem.guilty) if c.softmax_like else None
        if not isinstance(result, Recognised):
            return result if best is None else _explained(best, _why_not(result))
        if policy.unrolled and best is None:
            plain = _attempt(context, c, written_out=False)
            best = plain if isinstance(plain, Recognised) else None
        if best is not None:
            result = replace(result, smaller=best)
        more = {node: steps for node, steps in policy.further.items() if node not in c.scores}
        if not more:
            return result
        best = result
        products = [*c.products, *(step for steps in more.values() for step in steps)]
        c = replace(c, scores=[*c.scores, *more], products=products, blocked=[n for n in c.blocked if n not in more])


def _why_not(result: Refusal | None) -> str:
    return "a region that computes it as well is none that streams" if result is None else result.reason


def _region(context: _Context, c: Candidate, policy: _Pull) -> Recognised | Refusal | None:
    if not c.scores:
        if not c.softmax_like:
            return None
        return refused(c.node, _mixing(c), c.node if c.elsewhere else c.blocked[0])
    if not c.softmax_like and c.values is not None and _weight(context, c.values):
        return None  # said before anything is pulled: through residual sums and norms a linear layer reaches all layers below it
    read = (*(x for a in c.scores for x in a.inputs), *c.node.inputs, c.node)
    none = next((n for n in read if any(isinstance(d, Const) and d.value == 0 for d in n.type.shape)), None)
    if none is not None:
        why = f"{none.name} {_tensor(none)} {NO_ELEMENTS}"
        return refused(c.node, why, None) if c.softmax_like else None
    target, at = _extended(context, policy, c)
    if not context.anchor(target):
        whole = target.location.op if target.location else "an op"
        why = f"{target.name} is an internal step of {whole} and has no tensor of its own"
        return refused(c.node, why, target) if c.softmax_like else None
    element = policy.puller.pull(target, at)
    if not _interesting(c, policy, element):
        return None
    columns = {v for v in free(at) if v not in _score_variables(c)}
    extraction = Extraction(
        c.stream, c.length, c.rows, columns, policy.puller.extents, policy.streamed, policy.few, context.sizes
    )  # fmt: skip
    try:
        own = tuple(_var(v) for v in at if v in columns)
        outputs = [RegionOutput(target, at, _prepared(extraction, policy, element), own)]
        leaks: dict[Node, Refusal] = {}
        outside = _further_outputs(context, policy, c, target, leaks)
        if isinstance(outside, Refusal):
            return outside if c.softmax_like or not (_projected(policy) or _weights(context, policy, c, extraction)) else None
        for node, where, pulled, more in outside:
            columns.update(more)
            outputs.append(RegionOutput(node, where, _prepared(extraction, policy, pulled), more))
    except Refused as problem:
        if not c.softmax_like:
            return None
        guilty = policy.puller.binders.get(problem.where) if isinstance(problem.where, Var) else None
        return refused(c.node, problem.reason, guilty)
    if any(variables(e) & columns for a in extraction.scores.values() for e in (a.row, a.key)):
        why = "the scores differ per value column, so a tile of scores serves one column only"
        return next(iter(leaks.values()), refused(c.node, why)) if c.softmax_like else None
    if any(not is_float(promote(a.row.dtype, a.key.dtype)) for a in extraction.scores.values()):
        why = "its scores are products of integers; kernels multiply floating point numbers: convert queries and keys before"
        return refused(c.node, why) if c.softmax_like else None
    if not extraction.scores:
        return refused(c.node, "the mask hides every score, whatever they are: nothing is left to stream", None)
    # Without values the result is smaller than the scores, whatever those are made of.
    linear = c.values is not None and not c.softmax_like
    if linear and ((leaks and _projected(policy)) or _weights(context, policy, c, extraction)):
        return None
    return _finished(policy, c, extraction, outputs, columns, leaks)


def _no_products(made_of: list[Node], unknown: Mapping[Node, str]) -> str:
    said = [n.name + (f" ({unknown[n]})" if n in unknown else "") for n in made_of[:3]]
    names = ", ".join(said) + (", …" if len(made_of) > 3 else "")
    return (
        "no product of queries and keys is found below its softmax"
        + (f": the scores are made of {names} alone" if names else "")
        + "; kernels are derived for scores that a contraction makes"
    )


def _mixing(c: Candidate) -> str:
    if c.elsewhere:
        return (
            "the sum with the values runs along an axis that the product of queries and keys has on both sides (heads mixed "
            "after the softmax, keys in overlapping chunks), so that one result depends on other rows' or heads' scores"
        )
    node = c.blocked[0]
    # Frontends name a node after its op where they can: "matmul_1", which need not be said twice.
    called = node.name if node.name.startswith(node.op) else f"{node.op} {node.name}"
    if c.additive:
        return (
            f"the scores are what {called} sums: terms made of a query and a key, but not as a product of the two (additive "
            "attention); kernels are derived for scores that are sums of such products"
        )
    return (
        f"the scores pass through {called}, which sums over an axis of the score tensor itself (one row's scores "
        "depend on other rows' or heads' scores), so a tile of them cannot be computed from a tile of keys"
    )


def _prepared(extraction: Extraction, policy: _Pull, element: Expr) -> Expr:
    return extraction.take(fold_comparisons(in_fp32(element), policy.puller.extents))


def _interesting(c: Candidate, policy: _Pull, element: Expr) -> bool:
    """Something other than a plain product of matrices happens between the scores and the sum."""
    if c.softmax_like or c.values is None:
        return True
    own = {c.node, *c.products, *policy.scores}
    between = [n for n in policy.puller.visits if n in policy.below and n not in own]
    return any(n.op not in (*VIEWS, "cast", "mul", "div", "neg") or _score_shaped_factor(n, policy) for n in between)


def _score_shaped_factor(n: Node, policy: _Pull) -> bool:
    """A product with something that is not a plain number: a mask or decay multiplied into the scores."""
    return n.op in ("mul", "div") and any(i.type.rank > 0 and i not in policy.below for i in n.inputs)


def _score_variables(c: Candidate) -> set[Var]:
    """Variables of the value contraction that P is read with: batch and row variables (the others are columns of V)."""
    return set(free(c.place))


def _weights(context: _Context, policy: _Pull, c: Candidate, extraction: Extraction) -> bool:
    """Keys or values are model parameters, or experts' shares of them: linear layers, which matrix libraries do better."""
    # Where in the keys to look (an index tensor's numbers) is no key.
    names = {x.tensor for a in extraction.scores.values() for x in walk(a.key) if isinstance(x, Load) and is_float(x.dtype)}
    keys = bool(names) and all(_weight(context, policy.puller.loads[n]) for n in names)
    return keys or (c.values is not None and _weight(context, c.values))


def _projected(policy: _Pull) -> bool:
    """All scores are products with model parameters: projections, or the scores of learned queries."""
    return all(any(_weight(policy.context, x) for x in a.inputs) for a in policy.scores)


def _weight(context: _Context, node: Node) -> bool:
    """A model parameter, or a part of one."""
    while node.op in (*VIEWS, "cast", "take", "gather"):
        node = node.inputs[0]
    return node in context.settings.parameters


# ------------------------------------------------------------------------------------------------ outputs


def _extended(context: _Context, policy: _Pull, c: Candidate) -> tuple[Node, At]:
    """The value contraction, or what row-wise ops make of it right after: `(e @ v) / l` is one result. A step of an op of the
    source, which exists as a tensor nowhere, is followed to the op's own result."""
    node, at = c.seen, c.plain
    policy.puller.pull(node, at)
    while True:
        users = context.users.get(node, [])
        if len(users) != 1 or node in context.outputs:
            return node, at
        (user,) = users
        step_only = not context.anchor(node)
        here = step(user, *output_index(user))
        if here is None or here.bound or user.op in ("concat", "pad", "take", "gather"):
            return node, at
        others = [i for i in user.inputs if i is not node]
        if step_only:
            grown = None if any(i in policy.below for i in others) else _through(policy, node, at, user, c)
            if grown is None or grown[1]:
                return node, at
            node, at = user, grown[0]
            continue
        if user.op in VIEWS or user.type.shape != node.type.shape or not context.anchor(user):
            return node, at
        if not all(i in context.pure or (i in policy.below and _row_value(policy, i)) for i in others):
            return node, at
        if any(_waits(policy, i, context.order[c.node]) for i in others):
            return node, at
        node = user


def _waits(policy: _Pull, node: Node, limit: int) -> bool:
    """Whether `node` needs, beside the scores, a tensor that comes after position `limit` of the graph: another region's."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in seen or n not in policy.below or n in policy.scores:
            continue
        seen.add(n)
        stack += n.inputs
        for i in n.inputs:
            given = i in policy.below or i.op == "input" or i in policy.context.pure
            if not given and policy.context.order[i] > limit:
                return True
    return False


def _row_value(policy: _Pull, node: Node) -> bool:
    """A value per row that comes from reductions of the scores (not score-shaped, nor another output)."""
    here = [node]
    seen: set[Node] = set()
    while here:
        n = here.pop()
        if n in seen or n not in policy.below:
            continue
        seen.add(n)
        visits = policy.puller.visits.get(n, [])
        if visits:
            if any(policy.streamed(v) for at in visits for v in free(at)):
                if n is node:
                    return False
                continue
            continue
        if n in policy.scores:
            return False
        kept = step(n, *output_index(n))
        if kept is None or n.op in CONTRACTIONS:
            return False
        if kept.bound:
            continue
        here += n.inputs
    return True


PulledOutput = tuple[Node, At, Expr, tuple[Var, ...]]


def _further_outputs(
    context: _Context, policy: _Pull, c: Candidate, target: Node, leaks: dict[Node, Refusal]
) -> list[PulledOutput] | Refusal:
    """Further tensors that leave the region, pulled; or the refusal when rows x keys would have to leave. What is not followed
    and reads rows x keys goes to `leaks`: it may be another region's."""
    outputs: list[PulledOutput] = []
    made: set[Var] = set()  # columns of products beside the region's own: whatever is made of one is indexed by them too
    done: set[Node] = {target}
    visits = policy.puller.visits
    work: list[Node] = []
    inside = {target}
    looked_at = 0
    while True:
        # What a further output is made of is looked at like what the first one is made of.
        fresh = [n for n in islice(visits, looked_at, None) if n in policy.below and n not in inside]
        looked_at = len(visits)
        work += sorted(fresh, key=context.order.__getitem__)
        inside.update(fresh)
        if not work:
            # What only the region itself goes on with need not leave it.
            return [f for f in outputs if f[0] in context.outputs or not inside.issuperset(context.users.get(f[0], []))]
        node = work.pop(0)
        if node in done:
            continue
        done.add(node)
        where = _place(policy, node)
        along = any(policy.streamed(v) for v in free(where))
        outside = [u for u in context.users.get(node, []) if u not in inside]
        if node in context.outputs or (outside and not along):
            if along:
                what = f"the {_what(node, policy)} {node.name} {_tensor(node)}"
                reader = context.settings.readers.get(node)
                how = "is itself returned" if reader is None else f"is also read by {reader}"
                return refused(c.node, f"{what} {how}, so it must be written", node)
            if context.anchor(node):
                at = _plain(where, node)
                if at is None:
                    return refused(c.node, f"{node.name} is used outside and is not indexed by the region's rows", node)
                outputs.append((node, at, policy.puller.pull(node, where), _among(made, at)))
                continue
        for user in outside:
            grown = _through(policy, node, where, user, c)
            if grown is None:
                what = f"the {_what(node, policy)} {node.name} {_tensor(node)}"
                leaks[user] = refused(c.node, f"{what} is also used by {user.op} {user.name}, so it must be written", user)
                if not along:
                    return leaks[user]
                continue
            at, own = grown
            made.update(own)
            inside.add(user)
            element = policy.puller.pull(user, at)
            if any(policy.streamed(v) for v in free(at)):
                work.append(user)
                continue
            if user in context.outputs or context.users.get(user):
                if not context.anchor(user):
                    work.append(user)
                    continue
                done.add(user)
                plain = _plain(at, user)
                if plain is None:
                    return refused(c.node, f"{user.name} is not indexed by the region's rows", user)
                outputs.append((user, plain, element, _among(made, plain)))


def _among(columns: set[Var], at: At) -> tuple[Var, ...]:
    return tuple(v for v in at if isinstance(v, Var) and v in columns)


def _what(node: Node, policy: _Pull) -> str:
    if _projected(policy):
        return "projection by weights, which stands for the scores here (a softmax over positions),"
    return "score tensor" if node in policy.scores else "score-shaped tensor"


def _tensor(node: Node) -> str:
    return f"[{', '.join(map(show, node.type.shape))}]"


def _place(policy: _Pull, node: Node) -> At:
    """The index at which a node was read along the streamed axis (or at all)."""
    visits = policy.puller.visits[node]
    for at in visits:
        if policy.c.stream in free(at):
            return at
    return visits[0]


def _plain(at: At, node: Node) -> At | None:
    """The index of every element of `node` in region variables, or None when some element is not reached by it."""
    seen: set[Expr] = set()
    for e, dim in zip(at, node.type.shape, strict=True):
        if isinstance(e, Var) and e not in seen:
            seen.add(e)
        elif not (is_one(dim) and isinstance(e, Const)):
            return None
    return at


def _through(policy: _Pull, node: Node, where: At, user: Node, c: Candidate) -> tuple[At, tuple[Var, ...]] | None:
    """The index of `user`'s elements that goes with `node` read at `where`, and the new column variables, or None when user
    does not follow the region's axes."""
    prefix = f"y{policy.context.order[user]}_"
    at, known = output_index(user, prefix)
    here = step(user, at, {**policy.puller.extents, **known})
    if here is None:
        return None
    values: dict[Expr, Expr] = {}
    for k, own in here.accesses:
        if user.inputs[k] is not node:
            continue
        for mine, theirs in zip(own, where, strict=True):
            if isinstance(mine, Var) and mine in known:
                if values.setdefault(mine, theirs) is not theirs:
                    return None
            elif isinstance(mine, Var) and mine in here.bound:
                if not (isinstance(theirs, Var) and policy.streamed(theirs)):
                    return None
            elif mine is not theirs and not (isinstance(mine, Const) and isinstance(theirs, Const)):
                return None
    columns = tuple(v for v in known if v not in values)
    for v in columns:
        policy.puller.extents[v] = known[v]
        dim = known[v]
        if is_one(dim):
            values[v] = integer_const(0)
    columns = tuple(v for v in columns if v not in values)
    if columns and user.op not in CONTRACTIONS:
        return None
    return tuple(substitute(e, values) for e in at), columns


# ------------------------------------------------------------------------------------------------ names and roles

_BATCH = ("b", "h", "g", "u", "w", "z")


def _finished(
    policy: _Pull, c: Candidate, x: Extraction, outputs: list[RegionOutput], columns: set[Var], leaks: Mapping[Node, Refusal]
) -> Recognised | Refusal:
    """Variables renamed by role and packed into the result."""
    keys = {v for a in x.scores.values() for v in variables(a.key)}
    row_side = {v for a in x.scores.values() for v in variables(a.row)}
    given = [v for v in c.plain if isinstance(v, Var) and v not in columns]
    rows = [v for v in given if v not in keys and v in row_side and v in c.rows]
    rows = rows or [v for v in given if v not in keys and v in row_side]
    extents = dict(policy.puller.extents)
    if rows:
        row = max(rows, key=lambda v: (_length(extents[v]), c.plain.index(v)))
    else:
        row = index("row")
        extents[row] = integer_const(1)
    names: dict[Expr, Expr] = {}
    renamed: dict[Var, Expr] = {}

    def rename(v: Var, name: str) -> Var:
        new = index(numbered(name, [x.name for x in renamed], policy.context.sizes))
        names[v] = new
        renamed[new] = extents[v]
        return new

    others = [v for v in given if v is not row]
    batch = tuple(rename(v, _BATCH[n] if n < len(_BATCH) else f"b{n}") for n, v in enumerate(others))
    new_row = rename(row, "i")
    new_stream = rename(c.stream, "j")
    all_columns = [v for e in outputs for v in e.columns]
    new_columns = tuple(rename(v, "e") for v in dict.fromkeys(all_columns))
    for a in x.scores.values():
        if a.over not in names:
            rename(a.over, "d")

    def put(e: Expr) -> Expr:
        return substitute(e, names)

    scores = tuple(ScoreContraction(a.name, _var(put(a.over)), put(a.width), put(a.row), put(a.key)) for a in x.scores.values())
    cascade = tuple(Reduction(r.name, r.op, put(r.body)) for r in x.reductions)
    final = tuple(
        RegionOutput(e.node, tuple(put(i) for i in e.at), put(e.expr), tuple(_var(put(v)) for v in e.columns)) for e in outputs
    )
    read = [*(r.body for r in cascade), *(a.row for a in scores), *(a.key for a in scores), *(e.expr for e in final)]
    used = {n.tensor for e in read for n in walk(e) if isinstance(n, Load)}
    inside = tuple(n for n in policy.context.nodes if n in policy.puller.visits and n in policy.below)
    read_here = {x: None for r in cascade for x in walk(r.body) if isinstance(x, Load)}
    stored = _stored(policy, list(read_here), new_row, new_stream, renamed)
    return Recognised(
        c.node, scores, cascade, final, {k: v for k, v in policy.puller.loads.items() if k in used},
        batch, new_row, new_stream, new_columns, renamed, inside, c.softmax_like, tuple(leaks.items()), stored,
        c.values is not None, places=_places(policy, x, put),
    )  # fmt: skip


def _places(policy: _Pull, x: Extraction, put: Callable[[Expr], Expr]) -> Places:
    """The ops that the region's expressions come from; `put` gives an expression the region's own variables."""
    visits, binders = policy.puller.visits, policy.puller.binders

    def elements() -> Iterator[tuple[Node, Expr]]:
        for node in policy.context.nodes:
            for at in visits.get(node, ()) if node in policy.below else ():
                own: dict[Expr, Expr] = {v: policy.c.stream for v in free(at) if policy.streamed(v)}
                try:
                    yield node, put(_prepared(x, policy, substitute(policy.puller.pull(node, at), own)))
                except Refused:  # an element that is not in the region's variables
                    continue

    return Places(elements, {name: binders[v] for name, v in x.binders.items() if v in binders})


def _stored(policy: _Pull, loads: list[Load], row: Var, stream: Var, extents: Mapping[Var, Expr]) -> tuple[Stored, ...]:
    """Of the tensors that are read for each row and stream position, those that the graph computes."""
    stored: dict[Node, Stored] = {}
    context = policy.context
    for x in loads:
        node = source = policy.puller.loads[x.tensor]
        while source.op in (*VIEWS, "cast"):
            source = source.inputs[0]
        unknown = context.settings.unknown.get(source)
        given = (source.op == "input" and unknown is None) or source.op == "constant"
        if not given and of_pairs(node, x.index, frozenset((row,)), stream, extents):
            why = policy.stored.get(node, "it is computed in float64" if source in context.pure else "")
            stored[node] = Stored(node, unknown or why)
    return tuple(stored.values())


def _var(e: Expr) -> Var:
    assert isinstance(e, Var)
    return e


def _length(e: Expr) -> int:
    return int(e.value) if isinstance(e, Const) else 1 << 40


__all__ = ["Recognised", "Refusal", "RegionOutput", "Settings", "Stored", "recognise", "with_less"]
