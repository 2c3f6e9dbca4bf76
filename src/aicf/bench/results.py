"""Rows on disk and what they show together.

A file of rows is one JSON document, written anew after each row, so that a run can be stopped at any time and resumed.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .measure import Row

FORMAT = 1


class BadResults(ValueError):
    """A file that does not hold rows; the message says what is wrong, for people."""


def load(path: Path) -> list[Row]:
    """The rows of a file. Raises BadResults for a file of another kind and OSError when it cannot be read."""
    try:
        data: Any = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise BadResults(f"{path} has rows of format {data['format']}, this reads format {FORMAT}")
        return [Row.from_json(r) for r in data["rows"]]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as e:
        raise BadResults(f"{path} holds no benchmark rows ({type(e).__name__}: {e})") from e


def save(path: Path, rows: Iterable[Row], about: dict[str, Any]) -> None:
    """Writes all rows, in one step: a reader sees the old file or the new one."""
    text = json.dumps({"format": FORMAT, "about": about, "rows": [r.to_json() for r in rows]}, indent=1, allow_nan=False)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(handle, "w") as file:
        file.write(text + "\n")
    os.replace(name, path)


def merged(rows: Iterable[Row], row: Row) -> list[Row]:
    """`rows` with `row` in the place of the one that measured the same, or at the end."""
    kept = {r.key: r for r in rows}
    kept[row.key] = row
    return list(kept.values())


def complete(rows: Iterable[Row], key: tuple[object, ...], names: Sequence[str]) -> bool:
    """Is there a row of that key in which all of `names` were tried?"""
    return any(r.key == key and set(names) <= set(r.entries) for r in rows)


# ------------------------------------------------------------------------------------------------ goals


@dataclass(frozen=True)
class Demand:
    """A bound on the geometric mean over the rows for which `of` holds. `value`: the figure of a row, None where it has none;
    `least`: what the mean must reach; `none_below`: what every row must."""

    what: str
    against: str
    of: Callable[[Row], bool]
    value: Callable[[Row], float | None]
    least: float
    none_below: float | None = None
    percent: bool = False


@dataclass(frozen=True)
class Finding:
    """What the rows say about a demand: the mean and the worst of `count` rows, and whether that is enough; None: no rows."""

    demand: Demand
    count: int = 0
    mean: float | None = None
    worst: float | None = None
    at: Row | None = None

    @property
    def met(self) -> bool | None:
        if self.mean is None or self.worst is None:
            return None
        below = self.demand.none_below
        return self.mean >= self.demand.least and (below is None or self.worst >= below)


def _over(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.ratio(name)


def _read_share(row: Row) -> float | None:
    return row.share if row.read_bound else None


PLAIN = ("dense", "causal")
HALF = ("bf16", "f16")

# A case that Flex Attention cannot say, or SDPA, has no ratio and so no part in a mean.
DEMANDS: tuple[Demand, ...] = (
    Demand("dense fp32, N >= 512", "sdpa", lambda r: r.case == "dense" and r.dtype == "f32" and r.n >= 512, _over("sdpa"), 1.25),
    Demand("causal fp32, N >= 512", "sdpa", lambda r: r.case == "causal" and r.dtype == "f32" and r.n >= 512, _over("sdpa"), 1.5),
    Demand("dense and causal, N = 128", "sdpa", lambda r: r.case in PLAIN and r.n == 128, _over("sdpa"), 1.3),
    Demand("dense and causal, bf16 and fp16", "sdpa", lambda r: r.case in PLAIN and r.dtype in HALF, _over("sdpa"), 1.4),
    Demand(
        "masked or score-mapped, N >= 2048", "flex", lambda r: r.case not in ("dense", "decode") and r.n >= 2048,
        _over("flex"), 2.2, none_below=1.5,
    ),
    Demand("dense bias, padding", "sdpa", lambda r: r.case in ("bias", "padding"), _over("sdpa"), 1.5),
    Demand("decode", "sdpa", lambda r: r.case == "decode", _over("sdpa"), 1.5),
    Demand("decode", "read bandwidth", lambda r: r.case == "decode", _read_share, 0.8, percent=True),
    Demand("all rows", "compile", lambda r: True, _over("compile"), 2.0, none_below=1.0),
    Demand(
        "dense fp32, N = 2048, D = 128, 1 thread", "FMA peak",
        lambda r: (r.case, r.dtype, r.n, r.d, r.threads) == ("dense", "f32", 2048, 128, 1), lambda r: r.share, 0.82, percent=True,
    ),
)  # fmt: skip
THREADS = Demand("two threads", "one thread", lambda r: True, lambda r: None, 1.85)


def findings(rows: Sequence[Row]) -> list[Finding]:
    """What the rows say about each demand, in the order of the issue."""
    results = [_found(d, [(r, d.value(r)) for r in rows if d.of(r)]) for d in DEMANDS]
    return [*results, _found(THREADS, _speedups(rows))]


def _speedups(rows: Sequence[Row]) -> list[tuple[Row, float | None]]:
    """Two threads over one, for what was measured with both."""
    single = {r.key[:-1]: r.seconds("aicf") for r in rows if r.threads == 1}
    made: list[tuple[Row, float | None]] = []
    for row in rows:
        one, two = single.get(row.key[:-1]), row.seconds("aicf")
        if row.threads == 2 and one is not None and two is not None:
            made.append((row, one / two))
    return made


def _found(demand: Demand, values: Sequence[tuple[Row, float | None]]) -> Finding:
    known = [(row, value) for row, value in values if value is not None]
    if not known:
        return Finding(demand)
    at, worst = min(known, key=lambda pair: pair[1])
    mean = math.exp(sum(math.log(value) for _, value in known) / len(known))
    return Finding(demand, len(known), mean, worst, at)
