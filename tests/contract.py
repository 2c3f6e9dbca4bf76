"""The numeric contract as an assertion. What it is, and why it is the only tolerance, says `aicf.contract`."""

from __future__ import annotations

from typing import Any

from aicf.contract import Errors, double, errors, judge
from aicf.scalar import DType


def assert_contract(got: Any, unfused: Any, reference: Any, dtype: DType, what: str = "result") -> None:
    """Fail unless `got` keeps the contract; the message gives the numbers on both sides."""
    problem = judge(got, unfused, reference, dtype).problem
    assert not problem, f"{what}: {problem}"


__all__ = ["Errors", "assert_contract", "double", "errors"]
