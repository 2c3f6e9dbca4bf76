"""A graph that AICF leaves to PyTorch: the error in one line, and its regions in the report."""

from __future__ import annotations

from aicf.report import GraphReport


def error_line(e: Exception) -> str:
    """The kind of an error and the first line of its message. The lines after it are about PyTorch's internals."""
    return ": ".join([type(e).__name__, *str(e).strip().splitlines()[:1]])


def refuse_all(report: GraphReport) -> None:
    """Refuses all streamed regions of a graph that is left to PyTorch, for the reason `report.problem`."""
    for r in report.regions:
        if r.status == "streamed":
            r.refuse(f"the graph could not be rewritten ({report.problem})")
