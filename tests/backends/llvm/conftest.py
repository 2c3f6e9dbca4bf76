"""Numeric tests run for every instruction set that this machine can execute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import running
from .paths import EXECUTABLE, Path


@pytest.fixture(params=EXECUTABLE, ids=lambda p: p.name, scope="module")
def code_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """What `running.execute` compiles for. Modules of numeric tests use it for all of their tests."""
    with running.compiling_for(request.param):
        yield request.param
