"""Errors of the backend that reach the caller as they are.

Dynamo wraps what a backend raises in an error of its own, with pages of advice. It lets its own kind through, so that what is
meant for people becomes one of that kind as well: `except aicf.NotStreamed` holds under torch.compile too.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from torch._dynamo.exc import ShortenTraceback


def as_it_is(error: Exception, frame: types.FrameType | None) -> Exception:
    """`error` such that Dynamo does not wrap it; its traceback begins at `frame`, the one that raises it."""
    kind = _kind(type(error))
    made = kind.__new__(kind, *error.args)
    made.__dict__.update(error.__dict__)
    made.first_useful_frame = frame
    made.__dict__["said"] = str(error)  # Dynamo adds its advice to the arguments
    return made


@functools.cache
def _kind(own: type[Exception]) -> type[ShortenTraceback]:
    kind: Any = type  # pyright cannot order bases that it does not know
    members = {"__module__": own.__module__, "__doc__": own.__doc__, "__str__": lambda self: self.said}
    return kind(own.__name__, (own, ShortenTraceback), members)
