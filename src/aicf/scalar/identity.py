"""What makes two values the same: structure, types and every bit, never their text.

    exact(0.0) != exact(-0.0)      exact(1) != exact(True) != exact(1.0)      exact(nan) == exact(nan)
    fingerprint(kernel)            a hash that holds in other processes too: the key of everything that is kept

Python's own equality takes 0.0 for -0.0, 1 for True and 1.0, and no NaN for itself, so a dict that is keyed by plain numbers
mixes up programs. Text for people leaves out types. Keys of caches and memos come from here.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np

from aicf.scalar.expr import Call, Const, Expr, Load, Reduce, Var, children, unknown

_DIGESTS: dict[Expr, bytes] = {}


def bits(value: bool | int | float) -> bytes:
    """A number with its kind: all NaNs are one, 0.0 and -0.0 are two, 1, 1.0 and True are three."""
    if isinstance(value, bool):
        return b"bool 1" if value else b"bool 0"
    if isinstance(value, int):
        return b"int %d" % value
    return b"float nan" if math.isnan(value) else b"float " + struct.pack("<d", value)


def exact(value: Any) -> Any:
    """A hashable value that equals another one's only where both are the same in kind and bits. Tuples, lists, mappings and
    arrays are taken apart; expressions, nodes and everything else that is compared by identity stand for themselves. Raises
    TypeError for what has no hash."""
    if isinstance(value, (bool, int, float)):
        return bits(value)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(exact, cast("Sequence[Any]", value)))
    if isinstance(value, Mapping):
        return (dict, *((exact(k), exact(v)) for k, v in cast("Mapping[Any, Any]", value).items()))
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value), value.dtype.str, value.shape, value.tobytes())
    hash(value)
    return (type(value), value)


def digest(e: Expr, names: Mapping[str, str] | None = None) -> bytes:
    """The hash of an expression, each shared subexpression taken once. `names`: other names for some of its tensors."""
    done = _DIGESTS if not names else dict[Expr, bytes]()
    for node in unknown(e, done):
        done[node] = _hashed(*_parts(node, done, names or {}))
    return done[e]


def _parts(e: Expr, done: Mapping[Expr, bytes], names: Mapping[str, str]) -> Iterable[bytes]:
    kids = [done[c] for c in children(e)]
    match e:
        case Const():
            return (b"const", e.dtype.encode(), bits(e.value))
        case Var():
            return (b"var", e.dtype.encode(), e.name.encode())
        case Load():
            return (b"load", e.dtype.encode(), names.get(e.tensor, e.tensor).encode(), *kids)
        case Reduce():
            return (b"reduce", e.op.encode(), e.var.dtype.encode(), e.var.name.encode(), e.dtype.encode(), *kids)
        case Call():
            return (b"call", e.fn.encode(), e.dtype.encode(), *kids)


def fingerprint(*values: Any, names: Mapping[str, str] | None = None) -> str:
    """A hash of values made of dataclasses, expressions, tuples, mappings, arrays, numbers and text, as a hexadecimal text. It
    is the same in every process. Cost is linear in what is shared. `names`: other names for some tensors that expressions load.

    Raises TypeError for a kind of value that it does not know: what is left out of a key is a wrong number later.
    """
    return _Fingerprint(names or {}).of(values).hex()


class _Fingerprint:
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.done: dict[int, bytes] = {}  # of dataclasses by address; all of them are alive as long as this is

    def of(self, value: Any) -> bytes:
        match value:
            case Const() | Var() | Load() | Call() | Reduce():
                return digest(value, self.names)
            case None:
                return _hashed(b"none")
            case bool() | int() | float():
                return _hashed(b"number", bits(value))
            case str():
                return _hashed(b"text", value.encode())
            case bytes():
                return _hashed(b"bytes", value)
            case tuple() | list():
                return _hashed(b"sequence", *map(self.of, cast("Sequence[Any]", value)))
            case frozenset() | set():
                return _hashed(b"set", *sorted(map(self.of, cast("Iterable[Any]", value))))
            case Mapping():
                pairs = cast("Mapping[Any, Any]", value).items()
                return _hashed(b"mapping", *(self.of(x) for pair in pairs for x in pair))
            case np.ndarray() | np.generic():
                return _hashed(b"array", value.dtype.str.encode(), repr(value.shape).encode(), value.tobytes())
            case _ if is_dataclass(value) and not isinstance(value, type):
                known = self.done.get(id(value))
                if known is None:
                    named = (x for f in fields(value) for x in (f.name, getattr(value, f.name)))
                    known = self.done[id(value)] = _hashed(b"record", _kind(value), *map(self.of, named))
                return known
            case _:
                raise TypeError(f"no fingerprint of a {type(value).__name__}: {value!r:.100}")


def _kind(value: object) -> bytes:
    return f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _hashed(*parts: bytes) -> bytes:
    h = hashlib.sha256()
    for part in parts:
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.digest()
