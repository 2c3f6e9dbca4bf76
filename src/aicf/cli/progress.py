"""Progress, on standard error, so that standard output holds the result alone."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(f"aicf: {text}", file=sys.stderr, flush=True)
