"""The closed op table: one row per op with its type rule, its NumPy meaning and its scalar meaning.

The *scalar meaning* says what one element of the result is: an expression over elements of the inputs, with reductions
written out. It is what detection and derivation work on; two graphs that spell the same thing have the same scalar meaning.
The *NumPy meaning* computes the whole tensor; a property test holds the two together.

Element-wise ops are the rows of `aicf.scalar.FUNCTIONS`, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aicf.scalar import (
    FUNCTIONS,
    DType,
    Expr,
    Var,
    call,
    cast,
    const,
    evaluate,
    integer,
    integer_const,
    is_float,
    is_half,
    is_inside,
    is_int,
    numpy_dtype,
    reduce,
    round_to,
    show,
)
from aicf.semantic.types import ONE, TensorType, broadcast, is_one, product

Attrs = Mapping[str, Any]
Types = tuple[TensorType, ...]
At = tuple[Expr, ...]
Sizes = Mapping[str, int]


class Reader(Protocol):
    """What a scalar meaning may ask of its surroundings."""

    def read(self, k: int, at: At) -> Expr:
        """The element of input `k` at index `at`."""
        ...

    def fresh(self, label: str, extent: Expr) -> Var:
        """A new bound variable, 0 <= var < extent; the same label gives the same variable for the same node."""
        ...


@dataclass(frozen=True)
class Op:
    """A row of the table. `arity`: the number of operands, or the least number of an op that takes any; `attrs`: what its nodes
    say beside the operands."""

    name: str
    infer: Callable[[Types, Attrs], TensorType]
    numpy: Callable[[list[Any], Attrs, TensorType, Sizes], Any]
    meaning: Callable[[Types, Attrs, TensorType, At, Reader], Expr] | None
    arity: int = 1
    attrs: tuple[str, ...] = ()
    more: bool = False


class TypeRuleError(ValueError):
    """Operands that an op does not take."""


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise TypeRuleError(message)


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative axis as 0 … rank-1; TypeRuleError when out of range."""
    _need(-rank <= axis < rank, f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def _shape(attrs: Attrs, sizes: Sizes, key: str = "shape") -> tuple[int, ...]:
    return tuple(integer(d, sizes) for d in attrs[key])


# ------------------------------------------------------------------------------------------------ sources


def _given(types: Types, attrs: Attrs) -> TensorType:
    return attrs["type"]


def _no_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    raise ValueError("an input has no value of its own")


def _constant_type(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(attrs["dtype"], tuple(integer_const(d) for d in np.shape(attrs["value"])))


def _constant_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    value = np.asarray(attrs["value"])
    if value.size and uniform(value):
        return const(value.reshape(-1)[0].item(), out.dtype)
    raise NotUniform


def uniform(value: Any) -> bool:
    """Whether all elements are the same, bit by bit: 0.0 and -0.0 are two numbers, and NaNs are alike."""
    flat = np.asarray(value).reshape(-1)
    first = flat[0]
    if first != first:
        return bool((flat != flat).all())
    if not (flat == first).all():
        return False
    return flat.dtype.kind != "f" or bool((np.signbit(flat) == np.signbit(first)).all())


class NotUniform(Exception):
    """A constant array with several values has no scalar meaning of its own; it is read like an input."""


def _scalar_type(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(attrs["value"].dtype, ())


def _scalar_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    from_sizes = {k: np.int64(v) for k, v in sizes.items()}
    return np.asarray(evaluate(attrs["value"], from_sizes), dtype=numpy_dtype(out.dtype))


def _iota_type(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(attrs["dtype"], (attrs["length"],))


def _iota_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    return np.arange(integer(attrs["length"], sizes)).astype(numpy_dtype(out.dtype))


# ------------------------------------------------------------------------------------------------ element-wise


def _elementwise(name: str) -> Op:
    row = FUNCTIONS[name]

    def infer(types: Types, attrs: Attrs) -> TensorType:
        _need(len(types) == row.arity, f"{name} takes {row.arity} operands, got {len(types)}")
        dtypes: list[DType] = [t.dtype for t in types]
        return TensorType(row.result(*dtypes), broadcast(*(t.shape for t in types)))

    def numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
        if row.kind == "float" and not all(np.asarray(v).dtype.kind == "f" for v in values):
            values = [np.asarray(v).astype(numpy_dtype(out.dtype)) for v in values]
        return round_to(row.numpy(*values), out.dtype)

    def meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
        return call(name, *(r.read(k, aligned(t.shape, at)) for k, t in enumerate(types)))

    return Op(name, infer, numpy, meaning, row.arity)


def aligned(shape: tuple[Expr, ...], at: At) -> At:
    """The index into an operand of `shape` that broadcasts to the result indexed by `at`."""
    own = at[len(at) - len(shape) :]
    return tuple(integer_const(0) if is_one(d) else i for d, i in zip(shape, own, strict=True))


def _cast_type(types: Types, attrs: Attrs) -> TensorType:
    return TensorType(attrs["dtype"], types[0].shape)


# ------------------------------------------------------------------------------------------------ views


def _reshape_type(types: Types, attrs: Attrs) -> TensorType:
    shape = tuple(attrs["shape"])
    _need(
        product(types[0].shape) is product(shape),
        f"cannot view {types[0]} as [{', '.join(map(show, shape))}]: the element counts differ",
    )
    return TensorType(types[0].dtype, shape)


def _reshape_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    return r.read(0, reindex(out.shape, types[0].shape, at))


def reindex(shape: tuple[Expr, ...], source: tuple[Expr, ...], at: At) -> At:
    """The index into a row-major tensor of `source` shape of the element that a view of `shape` has at `at`.

    Dims are matched in groups of equal products first, so that quotients stay small: (b, h, n*d) from (b*h, n, d) splits only
    what is merged.
    """
    result: list[Expr] = []
    i = j = 0
    while j < len(source) or i < len(shape):
        left: list[int] = []
        right: list[int] = []
        a: Expr = ONE
        b: Expr = ONE
        # Grow both groups until their products agree.
        while True:
            if left and right and a is b:
                break
            grow_left = i < len(shape) and (not left or (bool(right) and _smaller(a, b)) or j >= len(source))
            if not grow_left and j >= len(source):
                break
            if grow_left:
                a = call("mul", a, shape[i])
                left.append(i)
                i += 1
            else:
                b = call("mul", b, source[j])
                right.append(j)
                j += 1
        while i < len(shape) and is_one(shape[i]) and j >= len(source):
            left.append(i)
            i += 1
        flat: Expr = integer_const(0)
        for k in left:
            flat = call("add", call("mul", flat, shape[k]), at[k])
        part: list[Expr] = []
        for n, k in enumerate(reversed(right)):
            outermost = n == len(right) - 1
            part.append(integer_const(0) if is_one(source[k]) else flat if outermost else call("mod", flat, source[k]))
            if not outermost:
                flat = call("floordiv", flat, source[k])
        result += reversed(part)
    return tuple(result)


def _smaller(a: Expr, b: Expr) -> bool:
    """Whether the left product still has to grow: `a` divides `b`, or is the smaller number."""
    quotient = call("floordiv", b, a)
    if call("mul", quotient, a) is b:
        return True
    if call("mul", call("floordiv", a, b), b) is a:
        return False
    x, y = getattr(a, "value", None), getattr(b, "value", None)
    if x is not None and y is not None:
        return bool(x < y)
    return len(show(a)) <= len(show(b))


def _permute_type(types: Types, attrs: Attrs) -> TensorType:
    perm = attrs["perm"]
    _need(sorted(perm) == list(range(types[0].rank)), f"perm {list(perm)} does not permute {types[0]}")
    return TensorType(types[0].dtype, tuple(types[0].shape[p] for p in perm))


def _permute_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    own: list[Expr] = [ONE] * len(at)
    for k, p in enumerate(attrs["perm"]):
        own[p] = at[k]
    return r.read(0, tuple(own))


def _expand_type(types: Types, attrs: Attrs) -> TensorType:
    shape = tuple(attrs["shape"])
    _need(broadcast(types[0].shape, shape) == shape, f"{types[0]} does not expand to [{', '.join(map(show, shape))}]")
    return TensorType(types[0].dtype, shape)


def _expand_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    return r.read(0, aligned(types[0].shape, at))


def _slice_type(types: Types, attrs: Attrs) -> TensorType:
    _need(len(attrs["start"]) == len(attrs["length"]) == len(attrs["step"]) == types[0].rank, "slice needs one entry per dim")
    return TensorType(types[0].dtype, tuple(attrs["length"]))


def _slice_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    starts, lengths = _shape(attrs, sizes, "start"), _shape(attrs, sizes, "length")
    where = [s + np.arange(n) * t for s, n, t in zip(starts, lengths, attrs["step"], strict=True)]
    return values[0][np.ix_(*where)] if where else values[0]


def _slice_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    steps = [integer_const(t) for t in attrs["step"]]
    return r.read(0, tuple(call("add", s, call("mul", i, t)) for s, i, t in zip(attrs["start"], at, steps, strict=True)))


def _concat_type(types: Types, attrs: Attrs) -> TensorType:
    axis = axis_of(attrs["axis"], types[0].rank)
    total: Expr = integer_const(0)
    for t in types:
        others = [d for k, d in enumerate(t.shape) if k != axis]
        _need(others == [d for k, d in enumerate(types[0].shape) if k != axis], f"cannot concatenate {types[0]} and {t}")
        total = call("add", total, t.shape[axis])
    dtype: DType = types[0].dtype
    for t in types[1:]:
        dtype = FUNCTIONS["add"].result(dtype, t.dtype)
    return TensorType(dtype, tuple(total if k == axis else d for k, d in enumerate(types[0].shape)))


def _concat_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    axis = axis_of(attrs["axis"], out.rank)
    ends: list[Expr] = []
    end: Expr = integer_const(0)
    for t in types:
        end = call("add", end, t.shape[axis])
        ends.append(end)
    value: Expr | None = None
    for k in reversed(range(len(types))):
        begin = ends[k - 1] if k else integer_const(0)
        own = tuple(call("sub", x, begin) if n == axis else x for n, x in enumerate(at))
        element = cast(r.read(k, own), out.dtype)
        value = element if value is None else call("where", call("lt", at[axis], ends[k]), element, value)
    assert value is not None
    return value


def _pad_type(types: Types, attrs: Attrs) -> TensorType:
    dims = zip(attrs["low"], types[0].shape, attrs["high"], strict=True)
    return TensorType(types[0].dtype, tuple(call("add", call("add", a, d), b) for a, d, b in dims))


def _pad_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    low, high = _shape(attrs, sizes, "low"), _shape(attrs, sizes, "high")
    padded = np.pad(
        values[0],
        [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)],
        constant_values=attrs["value"],
    )
    crop = tuple(slice(max(-a, 0), padded.shape[k] - max(-b, 0)) for k, (a, b) in enumerate(zip(low, high, strict=True)))
    return padded[crop]


def _pad_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    inside: Expr = const(True, "bool")
    own: list[Expr] = []
    for a, b, d, i in zip(attrs["low"], attrs["high"], types[0].shape, at, strict=True):
        x = call("sub", i, a)
        if a is not integer_const(0):
            inside = call("and", inside, call("ge", x, integer_const(0)))
        if b is not integer_const(0):
            inside = call("and", inside, call("lt", x, d))
        own.append(x)
    return call("where", inside, r.read(0, tuple(own)), const(attrs["value"], out.dtype))


def _take_type(types: Types, attrs: Attrs) -> TensorType:
    data, *indices = types
    _need(all(is_int(t.dtype) for t in indices), "indices must be integers")
    where = broadcast(*(t.shape for t in indices))
    rest = [d for k, d in enumerate(data.shape) if k not in attrs["axes"]]
    at = attrs["position"]
    return TensorType(data.dtype, (*rest[:at], *where, *rest[at:]))


def _take_parts(types: Types, attrs: Attrs, at: At) -> tuple[At, At]:
    rank = len(broadcast(*(t.shape for t in types[1:])))
    p = attrs["position"]
    return at[p : p + rank], (*at[:p], *at[p + rank :])


def _take_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    data, *indices = values
    axes = list(attrs["axes"])
    rest = [k for k in range(data.ndim) if k not in axes]
    moved = data.transpose(*axes, *rest)
    indices = [_in_range(x, data.shape[a], attrs) for x, a in zip(indices, axes, strict=True)]
    picked = moved[tuple(np.broadcast_arrays(*indices))]
    rank, p = np.broadcast(*indices).ndim, attrs["position"]
    order = [*range(rank, rank + p), *range(rank), *range(rank + p, picked.ndim)]
    return picked.transpose(order)


def _take_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    where, rest = _take_parts(types, attrs, at)
    own: list[Expr] = []
    others = iter(rest)
    chosen = {axis: n for n, axis in enumerate(attrs["axes"])}
    for k, d in enumerate(types[0].shape):
        if k not in chosen:
            own.append(next(others))
            continue
        n = chosen[k] + 1
        e = cast(r.read(n, aligned(types[n].shape, where)), "i64")
        own.append(_checked(e, d, attrs))
    return r.read(0, tuple(own))


def _checked(e: Expr, extent: Expr, attrs: Attrs) -> Expr:
    """An index that has to be one of `extent` elements. With `wraps` negative numbers count from the end."""
    if is_inside(e, extent):
        return e
    if attrs.get("wraps", True) and not isinstance(e, Var):
        e = call("where", call("lt", e, integer_const(0)), call("add", e, extent), e)
    return call("inside", e, extent)


def _in_range(index: Any, extent: int, attrs: Attrs) -> Any:
    """`index`; IndexError where it is none of `extent` elements."""
    low = -extent if attrs.get("wraps", True) else 0
    wrong = (index < low) | (index >= extent)
    if wrong.any():
        raise IndexError(f"index {index[wrong].flat[0]} is out of range for {extent} elements")
    return index


def _gather_type(types: Types, attrs: Attrs) -> TensorType:
    _need(types[0].rank == types[1].rank, "gather needs data and indices of one rank")
    return TensorType(types[0].dtype, types[1].shape)


def _gather_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    data, where = values
    grid = list(np.ogrid[tuple(slice(n) for n in where.shape)])
    axis = axis_of(attrs["axis"], where.ndim)
    grid[axis] = _in_range(where, data.shape[axis], attrs)
    return data[tuple(grid)]


def _gather_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    axis = axis_of(attrs["axis"], out.rank)
    e = cast(r.read(1, at), "i64")
    return r.read(0, tuple(_checked(e, types[0].shape[k], attrs) if k == axis else x for k, x in enumerate(at)))


# ------------------------------------------------------------------------------------------------ reductions and contractions


def _total(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """A sum as exact as its type holds: an order of additions is no part of the meaning, so none's rounding should show."""
    wide = np.float64 if np.issubdtype(x.dtype, np.floating) else x.dtype
    return np.sum(x, axis=axis, dtype=wide, keepdims=keepdims).astype(x.dtype)


_NUMPY_REDUCE: dict[str, Any] = {"sum": _total, "max": np.max, "min": np.min, "prod": np.prod, "any": np.any, "all": np.all}


def accumulator(dtype: DType) -> DType:
    """The type in which sums of `dtype` are kept: halves in f32 (as PyTorch does), small integers in i64."""
    if is_half(dtype):
        return "f32"
    return "i64" if is_int(dtype) or dtype == "bool" else dtype


def _reduce_type(types: Types, attrs: Attrs) -> TensorType:
    axes = {axis_of(a, types[0].rank) for a in attrs["axes"]}
    shape = [d for k, d in enumerate(types[0].shape) if k not in axes]
    if attrs["keepdims"]:
        shape = [ONE if k in axes else d for k, d in enumerate(types[0].shape)]
    dtype = types[0].dtype
    if attrs["op"] in ("any", "all"):
        dtype = "bool"
    elif attrs["op"] in ("sum", "prod") and not is_float(dtype):
        dtype = "i64"
    return TensorType(dtype, tuple(shape))


def _reduce_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    axes = tuple(axis_of(a, values[0].ndim) for a in attrs["axes"])
    x = values[0]
    if attrs["op"] in ("sum", "prod"):
        x = x.astype(numpy_dtype(accumulator(out.dtype)))
    return round_to(_NUMPY_REDUCE[attrs["op"]](x, axis=axes, keepdims=attrs["keepdims"]), out.dtype)


def _reduce_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    axes = sorted({axis_of(a, types[0].rank) for a in attrs["axes"]})
    bound = {k: r.fresh(f"r{n}", types[0].shape[k]) for n, k in enumerate(axes)}
    kept = iter(x for k, x in enumerate(at) if not attrs["keepdims"] or k not in axes)
    body = r.read(0, tuple(bound[k] if k in bound else next(kept) for k in range(types[0].rank)))
    op = attrs["op"]
    if op in ("sum", "prod"):
        body = cast(body, accumulator(out.dtype))
    elif op in ("any", "all"):
        body = cast(body, "bool")
    for k in reversed(axes):
        body = reduce(op, bound[k], types[0].shape[k], body)
    return cast(body, out.dtype)


def _matmul_type(types: Types, attrs: Attrs) -> TensorType:
    a, b = types
    _need(a.rank >= 2 and b.rank >= 2, f"matmul needs matrices, got {a} and {b}")
    _need(a.shape[-1] is b.shape[-2], f"matmul cannot contract {a} with {b}")
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    return TensorType(FUNCTIONS["mul"].result(a.dtype, b.dtype), (*batch, a.shape[-2], b.shape[-1]))


def _wide(x: Any, dtype: DType) -> Any:
    return np.asarray(x).astype(numpy_dtype(accumulator(dtype)))


def _exactly(x: Any, dtype: DType) -> Any:
    """The operand of a contraction: products and sums of floats in float64, as in `_total`."""
    return np.asarray(x).astype(np.float64 if is_float(dtype) else numpy_dtype(accumulator(dtype)))


def _contracted(x: Any, dtype: DType) -> Any:
    return round_to(x.astype(numpy_dtype(accumulator(dtype))), dtype)


def _matmul_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    return _contracted(np.matmul(_exactly(values[0], out.dtype), _exactly(values[1], out.dtype)), out.dtype)


def _matmul_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    k = r.fresh("k", types[0].shape[-1])
    *batch, i, j = at
    a = r.read(0, (*aligned(types[0].shape[:-2], tuple(batch)), i, k))
    b = r.read(1, (*aligned(types[1].shape[:-2], tuple(batch)), k, j))
    wide = accumulator(out.dtype)
    return cast(reduce("sum", k, types[0].shape[-1], call("mul", cast(a, wide), cast(b, wide))), out.dtype)


def _einsum_labels(types: Types, attrs: Attrs) -> tuple[list[str], str, dict[str, Expr]]:
    terms, result = list(attrs["inputs"]), attrs["output"]
    extent: dict[str, Expr] = {}
    for term, t in zip(terms, types, strict=True):
        _need(len(term) == t.rank, f"einsum term {term!r} does not fit {t}")
        for label, dim in zip(term, t.shape, strict=True):
            known = extent.get(label)
            _need(known is None or known is dim or is_one(known) or is_one(dim), f"einsum label {label!r} has two extents")
            if known is None or is_one(known):
                extent[label] = dim
    return terms, result, extent


def _einsum_type(types: Types, attrs: Attrs) -> TensorType:
    _, result, extent = _einsum_labels(types, attrs)
    dtype = types[0].dtype
    for t in types[1:]:
        dtype = FUNCTIONS["mul"].result(dtype, t.dtype)
    return TensorType(dtype, tuple(extent[x] for x in result))


def _einsum_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    equation = f"{','.join(attrs['inputs'])}->{attrs['output']}"
    return _contracted(np.einsum(equation, *(_exactly(v, out.dtype) for v in values), optimize=True), out.dtype)


def _einsum_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    terms, result, extent = _einsum_labels(types, attrs)
    where: dict[str, Expr] = dict(zip(result, at, strict=True))
    bound = [x for x in extent if x not in where]
    for n, label in enumerate(bound):
        where[label] = r.fresh(f"k{n}", extent[label])
    wide = accumulator(out.dtype)
    body: Expr | None = None
    for n, (term, t) in enumerate(zip(terms, types, strict=True)):
        own = tuple(integer_const(0) if is_one(d) else where[x] for x, d in zip(term, t.shape, strict=True))
        factor = cast(r.read(n, own), wide)
        body = factor if body is None else call("mul", body, factor)
    assert body is not None
    for label in reversed(bound):
        over = where[label]
        assert isinstance(over, Var)
        body = reduce("sum", over, extent[label], body)
    return cast(body, out.dtype)


# ------------------------------------------------------------------------------------------------ softmax and its kin


def _same_float(types: Types, attrs: Attrs) -> TensorType:
    _need(is_float(types[0].dtype), f"needs floating point, got {types[0]}")
    axis_of(attrs["axis"], types[0].rank)
    return types[0]


def _softmax_parts(types: Types, attrs: Attrs, at: At, r: Reader) -> tuple[Expr, Expr, Expr]:
    """(x, max, sum of exp(x - max)) at `at`, in the accumulation type."""
    axis = axis_of(attrs["axis"], types[0].rank)
    wide = accumulator(types[0].dtype)
    extent = types[0].shape[axis]

    def along(label: str) -> tuple[Var, Expr]:
        over = r.fresh(label, extent)
        return over, cast(r.read(0, tuple(over if k == axis else x for k, x in enumerate(at))), wide)

    # Two variables, so that no reduction is nested in one over the same name.
    over, x = along("m")
    top = reduce("max", over, extent, x)
    over, x = along("s")
    total = reduce("sum", over, extent, call("exp", call("sub", x, top)))
    return cast(r.read(0, at), wide), top, total


def _softmax_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    x, top, total = _softmax_parts(types, attrs, at, r)
    return cast(call("div", call("exp", call("sub", x, top)), total), out.dtype)


def _log_softmax_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    x, top, total = _softmax_parts(types, attrs, at, r)
    return cast(call("sub", call("sub", x, top), call("log", total)), out.dtype)


_exp, _log = FUNCTIONS["exp"].numpy, FUNCTIONS["log"].numpy


def _softmax_numpy(log: bool) -> Callable[[list[Any], Attrs, TensorType, Sizes], Any]:
    def apply(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
        x = _wide(values[0], out.dtype)
        x = x - x.max(axis=attrs["axis"], keepdims=True)
        total = _total(_exp(x), attrs["axis"], keepdims=True)
        return round_to(x - _log(total) if log else _exp(x) / total, out.dtype)

    return apply


def _logsumexp_type(types: Types, attrs: Attrs) -> TensorType:
    shape = list(_same_float(types, attrs).shape)
    axis = axis_of(attrs["axis"], len(shape))
    if attrs["keepdims"]:
        shape[axis] = ONE
    else:
        del shape[axis]
    return TensorType(types[0].dtype, tuple(shape))


def _logsumexp_numpy(values: list[Any], attrs: Attrs, out: TensorType, sizes: Sizes) -> Any:
    x = _wide(values[0], out.dtype)
    top = x.max(axis=attrs["axis"], keepdims=True)
    safe = np.where(np.isinf(top), 0, top)
    total = safe + _log(_total(_exp(x - safe), attrs["axis"], keepdims=True))
    return round_to(total if attrs["keepdims"] else np.squeeze(total, attrs["axis"]), out.dtype)


def _logsumexp_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    axis = axis_of(attrs["axis"], types[0].rank)
    full = at if attrs["keepdims"] else (*at[:axis], integer_const(0), *at[axis:])
    wide = accumulator(types[0].dtype)
    extent = types[0].shape[axis]

    def along(label: str) -> tuple[Var, Expr]:
        over = r.fresh(label, extent)
        return over, cast(r.read(0, tuple(over if k == axis else i for k, i in enumerate(full))), wide)

    over, x = along("m")
    top = reduce("max", over, extent, x)
    over, x = along("s")
    total = reduce("sum", over, extent, call("exp", call("sub", x, top)))
    # An infinite maximum is the result itself, as in torch.logsumexp (exp(inf - inf) would be NaN).
    infinite = call("eq", call("abs", top), const(float("inf"), wide))
    return cast(call("where", infinite, top, call("add", top, call("log", total))), out.dtype)


def _iota_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    return cast(at[0], out.dtype)


def _cast_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    return cast(r.read(0, at), out.dtype)


def _scalar_meaning(types: Types, attrs: Attrs, out: TensorType, at: At, r: Reader) -> Expr:
    return attrs["value"]


_ROWS = [
    Op("input", _given, _no_numpy, None, 0, ("type",)),
    Op("constant", _constant_type, lambda v, a, t, s: round_to(a["value"], t.dtype), _constant_meaning, 0, ("value", "dtype")),
    Op("scalar", _scalar_type, _scalar_numpy, _scalar_meaning, 0, ("value",)),
    Op("iota", _iota_type, _iota_numpy, _iota_meaning, 0, ("length", "dtype")),
    *(_elementwise(name) for name in FUNCTIONS),
    Op("cast", _cast_type, lambda v, a, t, s: round_to(v[0], t.dtype), _cast_meaning, 1, ("dtype",)),
    Op("reshape", _reshape_type, lambda v, a, t, s: v[0].reshape(_shape(a, s)), _reshape_meaning, 1, ("shape",)),
    Op("permute", _permute_type, lambda v, a, t, s: v[0].transpose(a["perm"]), _permute_meaning, 1, ("perm",)),
    Op("expand", _expand_type, lambda v, a, t, s: np.broadcast_to(v[0], _shape(a, s)), _expand_meaning, 1, ("shape",)),
    Op("slice", _slice_type, _slice_numpy, _slice_meaning, 1, ("start", "length", "step")),
    Op("concat", _concat_type, lambda v, a, t, s: np.concatenate(v, axis=a["axis"]), _concat_meaning, 1, ("axis",), True),
    Op("pad", _pad_type, _pad_numpy, _pad_meaning, 1, ("low", "high", "value")),
    Op("take", _take_type, _take_numpy, _take_meaning, 2, ("axes", "position"), True),
    Op("gather", _gather_type, _gather_numpy, _gather_meaning, 2, ("axis",)),
    Op("reduce", _reduce_type, _reduce_numpy, _reduce_meaning, 1, ("op", "axes", "keepdims")),
    Op("matmul", _matmul_type, _matmul_numpy, _matmul_meaning, 2),
    Op("einsum", _einsum_type, _einsum_numpy, _einsum_meaning, 1, ("inputs", "output"), True),
    Op("softmax", _same_float, _softmax_numpy(log=False), _softmax_meaning, 1, ("axis",)),
    Op("log_softmax", _same_float, _softmax_numpy(log=True), _log_softmax_meaning, 1, ("axis",)),
    Op("logsumexp", _logsumexp_type, _logsumexp_numpy, _logsumexp_meaning, 1, ("axis", "keepdims")),
]
OPS: dict[str, Op] = {row.name: row for row in _ROWS}
