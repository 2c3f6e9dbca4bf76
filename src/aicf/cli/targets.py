"""`aicf targets`: what kernels are made for here, as the schedule sees it, and what else can be named."""

from __future__ import annotations

from argparse import Namespace

from aicf.backends.manifest import target_names
from aicf.cli.errors import OK
from aicf.schedule.target import describe, host_target


def run(options: Namespace) -> int:
    """Print the target of this machine, and the names of the others."""
    print(describe(host_target()))
    print(f"others (--target NAME): {', '.join(name for name in target_names() if name != 'host')}")
    return OK
