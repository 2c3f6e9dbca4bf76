"""The user's own prints stay out of a command's output: standard output holds the result alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def users_prints_dropped() -> Iterator[None]:
    """What Python code prints on standard output meanwhile goes nowhere. Errors and warnings, on standard error, are seen."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
