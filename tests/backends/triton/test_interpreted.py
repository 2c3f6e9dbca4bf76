"""The tests of `interpreted.py`, in a process that starts with TRITON_INTERPRET=1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PARTS = (
    "own_cases", "other_schedules or decode", "shared_cases", "attention or strides or bias or orders or skipped or summaries",
    "functions or integers or positions or indices",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def an_interpreter() -> None:
    """Triton 3.6 interprets loops by int() of arrays with one element, which NumPy refuses from 2.4 on."""
    triton = pytest.importorskip("triton")
    versions = [tuple(int(x) for x in made.__version__.split(".")[:2]) for made in (triton, np)]
    if versions[0] < (3, 7) and versions[1] >= (2, 4):
        pytest.skip(f"the interpreter of Triton {triton.__version__} needs NumPy below 2.4; here is {np.__version__}")


@pytest.mark.parametrize("part", PARTS)
def test_in_the_interpreter(part: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = str(Path(__file__).with_name("interpreted.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file, "-k", part]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_gpu_benchmark_runs_through(tmp_path: Path) -> None:
    """benchmarks/gpu.py, tiny, on the CPU: every case that it tries is right and timed, and its JSON is JSON."""
    root, out = Path(__file__).parents[3], tmp_path / "gpu.json"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(root / "benchmarks" / "gpu.py"), "--smoke", "--json", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    made = json.loads(out.read_text(), parse_constant=no_constants)
    assert made["correct"] and all(r["result"] == "ok" for r in made["correct"])
    timed = [(r["case"], r["dtype"], r["what"]) for r in made["speed"]]
    assert timed == [(c, y, "aicf") for y in ("f32", "bf16") for c in ("dense", "window")]
    assert all(r["ms"] > 0 and r["error"] <= 1 for r in made["speed"])
