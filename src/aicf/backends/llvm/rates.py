"""What this machine can do at the most, measured: a loop of nothing but FMAs, and a loop of nothing but reads.

Both are generated like kernels are and run on the same threads, so that a kernel's share of them is what
it could have had.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import llvmlite.binding as llvm

from aicf.backends.llvm.build import compile_text, host_target, machine_of
from aicf.backends.llvm.threads import fork_address, run_alike

ROUNDS = 100_000
CHAINS = 12  # independent FMAs: more than any latency times rate
LINES = 8  # vectors read per turn of the loop
CHUNK = 1 << 16  # bytes that a thread takes at a time
_ALIGN = 4096


def fma_work(threads: int) -> tuple[Callable[[], None], float]:
    """(a function that does nothing but FMAs of f32 vectors on `threads` threads, how many flop one call is)."""
    address, _ = _functions()
    data = (ctypes.c_int64 * 4)(ROUNDS)
    return (lambda: _run(address, data, threads)), 2.0 * threads * ROUNDS * CHAINS * host_target().lanes


def read_work(threads: int, size: int) -> tuple[Callable[[], None], int]:
    """(a function that reads memory from end to end, once, on `threads` threads; how many bytes that is, about `size`)."""
    _, address = _functions()
    chunks = max(1, round(size / CHUNK))
    memory = ctypes.create_string_buffer(chunks * CHUNK + _ALIGN)
    ctypes.memset(memory, 1, len(memory))
    start = -(-ctypes.addressof(memory) // _ALIGN) * _ALIGN
    data = (ctypes.c_int64 * 4)(0, chunks, start)

    def run(memory: object = memory) -> None:
        data[0] = 0
        _run(address, data, threads)

    return run, chunks * CHUNK


def _run(address: int, data: ctypes.Array[ctypes.c_int64], threads: int) -> None:
    fork = fork_address() if threads > 1 else 0
    if fork:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(fork)(
            address, ctypes.addressof(data), threads, 0
        )
    else:
        run_alike(address, ctypes.addressof(data), threads)


_ENGINES: list[object] = []


@cache
def _functions() -> tuple[int, int]:
    """The addresses of `fma` and `read`."""
    target = host_target()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_of(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(compile_text(_text(), target)))
    engine.finalize_object()
    _ENGINES.append(engine)  # the code lives as long as its engine
    return engine.get_function_address("fma"), engine.get_function_address("read")


def _text() -> str:
    target = host_target()
    lanes = target.lanes
    kind, words = f"<{lanes} x float>", f"<{lanes} x i32>"
    step = 4 * lanes * LINES

    def each(count: int, line: Callable[[int], str]) -> str:
        return "\n".join("  " + line(i) for i in range(count))

    starts = each(CHAINS, lambda i: f"%b{i} = uitofp {words} splat (i32 {i}) to {kind}")  # distinct, or they would be merged
    phis = each(CHAINS, lambda i: f"%c{i} = phi {kind} [ %b{i}, %entry ], [ %n{i}, %loop ]")
    fmas = each(CHAINS, lambda i: f"%n{i} = call {kind} @llvm.fma.v{lanes}f32({kind} %c{i}, {kind} %x, {kind} %x)")
    sums = "  %s0 = fadd %K %n0, %n0\n".replace("%K", kind) + each(
        CHAINS - 1, lambda i: f"%s{i + 1} = fadd {kind} %s{i}, %n{i + 1}"
    )
    read_phis = each(LINES, lambda i: f"%a{i} = phi {words} [ zeroinitializer, %chunk ], [ %m{i}, %inner ]")
    reads = each(
        LINES,
        lambda i: f"%p{i} = getelementptr i8, ptr %from, i64 {4 * lanes * i}\n"
        f"  %r{i} = load {words}, ptr %p{i}, align {4 * lanes}\n  %m{i} = add {words} %a{i}, %r{i}",
    )
    ors = f"  %o0 = or {words} %m0, %m0\n" + each(LINES - 1, lambda i: f"%o{i + 1} = or {words} %o{i}, %m{i + 1}")
    return f"""
declare {kind} @llvm.fma.v{lanes}f32({kind}, {kind}, {kind})

define void @fma(ptr %data) #0 {{
entry:
  %rounds = load i64, ptr %data
  %kept = alloca {kind}
  %third = sitofp i64 %rounds to float
  %small = fdiv float 1.0, %third
  %one = insertelement {kind} poison, float %small, i64 0
  %x = shufflevector {kind} %one, {kind} poison, <{lanes} x i32> zeroinitializer
{starts}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{phis}
{fmas}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %rounds
  br i1 %more, label %loop, label %done
done:
{sums}
  store volatile {kind} %s{CHAINS - 1}, ptr %kept
  ret void
}}

define void @read(ptr %data) #0 {{
entry:
  %kept = alloca {words}
  %pc = getelementptr i64, ptr %data, i64 1
  %chunks = load i64, ptr %pc
  %pb = getelementptr i64, ptr %data, i64 2
  %base = load ptr, ptr %pb
  br label %next
next:
  %mine = atomicrmw add ptr %data, i64 1 monotonic
  %left = icmp slt i64 %mine, %chunks
  br i1 %left, label %chunk, label %done
chunk:
  %offset = mul i64 %mine, {CHUNK}
  %start = getelementptr i8, ptr %base, i64 %offset
  br label %inner
inner:
  %at = phi i64 [ 0, %chunk ], [ %after, %inner ]
{read_phis}
  %from = getelementptr i8, ptr %start, i64 %at
{reads}
  %after = add i64 %at, {step}
  %again = icmp slt i64 %after, {CHUNK}
  br i1 %again, label %inner, label %end
end:
{ors}
  store volatile {words} %o{LINES - 1}, ptr %kept
  br label %next
done:
  ret void
}}
attributes #0 = {{ nounwind "target-cpu"="{target.cpu}" "target-features"="{target.features}" }}
"""
