"""Semantic IR: what is computed. A typed functional graph over a closed op table."""

from aicf.semantic.builder import GraphBuilder, GraphError
from aicf.semantic.evaluate import bind_sizes, run_graph
from aicf.semantic.examples import build_attention_semantic_graph
from aicf.semantic.graph import Graph, Node, ancestors, users_of
from aicf.semantic.ops import OPS, Op, TypeRuleError
from aicf.semantic.printer import print_graph, print_node
from aicf.semantic.refusal import Refusal, Refused
from aicf.semantic.types import Location, TensorType, tensor_type
from aicf.semantic.verifier import GraphFault, check_graph, verify_graph

__all__ = [
    "OPS", "Graph", "GraphBuilder", "GraphError", "GraphFault", "Location", "Node", "Op", "Refusal", "Refused",
    "TensorType", "TypeRuleError",
    "ancestors", "bind_sizes", "build_attention_semantic_graph", "check_graph", "print_graph", "print_node", "run_graph",
    "tensor_type", "users_of", "verify_graph",
]  # fmt: skip
