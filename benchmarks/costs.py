"""Costs around the kernel: how time and memory grow with the length, what a call adds, and what compiling takes.

Run it: ./dev python benchmarks/costs.py            (or some: ./dev python benchmarks/costs.py growth call compile)

growth   one head of 64, 1k to 64k tokens, dense and window: time and extra memory, and the power of the length that fits them
call     an attention so small that what is measured is the call: of the executable alone, and of the whole compiled function
compile  every case of `aicf bench`: deriving and lowering; building cold; loading from the disk cache
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aicf.bench.cases import CASES, Size, make_inputs
from aicf.bench.search import sites
from aicf.bench.timing import clock_for, interleaved
from aicf.driver import Options, rescheduled
from aicf.frontends.torch.run.rest import has_compiler
from aicf.runtime import building
from aicf.runtime.executable import ArrayRef
from benchmarks.contenders import extra_peak

BY_NAME = {c.name: c for c in CASES}
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
FITTED = 4096  # from here on: shorter calls are mostly the call
LONGEST = 20.0  # seconds that a single call may take


def growth(threads: int, lengths: Sequence[int], budget: float) -> dict[str, Any]:
    """Times and extra memory by length; one compilation serves all lengths."""
    found: dict[str, Any] = {}
    for name in ("dense", "window"):
        case, graphs = BY_NAME[name], list[Any]()
        options = {"fuse": "always", "threads": threads, "report": graphs.append}
        torch._dynamo.reset()
        compiled: Any = torch.compile(case.plain, backend="aicf", options=options, dynamic=True)
        rows: list[dict[str, float]] = []
        print(f"\n{name}, one head of 64, float32, {threads} threads")
        print(f"{'tokens':>8}{'ms':>12}{'output MiB':>12}{'beyond, MiB':>13}")
        for n in lengths:
            if rows and rows[-1]["seconds"] * (n / rows[-1]["n"]) ** 2 > LONGEST:
                break
            values = list(make_inputs(case, Size(1, 1, n, 64), torch.float32).values())
            calls: dict[str, Callable[[], Any]] = {"it": lambda compiled=compiled, values=values: compiled(*values)}
            output = calls["it"]().nbytes
            seconds = min(interleaved(calls, budget, 2, clock_for(threads))["it"])
            peak = extra_peak(calls["it"])
            beyond = math.nan if peak is None else max(0, peak - output)
            rows.append({"n": n, "seconds": seconds, "output": output, "beyond": beyond})
            print(f"{n:8}{seconds * 1e3:12.3f}{output / 2**20:12.2f}{beyond / 2**20:13.2f}", flush=True)
        long = [r for r in rows if r["n"] >= FITTED]
        time_power = power([r["n"] for r in long], [r["seconds"] for r in long])
        memory_power = power([r["n"] for r in long], [r["output"] + r["beyond"] for r in long])
        print(f"from N = {FITTED}: time grows as N^{time_power:.2f}, memory (output and beyond) as N^{memory_power:.2f}")
        print(f"compiled {len(graphs)} time{'s' if len(graphs) != 1 else ''} for {len(rows)} lengths")
        found[name] = {"rows": rows, "time_power": time_power, "memory_power": memory_power, "compilations": len(graphs)}
    return found


def power(n: Sequence[float], values: Sequence[float]) -> float:
    """The p for which values ~ n^p fits best in the logarithms; NaN for less than two."""
    if len(n) < 2 or not all(v > 0 for v in values):
        return math.nan
    x, y = [math.log(v) for v in n], [math.log(v) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def call(threads: int, budget: float) -> dict[str, float]:
    """Microseconds of a call on 4 tokens of one head of 16."""
    tensors = make_inputs(BY_NAME["dense"], Size(1, 1, 4, 16), torch.float32)
    values = list(tensors.values())
    (site,) = sites(BY_NAME["dense"].plain, values, threads)
    executable = site.result.executable
    assert executable is not None
    inputs, outputs = ([ArrayRef(t.data_ptr(), t.shape, t.stride()) for t in ts] for ts in (site.inputs, site.outputs))
    torch._dynamo.reset()
    calls: dict[str, Callable[[], Any]] = {
        "the executable": lambda: executable.run(inputs, outputs, []),
        "eager": lambda: BY_NAME["dense"].plain(*values),
        "SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(*values),
    }
    for rest in ("eager", *(["inductor"] if has_compiler() else [])):
        options = {"fuse": "always", "threads": threads, "rest": rest}
        made: Any = torch.compile(BY_NAME["dense"].plain, backend="aicf", options=options)
        calls[f"the compiled function, rest {rest}"] = lambda made=made: made(*values)
    one_op: Any = torch.compile(lambda q, k, v: v + 1)
    if has_compiler():
        calls["torch.compile of v + 1, to compare (Inductor)"] = lambda: one_op(*values)
    for one in calls.values():
        for _ in range(3):
            one()
    found = {name: min(times) * 1e6 for name, times in interleaved(calls, budget, clock=clock_for(threads)).items()}
    print(f"\na call on 4 tokens, {threads} threads (asked: less than 30 us beyond the kernel)")
    for name, micros in found.items():
        print(f"  {name:48}{micros:8.1f} us")
    return found


def compiling(threads: int) -> dict[str, dict[str, float]]:
    """Processor seconds of each case at 512 tokens: deriving and lowering, building cold, and loading from disk."""
    found: dict[str, dict[str, float]] = {}
    print(f"\ncompiling, 512 tokens, {threads} threads (asked: cold less than 0.5 s, from the disk cache less than 20 ms)")
    print(f"{'case':13}{'derive, lower ms':>18}{'cold ms':>10}{'from disk ms':>14}")
    for case in CASES:
        values = list(make_inputs(case, Size(1, 8, 512, 64), torch.float32).values())
        (site,) = sites(case.plain, values, threads)
        inputs = [ArrayRef(t.data_ptr(), t.shape, t.stride()) for t in site.inputs]
        with tempfile.TemporaryDirectory() as folder:
            os.environ["AICF_CACHE_DIR"] = folder
            times: list[tuple[float, float]] = []
            for _ in range(2):  # the second time the object is on disk
                building.forget()
                began = time.process_time()
                executable = rescheduled(site.result, Options(fuse="always", threads=threads), site.sizes).executable
                assert executable is not None
                lowered = time.process_time()
                executable.variant(executable.layout(inputs))
                times.append((lowered - began, time.process_time() - lowered))
        row = {"lower": min(t[0] for t in times), "cold": times[0][1], "disk": times[1][1]}
        found[case.name] = row
        print(f"{case.name:13}{row['lower'] * 1e3:18.1f}{row['cold'] * 1e3:10.1f}{row['disk'] * 1e3:14.1f}", flush=True)
    return found


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["growth", "call", "compile"], help="which of them (default: all)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: PyTorch's own")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="tokens up to which growth is measured")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of timing of each call (default 0.5)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    what = args.what or ["growth", "call", "compile"]
    figures: dict[str, Any] = {"threads": args.threads, "torch": torch.__version__}
    if "call" in what:
        figures["call_us"] = call(args.threads, args.budget)
    if "compile" in what:
        figures["compile_seconds"] = compiling(args.threads)
    if "growth" in what:
        figures["growth"] = growth(args.threads, [n for n in LENGTHS if n <= args.longest], args.budget)
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
