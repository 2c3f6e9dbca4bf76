"""The report as plain values: what `json.dumps` takes, for scripts that look at it."""

from __future__ import annotations

from typing import Any

from aicf.driver import RegionResult
from aicf.schedule.schedule import Schedule, decisions


def region_record(r: RegionResult, graph: int) -> dict[str, Any]:
    """One region; `graph`: the number of its graph, from 0. Sizes in bytes, times in seconds, None for what is not known."""
    p, source = r.prediction, r.source
    place = None
    if source is not None:
        place = {"file": source.file, "line": source.line, "function": source.function, "op": source.op}
    stored = [{"name": x.name, "bytes": x.bytes, "reason": x.reason} for x in r.stored]
    return {
        "name": r.name,
        "graph": graph,
        "kind": r.kind,
        "status": r.status,
        "reason": r.reason,
        "source": place,
        "mask": r.mask,
        "assumes": r.assumes or None,
        "backward": r.backward or None,
        "kernel": r.specialised or None,
        "bytes_unfused": r.bytes_unfused,
        "bytes_streamed": r.bytes_streamed,
        "moved_unfused": None if p is None else p.unfused_moved,
        "moved_streamed": None if p is None else p.moved,
        "predicted_unfused_seconds": None if p is None else p.unfused_seconds,
        "predicted_seconds": None if p is None else p.seconds,
        "stored": stored,
        "tiles": None if r.tiles is None else {**r.tiles, "of_this_call": r.of_call},
        "schedule": None if r.schedule is None or r.status != "streamed" else _schedule(r.schedule),
    }


def _schedule(s: Schedule) -> dict[str, Any]:
    made = {**decisions(s), "name": s.name, "reasons": dict(s.reasons)}
    return {**made, "residency": dict(s.residency), "mapping": dict(s.mapping)}
