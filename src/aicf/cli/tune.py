"""`aicf tune`: the fastest schedule of a problem, found by trying all, kept for later compilations."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from aicf.bench.cases import make_inputs
from aicf.bench.search import Outcome, Site, distinct, keep, search, sites
from aicf.cli.bench import selected
from aicf.cli.errors import FAILED, OK, CommandError
from aicf.cli.progress import say
from aicf.cli.silence import users_prints_dropped
from aicf.report.words import plural
from aicf.runtime.cache import cache_dir
from aicf.schedule import describe, host_target

NEAR = 1.10  # a choice that takes at most so much longer than the best is counted as good


def run(options: Namespace) -> int:
    """Searches, for each selected row, all schedules of each of its attentions. FAILED when nothing streams in one of them."""
    if options.seconds < 0:
        raise CommandError(f"--seconds {options.seconds:g}: it is at least 0")
    code, behind, kept = OK, list[float](), list[dict[str, Any]]()
    print(describe(host_target()))
    for job in selected(options):
        try:
            tensors = make_inputs(job.case, job.size, job.dtype)
        except ValueError as e:
            raise CommandError(str(e)) from e
        with users_prints_dropped():
            found = distinct(sites(job.case.plain, list(tensors.values()), job.threads))
        if not found:
            say(f"{job}: nothing streams in it, so there is no schedule to tune")
            code = FAILED
        for site in found:
            outcome = search(site, options.seconds, say)
            behind.append(outcome.behind)
            print("\n".join(["", f"{job}", *table(outcome, options.top)]), flush=True)
            if options.dry_run:
                print("not kept (--dry-run)")
            else:
                print("\n".join(kept_text(keep(site, outcome))))
            kept.append(_json(str(job), site, outcome))
            if options.json is not None:
                Path(options.json).write_text(json.dumps(kept, indent=1) + "\n")
    print(f"\n{verdict(behind)}")
    return code


def table(outcome: Outcome, top: int) -> list[str]:
    """The fastest `top` schedules, and the cost model's choice with its rank."""
    best, trials = outcome.trials[0].seconds, outcome.trials
    ranks = {t.schedule.brief: k for k, t in enumerate(sorted(trials, key=lambda t: t.predicted), 1)}
    lines = [f"{'rank':>5}{'ms':>10}{'/ best':>8}{'predicted':>11}{'its rank':>9}  schedule"]
    mine = trials.index(outcome.model)
    for k, t in enumerate(trials):
        if k < top or k == mine:
            chosen = "   <- the cost model's choice" if k == mine else ""
            lines.append(
                f"{k + 1:5}{t.seconds * 1e3:10.3f}{t.seconds / best:8.2f}{t.predicted * 1e3:11.3f}{ranks[t.schedule.brief]:9}"
                f"  {t.schedule.brief}{chosen}"
            )
    lines.append(f"{len(trials)} schedules; the cost model's choice is number {mine + 1}, {outcome.behind:.2f} times the best")
    return lines


def kept_text(file: Path | None) -> list[str]:
    """Where the result was kept, and how to undo that."""
    if file is None:
        root = cache_dir()
        if root is None:
            return ["not kept: there is no cache folder (AICF_CACHE_DIR is empty, or this user has no home)"]
        return [f"not kept: the cache folder {root} cannot be written"]
    return [
        "kept: later compilations of this problem use the first",
        f"  in    {file}",
        "  undo  delete that file; `aicf cache clear --schedules` deletes all that were kept",
    ]


def verdict(behind: list[float]) -> str:
    """In how many problems the cost model was near the best."""
    near = sum(x <= NEAR for x in behind)
    share = f" ({near / len(behind):.0%})" if behind else ""
    return f"the cost model's choice is within {NEAR - 1:.0%} of the best in {near} of {plural(len(behind), 'problem')}{share}"


def _json(name: str, site: Site, outcome: Outcome) -> dict[str, Any]:
    trials = [{"schedule": t.schedule.brief, "seconds": t.seconds, "predicted": t.predicted} for t in outcome.trials]
    return {
        "problem": name, "class": site.decision.problem.shape_class, "model": outcome.model.schedule.brief,
        "behind": outcome.behind, "trials": trials,
    }  # fmt: skip
