"""Scalar expressions: the one language for sizes, index maps, masks, score programs and finalizers.

Every level above speaks it: dims of tensor types, the element-wise meaning of semantic ops, the bodies of
reductions in the derivation, and the maps of Kernel IR. It knows nothing of tensors' storage, tiles or targets.
"""

from aicf.scalar.build import call, cast, rebuild, substitute, transform
from aicf.scalar.derivatives import partial_derivatives
from aicf.scalar.dtypes import BYTES, DTYPES, FINFO_MIN, DType, is_float, is_half, is_int, numpy_dtype, promote, round_to
from aicf.scalar.evaluate import evaluate, integer
from aicf.scalar.expr import (
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    ReduceOp,
    Var,
    children,
    const,
    index,
    integer_const,
    load,
    number,
    reads,
    reduce,
    show,
    size,
    spell,
    unknown,
    var,
    variables,
    walk,
    weight,
)
from aicf.scalar.functions import COMPARISONS, FUNCTIONS, Function
from aicf.scalar.identity import digest, exact, fingerprint
from aicf.scalar.integers import affine, bounds, extents, is_inside, poly
from aicf.scalar.monoids import EXTREMA, MONOIDS, Monoid
from aicf.scalar.parse import ParseError, parse_expr, parse_prefix

__all__ = [
    "BYTES",
    "COMPARISONS",
    "DTYPES",
    "EXTREMA",
    "FINFO_MIN",
    "FUNCTIONS",
    "MONOIDS",
    "Call",
    "Const",
    "DType",
    "Expr",
    "Function",
    "Load",
    "Monoid",
    "ParseError",
    "Reduce",
    "ReduceOp",
    "Var",
    "affine",
    "bounds",
    "call",
    "cast",
    "children",
    "const",
    "digest",
    "evaluate",
    "exact",
    "extents",
    "fingerprint",
    "index",
    "integer",
    "integer_const",
    "is_float",
    "is_half",
    "is_inside",
    "is_int",
    "load",
    "number",
    "numpy_dtype",
    "parse_expr",
    "parse_prefix",
    "partial_derivatives",
    "poly",
    "promote",
    "reads",
    "rebuild",
    "reduce",
    "round_to",
    "show",
    "size",
    "spell",
    "substitute",
    "transform",
    "unknown",
    "var",
    "variables",
    "walk",
    "weight",
]
