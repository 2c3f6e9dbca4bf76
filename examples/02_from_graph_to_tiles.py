"""From a semantic graph to tiles, by the two passes (milestones B and C, and section 18 of the specification).

Run it: ./dev python examples/02_from_graph_to_tiles.py

The graph says what is computed: two matmuls, a scale, a mask, a softmax. The first pass finds out that this is attention and
makes it one region. The second derives how it streams. The last dump shows everything that was derived: which states are
carried from tile to tile, how they are updated, and what is left for the end.
"""

from __future__ import annotations

from aicf.mcir import MCIRPassManager, dump_module, run_attention_pattern_pass, run_streaming_lowering_pass
from aicf.semantic import build_attention_semantic_graph, print_graph


def title(text: str) -> None:
    print(f"\n-- {text}\n")


def main() -> None:
    graph = build_attention_semantic_graph()
    title("the semantic graph: what is computed")
    print(print_graph(graph).rstrip())

    manager = MCIRPassManager([run_attention_pattern_pass, run_streaming_lowering_pass], record=True)
    module = manager.run(graph)

    title("after the attention pattern pass: one region, still meaning only")
    print(next(s.text for s in manager.snapshots if s.after == "attention_pattern"))
    title("after the streaming lowering pass, in outline")
    print(dump_module(module, outline=True))
    title("the same in full")
    print(dump_module(module))
    title("and with everything that was derived")
    print(dump_module(module, verbose=True))


if __name__ == "__main__":
    main()
