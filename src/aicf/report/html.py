"""The report in a notebook: a table with one line for each kind of region, the full text folded below it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from aicf.driver import RegionResult

from .text import groups, memory, name_of, short_place

_COLUMNS = ("attention", "where", "status", "mask", "memory", "why")


def table(summary: str, regions: Sequence[RegionResult], full: str) -> str:
    """HTML without scripts, styles or links."""
    rows = "".join(_row("td", _cells(group)) for group in groups(regions))
    listed = f"<table><thead>{_row('th', _COLUMNS)}</thead><tbody>{rows}</tbody></table>" if regions else ""
    return f"<p>{escape(summary)}</p>{listed}<details><summary>full report</summary><pre>{escape(full)}</pre></details>"


def _cells(group: Sequence[RegionResult]) -> tuple[str, ...]:
    r = group[0]
    place = "" if r.source is None or not r.source.file else short_place(r.source)
    return name_of(group), place, r.status, r.mask or "", memory(r), r.reason


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
