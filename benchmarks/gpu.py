"""Derived kernels on a GPU: right for every case, and how fast beside the best that PyTorch has, in five minutes.

    python benchmarks/gpu.py [--minutes 5] [--json results.json] [--dtype bf16 f16] [--n 2048 8192 16384] [--d 64 128]
    TRITON_INTERPRET=1 python benchmarks/gpu.py --smoke       the same path on a CPU, tiny, in Triton's interpreter

First, in several processes at once because most of it is compilation: every case at a small odd size against float64 by the
numeric contract (2 x the error of the unfused computation in the same type plus one rounding), and a first call of what will be
timed, which leaves Triton's and Inductor's caches full. Then, alone on the device, forward TFLOP/s (of the scores that the mask
keeps), best of many, beside `scaled_dot_product_attention` (flash and cuDNN, where the case can be said to it without a mask
tensor), compiled Flex Attention with a block mask made beforehand, and torch.compile of the plain code; and the fraction of the
matrix product's measured rate. The timed results are checked too. Cases and contenders are those of `aicf bench`. What would not
fit the time is left out, and said to be.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from aicf.bench import cases as bench
from aicf.bench.contenders import prepare
from aicf.bench.measure import Reference
from aicf.frontends.torch import api

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.backends.triton.cases import OWN, SQUARE, shared
from tests.contract import assert_contract

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
CASES = {c.name: c for c in (*bench.CASES, bench.windowed(1024))}  # the latter instead of the shorter window
ASKED = ("dense", "causal", "window", "documents", "alibi", "softcap", "gqa")
WITHOUT_MASK = ("dense", "causal", "gqa")  # what SDPA has a flag for
SDPA = {"sdpa flash": SDPBackend.FLASH_ATTENTION, "sdpa cudnn": SDPBackend.CUDNN_ATTENTION}
PROCESSES = 12  # at most, each with a context of its own on the device
JOBS_EACH = 8  # then a fresh process: a kernel that faults takes the others in its process with it
LEFT_OUT = "left out: no time left"
Tensors = dict[str, torch.Tensor]
Run = Callable[[], Any]
Check = dict[str, str]


@dataclass(frozen=True)
class Timed:
    """What is timed: a case in a type at a size, on a device."""

    case: str
    dtype: str
    n: int
    d: int
    batch: int
    heads: int
    device: str

    def tensors(self) -> Tensors:
        with torch.device(self.device):
            return bench.make_inputs(CASES[self.case], bench.Size(self.batch, self.heads, self.n, self.d), TYPES[self.dtype])


@dataclass
class Row:
    """One timing: milliseconds, TFLOP/s, the fraction of the matrix product's rate, and the error as a share of what is allowed;
    `note` says why there is none."""

    case: str
    dtype: str
    n: int
    d: int
    what: str
    ms: float = math.nan
    tflops: float = math.nan
    share: float = math.nan
    error: float = math.nan
    note: str = ""


def seconds(run: Callable[[], object], cuda: bool, budget: float = 0.2) -> float:
    """The best time of a call; on a GPU between events, after a warm-up, over several calls where one is so short that starting
    it would count."""
    if not cuda:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    calls = max(1, min(20, math.ceil(2e-3 / (time.perf_counter() - began))))
    best, until = math.inf, time.perf_counter() + budget
    while time.perf_counter() < until:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3 / calls)
    return best


def matmul_rate(device: str, dtype: torch.dtype) -> float:
    """TFLOP/s of a large square matrix product."""
    n = 8192 if device == "cuda" else 128
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / seconds(lambda: a @ b, device == "cuda", 1.0) / 1e12


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def check(name: str, dtype: str, device: str, smoke: bool) -> Check:
    """One case (this repository's, or the shared folder's) by the numeric contract."""
    kinds = {t: n for n, t in TYPES.items()}
    case: Any = OWN[name] if name in OWN else shared()[name]
    n, m = (20, 20 if name in SQUARE else 37) if smoke else (200, 200 if name in SQUARE else 333)
    torch._dynamo.reset()
    try:
        made = case.make(n, m, TYPES[dtype]) if name in OWN else case.make(b=1, h=4, n=n, m=m, d=64, dtype=TYPES[dtype])
        tensors = {k: t.to(device) for k, t in made.items()}
        with torch.no_grad(), torch.device(device):
            got = api.compile(case.fn, fuse="always", require="streamed", target=target(device))(**tensors)
            unfused = case.fn(**tensors)
            exact = case.fn(**{k: t.double() if t.is_floating_point() else t for k, t in tensors.items()})
        for a, b, c in zip(_tuple(got), _tuple(unfused), _tuple(exact), strict=True):
            assert_contract(a, b, c, kinds[a.dtype], name)
        result = "ok"
    except Exception as e:
        result = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:300]}"
    return {"case": name, "dtype": dtype, "result": result}


def target(device: str) -> str | None:
    """What is compiled for: the device at hand; the interpreter stands for some GPU."""
    return "h100" if device == "cpu" else None


def contender(what: str, timed: Timed, t: Tensors) -> Run:
    """What is called and timed; compiled on its first call. Raises RuntimeError when it cannot be."""
    case, values = CASES[timed.case], list(t.values())
    if what in SDPA:
        if timed.case not in WITHOUT_MASK or case.sdpa is None:
            raise RuntimeError("it takes no mask")
        call = case.sdpa(t)

        def sdpa() -> Any:
            with sdpa_kernel(SDPA[what]):
                return call(*values)

        return sdpa
    if what == "compile" and timed.batch * timed.heads * timed.n**2 * 6 > 40e9:
        raise RuntimeError("its score matrix is too large")
    made = prepare(what, case, t, threads=1, fuse="always", target=target(timed.device))
    if made.call is None:
        raise RuntimeError(made.missing)
    if what == "aicf":
        made.call()
        if not made.report.regions or any(r.status != "streamed" for r in made.report.regions):
            raise RuntimeError(f"not streamed: {made.report}")
    return made.call


@torch.no_grad()
def warm(what: str, timed: Timed) -> None:
    """A first call, for what it leaves in the caches on disk. Should it fail, so will the call that is timed, and says why."""
    torch._dynamo.reset()
    contender(what, timed, timed.tensors())()


def together(
    checks: Sequence[tuple[str, str]], warmed: Sequence[tuple[str, Timed]], device: str, smoke: bool, until: float
) -> list[Check]:  # fmt: skip
    """Checks cases and makes first calls, in several processes: the first type's cases, first calls, other types' cases."""
    first = [c for c in checks if c[1] == checks[0][1]] if checks else []
    rest, found = [c for c in checks if c not in first], list[Check]()
    processes = 1 if smoke else max(1, min(PROCESSES, (os.cpu_count() or 2) - 1))
    pool = multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=JOBS_EACH)
    try:
        asked = [(c, pool.apply_async(check, (*c, device, smoke))) for c in first]
        calls = [pool.apply_async(warm, w) for w in warmed]
        asked += [(c, pool.apply_async(check, (*c, device, smoke))) for c in rest]
        for (name, dtype), answer in asked:
            try:
                found.append(answer.get(max(0.0, until - time.perf_counter())))
            except multiprocessing.TimeoutError:
                found.append({"case": name, "dtype": dtype, "result": LEFT_OUT})
            print(f"{name:32s} {dtype:5s} {found[-1]['result']}", flush=True)
        for call in calls:
            call.wait(max(0.0, until - time.perf_counter()))
    finally:
        pool.terminate()
        pool.join()
    return found


@torch.no_grad()
def speed(plan: Sequence[Timed], whats: Sequence[str], rates: dict[str, float], until: float) -> list[Row]:
    """Times of everything planned, in its order, while there is time."""
    rows: list[Row] = []
    for timed in plan:
        key = (timed.case, timed.dtype, timed.n, timed.d)
        if time.perf_counter() > until:
            rows.append(Row(*key, "all", note=LEFT_OUT))
            continue
        torch._dynamo.reset()
        case, t = CASES[timed.case], timed.tensors()
        flop, reference = bench.flop(case, t), Reference(case, t)
        for what in whats:
            row = Row(*key, what)
            try:
                run = contender(what, timed, t)
                found = reference.judge(run())
                row.error, row.note = found.share, found.problem if found.another or what == "aicf" else ""
                took = seconds(run, timed.device == "cuda")
                row.ms, row.tflops = took * 1e3, flop / took / 1e12
                row.share = row.tflops / rates[timed.dtype]
            except Exception as e:
                row.note = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"
            rows.append(row)
            print(text(row), flush=True)
        if timed.device == "cuda":
            del t, reference
            torch.cuda.empty_cache()
    return rows


def text(r: Row) -> str:
    numbers = f"{r.ms:9.3f} ms {r.tflops:8.1f} TFLOP/s {r.share:6.1%} error {r.error:5.2f} " if math.isfinite(r.ms) else ""
    return f"{r.case:12s} {r.dtype:5s} N {r.n:6d} D {r.d:4d} {r.what:14s} {numbers}{r.note}"


def numbers(r: Row) -> dict[str, Any]:
    """A row for JSON, which has no NaN."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(r).items()}


def verdicts(rows: list[Row]) -> list[str]:
    """What issue 5 asks: not slower than Flex anywhere, and at least 0.7 of the best SDPA for dense and causal from N = 8k."""
    out: list[str] = []
    by: dict[tuple[str, str, int, int], dict[str, float]] = {}
    for r in rows:
        if math.isfinite(r.ms):
            by.setdefault((r.case, r.dtype, r.n, r.d), {})[r.what] = r.ms
    for key, times in by.items():
        label = f"{key[0]} {key[1]} N {key[2]} D {key[3]}"
        if "aicf" not in times:
            out.append(f"{label}: aicf did not run")
            continue
        if "flex" in times and times["aicf"] > times["flex"]:
            out.append(f"{label}: slower than flex ({times['flex'] / times['aicf']:.2f} x its speed)")
        best = min((times[w] for w in ("sdpa flash", "sdpa cudnn") if w in times), default=0.0)
        if best and key[2] >= 8192 and key[0] in ("dense", "causal") and best / times["aicf"] < 0.7:
            out.append(f"{label}: {best / times['aicf']:.2f} of the best SDPA backend")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.7, help="stop starting new work after this long (4.7)")
    parser.add_argument("--json", type=Path, help="also write everything there")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(ASKED))
    parser.add_argument("--dtype", nargs="+", choices=list(TYPES), default=["bf16", "f16"])
    parser.add_argument("--n", nargs="+", type=int, default=[8192, 16384, 2048], help="sequence lengths")
    parser.add_argument("--d", nargs="+", type=int, default=[128, 64], help="head sizes")
    parser.add_argument("--tokens", type=int, default=16384, help="batch times sequence length (16384)")
    parser.add_argument("--heads", type=int, default=16, help="query heads (16)")
    parser.add_argument("--only", choices=["correctness", "speed"], help="one part")
    parser.add_argument("--smoke", action="store_true", help="a tiny run on the CPU in Triton's interpreter (TRITON_INTERPRET=1)")
    options = parser.parse_args()
    cuda = torch.cuda.is_available() and not options.smoke
    if not cuda and not options.smoke:
        print("no CUDA device: --smoke runs a tiny version in Triton's interpreter", file=sys.stderr)
        return 1
    device, began, whats = "cuda" if cuda else "cpu", time.perf_counter(), ("aicf", *SDPA, "flex", "compile")
    names = [*OWN, *shared()]
    if options.smoke:
        options.n, options.d, options.heads, options.dtype, options.cases = [32], [16], 1, ["f32", "bf16"], ["dense", "window"]
        options.tokens, names, whats = 1, names[:2], ("aicf",)
    until = began + 60 * options.minutes
    plan = [
        Timed(c, y, n, d, max(1, options.tokens // n), options.heads, device)
        for y in options.dtype for n in options.n for d in options.d for c in options.cases
    ]  # fmt: skip
    checks = [(x, y) for y in dict.fromkeys([*options.dtype, "f32"]) for x in names] if options.only != "speed" else []
    warmed = [(w, p) for p in plan for w in ("aicf", "flex") if w in whats] if options.only != "correctness" else []
    name = torch.cuda.get_device_name() if cuda else "Triton's interpreter"
    rates = {y: matmul_rate(device, TYPES[y]) for y in options.dtype}
    print(f"{name}, torch {torch.__version__}; matrix product: " + ", ".join(f"{y} {r:.4g} TFLOP/s" for y, r in rates.items()))
    # The interpreter has no caches to fill: one call shows that it can be made there.
    right = together(checks, warmed[: 1 if options.smoke else None], device, options.smoke, began + 0.5 * (until - began))
    rows = speed(plan, whats, rates, until) if options.only != "correctness" else []
    done = [r for r in right if r["result"] != LEFT_OUT]
    wrong = [r for r in done if r["result"] != "ok"]
    print(f"\n{len(done) - len(wrong)} of {len(done)} correct, {len(right) - len(done)} left out")
    for line in verdicts(rows):
        print(line)
    if options.json:
        made = {
            "device": name, "torch": torch.__version__, "matmul": rates, "correct": right,
            "speed": [numbers(r) for r in rows], "seconds": time.perf_counter() - began,
        }  # fmt: skip
        options.json.write_text(json.dumps(made, indent=1))
    return 1 if wrong or any(r.what == "aicf" and not r.error <= 1 for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
