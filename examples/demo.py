"""Three real models through the compiler: BERT-base, GPT-2 small and ViT-B/16, each at its real size.

Run it: ./dev demo            (or some of them: ./dev demo gpt2)

The models come from `transformers`, with random weights and `attn_implementation="eager"`: attention written out in plain
PyTorch, a matrix of scores and all. Nobody tells AICF where it is. For each model this shows what was found, one region as it
streams, the schedule and why, how exact the result is, and what it costs beside eager and beside torch.compile's default.

How time and memory are measured says benchmarks/contenders.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import session, zoo

DEMO = ("bert", "gpt2", "vit")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", metavar="MODEL", help=f"which of {', '.join(DEMO)} (default: all)")
    parser.add_argument("--budget", type=float, default=12.0, help="seconds of timing per model (default 12)")
    args = parser.parse_args()
    unknown = [m for m in args.model if m not in zoo.MODELS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}: there are {', '.join(zoo.MODELS)}")
    began = time.perf_counter()
    missing = 0
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads on {os.cpu_count()} cores, float32, inference")
    for name in args.model or DEMO:
        missing += show(name, args.budget)
    print(f"\n{time.perf_counter() - began:.0f} s in all.")
    return 1 if missing else 0


def show(name: str, budget: float) -> int:
    """Runs one model, prints what came of it, and returns the number of attentions that do not stream."""
    entry = zoo.MODELS[name]
    heading(f"{entry.title}: {entry.what}", "=")
    result = session.run(name, budget=budget)
    regions = result.report.regions
    streamed = [r for r in regions if r.status == "streamed"]

    heading("what was found")
    print(str(result.report).rstrip())
    if streamed:
        heading(f"the first of them as it streams (MCIR outline of {streamed[0].name})")
        print(streamed[0].outline().rstrip())
    heading("how exact: the last hidden state against the same model in float64")
    print(f"  {'':16}{'largest error':>16}{'mean error':>16}     values up to {result.scale:.2f}")
    for title, (largest, mean) in result.errors.items():
        print(f"  {title:16}{largest:16.2e}{mean:16.2e}")
    heading("what it costs")
    print("\n".join(session.table(result)))
    if "torch.compile" not in result.measured:
        print("  torch.compile's default needs a C++ compiler, and there is none: left out")
    print(f"  compiling: {result.own:.1f} s of AICF's own time for {len(regions)} attentions")
    return len(regions) - len(streamed)


def heading(text: str, line: str = "-") -> None:
    """A line that says what comes next, once everything before it is out."""
    print(f"\n{text}\n{line * min(len(text), 110)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
