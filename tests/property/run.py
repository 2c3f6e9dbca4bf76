"""Thousands of random attention programs: `python -m tests.property.run --count 1000 --seed 0 --jobs 2`.

Program k of a run has seed `seed + k * step`. Every failure is printed reduced: the smallest set of choices that still fails, as
source text, with the command that runs it again. A program is a text with dtype, schedule, sizes and data; counted are also how
many differ in more than their data, how many texts there were, what ran at each level, and the kernels that were compiled.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence

import torch

from aicf.runtime.building import Counts

from .choices import SHARED, reduced
from .grammar import program
from .levels import LEVELS, Outcome, check, same_kind

FOUND = 20  # failures reduced at most


def one(seed: int, overrides: Mapping[str, int] | None = None, levels: tuple[str, ...] = LEVELS) -> Outcome:
    """The program of one seed at all levels."""
    try:
        p = program(seed, overrides)
    except Exception as e:
        return Outcome(failed=("grammar", f"{type(e).__name__}: {e}"))
    return check(p, levels)


def smallest(seed: int, failed: tuple[str, str], overrides: Mapping[str, int] | None = None) -> dict[str, int]:
    """The fewest choices with which `seed` fails in the same way."""
    levels = (failed[0],) if failed[0] in LEVELS else ()
    given = dict(overrides or {})

    def fails(tried: Mapping[str, int]) -> bool:
        try:
            program(seed, {**given, **tried}).function()
        except Exception:
            return False
        return same_kind(one(seed, {**given, **tried}, levels).failed, failed)

    return {**given, **reduced(seed, lambda o: program(seed, {**given, **o}).made, fails)}


def _worker(job: tuple[list[int], tuple[str, ...]]) -> tuple[list[tuple[int, Outcome, bytes, bytes]], int, int]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds, levels = job
    before = Counts.compiled, Counts.loaded
    done = [(s, one(s, None, levels), *_identity(s)) for s in seeds]
    return done, Counts.compiled - before[0], Counts.loaded - before[1]


def _identity(seed: int) -> tuple[bytes, bytes]:
    """Hashes of a program's text alone, and of all that it is but its data."""
    try:
        p = program(seed)
    except Exception:
        return b"", b""
    whole = f"{p.text}{p.dtype}{p.schedule}{p.threads}{p.sizes}{[x.stride() for x in p.arguments()]}"
    return hashlib.sha256(p.text.encode()).digest(), hashlib.sha256(whole.encode()).digest()


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when no program failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.run", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=int, default=1, help="draw draw one seed of so many: with 32, no two share a text")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--set", action="append", default=[], metavar="CHOICE=OPTION", help="override a choice by option number")
    parser.add_argument("--seconds", type=float, default=0, help="stop drawing after so long")
    parser.add_argument("--reduce", type=int, default=FOUND, help="reduce so many of the failures at most")
    parser.add_argument(
        "--show", action="store_true", help="print the program of --seed and its outcome, and reduce it if it fails"
    )
    a = parser.parse_args(argv)
    levels = tuple(a.levels.split(","))
    warnings.simplefilter("ignore")
    if a.show:
        torch.set_num_threads(1)
        overrides = {k: int(v) for k, _, v in (x.partition("=") for x in a.set)}
        return _show(a.seed, overrides, levels)
    return _many(range(a.seed, a.seed + a.count * a.step, a.step), a.jobs, levels, a.seconds, a.reduce)


def _show(seed: int, overrides: Mapping[str, int], levels: tuple[str, ...]) -> int:
    print(program(seed, overrides))
    out = one(seed, overrides, levels)
    print("regions:", ", ".join(out.statuses) or "none", "; ran:", ", ".join(out.ran))
    for reason in out.reasons:
        print("reason:", reason)
    if out.failed is None:
        print("clean")
        return 0
    print(f"FAILED at {out.failed[0]}: {out.failed[1]}")
    return 1


def _many(seeds: Sequence[int], jobs: int, levels: tuple[str, ...], seconds: float, found: int) -> int:
    chunk = SHARED
    work = [(list(seeds[k : k + chunk]), levels) for k in range(0, len(seeds), chunk)]
    started = time.time()
    ran: collections.Counter[str] = collections.Counter()
    statuses: collections.Counter[str] = collections.Counter()
    reasons: dict[str, list[int]] = {}
    failures: list[tuple[int, tuple[str, str]]] = []
    texts: set[bytes] = set()
    wholes: set[bytes] = set()
    done = compiled = loaded = 0
    os.environ.setdefault("AICF_CACHE_DIR", "")
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=40) as pool:
        for results, made, kept in pool.imap_unordered(_worker, work):
            compiled, loaded = compiled + made, loaded + kept
            for s, out, text, whole in results:
                done += 1
                texts.add(text)
                wholes.add(whole)
                ran.update(out.ran)
                statuses.update(out.statuses or ["no region"])
                for reason in out.reasons:
                    reasons.setdefault(_kind(reason), []).append(s)
                if out.failed is not None:
                    failures.append((s, out.failed))
                    print(f"seed {s} FAILED at {out.failed[0]}: {out.failed[1][:300]}", flush=True)
            if done % (chunk * 20) < chunk:
                print(
                    f"{done} programs, {len(failures)} failed, {compiled} kernels compiled, {time.time() - started:.0f} s",
                    flush=True,
                )
            if seconds and time.time() - started > seconds:
                pool.terminate()
                break
    print(
        f"\nseeds {seeds[0]} to {seeds[-1]}: {done} programs, {len(wholes)} different in more than data, {len(texts)} texts, "
        f"{time.time() - started:.0f} s",
        flush=True,
    )
    print("ran:", ", ".join(f"{level} {ran[level]}" for level in levels), f"; kernels compiled {compiled}, loaded {loaded}")
    print("regions:", ", ".join(f"{name} {n}" for name, n in statuses.most_common()))
    for reason, seeds in sorted(reasons.items(), key=lambda t: -len(t[1]))[:15]:
        print(f"  {len(seeds)} x {reason} (seed {seeds[0]})")
    _report(failures, found)
    return 1 if failures else 0


def _kind(reason: str) -> str:
    return " ".join(w for w in reason.split() if not any(c.isdigit() for c in w))[:110]


def _report(failures: list[tuple[int, tuple[str, str]]], most: int) -> None:
    torch.set_num_threads(1)
    shown: set[int] = set()
    for s, failed in failures:
        if s // SHARED in shown or len(shown) >= most:
            continue
        shown.add(s // SHARED)
        overrides = smallest(s, failed)
        again = one(s, overrides)
        print(f"\n=== seed {s}: {failed[0]}: {failed[1]}")
        options = " ".join(f"--set '{k}={v}'" for k, v in overrides.items())
        print(f"python -m tests.property.run --show --seed {s} {options}")
        print(program(s, overrides))
        print("reduced:", again.failed)
    print(f"{len(failures)} failed" if failures else "clean")


if __name__ == "__main__":
    sys.exit(main())
