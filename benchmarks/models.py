"""Whole models: torch.compile(model, backend="aicf") beside torch.compile(model), float32, each model at its real size.

Run it: ./dev python benchmarks/models.py              (or some: ./dev python benchmarks/models.py gpt2 llama --budget 30)

Prints a table as the models finish and, with --json FILE, writes every round's seconds. How time and memory are measured says
benchmarks/contenders.py; the models are in benchmarks/zoo.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aicf.report.words import plural
from benchmarks import session, zoo

SIDES = ("aicf", "torch.compile", "eager")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", metavar="MODEL", help=f"which of {', '.join(zoo.MODELS)} (default: all)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of timing per model (default 20)")
    parser.add_argument("--eager", action="store_true", help="eager PyTorch as a third contender")
    parser.add_argument("--threads", type=int, help="threads of all contenders (default: PyTorch's own)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    unknown = [m for m in args.model if m not in zoo.MODELS]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}: there are {', '.join(zoo.MODELS)}")
    if args.threads is not None:
        if args.threads < 1:
            parser.error(f"--threads {args.threads}: give at least 1")
        torch.set_num_threads(args.threads)
    sides = [s for s in SIDES if s != "eager" or args.eager]
    on = f"{plural(torch.get_num_threads(), 'thread')} on {plural(os.cpu_count() or 1, 'core')}"
    print(f"PyTorch {torch.__version__}, {on}, float32, inference")
    print(f"{'':14}{'streamed':>9}" + "".join(f"{s:>16}{'extra peak':>12}" for s in sides) + f"{'faster':>9}", flush=True)
    figures: dict[str, Any] = {}
    for name in args.model or zoo.MODELS:
        result = session.run(name, budget=args.budget, eager=args.eager)
        figures[name] = _figures(result)
        print(_row(zoo.MODELS[name].title, result, sides), flush=True)
    if args.json is not None:
        about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.processor()}
        args.json.write_text(json.dumps({**about, "models": figures}, indent=1) + "\n")
    return 0


def _row(title: str, result: session.Result, sides: list[str]) -> str:
    regions = result.report.regions
    done = f"{sum(r.status == 'streamed' for r in regions)}/{len(regions)}"
    text = f"{title:14}{done:>9}"
    for side in sides:
        m = result.measured.get(side)
        text += f"{'no compiler':>16}{'':12}" if m is None else f"{m.seconds * 1e3:13.1f} ms{session.memory(m.peak):>12}"
    other = result.measured.get("torch.compile")
    return text + (f"{other.seconds / result.measured['aicf'].seconds:8.2f}x" if other is not None else "")


def _figures(result: session.Result) -> dict[str, Any]:
    regions = result.report.regions
    return {
        "attentions": len(regions),
        "streamed": sum(r.status == "streamed" for r in regions),
        "refusals": sorted({r.reason for r in regions if r.status != "streamed"}),
        "own_seconds": result.own,
        "contenders": {
            title: {
                "seconds": m.seconds, "rounds": m.rounds, "extra_peak_bytes": m.peak,
                "first_call_seconds": result.first_call[title],
                "max_error": result.errors[title][0], "mean_error": result.errors[title][1],
            }
            for title, m in result.measured.items()
        },
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
