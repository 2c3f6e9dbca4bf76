"""One row: a case at a size, every contender compiled, checked against float64, then timed beside all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from aicf.backends.llvm.rates import fma_work, read_work
from aicf.contract import Judgement, judge
from aicf.frontends.torch.fx.symbols import DTYPE_OF
from aicf.scalar import DType

from . import cases, contenders
from .cases import Case, Size, Tensors
from .timing import clock_for, interleaved, torch_threads

# Score elements in float64 that the reference may hold: 64 Mi of them are 512 MiB, and there are a few such tensors.
REFERENCE = 1 << 26
# With fewer operations per byte than this the memory is the limit, and its rate is measured too.
BALANCE = 32.0
REPEATS = 4  # how often a limit is measured again that a call has outrun


@dataclass
class Entry:
    """What one contender showed. `seconds`: its best call (None: not timed, and `missing` says why); `calls`: how many were
    timed; `median` of them; `first`: seconds of the first call, compilation included; `error`: share of the error that the
    numeric contract allows, above 1 where it is not kept."""

    seconds: float | None = None
    median: float | None = None
    calls: int = 0
    first: float | None = None
    error: float | None = None
    missing: str = ""


@dataclass
class Row:
    """A case at a size, with everything that was found. `dtype` by the project's name. `flop`: operations needed; `bytes`: memory
    that must be moved; `peak`: flop per second of a loop of FMAs that runs for as long as a call, `bandwidth`: bytes per second
    of a loop of reads over as much memory, both measured between the contenders' calls, the latter only where it could be the
    limit. `status`, `schedule`: what AICF made of it."""

    case: str
    batch: int
    heads: int
    n: int
    d: int
    dtype: str
    threads: int
    flop: float = 0.0
    bytes: int = 0
    peak: float = 0.0
    bandwidth: float | None = None
    status: str = ""
    schedule: str = ""
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it this row and no other."""
        return (self.case, self.batch, self.heads, self.n, self.d, self.dtype, self.threads)

    def seconds(self, name: str) -> float | None:
        entry = self.entries.get(name)
        return None if entry is None else entry.seconds

    def ratio(self, name: str) -> float | None:
        """How many times faster AICF is than `name`."""
        mine, theirs = self.seconds("aicf"), self.seconds(name)
        return None if mine is None or theirs is None else theirs / mine

    @property
    def read_bound(self) -> bool:
        """Is reading the operands, at the measured rate, longer than computing on them?"""
        return self.bandwidth is not None and self.bytes / self.bandwidth > self.flop / self.peak

    @property
    def limit(self) -> float:
        """Seconds that the call takes at the measured limit: reading at the read bandwidth or computing at the FMA peak."""
        return self.bytes / self.bandwidth if self.read_bound and self.bandwidth else self.flop / self.peak

    @property
    def share(self) -> float | None:
        """AICF's share of the limit: of the read bandwidth where that is it, else of the FMA peak. At most 1: a call that is
        quicker than the loop that measures the limit is itself the best measurement of it."""
        mine = self.seconds("aicf")
        return None if mine is None or not self.peak else min(1.0, self.limit / mine)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Row:
        given = dict(data)
        entries = {name: Entry(**e) for name, e in given.pop("entries").items()}
        return Row(**given, entries=entries)


def measure(
    case: Case, size: Size, dtype: torch.dtype, threads: int, *, names: Sequence[str], budget: float,
    fuse: Literal["auto", "always"] = "auto", say: Callable[[str], None] = lambda text: None,
) -> Row:  # fmt: skip
    """Measures a row for about `budget` seconds beside what compiling and checking take. What does not compile or computes
    something else is not timed, nor is AICF where it does not keep the contract; the entry says why. Others are timed even so:
    that they lose a few bits is theirs to answer for."""
    torch._dynamo.reset()
    try:
        row, calls = checked(case, size, dtype, threads, names=names, fuse=fuse, say=say)
        say("timing")
        take_time(row, calls, budget)
        return row
    finally:
        torch._dynamo.reset()


@torch.no_grad()
def checked(
    case: Case, size: Size, dtype: torch.dtype, threads: int, *, names: Sequence[str], fuse: Literal["auto", "always"],
    say: Callable[[str], None],
) -> tuple[Row, dict[str, Callable[[], Any]]]:  # fmt: skip
    """The row without its times, and the warm calls of those contenders that are to be timed."""
    tensors = cases.make_inputs(case, size, dtype)
    row = Row(case.name, size.batch, size.heads, size.n, size.d, DTYPE_OF[dtype], threads)
    row.flop, row.bytes = cases.flop(case, tensors), cases.traffic(case, tensors)
    calls: dict[str, Callable[[], Any]] = {}
    with torch_threads(threads):
        reference = Reference(case, tensors)
        for name in names:
            entry = row.entries[name] = Entry()
            began = time.perf_counter()
            try:
                made = contenders.prepare(name, case, tensors, threads=threads, fuse=fuse)
                if made.call is None:
                    entry.missing = made.missing
                    continue
                say(f"{name}: first call")
                result = made.call()
                entry.first = time.perf_counter() - began
                made.call()  # what a second call still compiles or allocates
            except Exception as e:
                entry.missing = f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[0][:200]}"
                continue
            if name == "aicf":
                _note(row, made.report)
            found = reference.judge(result)
            entry.error = found.share if np.isfinite(found.share) else None
            if found.another or (found.problem and name == "aicf"):
                entry.missing = f"wrong: {found.problem}"
            else:
                calls[name] = made.call
    return row, calls


def _note(row: Row, report: Any) -> None:
    regions = report.regions
    row.status = ", ".join(sorted({f"{r.status}" + ("" if r.status == "streamed" else f": {r.reason}") for r in regions}))
    row.status = row.status or "no attention found"
    row.schedule = "; ".join(dict.fromkeys(r.schedule.brief for r in regions if r.schedule is not None))


@torch.no_grad()
def take_time(row: Row, calls: Mapping[str, Callable[[], Any]], budget: float) -> None:
    """Times the calls of a row, and what the machine can do at the most between them."""
    if not calls:
        return
    fma, per_call = fma_work(row.threads)
    clock = clock_for(row.threads)
    with torch_threads(row.threads):
        peak, turns = _as_long_as(calls.get("aicf") or next(iter(calls.values())), fma, clock)
        extra: dict[str, Callable[[], Any]] = {"fma peak": peak}
        read, read_bytes = None, 0
        if row.flop / row.bytes < BALANCE:
            read, read_bytes = read_work(row.threads, row.bytes)
            extra["read bandwidth"] = read
            read()
        found = interleaved({**calls, **extra}, budget, clock=clock)
        for _ in range(REPEATS):
            row.peak = turns * per_call / min(found["fma peak"])
            row.bandwidth = read_bytes / min(found["read bandwidth"]) if read is not None else None
            if "aicf" not in calls or row.limit <= min(found["aicf"]):
                break
            # Somebody else had the machine while the limit was measured: once more, beside the call that outran it.
            again = interleaved({"aicf": calls["aicf"], **extra}, budget / REPEATS, clock=clock)
            found |= {name: [*found[name], *again[name]] for name in extra}  # the call itself gets no more chances than others
    for name in calls:
        times = sorted(found[name])
        entry = row.entries[name]
        entry.seconds, entry.median, entry.calls = times[0], times[len(times) // 2], len(times)


def _as_long_as(call: Callable[[], Any], work: Callable[[], Any], clock: Callable[[], float]) -> tuple[Callable[[], None], int]:
    """`work` as many times as take about as long as `call`, and how many: on a machine that others use, the best of many short
    moments is one that no longer call can have."""
    took: list[float] = []
    for each in (call, work):
        each()
        began = clock()
        each()
        took.append(clock() - began)
    turns = max(1, round(took[0] / max(1e-9, took[1])))

    def run() -> None:
        for _ in range(turns):
            work()

    return run, turns


class Reference:
    """The case in float64 and, as the measure of what error is fair, unfused in the same precision: on as many heads as memory
    allows."""

    def __init__(self, case: Case, tensors: Tensors) -> None:
        self.share = case.share
        self.dtype: DType = DTYPE_OF[tensors["q"].dtype]
        groups = cases.head_groups(case, tensors)
        scores = case.share * case.maps * tensors["q"].shape[-2] * tensors["k"].shape[-2]
        count = max(1, min(len(groups), REFERENCE // scores))
        self.groups = [groups[k * (len(groups) - 1) // max(1, count - 1)] for k in range(count)]
        self.unfused: list[Any] = []
        self.exact: list[Any] = []
        for b, g in self.groups:
            own = cases.part(case, tensors, b, g)
            self.unfused.append(case.plain(*own.values()))
            self.exact.append(case.plain(*(t.double() if t.is_floating_point() else t for t in own.values())))

    def judge(self, result: torch.Tensor) -> Judgement:
        worst = Judgement(0.0, "")
        for (b, g), unfused, exact in zip(self.groups, self.unfused, self.exact, strict=True):
            own = result[b : b + 1, g * self.share : (g + 1) * self.share]
            worst = max(worst, judge(own, unfused, exact, self.dtype), key=lambda j: j.share)
        return worst


__all__ = ["Entry", "Reference", "Row", "Size", "checked", "measure", "take_time"]
