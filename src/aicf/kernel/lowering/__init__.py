"""Lowering an MCIR region to Kernel IR: its nodes become tile statements, its phases those of the stream.

    load_tile(Q)          ->  Q_tile[i, d] : shared = load Q[b, h, i, d]
    compute_score         ->  rows i step 6:  score_frag[i, j] = contract Q_tile, K_tile over d
    update_softmax        ->    softmax_max_in = map <scores>; reduce max; new; ref; rescale; weight = map exp(… - ref); sum
    accumulate_output     ->    output_acc[i, e] = output_acc * rescale + contract weight, V_tile over j
    store_tile(O)         ->  store O[b, h, i, e] = output_acc / softmax_sum

`builder.py` is what a kernel is made of, `block.py` what happens to a block of rows, `orders.py` how rows and streamed
positions are walked, `checks.py` clamps and checks indices that may be wrong. All that they know comes from the region.
"""

from __future__ import annotations

from dataclasses import replace

from aicf.kernel.ir import Kernel
from aicf.kernel.lowering.builder import Binding, KernelBuilder, KernelLoweringError
from aicf.kernel.lowering.checks import checked
from aicf.kernel.lowering.orders import kv_major, q_major
from aicf.kernel.placement import map_to_blocks
from aicf.mcir.defaults import NoDefaultMeaning
from aicf.mcir.lowered import LoweredRegion, lowered_region
from aicf.mcir.printer import show_value
from aicf.mcir.regions import Region
from aicf.scalar import show


def lower_to_kernel(region: Region) -> Kernel:
    """The kernel of a lowered and scheduled region, for inputs whose last dimension is contiguous (`with_units` makes it one for
    others).

    Raises ValidationError for a region that breaks a rule of MCIR, KernelLoweringError for one that no kernel can be made of:
    it has no stream, or is written by hand and does not say all that it computes.
    """
    return bound_kernel(region)[0]


def bound_kernel(region: Region) -> tuple[Kernel, Binding]:
    """The kernel of a region, and what the kernel's names stand for in it. Raises as `lower_to_kernel`."""
    try:
        lowered = lowered_region(region)
    except NoDefaultMeaning as no:
        raise KernelLoweringError(str(no)) from None
    builder = KernelBuilder(lowered)
    body = q_major(builder) if lowered.order == "q_major" else kv_major(builder)
    summaries = builder.summaries()
    used = builder.free_sizes(body, summaries)
    kernel = Kernel(
        "aicf_" + lowered.pattern + ("_masked" if lowered.has_mask else ""),
        tuple(builder.params),
        tuple(dict.fromkeys([*builder.sizes, *used])),
        (),
        tuple(builder.axes),
        body,
        summaries,
    )
    inputs = {name: source for source, name in builder.tensors.items()}
    outputs = {builder.output(k): s.target for k, s in enumerate(lowered.stores)}
    binding = Binding(inputs, outputs, {**{n: lowered.sizes[n] for n in used}, **builder.sizes})
    kernel = replace(checked(kernel), header=_header(lowered, binding))
    if lowered.unit == "block":
        kernel = map_to_blocks(kernel, warps=lowered.warps, stages=lowered.stages, registers=lowered.registers)
    return kernel, binding


def _header(r: LoweredRegion, binding: Binding) -> tuple[str, ...]:
    """For people who read it: where the kernel comes from, and what its names stand for there."""
    place = f" at {r.notes['source']}" if "source" in r.notes else ""
    tiles = f"tiles m {r.tile_m} n {r.tile_n} k {r.tile_k}, rows {r.rows}"
    tensors = [f"{name} = {show_value(r.tensors[x])}" for name, x in binding.inputs.items()]
    tensors += [f"{name} = {show_value(r.outputs[x])}" for name, x in binding.outputs.items()]
    axes = (r.row, r.stream, *r.batch, *r.contracted, *r.columns)
    return (
        f"derived from {r.name} ({', '.join(r.operations)}): {', '.join(s.target for s in r.stores)}{place}",
        f"schedule: {r.order}, {tiles}, kv_split {r.kv_split}",
        f"tensors: {', '.join(tensors)}",
        f"sizes: {', '.join(f'{name} = {show(e)}' for name, e in r.sizes.items())}",
        f"axes: {', '.join(f'{a.variable.name} {a.name}' for a in axes)}",
    )


__all__ = ["Binding", "KernelLoweringError", "bound_kernel", "lower_to_kernel"]
