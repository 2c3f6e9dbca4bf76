"""The examples run, and say nothing on standard error. New examples are found by themselves, once git knows them."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.tracked import python_files

EXAMPLES = [p for p in python_files(["examples"]) if p.name[0].isdigit()]
GOLDEN = Path(__file__).parent / "mcir"


@cache
def output(path: Path) -> str:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path: Path):
    assert output(path).strip()


def test_lowering_shows_the_specifications_dumps():
    text = output(next(p for p in EXAMPLES if p.name.startswith("02")))
    for golden in ("section_12.txt", "section_18.txt"):
        assert (GOLDEN / golden).read_text() in text
