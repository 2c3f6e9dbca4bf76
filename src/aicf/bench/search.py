"""The search for the best schedule: every legal one is compiled and run on the tensors of a real call.

    sites(fn, args)        the attentions of fn, each with the tensors that it reads in this call
    search(site)           all schedules of one of them, timed, the fastest first
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aicf.decide import Decision
from aicf.driver import Options, RegionResult, rescheduled
from aicf.frontends.torch.options import BackendOptions
from aicf.frontends.torch.pipeline import streamed_module
from aicf.frontends.torch.run.region_op import REGION, size_names
from aicf.runtime import tuned
from aicf.runtime.executable import ArrayRef, Executable
from aicf.schedule import Schedule, choose, estimate, host_target
from aicf.schedule.grid import legal

from .timing import clock_for, interleaved, torch_threads

# The first calls decide who is worth more of them: what is this much slower than the fastest is out.
FIRST_CUT = 1.5
SECOND_CUT = 1.15


@dataclass
class Site:
    """One attention of a call: what became of it, the tensors that it reads and writes there, and its sizes by name."""

    result: RegionResult
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    sizes: dict[str, int]

    @property
    def decision(self) -> Decision:
        assert self.result.decision is not None
        return self.result.decision


@dataclass(frozen=True)
class Trial:
    """A schedule, the seconds of its best call and those that the cost model predicts."""

    schedule: Schedule
    seconds: float
    predicted: float


@dataclass(frozen=True)
class Outcome:
    """All trials, the fastest first; `model`: that of the cost model's choice."""

    trials: tuple[Trial, ...]
    model: Trial

    @property
    def behind(self) -> float:
        """How much longer the cost model's choice takes than the best: 1.0 when it is the best."""
        return self.model.seconds / self.trials[0].seconds


class _Notes(torch.fx.Interpreter):
    """Runs a rewritten graph and keeps what its regions read and wrote."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: list[tuple[list[torch.Tensor], list[torch.Tensor], list[int]]] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        made = super().call_function(target, args, kwargs)
        if target is REGION:
            self.seen.append((list(args[1]), list(made), [int(n) for n in args[2]]))
        return made


@torch.no_grad()
def sites(fn: Callable[..., Any], args: Sequence[Any], threads: int) -> list[Site]:
    """The attentions of `fn(*args)` that can be streamed, in the order in which they run."""
    noted: list[Site] = []

    def note(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        report, rewritten = streamed_module(module, inputs, BackendOptions(Options(fuse="always", threads=threads)))

        def run(*values: Any) -> Any:
            if rewritten is None:
                return module(*values)
            notes = _Notes(rewritten)
            result = notes.run(*values)
            done = [r for r in report.regions if r.status == "streamed"]
            for region, (read, made, sizes) in zip(done, notes.seen, strict=True):
                noted.append(Site(region, read, made, dict(zip(size_names(region), sizes, strict=True))))
            return result

        return run

    torch._dynamo.reset()
    with torch_threads(threads):
        torch.compile(fn, backend=note, dynamic=False)(*args)
    torch._dynamo.reset()
    return noted


def search(site: Site, budget: float, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Compiles and times every legal schedule of `site`: all of them for about `budget` seconds, then for as long again those
    within 50 % of the fastest, then those within 15 %."""
    problem, target = site.decision.problem, host_target()
    own = choose(problem, target)
    schedules = legal(problem, target)
    calls: dict[str, Callable[[], None]] = {}
    for k, s in enumerate(schedules, 1):
        if k % 25 == 1:
            say(f"compiling {k} to {min(k + 24, len(schedules))} of {len(schedules)} schedules")
        calls[s.brief] = _call(site, s)
        calls[s.brief]()
    say(f"timing {len(schedules)} schedules")
    clock = clock_for(problem.threads)
    with torch_threads(problem.threads):
        best = {name: min(times) for name, times in interleaved(calls, budget, 2, clock).items()}
        for cut in (FIRST_CUT, SECOND_CUT):
            limit = min(best.values()) * cut
            left = {name: calls[name] for name, seconds in best.items() if seconds <= limit or name == own.brief}
            for name, times in interleaved(left, budget, 2, clock).items():
                best[name] = min(best[name], *times)
    trials = [Trial(s, best[s.brief], estimate(problem, s, target)) for s in schedules]
    ordered = tuple(sorted(trials, key=lambda t: t.seconds))
    return Outcome(ordered, next(t for t in trials if t.schedule.brief == own.brief))


def keep(site: Site, outcome: Outcome) -> Path | None:
    """Stores the best for later compilations, and returns the file that it is in. None when there is no disk cache, or it cannot
    be written."""
    best = outcome.trials[0]
    found = tuned.kept(best.schedule, len(outcome.trials), best.seconds, outcome.model.seconds)
    return tuned.store(site.decision.problem, host_target(), site.decision.meaning, found)


def distinct(sites: Sequence[Site]) -> list[Site]:
    """One site of each problem: the layers of a model are tuned once."""
    kinds = {(s.decision.problem.shape_class, s.decision.meaning): s for s in reversed(sites)}
    return list(reversed(kinds.values()))


def _call(site: Site, schedule: Schedule) -> Callable[[], None]:
    given = {name: getattr(schedule, name) for name in tuned.DECISIONS}
    options = Options(fuse="always", threads=site.decision.problem.threads, schedule=given)
    executable = rescheduled(site.result, options, site.sizes).executable
    assert isinstance(executable, Executable)
    inputs, outputs = _refs(site.inputs), _refs(site.outputs)
    sizes = [site.sizes[name] for name in executable.symbols]
    return lambda: executable.run(inputs, outputs, sizes)


def _refs(tensors: Sequence[torch.Tensor]) -> list[ArrayRef]:
    return [ArrayRef(t.data_ptr(), t.shape, t.stride()) for t in tensors]
