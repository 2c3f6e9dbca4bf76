"""What a person sees who asked for nothing: one line for each cause where an attention is not streamed, and nothing else."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aicf
from aicf.frontends.torch.diagnostics import notices

OPTIONS: Any = {"fuse": "always", "rest": "eager", "threads": 1}
HERE = Path(__file__).name


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.25).softmax(-1) @ v


class Layer(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v)


@pytest.fixture(autouse=True)
def anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    notices.reset()


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 70, 16), torch.randn(2, 70, 16), torch.randn(2, 70, 16)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    """The warnings that calls of a function make, compiled as most people would."""

    def run(fn: Callable[..., Any], *args: Any, options: Any = OPTIONS, calls: int = 2, grad: bool = False) -> list[str]:
        compiled = torch.compile(fn, backend="aicf", options=options)
        caplog.clear()
        with torch.set_grad_enabled(grad):
            for _ in range(calls):
                compiled(*args)
        return [r.getMessage() for r in caplog.records if r.name == "aicf" and r.levelno >= logging.WARNING]

    return run


def test_what_streams_makes_no_line(lines: Any) -> None:
    def several(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = attend(q, k, v)
        torch._dynamo.graph_break()
        return attend(x, k, v)

    assert lines(attend, *qkv()) == [] and lines(several, *qkv()) == []


def test_what_has_no_attention_makes_no_line(lines: Any) -> None:
    assert lines(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), torch.randn(8, 16), grad=True) == []


def test_what_is_declined_makes_no_line(lines: Any) -> None:
    assert lines(attend, *torch.randn(3, 1, 4, 16), options=OPTIONS | {"fuse": "auto"}) == []


def test_a_gradient_is_one_line_for_all_layers_and_graphs(lines: Any) -> None:
    def heated(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
        return (q @ k.mT * temperature).softmax(-1) @ v

    def layers(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
        x = heated(heated(q, k, v, temperature), k, v, temperature)
        torch._dynamo.graph_break()
        return heated(x, k, v, temperature)

    q, k, v = qkv()
    (line,) = lines(layers, q, k, v, torch.ones((), requires_grad=True), grad=True)
    assert line.startswith("AICF: 3 attentions are not streamed (") and "a gradient is asked of it" in line, line
    assert f"{HERE}:" in line and "Scores: 76.6 KiB each" in line and "torch.no_grad()" in line and "AICF_LOGS" in line, line


def test_a_refusal_is_told_once_with_its_place(lines: Any) -> None:
    def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).topk(70, -1).values.softmax(-1) @ v

    (line,) = lines(over_queries, *qkv())
    assert "1 attention is not streamed" in line and f"{HERE}:" in line and "Scores:" in line, line
    assert lines(over_queries, *qkv()) == []


def test_a_break_that_divides_an_attention_is_told_with_it(lines: Any) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k.mT
        if s.sum().item() > 1e9:
            s = s * 2
        return s.softmax(-1) @ v

    (line,) = lines(fn, *qkv())
    assert "1 attention is not streamed" in line and "made of s alone" in line and "arg0" not in line, line
    assert "A graph break may have divided it: Unsupported Tensor.item()" in line and "s.sum().item() > 1e9" in line, line


def test_functions_that_pytorch_gives_up(lines: Any) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        qs, ks, vs = (torch.split(t, lengths.tolist(), dim=1) for t in (q, k, v))
        return torch.cat([(a @ b.mT).softmax(-1) @ c for a, b, c in zip(qs, ks, vs, strict=True)], 1)

    args = (*qkv(), torch.tensor([50, 20]))
    (line,) = lines(fn, *args)
    assert "Data dependent" in line and "skips fn" in line and f"{HERE}:" in line and "no attention was found" in line, line
    report = aicf.explain(fn, *args)
    assert any("skips fn" in b and f"{HERE}:" in b for b in report.breaks) and "skips fn" in str(report)
    with torch.no_grad(), pytest.raises(aicf.NotStreamed, match="skips fn"):
        aicf.compile(fn, require="streamed")(*args)


def test_a_function_that_is_given_up_around_others_that_stream(lines: Any) -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def parts() -> Iterator[Tensor]:
            for i in range(2):
                print(end="")
                yield attend(q[i], k[i], v[i])

        return torch.stack(list(parts()))

    assert lines(fn, *qkv()) == []


def test_a_module_that_was_traced_before(lines: Any) -> None:
    traced: Any = torch.jit.trace(Layer(), qkv())

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return traced(attend(q, k, v), k, v)

    (line,) = lines(fn, *qkv())
    assert "graph break" in line and f"{HERE}:" in line and "_call_impl" in line, line


def test_a_function_that_is_kept_from_compilation(lines: Any) -> None:
    hidden: Any = torch.compiler.disable(attend)

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hidden(q * 2, k, v) + 1

    (line,) = lines(fn, *qkv())
    assert "torch.compiler.disable" in line and f"{HERE}:" in line, line


@torch.library.custom_op("aicf_test::mix", mutates_args=())
def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v)


@mix.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.empty_like(q)


def test_an_op_that_nothing_is_known_of(lines: Any) -> None:
    (line,) = lines(lambda q, k, v: mix(q * 2, k, v) + 1, *qkv())
    assert "aicf_test.mix is not followed" in line and f"{HERE}:" in line, line
    assert lines(lambda q, k, v: mix(attend(q, k, v), k, v), *qkv()) == []


def test_who_is_told_otherwise_gets_no_line(lines: Any) -> None:
    def heated(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
        return (q @ k.mT * temperature).softmax(-1) @ v

    given = [*qkv(), torch.ones((), requires_grad=True)]
    assert lines(heated, *given, grad=True, options=OPTIONS | {"report": lambda _: None}) == []  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(aicf.NotStreamed):
        lines(heated, *given, grad=True, options=OPTIONS | {"require": "streamed"})
    with torch.enable_grad():
        assert aicf.explain(heated, *given).regions[0].status == "refused"


SCRIPT = """
import torch
def attend(q, k, v, temperature):
    return (q @ k.mT * temperature).softmax(-1) @ v
q, k, v = (torch.randn(2, 64, 16, requires_grad=True) for _ in range(3))
temperature = torch.ones((), requires_grad=True)
torch.compile(attend, backend="aicf", options={"rest": "eager", "fuse": "always"})(q, k, v, temperature)
with torch.no_grad():
    torch.compile(attend, backend="aicf", options={"rest": "eager", "fuse": "always"})(q, k, v, temperature)
"""


@pytest.mark.parametrize(("level", "expected"), [("", 1), ("off", 0), ("info", 2), ("loud", -1)])
def test_the_environment_asks_for_more_or_less(level: str, expected: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "AICF_LOGS": level}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=False)
    found = [line for line in done.stderr.splitlines() if "AICF: " in line]
    if expected < 0:
        assert done.returncode and "AICF_LOGS=loud: it is one of debug, info, warning, error, off" in done.stderr
    else:
        assert not done.returncode and len(found) == expected, done.stderr


def test_a_tensor_as_large_as_the_scores_that_is_stored_is_told_once(lines: Any) -> None:
    def stored(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w = (q @ k.mT * 0.25).softmax(-1)
        second = k @ q.mT
        return w @ v, (w * second) @ v, second

    (line,) = lines(stored, *qkv())
    assert "38.3 KiB" in line and "itself returned" in line and f"{HERE}:" in line and "aicf.explain" in line
    assert lines(stored, *(x[:, :60] for x in qkv())) == []
