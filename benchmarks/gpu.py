"""Derived kernels on a GPU: right for every case, and how fast beside the best that PyTorch has, in under five minutes.

    python benchmarks/gpu.py [--minutes 5] [--json results.json] [--dtype bf16 f16] [--n 2048 8192 16384] [--d 64 128]
    TRITON_INTERPRET=1 python benchmarks/gpu.py --smoke       the same path on a CPU, tiny, in Triton's interpreter

Correctness: every case at a small odd size against float64 by the numeric contract (2 x the error of the unfused
computation in the same type plus one rounding). Speed: forward TFLOP/s (2 * 2 * N * M * D a head, times the share of scores
that the mask keeps), best of many, beside `scaled_dot_product_attention` (flash and cuDNN, where the case can be said to
it), compiled Flex Attention with a block mask made beforehand, and torch.compile of the plain code; and the fraction of the
matrix product's measured rate. First every case is checked in the first type, then speed is measured, then the other types are
checked. What would not fit the time left is left out, and said to be.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from aicf.frontends.torch import api

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.backends.triton.cases import OWN, SQUARE, shared
from tests.contract import assert_contract

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
WINDOW, CAP, DOCUMENTS = 1024, 20.0, 8
LEFT_OUT = "left out: no time left"
Tensors = dict[str, torch.Tensor]
Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A timed case. `kept(n)`: the share of scores under the mask; `sdpa`: keywords that say the case to SDPA, None: it cannot;
    `mask` and `score`: the case for Flex Attention, made from the tensors; `heads_kv`: key heads of 16."""

    plain: Callable[..., torch.Tensor]
    kept: Callable[[int], float]
    sdpa: dict[str, Any] | None = None
    mask: Callable[[Tensors], Any] | None = None
    score: Callable[[Tensors], Any] | None = None
    heads_kv: int = 16
    extra: Callable[[int, str], Tensors] = lambda n, device: {}


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def _distance(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    return i[:, None] - torch.arange(k.shape[-2], device=q.device)[None, :]


def plain_dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _scores(q, k).softmax(-1) @ v


def plain_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _scores(q, k).masked_fill(_distance(q, k) < 0, -math.inf).softmax(-1) @ v


def plain_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    d = _distance(q, k)
    return _scores(q, k).masked_fill((d < 0) | (d >= WINDOW), -math.inf).softmax(-1) @ v


def plain_documents(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    same = (ids[:, None, :, None] == ids[:, None, None, :]) & (_distance(q, k) >= 0)
    return _scores(q, k).masked_fill(~same, -math.inf).softmax(-1) @ v


def plain_alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    d = _distance(q, k)
    return (_scores(q, k) - slope[:, None, None] * d).masked_fill(d < 0, -math.inf).softmax(-1) @ v


def plain_softcap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = CAP * torch.tanh(_scores(q, k) / CAP)
    return s.masked_fill(_distance(q, k) < 0, -math.inf).softmax(-1) @ v


def plain_grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return _scores(q, k).masked_fill(_distance(q, k) < 0, -math.inf).softmax(-1) @ v


def _half(n: int) -> float:
    return (n + 1) / (2 * n)


def _window(n: int) -> float:
    w = min(WINDOW, n)
    return (w * n - w * (w - 1) / 2) / (n * n)


def _causal_mask(t: Tensors) -> Any:
    return lambda b, h, i, j: i >= j


CASES: dict[str, Case] = {
    "dense": Case(plain_dense, lambda n: 1.0, {}),
    "causal": Case(plain_causal, _half, {"is_causal": True}, _causal_mask),
    "window 1024": Case(plain_window, _window, None, lambda t: lambda b, h, i, j: (i >= j) & (i - j < WINDOW)),
    "documents": Case(
        plain_documents, lambda n: _half(n // DOCUMENTS) / DOCUMENTS, None,
        lambda t: lambda b, h, i, j: (t["ids"][b, i] == t["ids"][b, j]) & (i >= j),
        extra=lambda n, device: {"ids": (torch.arange(n, device=device) * DOCUMENTS // n)[None]},
    ),
    "alibi": Case(
        plain_alibi, _half, None, _causal_mask, lambda t: lambda s, b, h, i, j: s - t["slope"][h] * (i - j),
        extra=lambda n, device: {"slope": torch.exp2(-8.0 * torch.arange(1, 17, device=device) / 16)},
    ),
    "softcap": Case(plain_softcap, _half, None, _causal_mask, lambda t: lambda s, b, h, i, j: CAP * torch.tanh(s / CAP)),
    "gqa": Case(plain_grouped, _half, {"is_causal": True, "enable_gqa": True}, _causal_mask, heads_kv=4),
}  # fmt: skip


@dataclass
class Row:
    """One timing: milliseconds, TFLOP/s, and the fraction of the matrix product's rate; `note` says why there is none."""

    case: str
    dtype: str
    n: int
    d: int
    what: str
    ms: float = math.nan
    tflops: float = math.nan
    share: float = math.nan
    note: str = ""


def seconds(run: Callable[[], object], cuda: bool, budget: float = 0.25) -> float:
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


def correctness(device: str, types: list[str], smoke: bool, until: float) -> list[dict[str, str]]:
    """Every case (this repository's and, where it is there, the shared folder's) by the numeric contract."""
    out: list[dict[str, str]] = []
    kinds = {t: n for n, t in TYPES.items()}
    cases: dict[str, Any] = dict(OWN) if smoke else {**OWN, **shared()}
    target = "h100" if device == "cpu" else None
    for dtype in types:
        for name, case in list(cases.items())[: 2 if smoke else None]:
            if time.perf_counter() > until:
                out.append({"case": name, "dtype": dtype, "result": LEFT_OUT})
                continue
            n, m = (20, 20 if name in SQUARE else 37) if smoke else (200, 200 if name in SQUARE else 333)
            torch._dynamo.reset()
            try:
                made = case.make(n, m, TYPES[dtype]) if name in OWN else case.make(b=1, h=4, n=n, m=m, d=64, dtype=TYPES[dtype])
                tensors = {k: t.to(device) for k, t in made.items()}
                with torch.no_grad(), torch.device(device):
                    got = api.compile(case.fn, fuse="always", require="streamed", target=target)(**tensors)
                    unfused = case.fn(**tensors)
                    exact = case.fn(**{k: t.double() if t.is_floating_point() else t for k, t in tensors.items()})
                for a, b, c in zip(_tuple(got), _tuple(unfused), _tuple(exact), strict=True):
                    assert_contract(a, b, c, kinds[a.dtype], name)
                out.append({"case": name, "dtype": dtype, "result": "ok"})
            except Exception as e:
                out.append({"case": name, "dtype": dtype, "result": f"{type(e).__name__}: {str(e).splitlines()[0][:300]}"})
            print(f"{name:32s} {dtype:5s} {out[-1]['result']}", flush=True)
    return out


def contenders(case: Case, t: Tensors, device: str, target: str | None) -> dict[str, Callable[[], Run]]:
    """What is timed: for each name what makes it ready to call."""
    q, k, v = t["q"], t["k"], t["v"]

    def aicf() -> Run:
        ours = api.compile(case.plain, fuse="always", require="streamed", target=target)
        return lambda: ours(**t)

    def flex() -> Run:
        compiled: Any = torch.compile(flex_attention, dynamic=False)
        n, m = q.shape[2], k.shape[2]
        block = None if case.mask is None else create_block_mask(case.mask(t), None, None, n, m, device=device)
        score = None if case.score is None else case.score(t)
        return lambda: compiled(q, k, v, score_mod=score, block_mask=block, enable_gqa=case.heads_kv != 16)

    def plain() -> Run:
        if q.shape[0] * 16 * q.shape[2] ** 2 * 6 > 40e9:
            raise MemoryError("its score matrix is too large")
        compiled: Any = torch.compile(case.plain, dynamic=False)
        return lambda: compiled(**t)

    made: dict[str, Callable[[], Run]] = {"aicf": aicf}
    if device == "cpu":
        return made
    if case.sdpa is not None:
        keywords = case.sdpa
        for label, backend in (("sdpa flash", SDPBackend.FLASH_ATTENTION), ("sdpa cudnn", SDPBackend.CUDNN_ATTENTION)):

            def sdpa(backend: SDPBackend = backend) -> object:
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, v, **keywords)

            made[label] = lambda sdpa=sdpa: sdpa
    return {**made, "flex": flex, "torch.compile": plain}


def speed(device: str, options: argparse.Namespace, rates: dict[str, float], until: float) -> list[Row]:
    """Times of all cases and sizes, what is asked about first, so that running out of time costs least."""
    rows: list[Row] = []
    target = "h100" if device == "cpu" else None
    plan = [(c, y, n, d) for y in options.dtype for n in options.n for d in options.d for c in CASES]
    for name, dtype, n, d in plan[: 2 if options.smoke else None]:
        case = CASES[name]
        if time.perf_counter() > until:
            rows.append(Row(name, dtype, n, d, "all", note=LEFT_OUT))
            continue
        torch._dynamo.reset()
        batch = max(1, options.tokens // n)
        g = torch.Generator(device).manual_seed(0)
        heads = {"q": 16, "k": case.heads_kv, "v": case.heads_kv}
        if options.smoke:
            batch = 1
        t = {x: torch.randn(batch, h, n, d, device=device, generator=g).to(TYPES[dtype]) for x, h in heads.items()}
        t |= {x: y.expand(batch, -1) if x == "ids" else y.to(TYPES[dtype]) for x, y in case.extra(n, device).items()}
        flop = 4.0 * batch * 16 * n * n * d * case.kept(n)
        with torch.no_grad():
            for what, make in contenders(case, t, device, target).items():
                row = Row(name, dtype, n, d, what)
                try:
                    took = seconds(make(), device == "cuda")
                    row.ms, row.tflops = took * 1e3, flop / took / 1e12
                    row.share = row.tflops / rates[dtype]
                except Exception as e:
                    row.note = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"
                rows.append(row)
                print(text(row), flush=True)
        torch.cuda.empty_cache() if device == "cuda" else None
    return rows


def text(r: Row) -> str:
    numbers = f"{r.ms:9.3f} ms {r.tflops:8.1f} TFLOP/s {r.share:6.1%}" if math.isfinite(r.ms) else r.note
    return f"{r.case:12s} {r.dtype:5s} N {r.n:6d} D {r.d:4d} {r.what:14s} {numbers}"


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
    parser.add_argument("--dtype", nargs="+", choices=list(TYPES), default=["bf16", "f16"])
    parser.add_argument("--n", nargs="+", type=int, default=[8192, 16384, 2048], help="sequence lengths")
    parser.add_argument("--d", nargs="+", type=int, default=[128, 64], help="head sizes")
    parser.add_argument("--tokens", type=int, default=16384, help="batch times sequence length (16384); 16 heads")
    parser.add_argument("--only", choices=["correctness", "speed"], help="one part")
    parser.add_argument("--smoke", action="store_true", help="a tiny run on the CPU in Triton's interpreter (TRITON_INTERPRET=1)")
    options = parser.parse_args()
    cuda = torch.cuda.is_available() and not options.smoke
    if not cuda and not options.smoke:
        print("no CUDA device: --smoke runs a tiny version in Triton's interpreter", file=sys.stderr)
        return 1
    if options.smoke:
        options.n, options.d, options.dtype = [48], [16], ["f32", "bf16"]
    device, began = ("cuda" if cuda else "cpu"), time.perf_counter()
    until = began + 60 * options.minutes
    name = torch.cuda.get_device_name() if cuda else "Triton's interpreter"
    rates = {y: matmul_rate(device, TYPES[y]) for y in options.dtype}
    print(f"{name}, torch {torch.__version__}; matrix product: " + ", ".join(f"{y} {r:.4g} TFLOP/s" for y, r in rates.items()))
    right: list[dict[str, str]] = []
    rows: list[Row] = []
    types = list(dict.fromkeys([*options.dtype, "f32"]))
    if options.only != "speed":
        right = correctness(device, types[:1], options.smoke, until if options.only else began + 0.45 * (until - began))
    if options.only != "correctness":
        rows = speed(device, options, rates, until)
    if options.only != "speed":
        right += correctness(device, types[1:], options.smoke, until)
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
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
