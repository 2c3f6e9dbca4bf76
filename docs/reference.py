"""The language references, made from the tables, data classes and verifiers that define the languages.

A page holds `<!-- generated: NAME -->`, and up to `<!-- end -->` stands what the part of that name gives:

    table(...)       rows of a table of ops or functions, one column per plain field
    classes(...)     data classes: their fields and what they mean
    faults(...)      what a verifier says, read from its source; … stands for names and numbers
    prose(...)       a module's own description
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from aicf.kernel import ir as kernel_ir
from aicf.kernel import verifier as kernel_verifier
from aicf.mcir import (
    ExecutionRegion,
    MCModule,
    MCNode,
    MCNodeOp,
    MCValue,
    Phases,
    RegionAxis,
    StreamingRegion,
    TileRegion,
    TileSummary,
    payload_verifier,
)
from aicf.mcir import defaults as mcir_defaults
from aicf.mcir import payloads as mcir_payloads
from aicf.mcir import verifier as mcir_verifier
from aicf.mcir.regions import Region
from aicf.scalar import BYTES, FUNCTIONS, MONOIDS, Call, Const, Function, Load, Reduce, Var, show
from aicf.semantic import OPS, Graph, Node, TensorType
from aicf.semantic import verifier as semantic_verifier

_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_parts(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """`text` with its generated parts as they are now. KeyError for a part that there is not."""
    return _PART.sub(lambda m: f"{m[1]}\n{parts[m[2]]().strip()}\n\n{m[3]}", text)


# ------------------------------------------------------------------------------------------------ pieces


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


def plain_fields(rows: Sequence[Any]) -> str:
    """Data class instances as a table: a column for each field that holds words, numbers or truth values in every row. A cell
    is empty where the field has its default."""
    plain = [f for f in fields(rows[0]) if all(_is_plain(getattr(r, f.name)) for r in rows)]
    return table(
        [f.name for f in plain],
        (["" if getattr(r, f.name) == f.default else _cell(getattr(r, f.name)) for f in plain] for r in rows),
    )


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, bool, int, float))


def _cell(value: object) -> str:
    if value is None or value is False or value == "":
        return ""
    return "yes" if value is True else str(value) if isinstance(value, int) else f"`{value}`"


def classes(*kinds: type) -> str:
    """Data classes: name and fields, then what the class says of itself."""
    return "\n\n".join("\n".join(_class(k)) for k in kinds)


def _class(kind: type) -> Iterator[str]:
    above = [b for b in kind.__bases__ if is_dataclass(b)]
    inherited = {f.name for b in above for f in fields(b)}
    own = ", ".join(f"`{f.name}: {_type(f.type)}`" for f in fields(kind) if f.name not in inherited)
    of = f" (a `{above[0].__name__}`)" if above else ""
    yield f"**`{kind.__name__}`**{of} {own}"
    yield ""
    yield inspect.getdoc(kind) or ""


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\s+", " ", text)


def prose(thing: object) -> str:
    """The description that a module or a class has."""
    return inspect.getdoc(thing) or ""


def faults(*modules: ModuleType) -> str:
    """What the verifiers in `modules` say, one line each, in the order of their source."""
    found = dict.fromkeys(text for m in modules for text in _messages(ast.parse(inspect.getsource(m))))
    return "\n".join(f"- {text}" for text in found)


def _messages(tree: ast.AST) -> Iterator[str]:
    """Texts of several words that are no documentation and no part of a longer text."""
    skip: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            skip.add(id(first.value))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("__init__"):
            skip.update(id(x) for x in ast.walk(node))
        if isinstance(node, ast.JoinedStr):
            skip.update(id(x) for x in ast.walk(node) if x is not node)
    texts = [n for n in ast.walk(tree) if isinstance(n, (ast.JoinedStr, ast.Constant)) and id(n) not in skip]
    for node in sorted(texts, key=lambda n: (n.lineno, n.col_offset)):
        text = _message(node)
        if len(re.findall(r"[a-z]{2,}", text)) >= 4:
            yield text


def _message(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    text = "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return re.sub(r"\s*\n\s*", " ", text).strip()


# ------------------------------------------------------------------------------------------------ the languages

# What an op gives, where the op's name does not say it. Element-wise ops are the rows of the function table.
SEMANTIC: Mapping[str, str] = {
    "input": "a tensor that the graph is given",
    "constant": "an array that the graph holds",
    "scalar": "a number, as an expression of sizes and run-time scalars",
    "iota": "0, 1, …, length - 1",
    "cast": "the same numbers in another type",
    "reshape": "the same elements in the same order, in another shape",
    "permute": "dimension k of the result is dimension perm[k] of the operand",
    "expand": "dimensions of size 1 repeated",
    "slice": "per dimension: start, start + step, …, length elements",
    "concat": "operands one after the other along an axis",
    "pad": "per dimension: `low` elements before and `high` after, all with the value `value`",
    "take": "elements at the index tensors (further operands) along `axes`; their dimensions stand from `position` on",
    "gather": "result[…, i, …] = x[…, index[…, i, …], …] along an axis",
    "reduce": "a monoid (below) over axes",
    "matmul": "contracts the last axis of x with the last but one of y; leading axes broadcast",
    "einsum": "a sum of products over the letters that the output does not have",
    "softmax": "exp(x - max) / sum of exp(x - max) along an axis",
    "log_softmax": "x - max - log(sum of exp(x - max)) along an axis",
    "logsumexp": "log(sum of exp(x)) along an axis",
}


def semantic_ops() -> str:
    """Every op of the Semantic IR that is not element-wise."""
    rows = [op for name, op in OPS.items() if name not in FUNCTIONS]
    return table(
        ("op", "operands", "attributes", "result"),
        ((f"`{o.name}`", f"{o.arity}{' or more' if o.more else ''}", ", ".join(o.attrs), SEMANTIC[o.name]) for o in rows),
    )


def scalar_functions() -> str:
    """Every scalar function."""
    return plain_fields(list(FUNCTIONS.values()))


def monoids() -> str:
    """Every reduction: what nothing is, how two results are joined, and what a stream carries for it."""
    x, state = Var("x", "f32"), Var("state", "f32")
    rows: list[Sequence[str]] = []
    for m in MONOIDS.values():
        element = Var("x", "bool") if m.op in ("any", "all") else x
        carried = m.carried or "nothing: it has no streamed form"
        finalise = show(m.finalise(state)) if m.carried else ""
        rows.append((f"`{m.op}`", f"`{m.unit}`", f"`{m.combine}`", carried, f"`{show(m.lift(element, 'f32'))}`", f"`{finalise}`"))
    return table(("op", "identity", "combine", "carried as", "state of one element x", "result of a state"), rows)


def scalar_types() -> str:
    """Element types and their sizes."""
    return table(("type", "bytes"), ((f"`{name}`", str(size)) for name, size in BYTES.items()))


def mcir_ops() -> str:
    """Every op of MCIR: operands, memory, attributes, payload."""
    rows: list[Sequence[str]] = []
    for op in MCNodeOp:
        rule = mcir_verifier._RULES[op.value]
        payload = payload_verifier._PAYLOADS.get(op.value)
        rows.append((
            f"`{op.value}`", _count(rule.inputs), _count(rule.outputs), ", ".join(rule.reads), ", ".join(rule.writes),
            ", ".join(f"`{k}`" for k in rule.keys), "" if payload is None else f"`{payload.__name__}`",
        ))  # fmt: skip
    return table(("op", "inputs", "outputs", "reads from", "writes to", "attributes", "payload"), rows)


def _count(bounds: tuple[int, int | None]) -> str:
    least, most = bounds
    return f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def mcir_attributes() -> str:
    """The attributes that mean something, per region and op."""
    rows = payload_verifier._ATTRIBUTES.items()
    return table(("of", "attributes"), ((k, ", ".join(f"`{x}`" for x in v)) for k, v in rows))


def mcir_payload_classes() -> str:
    """What the nodes of MCIR compute."""
    return classes(
        mcir_payloads.TileLoad, mcir_payloads.ScoreProduct, mcir_payloads.StateUpdate, mcir_payloads.RunningExtremum,
        mcir_payloads.RunningSum, mcir_payloads.Shift, mcir_payloads.Accumulation, mcir_payloads.TileStore,
    )  # fmt: skip


def kernel_declarations() -> str:
    """What a kernel declares."""
    return classes(
        kernel_ir.Kernel, kernel_ir.TensorParam, kernel_ir.ScalarParam, kernel_ir.Axis, kernel_ir.Tile, kernel_ir.Summary,
        kernel_ir.Check,
    )  # fmt: skip


def kernel_statements() -> str:
    """The statements of Kernel IR."""
    return classes(
        kernel_ir.Fill, kernel_ir.LoadTile, kernel_ir.Map, kernel_ir.Reduce, kernel_ir.Contract, kernel_ir.StoreTile,
        kernel_ir.RowBlock, kernel_ir.Phase, kernel_ir.Stream, kernel_ir.Retry, kernel_ir.Loop, kernel_ir.Parallel,
    )  # fmt: skip


PARTS: Mapping[str, Callable[[], str]] = {
    "scalar-types": scalar_types,
    "scalar-functions": scalar_functions,
    "scalar-function-row": lambda: prose(Function),
    "scalar-expressions": lambda: classes(Const, Var, Load, Call, Reduce),
    "monoids": monoids,
    "semantic-types": lambda: classes(TensorType, Node, Graph),
    "semantic-ops": semantic_ops,
    "semantic-faults": lambda: faults(semantic_verifier),
    "mcir-data": lambda: classes(MCModule, Region, ExecutionRegion, StreamingRegion, TileRegion, MCNode, MCValue, RegionAxis),
    "mcir-ops": mcir_ops,
    "mcir-payloads": mcir_payload_classes,
    "mcir-phases": lambda: classes(Phases, TileSummary),
    "mcir-attributes": mcir_attributes,
    "mcir-defaults": lambda: prose(mcir_defaults),
    "mcir-faults": lambda: faults(mcir_verifier, payload_verifier),
    "kernel-overview": lambda: prose(kernel_ir),
    "kernel-data": kernel_declarations,
    "kernel-statements": kernel_statements,
    "kernel-faults": lambda: faults(kernel_verifier),
}

__all__ = ["PARTS", "SEMANTIC", "with_parts"]
