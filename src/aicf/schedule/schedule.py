"""A schedule: every decision about how a streaming region runs, as one printable value with its reasons.

    schedule q_major
      tiles      m 96, n 64, k 64, rows 6
      residency  Q_tile shared, K_tile shared, …
      stream     sequence, q_major, kv_split 1, stages 1
      mapping    b thread, h thread, i0 thread; warps 1, threads 2
      because    tile_m: …

It is chosen by `cost.choose`, or given in part by a user (`Schedule.parse("tile_m=128,order=q_major")`; the rest is then chosen).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

Space = Literal["global", "shared", "register"]
Order = Literal["q_major", "kv_major"]
Unit = Literal["thread", "warp", "block"]

SPACES: tuple[str, ...] = ("global", "shared", "register")
ORDERS: tuple[str, ...] = ("q_major", "kv_major")
UNITS: tuple[str, ...] = ("thread", "warp", "block")

# The values that have a place: tiles of the operands, a tile of scores, the row state (running maxima and sums), the
# accumulators, and the output.
VALUES: tuple[str, ...] = ("Q_tile", "K_tile", "V_tile", "score_frag", "state", "output_acc", "O_tile")

# What they are called in a region that sums no values: see `aicf.mcir.passes.vocabulary`.
GENERAL_NAMES = {
    "Q_tile": "row_tile", "K_tile": "streamed_tile", "score_frag": "product_frag", "state": "state", "O_tile": "out_tile",
}  # fmt: skip


class ScheduleError(ValueError):
    """A schedule that cannot be: what is wrong and what would be right."""


@dataclass(frozen=True)
class Schedule:
    """Decisions, complete. Lengths in elements.

    `tile_m`, `tile_n`, `tile_k`: tiles of rows (queries), of the streamed axis (keys) and of the contracted axis. `rows`: the
    register block, rows that are worked on at a time inside a tile. `residency`: the memory space of each of VALUES. `order`:
    what the outer loop walks. `kv_split`: into how many parts, combined at the end, the streamed axis is cut. `stages`: tiles
    of K and V in flight. `stream_axis`: its name in MCIR; a region that is no attention has no values, and general names
    (`GENERAL_NAMES`). `mapping`: what runs each loop; `warps`: per block (GPU); `threads`: worker threads (CPU). `reasons`:
    (decision, reason) pairs.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    rows: int
    residency: tuple[tuple[str, Space], ...]
    order: Order = "q_major"
    kv_split: int = 1
    stages: int = 1
    mapping: tuple[tuple[str, Unit], ...] = (("b", "thread"), ("h", "thread"), ("i0", "thread"))
    warps: int = 1
    threads: int = 1
    stream_axis: str = "sequence"
    name: str = "chosen"
    reasons: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        problems = check(self)
        if problems:
            raise ScheduleError("; ".join(problems))

    def space(self, value: str) -> Space:
        """Where `value` (one of VALUES) lives. KeyError for another name."""
        return dict(self.residency)[value]

    def reason(self, decision: str) -> str:
        """Why `decision` (a field's name) is as it is; KeyError when nothing was decided."""
        return dict(self.reasons)[decision]

    @property
    def attention(self) -> bool:
        """Whether it is for a region that sums values."""
        return self.stream_axis == "sequence"

    @property
    def brief(self) -> str:
        """What tells schedules apart on one kind of machine, on one line."""
        s = self
        return f"{s.order}, tiles m {s.tile_m} n {s.tile_n} k {s.tile_k}, rows {s.rows}, kv_split {s.kv_split}"

    @staticmethod
    def parse(text: str) -> Mapping[str, Any]:
        """A partial schedule from `tile_m=128,order=q_major,residency.K_tile=shared`, for `cost.choose`.

        Raises ScheduleError for an unknown name or a value that it cannot have.
        """
        given: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, value = (x.strip() for x in part.partition("="))
            if not equals or not value:
                raise ScheduleError(f"`{part}`: write name=value, for example tile_m=128 ({_NAMES})")
            if name in given:
                raise ScheduleError(f"{name} is given twice")
            given[name] = value
        return partial(given)

    def __str__(self) -> str:
        mapping = ", ".join(f"{loop} {unit}" for loop, unit in self.mapping)
        because = [f"  because    {decision}: {reason}" for decision, reason in self.reasons]
        places = [
            f"{value if self.attention else GENERAL_NAMES[value]} {space}"
            for value, space in self.residency
            if self.attention or value in GENERAL_NAMES
        ]
        return "\n".join([
            f"schedule {self.name}",
            f"  tiles      m {self.tile_m}, n {self.tile_n}, k {self.tile_k}, rows {self.rows}",
            "  residency  " + ", ".join(places),
            f"  stream     {self.stream_axis}, {self.order}, kv_split {self.kv_split}, stages {self.stages}",
            f"  mapping    {mapping}; warps {self.warps}, threads {self.threads}",
            *because,
        ])  # fmt: skip


_COUNTS = ("tile_m", "tile_n", "tile_k", "rows", "kv_split", "stages", "warps", "threads")
_GIVEN = (*_COUNTS, "order", "residency")
_NAMES = f"what can be given: {', '.join(_GIVEN)}, residency.<value>"


def partial(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decisions in `given`, checked: counts as numbers or text, `order`, `residency` (a mapping, or names
    `residency.K_tile`), and that they can be together. Raises ScheduleError, naming what is possible."""
    made: dict[str, Any] = {}
    places: dict[str, Space] = {}
    for name, value in given.items():
        if name in _COUNTS:
            made[name] = _count(name, value)
        elif name == "order":
            if not (isinstance(value, str) and value in ORDERS):
                raise ScheduleError(f"order={value!r}: it is one of {', '.join(ORDERS)}")
            made[name] = value
        elif name == "residency" and isinstance(value, Mapping):
            for key, space in cast("Mapping[str, str]", value).items():
                places[key] = _place(key, space)
        elif name == "residency":
            raise ScheduleError(f"residency={value!r}: write a mapping, for example {{'K_tile': 'shared'}}")
        elif isinstance(name, str) and name.startswith("residency."):  # pyright: ignore[reportUnnecessaryIsInstance]
            key = name.removeprefix("residency.")
            places[key] = _place(key, value)
        else:
            raise ScheduleError(f"a schedule has no {name!r}; {_NAMES}")
    if places:
        made["residency"] = places
    problems = _together(made)
    if problems:
        raise ScheduleError("; ".join(problems))
    return made


def _count(name: str, value: Any) -> int:
    try:
        number = int(value)
        whole = number == float(value) and not isinstance(value, bool)
    except (TypeError, ValueError, OverflowError):
        whole, number = False, 0
    if not whole or number < 1:
        said = value if isinstance(value, str) else repr(value)
        raise ScheduleError(f"{name}={said}: it is a whole number of at least 1")
    return number


def _place(value: Any, space: Any) -> Space:
    if not (isinstance(value, str) and value in VALUES):
        raise ScheduleError(f"residency of {value!r}: the values are {', '.join(VALUES)}")
    if not (isinstance(space, str) and space in SPACES):
        raise ScheduleError(f"residency.{value}={space}: it is one of {', '.join(SPACES)}")
    return cast("Space", space)


def _together(given: Mapping[str, Any]) -> list[str]:
    """What cannot be together in the decisions `given`, whatever the others are."""
    problems: list[str] = []
    if "rows" in given and given["rows"] > given.get("tile_m", given["rows"]):
        problems.append(f"rows {given['rows']} is more than tile_m {given['tile_m']}: a register block lies inside a tile")
    if given.get("order") == "kv_major" and given.get("kv_split", 1) > 1:
        split = given["kv_split"]
        problems.append(f"kv_split {split} under kv_major: the outer loop walks the keys already, so give kv_split=1")
    if given.get("residency", {}).get("score_frag") == "global":
        problems.append("score_frag in global memory: the score matrix would be stored, which streaming is there to avoid")
    return problems


def check(schedule: Schedule) -> list[str]:
    """What is inconsistent in a complete schedule, whatever the target."""
    s, problems = schedule, list[str]()
    for name in _COUNTS:
        if getattr(s, name) < 1:
            problems.append(f"{name} is {getattr(s, name)}, it must be at least 1")
    if s.order not in ORDERS:
        problems.append(f"order {s.order!r} is none of {', '.join(ORDERS)}")
    problems += _together({**decisions(s), "residency": dict(s.residency)})
    missing = [v for v in VALUES if v not in dict(s.residency)]
    if missing:
        problems.append(f"residency does not say where {', '.join(missing)} lives")
    problems += [
        f"{v} in {space!r} memory, which is none of {', '.join(SPACES)}" for v, space in s.residency if space not in SPACES
    ]
    problems += [
        f"loop {loop} runs per {unit!r}, which is none of {', '.join(UNITS)}" for loop, unit in s.mapping if unit not in UNITS
    ]
    return problems


def decisions(schedule: Schedule) -> dict[str, Any]:
    """Every decision by name, reasons left out: what the kernel cache and comparisons look at."""
    return {f.name: getattr(schedule, f.name) for f in fields(schedule) if f.name not in ("reasons", "name")}
