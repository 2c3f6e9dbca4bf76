"""A schedule in the words of the machine that it is for. A dump shows it in the words of the IR (`str(schedule)`)."""

from __future__ import annotations

from aicf.schedule.schedule import Schedule

from .words import plural

_NAMES = {
    "Q_tile": "queries", "K_tile": "keys", "V_tile": "values", "score_frag": "scores", "state": "running maxima and sums",
    "output_acc": "accumulators", "O_tile": "output",
}  # fmt: skip
_GENERAL = {
    "Q_tile": "row operands", "K_tile": "streamed operands", "score_frag": "products", "state": "running maxima and sums",
    "O_tile": "output",
}  # fmt: skip
_CPU = {"shared": "cache", "register": "registers", "global": "memory"}
_GPU = {"shared": "shared memory", "register": "registers", "global": "device memory"}
_ORDERS = {
    "q_major": "for each tile of rows, all tiles of {keys}",
    "kv_major": "for each tile of {keys}, all tiles of rows; the state of the rows is kept in memory",
}


def for_gpu(schedule: Schedule) -> bool:
    return "block" in dict(schedule.mapping).values()


def schedule_lines(s: Schedule) -> list[str]:
    """The decisions, then the reasons."""
    gpu = for_gpu(s)
    places: dict[str, list[str]] = {}
    names, rows, keys = (_NAMES, "rows (queries)", "keys") if s.attention else (_GENERAL, "rows", "streamed positions")
    for value, space in s.residency:
        if value in names:
            places.setdefault((_GPU if gpu else _CPU)[space], []).append(names[value])
    order = _ORDERS[s.order].format(keys=keys) + (f"; the {keys} are cut into {s.kv_split} parts" if s.kv_split > 1 else "")
    together = f"{s.rows} rows at a time" if s.rows < s.tile_m else "all rows at once"
    work = f"blocks of {s.warps} warps, {plural(s.stages, 'stage')}" if gpu else plural(s.threads, "thread")
    return [
        f"  schedule   {s.name}",
        f"    tiles      up to {s.tile_m} {rows} x {s.tile_n} {keys}, {s.tile_k} contracted; {together}",
        f"    kept in    {'; '.join(f'{place}: ' + ', '.join(values) for place, values in places.items())}",
        f"    order      {order} ({s.order})",
        f"    run by     {work}",
        *(f"    because    {decision}: {reason}" for decision, reason in s.reasons),
    ]
