"""Errors of the backend that Dynamo passes on unchanged.

Dynamo wraps an error of a backend in one of its own, with long advice for developers, except for errors of its own class
`ShortenTraceback`. Errors that are meant for the user therefore get a class that also derives from that one, so that
`except aicf.NotStreamed` works under torch.compile.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from torch._dynamo.exc import ShortenTraceback


def passing_through_dynamo(error: Exception, frame: types.FrameType | None) -> Exception:
    """A copy of `error` that Dynamo does not wrap. Its traceback begins at `frame`, the frame that raises it."""
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
