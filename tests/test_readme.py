"""README.md holds: its blocks run in order in an empty folder, its commands exist, its tables say what the code says.

What takes minutes (the demo, benchmarks, installing) is only parsed. Blocks run without a C++ compiler, so that PyTorch compiles
nothing beside the kernels.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

from aicf.cli.main import parser
from aicf.frontends.torch.options import OPTIONS
from tests.tracked import ROOT, python_files

TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [line for language, code in BLOCKS if language == "bash" for line in code.splitlines()]
SOURCES = "".join(p.read_text() for p in python_files(["src"]))
ENV = {
    **os.environ,
    "CXX": "/there/is/no/compiler",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
}


def run(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading or a line, without its head."""
    lines = TEXT.split(heading, 1)[1].splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("|"))
    table = [line for line in lines[first:] if line.startswith("|") or not line][:60]
    table = table[: table.index("")] if "" in table else table
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[2:]]


def shape(text: str) -> str:
    """Text without its numbers, of which one may be 1."""
    return re.sub(r"[\d.]+(e[-+]\d+)?", "0", text).replace("threads", "thread")


def test_the_first_block_is_the_example():
    assert (ROOT / "examples" / "model.py").read_text().endswith('"""\n\n' + PYTHON[0])


def test_the_first_block_prints_what_is_said(tmp_path: Path):
    (tmp_path / "model.py").write_text(PYTHON[0])
    said = next(code for language, code in BLOCKS if language == "")
    assert shape(run(tmp_path, "model.py")) == shape(said).replace(" KiB", " MiB")


@pytest.mark.parametrize("k", range(1, len(PYTHON)))
def test_blocks_run(k: int, tmp_path: Path):
    for package in re.findall(r"^(?:import|from) (\w+)", PYTHON[k], re.MULTILINE):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    (tmp_path / "block.py").write_text(PYTHON[k])
    assert run(tmp_path, "block.py").strip()


def test_there_are_commands_and_the_first_says_where_the_folder_is():
    assert SHELL[0] == "AICF=$PWD" and len(SHELL) > 8


CHEAP = [line for line in SHELL[1:] if re.search(r"dev\" (python|aicf (explain|dump|targets|cache))", line)]
LONG = [line for line in SHELL if re.search(r"dev\" aicf (bench|tune)|^aicf ", line)]


def words(line: str) -> list[str]:
    return shlex.split(line.replace("$AICF", str(ROOT)))


@pytest.mark.parametrize("line", CHEAP)
def test_commands_run_from_any_folder(line: str, tmp_path: Path):
    _, command, *rest = words(line)
    assert run(tmp_path, *(rest if command == "python" else ["-m", "aicf", *rest])).strip()


@pytest.mark.parametrize("line", LONG)
def test_long_commands_are_understood(line: str):
    rest = words(line)
    rest = rest[1:] if rest[0] == "aicf" else rest[2:]
    if rest == ["--version"]:
        with pytest.raises(SystemExit) as caught:
            parser().parse_args(rest)
        assert caught.value.code == 0
    else:
        assert parser().parse_args(rest).command == rest[0]


def test_every_command_is_run_parsed_or_installs():
    others = [line for line in SHELL[1:] if line not in CHEAP and line not in LONG]
    assert all(re.match(r"python3 -m venv|\. aicf-env|pip install|\"\$AICF/dev\" demo", line) for line in others), others


def test_options_are_all_there():
    named = {name for cells in rows("## Settings") for name in re.findall(r"`(\w+)`", cells[0])}
    assert named == OPTIONS | {"dynamic", "fullgraph"}


def test_environment_variables_are_all_there():
    named = {name for cells in rows("Environment variables:") for name in re.findall(r"`(AICF_\w+)`", cells[0])}
    used = set(re.findall(r"\"(AICF_[A-Z_]+)\"", SOURCES))
    assert named == used


def test_extras_are_all_there():
    named = {cells[0].strip("`") for cells in rows("## Install it into your own environment")}
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    assert named == set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE))


def test_reasons_of_the_table_are_ones_that_are_given():
    """Each text between ellipses stands in the sources, so that who searches the table finds the line that was printed."""
    plain = re.sub(r"\"\s*\n\s*f?\"", "", SOURCES)
    for cells in rows("## From refusal to cure"):
        for part in re.split(r"…|NAME|OP|\"|, |MiB|:|\band\b", cells[0]):
            said = part.strip(" ,.")
            assert len(said) < 4 or said in plain or said in ("declined", "refused"), said


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("http") or (ROOT / target).exists(), target
