"""Whole commands: what they print, where, and their exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aicf.backends.triton.launch import interpreting
from aicf.cli.main import main

MODEL = Path(__file__).parent / "model.py"
# Sizes as small as these would be declined: that is the cost model's business, tested elsewhere.
ALWAYS = ["--fuse", "always"]
SHAPES = [*ALWAYS, "--shape", "q=1x2x64x16", "--shape", "k=1x2x64x16", "--shape", "v=1x2x64x16"]

needs_torch = pytest.mark.skipif(subprocess.run([sys.executable, "-c", "import torch"]).returncode != 0, reason="needs PyTorch")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_help_shows_examples_and_does_not_load_torch():
    probe = "import sys; from aicf.cli.main import parser; print(parser().format_help()); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "aicf dump kernel model.py:attention --inputs make_inputs --diff mcir" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("argv", [[], ["explain"], ["dump", "soup", "f.py:f"], ["frobnicate"]])
def test_what_is_not_understood_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: aicf")


def test_targets_describes_this_machine(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "targets")
    assert code == 0 and err == ""
    assert "L2" in out and "bits" in out
    assert "h100" in out.splitlines()[-1], "others that can be named"


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "aicf", "targets"], capture_output=True, text=True)
    assert done.returncode == 0 and "L2" in done.stdout
    assert subprocess.run([sys.executable, "-m", "aicf", "frobnicate"], capture_output=True).returncode == 2


@needs_torch
def test_explain_prints_the_report_alone_on_stdout(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "explain", f"{MODEL}:attention", *SHAPES, "--value", "causal=True")
    assert code == 0
    assert "streamed" in out and "aicf: " not in out
    assert f"aicf: compiling {MODEL}:attention for q float32[1, 2, 64, 16]" in err


@needs_torch
@pytest.mark.skipif(interpreting(), reason="Triton's interpreter compiles nothing")
def test_explain_for_a_gpu_that_is_not_here(capsys: pytest.CaptureFixture[str]):
    """The report, what the kernel takes, and on request every stage down to machine code."""
    pytest.importorskip("triton")
    shapes = [word for name in "qkv" for word in ("--shape", f"{name}=1x64x512x64:bf16")]
    stages = [word for stage in ("triton", "ptx", "sass") for word in ("--stage", stage)]
    code, out, err = run(capsys, "explain", f"{MODEL}:attention", *shapes, *ALWAYS, "--target", "h100", *stages)
    assert code == 0, err
    assert re.search(r"\d+ registers, 0 spills, \d+ bytes of shared memory, \d+ HGMMA", out)
    assert "@triton.jit" in out and "wgmma.mma_async" in out and "HGMMA." in out


@needs_torch
def test_the_report_for_a_gpu_needs_no_triton(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def missing(self: object, stage: str) -> str:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr("aicf.driver.RegionResult.dump", missing)
    code, out, err = run(capsys, "explain", f"{MODEL}:attention", *SHAPES, *ALWAYS, "--target", "h100")
    assert code == 0 and "streamed" in out
    assert "that needs triton, which is not installed" in err


@needs_torch
def test_explain_a_module_class(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "explain", f"{MODEL}:Block", "--inputs", "make_inputs", *ALWAYS, "--require-streamed")
    assert code == 0 and "streamed" in out


@needs_torch
@pytest.mark.parametrize("function", ["over_queries", "no_attention"])
def test_require_streamed_exits_with_3(function: str, capsys: pytest.CaptureFixture[str]):
    shapes = [*ALWAYS, "--shape", "x=4x4"] if function == "no_attention" else SHAPES
    assert run(capsys, "explain", f"{MODEL}:{function}", *shapes)[0] == 0
    code, _, err = run(capsys, "explain", f"{MODEL}:{function}", *shapes, "--require-streamed")
    assert code == 3 and "(--require-streamed)" in err


@needs_torch
@pytest.mark.parametrize(
    ("stage", "word"),
    [("semantic", "matmul"), ("mcir", "StreamingRegion("), ("kernel", "stream "), ("llvm", "define "), ("asm", "\n")],
)
def test_dump_every_stage(stage: str, word: str, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "dump", stage, f"{MODEL}:attention", "--inputs", "make_inputs", *ALWAYS)
    assert code == 0 and word in out


@needs_torch
@pytest.mark.parametrize(("target", "triple", "cpu"), [("avx2", "x86_64", "x86-64-v3"), ("neon", "aarch64", "neoverse-n1")])
def test_a_dump_is_for_the_cpu_that_is_named(target: str, triple: str, cpu: str, capsys: pytest.CaptureFixture[str]):
    asked = [f"{MODEL}:attention", "--inputs", "make_inputs", *ALWAYS, "--target", target]
    code, out, _ = run(capsys, "dump", "llvm", *asked)
    assert code == 0 and f'target triple = "{triple}-' in out and f'"target-cpu"="{cpu}"' in out
    code, out, _ = run(capsys, "dump", "asm", *asked)
    assert code == 0 and ("ymm" in out, "fmla" in out) == (target == "avx2", target == "neon")


@needs_torch
def test_dump_diff(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "dump", "mcir", f"{MODEL}:attention", "--inputs", "make_inputs", *ALWAYS, "--diff", "semantic")
    assert code == 0
    assert out.startswith("--- semantic\n+++ mcir\n@@ ")
    _, out, _ = run(capsys, "dump", "mcir", f"{MODEL}:attention", "--inputs", "make_inputs", *ALWAYS, "--diff", "mcir")
    assert out == "mcir and mcir are the same text\n"
    code, _, err = run(capsys, "dump", "mcir", f"{MODEL}:attention", "--inputs", "make_inputs", *ALWAYS, "--diff", "soup")
    assert code == 1 and "aicf: error: cannot dump 'soup': " in err


@needs_torch
def test_wrong_shapes_are_said_with_the_users_line(capsys: pytest.CaptureFixture[str]):
    shapes = ["--shape", "q=1x2x64x16", "--shape", "k=1x2x64x8", "--shape", "v=1x2x64x16"]
    code, out, err = run(capsys, "explain", f"{MODEL}:attention", *shapes)
    assert code == 1 and out == ""
    _, error = err.splitlines()
    assert "k float32[1, 2, 64, 8]" in error
    assert ": line 13, `scores = q @ k.transpose(-2, -1) * scale`: RuntimeError: " in error


@needs_torch
def test_errors_are_one_line_unless_a_traceback_is_asked_for(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "explain", "missing.py:f")
    assert (code, out) == (1, "")
    assert err.startswith("aicf: error: there is no file missing.py") and err.count("\n") == 1
    assert "Traceback" in run(capsys, "explain", "missing.py:f", "--traceback")[2]


@needs_torch
def test_a_reader_that_leaves_early_is_no_error():
    dump = f"{sys.executable} -m aicf.cli.main dump asm {MODEL}:attention --inputs make_inputs --fuse always"
    command = f"{dump} | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and "BrokenPipe" not in done.stderr, done.stderr


@needs_torch
def test_strict_skips_no_tiles(capsys: pytest.CaptureFixture[str]):
    argv = ["explain", f"{MODEL}:attention", *SHAPES, "--value", "causal=True"]
    assert "assumed" in run(capsys, *argv)[1]
    code, out, _ = run(capsys, *argv, "--strict")
    assert code == 0 and "streamed" in out and "assumed" not in out


CHATTY = """
import torch

print("on import")

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        print("in the constructor")

    def forward(self, q, k, v):
        return attention(q, k, v)

def attention(q, k, v):
    return (q @ k.mT).softmax(-1) @ v

def talks(q, k, v):
    print("in the call")
    return attention(q, k, v)

def fails(q, k, v):
    print("before it fails")
    return q @ k

def make_inputs():
    print("making inputs")
    return tuple(torch.randn(1, 2, 64, 16) for _ in range(3))

print(attention(*make_inputs()).shape)
"""


@needs_torch
@pytest.mark.parametrize("function", ["attention", "Block", "talks", "fails"])
def test_what_the_users_file_prints_is_not_shown(function: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    file = tmp_path / "chatty.py"
    file.write_text(CHATTY)
    code = main(["explain", f"{file}:{function}", "--inputs", "make_inputs", *ALWAYS])
    out, err = capfd.readouterr()
    assert code == (1 if function == "fails" else 0)
    for said in ("on import", "in the constructor", "in the call", "making inputs", "before it fails", "torch.Size"):
        assert said not in out.splitlines()  # a graph break may quote the line that prints
    if function != "fails":
        assert out.startswith("1 attention in ")
    else:
        assert out == "" and "`return q @ k`" in err


@needs_torch
def test_brief_and_json(capsys: pytest.CaptureFixture[str]):
    argv = ["explain", f"{MODEL}:attention", "--inputs", "make_inputs", *ALWAYS]
    code, out, _ = run(capsys, *argv, "--brief")
    head, line = out.splitlines()
    assert (code, head) == (0, "1 attention in 1 graph: 1 streamed") and ": streamed; no mask; " in line
    code, out, _ = run(capsys, *argv, "--json")
    data = json.loads(out)
    assert code == 0 and data["summary"] == head and data["regions"][0]["status"] == "streamed"
    code, out, err = run(capsys, *argv, "--json", "--stage", "mcir")
    assert (code, out) == (1, "") and "--json prints the report alone" in err
    with pytest.raises(SystemExit):
        main([*argv, "--json", "--brief"])
