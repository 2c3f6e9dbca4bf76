"""`aicf bench`: compiled kernels beside what people would use instead, one row per case, size, type and thread count."""

from __future__ import annotations

import importlib
import inspect
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from aicf.bench import grid, results
from aicf.bench.cases import CASES, Case, Size
from aicf.bench.contenders import NAMES, WHAT
from aicf.bench.measure import Row, measure
from aicf.cli.errors import FAILED, OK, CommandError
from aicf.cli.progress import say
from aicf.cli.silence import users_prints_dropped
from aicf.cli.source import load_callable
from aicf.frontends.torch.random_inputs import DTYPES

EXAMPLE_SIZE = "1x8x1024x64"


def run(options: Namespace) -> int:
    """Measures the selected rows. FAILED when AICF gave a wrong result or none at all in one of them."""
    if options.list:
        for case in CASES:
            print(f"{case.name:13} {case.what}")
        return OK
    path = None if options.json is None else Path(options.json)
    known = _known(path) if path is not None and (options.resume or options.report) else []
    jobs = [] if options.report else selected(options)
    names = chosen_names(options.contenders)
    if not options.report:
        _check(options)
        if path is not None and not options.resume and path.exists():
            raise CommandError(f"{options.json} exists already; --resume adds to it")
        print(heading(names))
    measured: list[Row] = []
    for k, job in enumerate(jobs, 1):
        if results.complete(known, job.key, names):
            measured += [r for r in known if r.key == job.key]
            continue
        say(f"{k} of {len(jobs)}: {job}")
        try:
            with users_prints_dropped():
                row = measure(
                    job.case, job.size, job.dtype, job.threads, names=names, budget=options.seconds, fuse=options.fuse
                )  # fmt: skip
        except ValueError as e:
            raise CommandError(str(e)) from e
        measured.append(row)
        known = results.merged(known, row)
        print(line(row, names), flush=True)
        for name, entry in row.entries.items():
            if entry.missing.startswith("wrong") or (name == "aicf" and entry.missing):
                say(f"{name} in {job}: {entry.missing}")
        if path is not None:
            results.save(path, known, grid.about())
    rows = known if options.report else measured
    if options.report:
        print("\n".join([heading(NAMES), *(line(r, NAMES) for r in rows)]))
    print(legend(NAMES if options.report else names))
    print("\n".join(["", *asked(rows)]))
    if options.chart is not None:
        importlib.import_module("aicf.cli.chart").draw(rows, Path(options.chart))
        say(f"drew {options.chart}")
    return FAILED if any(r.seconds("aicf") is None for r in rows if "aicf" in r.entries) else OK


# ------------------------------------------------------------------------------------------------ what is measured


def selected(options: Namespace) -> list[grid.Job]:
    """The rows that the options ask for."""
    cases = [find(name) for name in options.case] or [c for c in CASES if c.name != "sigmoid" or options.all]
    sizes = [parse_size(text) for text in options.size]
    for name in ("n", "d", "threads"):
        for value in getattr(options, name):
            if value < 1:
                raise CommandError(f"--{name} {value}: it is at least 1")
    if options.all:
        ns, ds, dtypes, threads = grid.NS, grid.DS, grid.DTYPES, (1, 2)
    else:
        ns, ds, dtypes, threads = (512,), (64,), ("f32",), (grid.present_threads(),)
    dtypes = tuple(options.dtype or dtypes)
    for name in dtypes:
        if name not in DTYPES:
            raise CommandError(f"--dtype {name}: use one of {', '.join(DTYPES)}")
    return grid.plan(cases, options.n or ns, options.d or ds, [DTYPES[t] for t in dtypes], options.threads or threads, sizes)


def find(name: str) -> Case:
    """The built-in case `name`, or the function FILE.py:FUNCTION as one."""
    for case in CASES:
        if case.name == name:
            return case
    if ":" in name or name.endswith(".py"):
        called = load_callable(name)
        try:
            inspect.signature(called).bind("q", "k", "v")
        except TypeError as e:
            raise CommandError(f"{name}: it is called with q, k and v, and {e}; close over what else it takes") from e
        return Case(name.rpartition(":")[2], f"from {name}", called, flex=None)
    raise CommandError(f"there is no case {name!r}; there are {', '.join(c.name for c in CASES)}, or name FILE.py:FUNCTION")


def parse_size(text: str) -> Size:
    """BxHxNxD as four positive integers."""
    parts = re.split("[x,]", text)
    if len(parts) != 4 or not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts):
        raise CommandError(f"--size {text}: write batch x heads x sequence x head size, as in {EXAMPLE_SIZE}")
    return Size(*map(int, parts))


def chosen_names(given: str | None) -> list[str]:
    """The contenders, in the order in which they are shown."""
    if given is None:
        return list(NAMES)
    asked = [name for name in given.split(",") if name]
    unknown = [name for name in asked if name not in NAMES]
    if unknown or not asked:
        raise CommandError(f"--contenders {given}: name some of {', '.join(NAMES)}, joined by commas")
    return [name for name in NAMES if name in asked]


def _check(options: Namespace) -> None:
    if options.seconds < 0:
        raise CommandError(f"--seconds {options.seconds:g}: it is at least 0")
    if options.resume and options.json is None:
        raise CommandError("--resume needs the file to resume: --json FILE")


def _known(path: Path) -> list[Row]:
    try:
        return results.load(path)
    except FileNotFoundError:
        return []
    except (OSError, results.BadResults) as e:
        raise CommandError(str(e)) from e


# ------------------------------------------------------------------------------------------------ what is shown

_TITLES = {"eager": "eager", "compile": "compile", "sdpa": "SDPA", "flex": "Flex", "aicf": "AICF"}


def heading(names: Sequence[str]) -> str:
    """The table's first line."""
    times = "".join(f"{_TITLES[n] + ' ms':>12}" for n in names)
    ratios = "".join(f"{'/ ' + _TITLES[n]:>10}" for n in names if n != "aicf")
    return f"{'case':13}{'BxHxNxD':>16}{'type':>6}{'thr':>4}{times}{'GFLOP/s':>9}{'limit':>9}{ratios}"


def line(row: Row, names: Sequence[str]) -> str:
    """One row of the table."""
    size = Size(row.batch, row.heads, row.n, row.d)
    text = f"{row.case:13}{size!s:>16}{row.dtype:>6}{row.threads:>4}"
    for name in names:
        entry = row.entries.get(name)
        if entry is None or entry.seconds is None:
            text += f"{'wrong' if entry is not None and entry.missing.startswith('wrong') else '-':>12}"
        else:
            text += f"{entry.seconds * 1e3:11.3f}" + ("!" if entry.error is not None and entry.error > 1 else " ")
    mine = row.seconds("aicf")
    text += f"{row.flop / mine / 1e9:9.1f}" if mine else f"{'-':>9}"
    text += f"{row.share:7.0%} {'R' if row.read_bound else 'F'}" if row.share is not None else f"{'-':>9}"
    for name in names:
        if name != "aicf":
            ratio = row.ratio(name)
            text += f"{'-':>10}" if ratio is None else f"{ratio:9.2f}x"
    declined = not row.status.startswith("streamed") and "aicf" in row.entries
    return text + (f"  not streamed ({row.status.split(':')[0]})" if declined else "")


def legend(names: Sequence[str]) -> str:
    """What the columns mean."""
    return "\n".join([
        "",
        *(f"{_TITLES[n] + ':':9} {WHAT[n]}" for n in names),
        "Milliseconds: the best call; all contenders take turns in one process; with one thread, processor time is counted. Each",
        "result is checked first: ! is less exact than AICF has to be, wrong is something else and not timed. GFLOP/s: of the",
        "work that the mask leaves. limit: AICF's share of the FMA peak (F) or, where reading takes longer, of the read",
        "bandwidth (R), both measured between the others' calls; a call that is quicker than such a loop counts as the limit.",
        "/ X: X's time over AICF's.",
    ])  # fmt: skip


def asked(rows: Sequence[Row]) -> list[str]:
    """The project's own bounds for groups of rows, and what these rows give; bounds that no row is about are left out."""
    text = [f"{'goal: geometric mean over the rows of':42}{'against':>16}{'rows':>6}{'goal':>8}{'mean':>8}{'worst':>8}"]
    for f in results.findings(rows):
        if f.mean is None or f.worst is None or f.at is None:
            continue
        d = f.demand

        def shown(value: float, percent: bool = d.percent) -> str:
            return f"{value:.0%}" if percent else f"{value:.2f}x"

        worst = f"worst row: {f.at.case} {Size(f.at.batch, f.at.heads, f.at.n, f.at.d)} {f.at.dtype} {f.at.threads} thr"
        floor = f"; every row must reach {shown(d.none_below)}" if d.none_below is not None else ""
        text.append(
            f"{d.what:42}{d.against:>16}{f.count:6}{shown(d.least):>8}{shown(f.mean):>8}{shown(f.worst):>8}"
            f"  {'met' if f.met else 'MISSED'} ({worst}{floor})"
        )
    return text
