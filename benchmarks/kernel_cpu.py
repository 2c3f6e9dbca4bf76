"""The CPU kernel against PyTorch's F.scaled_dot_product_attention and the FMA peak, interleaved, best of many.

    python benchmarks/kernel_cpu.py [--n 512 2048] [--d 64 128] [--threads 1 2] [--tiles 96x64x6 …] [--reps 20]

Each line: milliseconds, GFLOP/s (2 * 2 * N * M * D a head, half of it when causal), the ratio to PyTorch's time, and the share
of the peak, which a loop of independent FMAs on registers measures between the other runs. Only ratios mean something on a
busy machine; one thread is timed in processor time.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import torch
import torch.nn.functional as F

from aicf.backends.llvm import build, host_target
from aicf.backends.llvm.build import compile_text
from aicf.kernel import Kernel, Parallel, Rows, Stmt, Stream
from aicf.scalar import call, index, size

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.kernel.handmade import attention

ROUNDS = 200_000


def fma_peak() -> tuple[Callable[[], None], float]:
    """(a function that does nothing but FMAs, how many GFLOP one call is)."""
    target = host_target()
    lanes, chains = target.lanes, 12
    kind = f"<{lanes} x float>"
    starts = "\n".join(  # distinct, or the optimiser would merge the chains
        f"  %g{i} = getelementptr float, ptr %p, i64 {i}\n  %b{i} = load {kind}, ptr %g{i}, align 4" for i in range(chains)
    )
    phis = "\n".join(f"  %c{i} = phi {kind} [ %b{i}, %entry ], [ %n{i}, %loop ]" for i in range(chains))
    steps = "\n".join(f"  %n{i} = call {kind} @llvm.fma.v{lanes}f32({kind} %c{i}, {kind} %x, {kind} %y)" for i in range(chains))
    sums = f"  %s0 = fadd {kind} %n0, %n0\n" + "\n".join(f"  %s{i} = fadd {kind} %s{i - 1}, %n{i}" for i in range(1, chains))
    text = f"""
declare {kind} @llvm.fma.v{lanes}f32({kind}, {kind}, {kind})
define void @peak(ptr %p, i64 %rounds) #0 {{
entry:
  %x = load {kind}, ptr %p
  %y = load {kind}, ptr %p
{starts}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}
{steps}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %rounds
  br i1 %more, label %loop, label %done
done:
{sums}
  store {kind} %s{chains - 1}, ptr %p
  ret void
}}
attributes #0 = {{ nounwind "target-cpu"="{target.cpu}" "target-features"="{target.features}" }}
"""
    machine = llvm.Target.from_triple(target.triple).create_target_machine(cpu=target.cpu, features=target.features, reloc="pic")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(compile_text(text, target)))
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("peak"))
    memory = torch.zeros(64)

    def run(engine: object = engine) -> None:
        function(memory.data_ptr(), ROUNDS)

    return run, ROUNDS * chains * lanes * 2 / 1e9


def best(functions: list[Callable[[], object]], repetitions: int, clock: Callable[[], float]) -> list[float]:
    """The best time of each function in seconds; they take turns."""
    times = [float("inf")] * len(functions)
    for _ in range(repetitions):
        for i, function in enumerate(functions):
            start = clock()
            function()
            times[i] = min(times[i], clock() - start)
    return times


def shortened(kernel: Kernel, rows: int) -> Kernel:
    """The causal kernel with the promise that keys past a block's last row contribute nothing to it."""
    end = call("add", index("i0"), size(rows))

    def change(s: Stmt) -> Stmt:
        match s:
            case Rows():
                return replace(s, ends=(("j", end),))
            case Stream():
                return replace(s, phases=tuple(p if p.whole else replace(p, body=tuple(map(change, p.body))) for p in s.phases))
            case Parallel():
                return replace(s, body=tuple(map(change, s.body)))
            case _:
                return s

    return replace(kernel, body=tuple(map(change, kernel.body)))


def compare(n: int, d: int, causal: bool, threads: int, tiles: list[tuple[int, int, int]], heads: int, repetitions: int) -> None:
    torch.set_num_threads(threads)
    q, k, v = (torch.randn(1, heads, n, d) for _ in range(3))
    o = torch.empty_like(q)
    given = {name: (x.data_ptr(), x.stride()) for name, x in zip("QKVO", (q, k, v, o), strict=True)}
    sizes = {"B": 1, "H": heads, "N": n, "M": n}
    peak, peak_flop = fma_peak()
    functions: list[Callable[[], object]] = [
        peak,
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.125),
    ]
    for tile_m, tile_n, rows in tiles:
        kernel = attention(d=d, dv=d, causal=causal, tile_m=tile_m, tile_n=tile_n, rows=rows)
        compiled = build(shortened(kernel, rows) if causal else kernel)
        words = compiled.launcher.words(given, sizes, {})
        functions.append(lambda compiled=compiled, words=words: compiled.launcher.call(words, threads))
    times = best(functions, repetitions, time.thread_time if threads == 1 else time.perf_counter)
    flop = heads * 4 * n * n * d * (0.5 if causal else 1) / 1e9
    top = peak_flop / times[0] * threads
    name = f"N={n} D={d} {'causal' if causal else 'dense '} threads={threads}"
    print(f"{name}  sdpa {times[1] * 1e3:8.3f} ms {flop / times[1]:6.1f} GFLOP/s  (peak {top:.0f})")
    for tile, seconds in zip(tiles, times[2:], strict=True):
        rate = flop / seconds
        print(
            f"    {tile!s:14s} {seconds * 1e3:8.3f} ms {rate:6.1f} GFLOP/s  {times[1] / seconds:5.2f}x  {rate / top:4.0%} of peak"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--d", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tiles", nargs="+", default=["96x64x6"], help="tile_m x tile_n x rows")
    parser.add_argument("--mask", choices=["dense", "causal"], nargs="+", default=["dense", "causal"])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--reps", type=int, default=20)
    given = parser.parse_args()
    tiles = [(int(m), int(n), int(r)) for m, n, r in (t.split("x") for t in given.tiles)]
    for threads in given.threads:
        for n in given.n:
            for d in given.d:
                for mask in given.mask:
                    compare(n, d, mask == "causal", threads, tiles, given.heads, given.reps)


if __name__ == "__main__":
    main()
