"""The demo and `./dev`: what their help says, and what is done when time is short. Nothing is installed or downloaded here."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import contenders, session, zoo

ROOT = Path(__file__).parents[1]


def test_the_help_lists_all_models_without_importing_transformers():
    load = "import sys; sys.argv = ['demo']; sys.path.insert(0, 'examples'); import demo"
    probe = f"{load}; print(demo.parser().format_help()); print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    for name, entry in zoo.MODELS.items():
        assert f"  {name:8} {entry.title}: " in done.stdout
    assert "--quick" in done.stdout and done.stdout.endswith("False\n")


def test_dev_help_names_every_command_and_every_model():
    done = subprocess.run(["bash", str(ROOT / "dev"), "help"], capture_output=True, text=True, check=True, cwd="/")
    for word in ("demo", "aicf", "bench", "python", "examples", "test", "lint", "setup", *zoo.MODELS):
        assert word in done.stdout
    assert subprocess.run(["bash", str(ROOT / "dev"), "frobnicate"], capture_output=True).returncode == 1


def test_each_command_installs_its_own_part_only():
    """Triton, Node (with pyright) and Matplotlib are for other commands than the demo."""
    text = (ROOT / "dev").read_text()
    assert 'demo) extras="torch,demo" ;;' in text and 'run) extras="torch" ;;' in text
    assert "  demo)\n    setup demo\n" in text and "  test)\n    setup all\n" in text


def slow(seconds: float, counted: list[int], k: int) -> contenders.Call:
    def call() -> None:
        counted[k] += 1
        time.sleep(seconds)

    return call


def test_rounds_follow_the_time_that_there_is():
    """Two contenders of which a round takes more than the budget: one round for time, one for memory, and that is said."""
    said: list[str] = []
    counted = [0, 0]
    found = contenders.measure({"a": slow(0.06, counted, 0), "b": slow(0.06, counted, 1)}, budget=0.05, say=said.append)
    assert [len(m.rounds) for m in found.values()] == [1, 1] and counted == [3, 3]
    assert said and said[0].endswith("timing 1 of them instead of 3")
    found = contenders.measure({"a": slow(0.0, counted, 0)}, budget=0.05, say=said.append)
    assert len(found["a"].rounds) >= 3 and len(said) == 1


def test_something_moves_while_it_takes_long(capsys: pytest.CaptureFixture[str]):
    with session.ticking("thinking", every=0.02):
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  … thinking" and len(lines) > 2 and lines[1].startswith("  … thinking (")


def test_where_compiling_is_slow_torch_compile_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    model = torch.nn.Linear(8, 8).eval()
    monkeypatch.setattr(zoo, "make", lambda name, layers=None: (model, {"input": torch.randn(4, 8)}))
    monkeypatch.setattr(zoo, "exact", lambda model, inputs: model(inputs["input"]).double())
    monkeypatch.setattr(zoo, "hidden", lambda call, inputs: call(inputs["input"]))
    monkeypatch.setattr(session, "has_compiler", lambda: True)
    result = session.run("vit", budget=0.0, options={"rest": "eager"}, patience=0.0)
    assert list(result.measured) == ["eager", "aicf"]
    assert "torch.compile is left out" in capsys.readouterr().err
