"""Every program with all of its memory between pages that nobody may touch. Run in a process of its own (`test_guard_pages.py`):
an access outside of a tensor ends it.

    python -m tests.frontends.torch.guarded right host      # tensors end where such a page begins; "left": they begin behind one
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from aicf.backends.llvm import build as build_module
from aicf.backends.llvm import launch
from aicf.bench.cases import CASES, Size, make_inputs
from aicf.contract import judge
from aicf.driver import Options, compile_graph
from aicf.frontends.torch.read.reader import read
from aicf.frontends.torch.rewrite.replace import rewrite
from aicf.frontends.torch.run import region_op
from aicf.runtime import executable
from tests.backends.llvm.paths import PATHS
from tests.frontends.torch.capture import capture_directly

Tensor = torch.Tensor
PAGE = mmap.PAGESIZE
GUARD = 64 * PAGE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
side = "right"
kept: list[mmap.mmap] = []  # of one program


def guarded(size: int) -> tuple[mmap.mmap, int]:
    """Memory with guards around it, and where in it `size` bytes lie."""
    inside = max(PAGE, -(-size // PAGE) * PAGE)
    memory = mmap.mmap(-1, inside + 2 * GUARD)
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + GUARD + inside):
        assert _LIBC.mprotect(guard, GUARD, 0) == 0
    return memory, GUARD if side == "left" else GUARD + inside - size


def empty_strided(shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    """A tensor whose storage is no larger than its shape and strides need, between guards."""
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype)
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory, at = guarded(count * dtype.itemsize)
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at)
    return flat.as_strided(tuple(shape), tuple(strides))


def moved(t: Tensor) -> Tensor:
    """`t` between guards, in the same layout; elements that are one in memory stay one."""
    made = empty_strided(t.shape, t.stride(), t.dtype)
    if t.numel():
        once = tuple(slice(0, 1) if s == 0 else slice(None) for s in t.stride())
        made[once].copy_(t[once])
    return made


def scratch(count: int, dtype: Any) -> Any:
    memory, at = guarded(count)
    return np.frombuffer(memory, dtype, count, at)


class Buffer:
    def __init__(self, size: int) -> None:
        memory, _ = guarded(size)
        kept.remove(memory)
        self.memory = memory  # it outlives a program
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + GUARD


# ------------------------------------------------------------------------------------------------ programs


def looked_up(q: Tensor, k: Tensor, v: Tensor, table: Tensor, at: Tensor) -> Tensor:
    return (q @ k.mT * 0.25 + table[at].permute(2, 0, 1)).softmax(-1) @ v


def relative(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    i, j = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    return (q @ k.mT * 0.25 + table[(i[:, None] - j).clamp(-7, 7) + 7].permute(2, 0, 1)).softmax(-1) @ v


def paged(q: Tensor, k: Tensor, v: Tensor, page: Tensor) -> Tensor:
    k, v = (x[page].permute(0, 3, 1, 2, 4).flatten(2, 3) for x in (k, v))
    return (q @ k.mT * 0.25).softmax(-1) @ v


def embedded(q: Tensor, k: Tensor, v: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    keep = torch.nn.functional.embedding(ids, table)[..., 0] > 0
    return torch.where(keep[:, None, None, :], q @ k.mT * 0.25, float("-inf")).softmax(-1) @ v


def prefixed(q: Tensor, k: Tensor, v: Tensor, more_k: Tensor, more_v: Tensor) -> Tensor:
    k, v = torch.cat([more_k, k], -2), torch.cat([more_v, v], -2)
    j, i = torch.arange(k.shape[-2]), torch.arange(q.shape[-2])
    return torch.where(j <= i[:, None] + more_k.shape[-2], q @ k.mT * 0.25, float("-inf")).softmax(-1) @ v


def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (torch.nn.functional.pad(x, (0, 0, 3, 2)) for x in (k, v))
    return (q @ k.mT * 0.25).softmax(-1) @ v


def documents(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    return torch.where(ids[:, None] == ids, q @ k.mT * 0.25, float("-inf")).softmax(-1) @ v


def dense_mask(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, q @ k.mT * 0.25, float("-inf")).softmax(-1) @ v


def gathered(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, at: Tensor) -> Tensor:
    return (q @ k.mT * 0.25 + bias.gather(-1, at)).softmax(-1) @ v


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def cases(dtype: torch.dtype) -> Iterator[tuple[str, Callable[..., Any], list[Tensor]]]:
    """Name, function, inputs."""
    for case in CASES.values() if isinstance(CASES, dict) else CASES:
        for n, d in ((77, 24), (128, 16)):
            yield f"{case.name} {n} {d}", case.plain, list(make_inputs(case, Size(1, 4, n, d), dtype).values())
    for n, m, d, dv in ((1, 2, 8, 8), (50, 70, 7, 33), (33, 129, 16, 40), (1, 300, 64, 64), (97, 5, 24, 8)):
        q, k, v = (random(2, 3, x, y, dtype=dtype) for x, y in ((n, d), (m, d), (m, dv)))
        name = f"{n} {m} {d} {dv}"
        yield f"looked_up {name}", looked_up, [q, k, v, random(9, 3, dtype=dtype), torch.randint(-9, 9, (n, m))]
        yield f"relative {name}", relative, [q, k, v, random(15, 3, dtype=dtype)]
        yield f"embedded {name}", embedded, [q, k, v, random(11, 2).abs(), torch.randint(0, 11, (2, m))]
        yield f"prefixed {name}", prefixed, [q, k, v, random(2, 3, 2, d, dtype=dtype), random(2, 3, 2, dv, dtype=dtype)]
        yield f"padded {name}", padded, [q, k, v]
        if n == m or n > 1:
            ids = torch.arange(m) // 9
            yield f"documents {name}", documents, [random(2, 3, m, d, dtype=dtype), k, v, ids]
        keep = torch.rand(n, m) < 0.8
        keep[:, 0] = True
        yield f"dense_mask {name}", dense_mask, [q, k, v, keep]
        yield f"dense_mask of a column {name}", dense_mask, [q, k, v, keep.T.contiguous().T]
        yield f"gathered {name}", gathered, [q, k, v, random(2, 3, n, 13, dtype=dtype), torch.randint(0, 13, (2, 3, n, m))]
        pages, size = -(-m // 4), 4
        pool_k, pool_v = random(40 + pages, size, 3, d, dtype=dtype), random(40 + pages, size, 3, dv, dtype=dtype)
        yield f"paged {name}", paged, [q, pool_k, pool_v, torch.randint(0, 40 + pages, (2, pages))]
        turned = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
        yield f"turned {name}", documents if n == m else padded, turned if n != m else [*turned, torch.arange(m)]
        wide = random(2, 3, m, d + dv + 3, dtype=dtype)
        yield f"views {name}", padded, [q, wide[..., :d], wide[..., d : d + dv]]
        yield f"expanded {name}", padded, [q, k[:1, :1].expand_as(k), v[:, :1].expand_as(v)]


SCHEDULES: tuple[dict[str, Any], ...] = (
    {},
    {"tile_m": 8, "tile_n": 16, "rows": 2},
    {"tile_m": 16, "tile_n": 32, "rows": 6, "order": "kv_major"},
    {"tile_m": 16, "tile_n": 16, "kv_split": 3},
)


def run(name: str, fn: Callable[..., Any], given: list[Tensor], dtype: torch.dtype, threads: int) -> None:
    one = capture_directly(fn, *given)
    eager = fn(*given)
    exact = fn(*(t.double() if t.is_floating_point() else t for t in given))
    for schedule in SCHEDULES:
        print(f"{name} {dtype} {schedule}", flush=True)
        one = capture_directly(fn, *given)
        reading = read(one.traced, strict=False)
        options = Options(fuse="always", threads=threads, schedule=schedule)
        regions = compile_graph(reading.graph, options, frozenset(reading.anchors)).regions
        if not all(r.status == "streamed" for r in regions):
            print("  ", [r.reason for r in regions])  # this schedule is not for this machine
            assert schedule
            continue
        rewrite(one.traced, reading, regions)
        inside = [moved(t) for t in given]
        got = one.traced.forward(*inside)
        kinds: dict[torch.dtype, Any] = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
        # What is read is the subject here. These inputs are too few to judge rounding by: the contract is held elsewhere.
        verdict = judge(got, eager, exact, kinds[got.dtype])
        assert not verdict.another, verdict.problem
        del got, inside
        kept.clear()


def main(where: str, path: str, part: int, parts: int) -> None:
    global side
    side = where
    faulthandler.enable()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    region_op._EMPTY = empty_strided  # pyright: ignore[reportPrivateUsage]
    executable.np = SimpleNamespace(**{**vars(np), "empty": scratch})  # type: ignore[attr-defined]
    launch.Buffer = Buffer  # type: ignore[misc]
    if path != "host":
        target = next(p for p in PATHS if p.name == path).target
        build_module.host_target = lambda: target  # type: ignore[attr-defined]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for k, (name, fn, given) in enumerate(cases(dtype)):
                if k % parts == part:
                    run(name, fn, given, dtype, 1 + k % 2)
    print("all done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5] or (0, 1)))
