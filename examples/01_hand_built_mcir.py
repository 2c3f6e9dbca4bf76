"""Attention's execution structure, built by hand (milestone A of the specification).

Run it: ./dev python examples/01_hand_built_mcir.py

It prints the region tree first in outline, then in full. Look for what is not there: no value has the shape of the score
matrix. Scores exist only as tiles of 128 x 64, in registers.
"""

from __future__ import annotations

from aicf.mcir import MCIRBuilder, MCModule, dump_module, validate_module


def attention_module() -> MCModule:
    """softmax(Q K^T) V over tiles: Q stays, K and V stream past it, the online softmax keeps a maximum and a sum per row."""
    b = MCIRBuilder()
    region = b.execution_region("attention_region")
    region.attrs["pattern"] = "scaled_dot_product_attention"
    region.attrs["has_mask"] = True

    stream = b.streaming_region("attention_stream", stream_axis="sequence")
    tile = b.tile_region("q_tile_loop", tile_m=128, tile_n=64, tile_k=64)

    q = b.value("Q_tile", (128, 64), "fp16", residency="shared")
    k = b.value("K_tile", (64, 64), "fp16", residency="shared")
    v = b.value("V_tile", (64, 64), "fp16", residency="shared")
    score = b.value("score_frag", (128, 64), "fp32", residency="register")
    m = b.value("softmax_max", (128,), "fp32", residency="register")
    l = b.value("softmax_sum", (128,), "fp32", residency="register")
    acc = b.value("output_acc", (128, 64), "fp32", residency="register")
    out = b.value("O_tile", (128, 64), "fp16", residency="global")

    tile.nodes.extend(
        [
            b.node("load_q", "load_tile", outputs=[q], source="Q"),
            b.node("load_k", "load_tile", outputs=[k], source="K"),
            b.node("load_v", "load_tile", outputs=[v], source="V"),
            b.node("score", "compute_score", inputs=[q, k], outputs=[score]),
            b.node("softmax", "update_softmax", inputs=[score], outputs=[m, l]),
            b.node("accumulate", "accumulate_output", inputs=[score, v], outputs=[acc]),
            b.node("store_o", "store_tile", inputs=[acc], outputs=[out], target="O"),
        ]
    )
    stream.subregions.append(tile)
    region.subregions.append(stream)
    return MCModule(regions=[region])


def main() -> None:
    module = attention_module()
    validate_module(module)
    print(dump_module(module, outline=True))
    print()
    print(dump_module(module))


if __name__ == "__main__":
    main()
