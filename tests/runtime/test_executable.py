"""Executables: one kernel per layout and never per length, results independent of threads and schedules, little extra memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from aicf.driver import ArrayRef, Options, RegionResult, compile_graph
from aicf.kernel import kernel_fingerprint
from aicf.runtime.building import Counts
from aicf.semantic import build_attention_semantic_graph
from tests.contract import assert_contract

MASKS = ["causal", None]


def ref(a: np.ndarray) -> ArrayRef:
    return ArrayRef(a.ctypes.data, a.shape, tuple(s // a.itemsize for s in a.strides))


def arrays(rng: np.random.Generator, b: int, h: int, n: int, m: int, d: int = 64) -> list[np.ndarray]:
    return [rng.standard_normal((b, h, x, d)).astype(np.float32) for x in (n, m, m)]


def run(result: RegionResult, values: list[np.ndarray]) -> np.ndarray:
    assert result.executable is not None
    q, k, v = values
    out = np.full((*q.shape[:-1], v.shape[-1]), 7, np.float32)
    sizes = {"B": q.shape[0], "H": q.shape[1], "N": q.shape[2], "M": k.shape[2]}
    result.executable.run([ref(x) for x in values], [ref(out)], [sizes[s] for s in result.size_names])
    return out


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("schedule", ["", "kv_split=3", "order=kv_major", "tile_m=24,tile_n=16", "tile_m=7,tile_n=8,rows=3"])
def test_every_schedule_gives_the_graphs_result(mask: str | None, schedule: str) -> None:
    rng = np.random.default_rng(0)
    graph = build_attention_semantic_graph(dtype="f32", mask=mask)
    result = compile_graph(graph, Options(fuse="always", schedule=schedule or None)).regions[0]
    for n, m in ((50, 70), (1, 1), (33, 5)):
        values = arrays(rng, 2, 3, n, m)
        exact, eager = (unfused(values, mask, dtype) for dtype in (torch.float64, torch.float32))
        assert_contract(run(result, values), eager, exact, "f32")


def unfused(values: list[np.ndarray], mask: str | None, dtype: torch.dtype) -> np.ndarray:
    """The graph as PyTorch computes it in a precision."""
    q, k, v = (torch.from_numpy(x).to(dtype) for x in values)
    s = q @ k.mT * 0.125
    if mask:
        s = s.masked_fill(torch.arange(k.shape[2]) > torch.arange(q.shape[2])[:, None], float("-inf"))
    return (s.softmax(-1) @ v).numpy()


def test_a_new_length_compiles_nothing() -> None:
    rng = np.random.default_rng(1)
    result = compile_graph(build_attention_semantic_graph(dtype="f32"), Options(fuse="always")).regions[0]
    run(result, arrays(rng, 1, 2, 40, 40))
    before = (Counts.compiled, Counts.loaded)
    for n in range(1, 21):
        run(result, arrays(rng, 1 + n % 2, 1 + n % 3, 3 * n, 5 * n))
    assert (Counts.compiled, Counts.loaded) == before


def test_static_lengths_share_one_kernel() -> None:
    rng = np.random.default_rng(2)
    texts = set()
    for n in (40, 72):
        graph = build_attention_semantic_graph(dtype="f32", batch=1, heads=2, queries=n, keys=n)
        result = compile_graph(graph, Options(fuse="always", schedule="tile_m=48,tile_n=32")).regions[0]
        values = arrays(rng, 1, 2, n, n)
        out = np.empty_like(values[0])
        assert result.executable is not None
        result.executable.run([ref(x) for x in values], [ref(out)], [])
        texts.add(kernel_fingerprint(result.executable.kernel))
    assert len(texts) == 1


@pytest.mark.parametrize("mask", MASKS)
def test_bits_do_not_depend_on_the_run_or_the_threads(mask: str | None) -> None:
    rng = np.random.default_rng(3)
    values = arrays(rng, 1, 3, 200, 200)
    graph = build_attention_semantic_graph(dtype="f32", mask=mask)
    tiles = "tile_m=48,tile_n=32"
    results = [compile_graph(graph, Options(fuse="always", schedule=tiles, threads=t)).regions[0] for t in (1, 2, 3)]
    outs = [run(r, values) for r in results for _ in range(3)]
    assert all(np.array_equal(outs[0], o) for o in outs[1:])


def test_inputs_are_read_through_their_strides() -> None:
    rng = np.random.default_rng(4)
    b, h, n, d = 2, 3, 37, 64
    packed = rng.standard_normal((b, n, 3, h, d)).astype(np.float32)
    views = [packed[:, :, k].transpose(0, 2, 1, 3) for k in range(3)]
    views[1] = np.broadcast_to(views[1][:, :1], views[1].shape)  # one key head for all: stride 0
    views[2] = views[2][:, :, ::-1]  # values backwards: a negative stride
    graph = build_attention_semantic_graph(dtype="f32")
    result = compile_graph(graph, Options(fuse="always")).regions[0]
    copies = [np.ascontiguousarray(v) for v in views]
    np.testing.assert_array_equal(run(result, views), run(result, copies))


MEMORY = """
import resource, numpy as np
from tests.runtime.test_executable import arrays, run
from aicf.driver import Options, compile_graph
from aicf.semantic import build_attention_semantic_graph
rng = np.random.default_rng(0)
result = compile_graph(build_attention_semantic_graph(dtype="f32", mask=None), Options(fuse="always")).regions[0]
small, large = arrays(rng, 1, 1, 64, 64), arrays(rng, 1, 1, 16384, 16384)
run(result, small)
out = np.ones_like(large[0])
refs = [__import__("tests.runtime.test_executable", fromlist=["ref"]).ref(x) for x in (*large, out)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sizes = {"B": 1, "H": 1, "N": 16384, "M": 16384}
result.executable.run(refs[:3], refs[3:], [sizes[s] for s in result.size_names])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux only")
def test_extra_memory_at_16384_is_below_16_mib() -> None:
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=root, env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16 * 1024, f"{done.stdout} kB"
