"""Real models through the compiler: BERT-base, GPT-2 small, ViT-B/16 and a Llama-shaped one, each at its real size.

Run it: ./dev demo            (or some: ./dev demo gpt2; or two layers of each in one to three minutes: ./dev demo --quick)

The models come from `transformers`, with random weights and `attn_implementation="eager"`: attention written out in plain
PyTorch, a matrix of scores and all. Nobody tells AICF where it is. For each model this shows what was found, how exact the result
is, and what it costs beside the same code run eagerly and by torch.compile's default, and beside the model as people run it:
with PyTorch's scaled_dot_product_attention (SDPA), the default of `transformers`.

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

import aicf
from aicf.bench.timing import interleaved
from aicf.report.words import plural
from benchmarks import session, zoo

DEMO = ("bert", "gpt2", "vit")
QUICK_LAYERS = 2
TITLES = {"eager": "written out", "torch.compile": "torch.compile", "sdpa": "SDPA (default)", "aicf": "AICF"}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="./dev demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = "\n".join(f"  {name:8} {entry.title}: {entry.what}" for name, entry in zoo.MODELS.items())
    made.epilog = f"models:\n{listed}"
    made.add_argument("model", nargs="*", metavar="MODEL", help=f"which of {', '.join(zoo.MODELS)} (default: {', '.join(DEMO)})")
    made.add_argument("--quick", action="store_true", help=f"only {QUICK_LAYERS} layers of each model, and little timing")
    made.add_argument("--full", action="store_true", help="the whole report of each model, and how its first attention streams")
    made.add_argument("--budget", type=float, help="seconds of timing per model (default 12, or 3 with --quick)")
    return made


def main() -> int:
    options = parser()
    args = options.parse_args()
    unknown = [m for m in args.model if m not in zoo.MODELS]
    if unknown:
        options.error(f"no model {', '.join(unknown)}: there are {', '.join(zoo.MODELS)}")
    budget = args.budget if args.budget is not None else 3.0 if args.quick else 12.0
    began = time.perf_counter()
    cores = f"{plural(torch.get_num_threads(), 'thread')} on {plural(os.cpu_count() or 1, 'core')}"
    print(f"PyTorch {torch.__version__}, {cores}, float32, inference", flush=True)
    first_line()
    missing, results = 0, dict[str, session.Result]()
    for name in args.model or DEMO:
        layers, patience = (QUICK_LAYERS, 45.0) if args.quick else (None, 120.0)
        results[name] = session.run(name, budget=budget, sdpa=True, layers=layers, patience=patience)
        missing += show(name, results[name], args.full, layers)
    closing(results, args.quick)
    print(f"\n{time.perf_counter() - began:.0f} s in all.")
    return 1 if missing else 0


@torch.inference_mode()
def first_line() -> None:
    """One small attention, so that there is something to see before models are built."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v

    q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
    with session.ticking("a plain causal attention, 8 heads of 1024 x 64"):
        fast = aicf.compile(attention, fuse="always", require="streamed")
        calls = {
            "written out": lambda: attention(q, k, v),
            "SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            "AICF": lambda: fast(q, k, v),
        }
        for call in calls.values():
            call()
        times = interleaved(calls, 0.5, 2)
    said = ", ".join(f"{name} {min(found) * 1e3:.1f} ms" for name, found in times.items())
    print(f"A plain causal attention (8 heads, 1024 tokens, 64 wide), streamed: {said}", flush=True)


def show(name: str, result: session.Result, full: bool, layers: int | None) -> int:
    """Prints what came of one model (of `layers` of it, where given), and returns the number of attentions that do not stream."""
    entry = zoo.MODELS[name]
    part = "" if layers is None else f" (here {layers} of its layers)"
    heading(f"{entry.title}: {entry.what}{part}", "=")
    regions = result.report.regions
    streamed = [r for r in regions if r.status == "streamed"]
    print((str(result.report) if full else result.report.brief()).rstrip())
    if full and streamed:
        heading(f"the first of them as it streams (MCIR outline of {streamed[0].name})")
        print(streamed[0].outline().rstrip())
    heading("how exact: the last hidden state against the same model in float64")
    print(f"  {'':16}{'largest error':>16}{'mean error':>16}     values up to {result.scale:.2f}")
    for title, (largest, mean) in result.errors.items():
        print(f"  {TITLES[title]:16}{largest:16.2e}{mean:16.2e}")
    heading("what it costs")
    print("\n".join(session.table(result, TITLES)))
    if "torch.compile" not in result.measured:
        print("  torch.compile is left out: there is no C++ compiler, or compiling takes too long on this busy machine")
    print(f"  compiling: {result.own:.1f} s of AICF's own time for {len(regions)} attentions", flush=True)
    return len(regions) - len(streamed)


def closing(results: dict[str, session.Result], quick: bool) -> None:
    """All models in one table: milliseconds of a call, and the memory that it needs at its peak beside what was there before."""
    names = list(TITLES)
    part = f" ({QUICK_LAYERS} layers each)" if quick else ""
    heading(f"all models: milliseconds of the best call / extra peak memory in MiB{part}", "=")
    print(f"  {'':14}{'streamed':>9}" + "".join(f"{TITLES[n]:>20}" for n in names) + f"{'vs compile':>12}{'vs SDPA':>9}")
    for model, result in results.items():
        regions = result.report.regions
        text = f"  {zoo.MODELS[model].title:14}{sum(r.status == 'streamed' for r in regions):>6}/{len(regions)}"
        for n in names:
            m = result.measured.get(n)
            peak = "-" if m is None or m.peak is None else f"{m.peak / 2**20:.0f}"
            text += f"{'-':>20}" if m is None else f"{f'{m.seconds * 1e3:.1f} / {peak}':>20}"
        mine = result.measured["aicf"].seconds
        for other, width in (("torch.compile", 12), ("sdpa", 9)):
            m = result.measured.get(other)
            text += f"{'-':>{width}}" if m is None else f"{f'{m.seconds / mine:.2f}x':>{width}}"
        print(text)
    print("  vs: the other's time over AICF's; above 1 AICF is faster. Best of a few calls, all in turn in one process.")


def heading(text: str, line: str = "-") -> None:
    """A line that says what comes next, once everything before it is out."""
    print(f"\n{text}\n{line * min(len(text), 110)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
