"""Gradients of regions, derived on the Semantic IR: a graph in, the graphs of its forward and of its backward out."""

from aicf.gradient.differentiate import Gradient, NotDifferentiable, differentiate
from aicf.gradient.plan import Plan, TooLarge, planned

__all__ = ["Gradient", "NotDifferentiable", "Plan", "TooLarge", "differentiate", "planned"]
