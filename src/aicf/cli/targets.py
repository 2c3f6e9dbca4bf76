"""`aicf targets`: what kernels are made for here, as the schedule sees it."""

from __future__ import annotations

from argparse import Namespace

from aicf.cli.errors import OK
from aicf.schedule.target import describe, host_target


def run(options: Namespace) -> int:
    """Print the target of this machine."""
    print(describe(host_target()))
    return OK
