"""Lowering a TileRegion to Kernel IR: its nodes become tile statements, its tiling the phases of the stream.

    load_tile(Q)          ->  q[i, d] : shared = load Q[b, h, i, d]
    compute_score         ->  rows i step 6:  s[i, j] = contract q, k over d
    update_softmax        ->    u = map <scores>; t = reduce max; new; ref; scale; p = map exp(u - ref); G_l = G_l * scale + sum p
    accumulate_output     ->    G_o[i, e] = G_o * scale + contract p, v over j
    store_tile(O)         ->  store O[b, h, i, e] = G_o / G_l

`names.py` is what a kernel is made of, `block.py` what happens to a block of rows, `orders.py` how rows and keys are walked,
`checks.py` clamps and checks indices that may be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from aicf.kernel.ir import Kernel
from aicf.kernel.lowering.checks import checked
from aicf.kernel.lowering.names import Binding, KernelLoweringError, Names, Tiles
from aicf.kernel.lowering.orders import kv_major, q_major
from aicf.mcir.regions import Region
from aicf.scalar import index


def lower_to_kernel(
    region: Region, schedule: Tiles, *, units: Mapping[str, int | None] | None = None, header: tuple[str, ...] = ()
) -> tuple[Kernel, Binding]:
    """The kernel of a lowered region under a schedule, and what its names stand for.

    `units`: for each kernel tensor the dimension with stride 1 (None: no such dimension); last dimensions when left out.
    `header`: comment lines. Raises KernelLoweringError when the region has no stream, or the schedule's order is unknown.
    """
    names = Names(region, schedule, units or {})
    if schedule.order == "q_major":
        body = q_major(names)
    elif schedule.order == "kv_major":
        body = kv_major(names)
    else:
        raise KernelLoweringError(f"order {schedule.order!r}: it is q_major or kv_major")
    summaries = names.summaries()
    used = names.free_sizes(body, summaries)
    kernel = Kernel(
        "aicf_" + str(region.attrs.get("pattern", "region")),
        tuple(names.params),
        tuple(dict.fromkeys([*names.sizes, *used])),
        (),
        tuple(names.axes),
        body,
        summaries,
        header,
    )
    kernel = checked(kernel)
    inputs = {name: names.found.loads[source] for source, name in names.tensors.items()}
    outputs = {names.output(k): e.node for k, e in enumerate(names.found.exits)}
    return kernel, Binding(inputs, outputs, {**{n: index(n) for n in used}, **names.sizes})


__all__ = ["Binding", "KernelLoweringError", "lower_to_kernel"]
