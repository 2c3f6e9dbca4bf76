"""Errors that are the user's to mend, and the exit codes of every command."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2  # argparse's own
NOT_STREAMED = 3


class CommandError(Exception):
    """What is wrong and what to do, in words for the person who typed the command. `main` prints it and exits with FAILED."""
