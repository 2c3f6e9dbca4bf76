"""Activation functions that frontends share, written in ops of the table.

    gelu(x)  ->  0.5 * x * (1 + erf(x * sqrt(0.5)))

Each computes in the type of `x`. What is rounded, and when, is the frontend's choice: it casts before and after.
"""

from __future__ import annotations

import math

from aicf.semantic.builder import GraphBuilder, Value
from aicf.semantic.graph import Node


def clip(b: GraphBuilder, x: Node, low: Value, high: Value) -> Node:
    """`x` where it lies between `low` and `high`, else the nearer of the two."""
    return b.op("min", b.op("max", x, low), high)


def gelu(b: GraphBuilder, x: Node, *, approximate: bool = False) -> Node:
    """x * Phi(x) with the normal distribution Phi; `approximate`: by tanh (Hendrycks and Gimpel 2016)."""
    if approximate:
        cube = b.op("mul", b.op("mul", x, x), x)
        inner = b.op("mul", b.op("add", x, b.op("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        return b.op("mul", b.op("mul", x, 0.5), b.op("add", 1.0, b.op("tanh", inner)))
    half = b.op("mul", x, 0.5)
    return b.op("mul", half, b.op("add", 1.0, b.op("erf", b.op("mul", x, math.sqrt(0.5)))))


def softplus(b: GraphBuilder, x: Node, beta: Value = 1.0, threshold: Value = 20.0) -> Node:
    """log(1 + exp(beta * x)) / beta, and `x` itself where beta * x is above `threshold`."""
    scaled = x if beta == 1 else b.op("mul", x, beta)
    soft = b.op("softplus", scaled)
    soft = soft if beta == 1 else b.op("div", soft, beta)
    return b.op("where", b.op("gt", scaled, threshold), x, soft)


def leaky_relu(b: GraphBuilder, x: Node, slope: Value = 0.01) -> Node:
    """`x` above 0, else slope * x."""
    return b.op("where", b.op("gt", x, 0.0), x, b.op("mul", x, slope))


def elu(b: GraphBuilder, x: Node, alpha: Value = 1.0, scale: Value = 1.0, input_scale: Value = 1.0) -> Node:
    """scale * (x above 0, else alpha * (exp(input_scale * x) - 1))."""
    below = b.op("mul", b.op("expm1", b.op("mul", x, input_scale)), alpha)
    return b.op("mul", b.op("where", b.op("gt", x, 0.0), x, below), scale)


def selu(b: GraphBuilder, x: Node) -> Node:
    """`elu` with the constants of Klambauer et al. 2017."""
    below = b.op("mul", b.op("expm1", x), 1.6732632423543772848170429916717)
    return b.op("mul", b.op("where", b.op("gt", x, 0.0), x, below), 1.0507009873554804934193349852946)


def silu(b: GraphBuilder, x: Node) -> Node:
    """x * sigmoid(x)."""
    return b.op("mul", x, b.op("sigmoid", x))


def mish(b: GraphBuilder, x: Node) -> Node:
    """x * tanh(softplus(x))."""
    return b.op("mul", x, b.op("tanh", b.op("softplus", x)))


def log_sigmoid(b: GraphBuilder, x: Node) -> Node:
    """log(sigmoid(x))."""
    return b.op("neg", b.op("softplus", b.op("neg", x)))


def hard_sigmoid(b: GraphBuilder, x: Node) -> Node:
    """(x + 3) / 6 between 0 and 1."""
    return b.op("div", clip(b, b.op("add", x, 3.0), 0.0, 6.0), 6.0)


def hard_swish(b: GraphBuilder, x: Node) -> Node:
    """x * hard_sigmoid(x)."""
    return b.op("mul", x, hard_sigmoid(b, x))
