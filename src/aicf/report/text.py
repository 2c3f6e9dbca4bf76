"""The report as text: in full, with every reason, and in brief, one line for each kind of region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePath

from aicf.driver import RegionResult, StoredTensor
from aicf.semantic import Location

from .schedule import for_gpu, schedule_lines
from .words import plural, size_text, unnumbered


def groups(regions: Sequence[RegionResult]) -> Iterator[list[RegionResult]]:
    """Neighbours that say the same (the layers of a model)."""
    for _, group in groupby(regions, key=_look):
        yield list(group)


def _look(r: RegionResult) -> tuple[object, ...]:
    """What a reader sees of a region, but for its name."""
    stored = tuple((s.bytes, s.reason) for s in r.stored)
    said = unnumbered(r.reason)
    return (r.status, said, str(r.source), r.mask, str(r.schedule), str(r.tiles), r.bytes_unfused, r.bytes_streamed, stored)


def name_of(group: Sequence[RegionResult]) -> str:
    r = group[0]
    return r.name if len(group) == 1 else f"{r.name} … {group[-1].name} ({len(group)} alike)"


def full_lines(group: Sequence[RegionResult]) -> list[str]:
    """Everything about regions that are alike."""
    r = group[0]
    lines = [f"{name_of(group)}: {r.status}"]
    if r.source is not None:
        lines.append(f"  from       {r.source}")
    if r.reason:
        lines.append(f"  {'why' if r.status == 'streamed' else 'why not'}{' ' * (8 if r.status == 'streamed' else 4)}{r.reason}")
    if r.mask:
        lines.append(f"  mask       {r.mask}")
    if r.assumes:
        lines.append(f"  assumed    {r.assumes}")
    lines += [f"  memory     {said}" for said in (memory(r),) if said]
    lines += [f"  moved      {said}" for said in (moved(r),) if said]
    lines += [f"  stored     {stored_text(s)}" for s in r.stored]
    if r.tiles is not None:
        total, empty = sum(r.tiles.values()), r.tiles.get("empty", 0)
        share = f" ({100 * empty // total} % skipped)" if empty else ""
        given = ", with the tensors of this call" if r.of_call else ""
        lines.append(f"  tiles      {', '.join(f'{n} {kind}' for kind, n in r.tiles.items())}{share}{given}")
        if r.tiles["partial"] and r.rows_end:
            lines[-1] += f"; in partial ones every {r.rows_end} rows end where their last key does"
    elif r.assumes:
        lines.append("  tiles      how many are skipped depends on the mask's tensors, and is known when it runs")
    if r.backward:
        lines.append(f"  backward   {r.backward}")
    if r.schedule is not None and r.status == "streamed":
        lines.append(f"  kernel     for {r.specialised}")
        lines += schedule_lines(r.schedule)
    return lines


def brief_line(group: Sequence[RegionResult]) -> str:
    """What became of regions that are alike, on one line."""
    r = group[0]
    place = "" if r.source is None or not r.source.file else f" ({short_place(r.source)})"
    if r.status == "streamed":
        said = [r.mask or "no mask", *(x for x in (memory(r),) if x)]
        said += [f"{s.name}{_of_size(s)} is stored" for s in r.stored]
    else:
        said = [r.reason]
    return f"{name_of(group)}{place}: {r.status}; {'; '.join(said)}"


def stored_text(s: StoredTensor) -> str:
    """A tensor of the size of the scores that is written and read all the same."""
    place = f" (from {s.source})" if s.source is not None and s.source.file else ""
    why = s.reason or "it is not followed"
    return f"{s.name}{_of_size(s)}, is as large as the scores and is not computed in the tiles{place}: {why}"


def _of_size(s: StoredTensor) -> str:
    return "" if s.bytes is None else f", {size_text(s.bytes)}"


def short_place(source: Location) -> str:
    """The file's own name and the line."""
    return f"{PurePath(source.file).name}:{source.line}"


def memory(r: RegionResult) -> str:
    """Bytes before and after: of the score-shaped tensors, and of what takes their place."""
    if r.bytes_unfused is None:
        return ""
    before = f"{size_text(r.bytes_unfused)} of scores"
    if r.status != "streamed" or r.bytes_streamed is None or r.schedule is None:
        return f"{before}, unfused"
    workers = "a block" if for_gpu(r.schedule) else plural(r.schedule.threads, "thread")
    said = f"{before} before, {size_text(r.bytes_streamed)} of tiles after ({workers})"
    if r.bytes_streamed <= r.bytes_unfused:
        return said
    return f"{said}: more than unfused at this size; it does not grow with length"


def moved(r: RegionResult) -> str:
    """Bytes before and after, as the cost model counts them."""
    p = r.prediction
    if p is None or r.status == "refused":
        return ""
    where = "to and from device memory" if r.schedule is not None and for_gpu(r.schedule) else "between cores and memory or cache"
    before = f"{size_text(p.unfused_moved)} {where} before, when each operation reads and writes the scores"
    return f"{before}; {size_text(p.moved)} after (predicted, one call)"
