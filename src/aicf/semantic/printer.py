"""Graphs as text: one node a line, `%name = op(%a, %b) {attrs} : type`, with the source place behind it."""

from __future__ import annotations

from typing import Any

import numpy as np

from aicf.scalar import Call, Const, DType, Load, Reduce, Var, number, show
from aicf.semantic.graph import Graph, Node


def print_graph(graph: Graph, *, locations: bool = False) -> str:
    """The whole graph as text. Deterministic."""
    lines = [f"graph({', '.join(f'%{n.name}: {n.type}' for n in graph.inputs)})"]
    lines += [f"  {print_node(n, locations=locations)}" for n in graph.nodes if n.op != "input"]
    lines.append(f"  return {', '.join('%' + n.name for n in graph.outputs)}")
    return "\n".join(lines) + "\n"


def print_node(node: Node, *, locations: bool = False) -> str:
    """One node as a line."""
    own = node.type.dtype if node.op == "scalar" else None  # the line ends with the type of its number
    attrs = ", ".join(f"{k}={_attr(v, own)}" for k, v in node.attrs.items() if k not in ("type",))
    text = f"%{node.name} = {node.op}({', '.join('%' + i.name for i in node.inputs)})"
    text += f" {{{attrs}}}" if attrs else ""
    text += f" : {node.type}"
    if locations and node.location is not None:
        text += f"    # {node.location}"
    return text


def _attr(v: Any, among: DType | None = None) -> str:
    match v:
        case Const() | Var() | Load() | Call() | Reduce():
            return show(v, among=among)
        case tuple() | list():
            return "[" + ", ".join(_attr(x) for x in v) + "]"
        case np.ndarray():
            if v.ndim == 0:
                return number(v.item())
            return f"<{v.dtype} {'x'.join(map(str, v.shape))}>"
        case float():
            return number(v)
        case _:
            return str(v)
