"""Is a graph well formed? Every problem is reported at once, with the node as printed, its source line and what is wrong.

Checked: names are unique; each op is a row of the table, with its number of operands and its attributes; operands come earlier;
types are what the op's type rule gives; dims are sizes; inputs and outputs are nodes of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aicf.scalar import Const, Load, show, walk
from aicf.semantic.graph import Graph, Node
from aicf.semantic.ops import OPS, Op
from aicf.semantic.printer import print_node


class GraphFault(ValueError):
    """A graph that is not well formed; `problems` says all that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("the graph is not well formed:\n" + "\n".join(f"  {p}" for p in problems))
        self.problems = problems


def check_graph(graph: Graph) -> None:
    """Raise GraphFault when `verify_graph` finds anything."""
    problems = verify_graph(graph)
    if problems:
        raise GraphFault(problems)


def verify_graph(graph: Graph) -> list[str]:
    """All that is wrong with `graph`, one sentence each; empty when it is well formed."""
    problems: list[str] = []
    seen: set[Node] = set()
    nodes = set(graph.nodes)
    for name, count in Counter(n.name for n in graph.nodes).items():
        if count > 1:
            problems.append(f"name %{name}: {count} nodes have it")
    for n in graph.nodes:
        problems += [f"`{_printed(n)}`: {what}" for what in _node(n, seen, nodes)]
        seen.add(n)
    lists = {"input": graph.inputs, "output": graph.outputs, "reader": graph.readers, "unknown": graph.unknown}
    for what, listed in lists.items():
        problems += [f"{what} %{n.name}: it is no node of the graph" for n in listed if n not in nodes]
    given = [n for n in graph.nodes if n.op == "input"]
    problems += [f"input %{n.name}: it is not in the list of inputs" for n in given if n not in graph.inputs]
    problems += [f"input %{n.name}: it is made by {n.op}" for n in graph.inputs if n.op != "input"]
    return problems


def _printed(n: Node) -> str:
    try:
        return print_node(n, locations=True)
    except Exception:  # attributes that are not what the op says
        return f"%{n.name} = {n.op}(…)" + (f"    # {n.location}" if n.location is not None else "")


def _node(n: Node, seen: set[Node], nodes: set[Node]) -> Iterable[str]:
    for i in dict.fromkeys(n.inputs):
        if i not in seen:
            yield f"it reads %{i.name}, which {'comes later' if i in nodes else 'is no node of the graph'}"
    op = OPS.get(n.op)
    if op is None:
        yield f"there is no op {n.op}"
        return
    yield from _operands(n, op)
    for d in n.type.shape:
        if d.dtype != "i64" or any(isinstance(x, Load) for x in walk(d)) or (isinstance(d, Const) and d.value < 0):
            yield f"its shape has {show(d)}, which is no size: a number from 0 up, or an expression of size symbols"


def _operands(n: Node, op: Op) -> Iterable[str]:
    count = len(n.inputs)
    if count < op.arity or (count > op.arity and not op.more):
        yield f"{op.name} takes {'at least ' if op.more else ''}{op.arity} operands, and it has {count}"
        return
    missing = [a for a in op.attrs if a not in n.attrs]
    if missing:
        yield f"it does not say its {', '.join(missing)}"
        return
    try:
        kind = op.infer(tuple(i.type for i in n.inputs), n.attrs)
    except Exception as e:  # whatever a type rule stumbles over
        yield f"{e}"
        return
    if kind != n.type:
        yield f"its type is {kind}"


__all__ = ["GraphFault", "check_graph", "verify_graph"]
