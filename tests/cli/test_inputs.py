"""--shape, --value and --inputs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from aicf.cli.errors import CommandError  # noqa: E402 - needs torch
from aicf.cli.inputs import Inputs, TensorSpec, gather, parse_shape, parse_value  # noqa: E402
from aicf.cli.source import load_callable  # noqa: E402

MODEL = Path(__file__).parent / "model.py"


def inputs(function: str, *, shape: list[str] | None = None, value: list[str] | None = None, inputs: str | None = None) -> Inputs:
    spec = f"{MODEL}:{function}"
    return gather(Namespace(shape=shape or [], value=value or [], inputs=inputs), load_callable(spec), spec)


def message(function: str, **options: object) -> str:
    with pytest.raises(CommandError) as caught:
        inputs(function, **options)  # pyright: ignore[reportArgumentType]
    return str(caught.value)


def test_shapes_are_read():
    assert parse_shape("q=2x8x512x64") == TensorSpec("q", (2, 8, 512, 64), "f32")
    assert parse_shape("q=2,8:bf16") == TensorSpec("q", (2, 8), "bf16")
    assert parse_shape("s=:f64") == TensorSpec("s", (), "f64")
    assert parse_shape("e=0x4").shape == (0, 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x8", "--shape 2x8: write NAME=SIZES, as in q=2x8x512x64 or q=2x8x512x64:bf16"),
        ("q=2xNx4", "--shape q=2xNx4: 'N' is not a size; write whole numbers joined by x, as in 2x8x512x64"),
        ("q=2x-8", "--shape q=2x-8: '-8' is not a size; write whole numbers joined by x, as in 2x8x512x64"),
        ("q=2x8:f12", "--shape q=2x8:f12: there is no type 'f12'; use one of f16, float16, "),
    ],
)
def test_shapes_that_cannot_be_read(text: str, expected: str):
    with pytest.raises(CommandError) as caught:
        parse_shape(text)
    assert str(caught.value).startswith(expected)


def test_values_are_literals_or_words():
    assert parse_value("a=0.5") == ("a", 0.5)
    assert parse_value("a=(1, None)") == ("a", (1, None))
    assert parse_value("a=gelu") == ("a", "gelu")


def test_tensors_are_made_by_name_and_are_repeatable():
    made = inputs("attention", shape=["v=1x2x8x4", "q=1x2x8x4:bf16", "k=1x2x8x4"], value=["causal=True"])
    again = dict(inputs("attention", shape=["v=1x2x8x4", "q=1x2x8x4:bf16", "k=1x2x8x4"]).kwargs)
    named = dict(made.kwargs)
    assert named["q"].dtype is torch.bfloat16 and named["v"].shape == (1, 2, 8, 4) and named["causal"] is True
    assert torch.equal(named["v"], again["v"]) and not torch.equal(named["v"], named["k"])
    assert str(made) == "v float32[1, 2, 8, 4], q bfloat16[1, 2, 8, 4], k float32[1, 2, 8, 4], causal True"


def test_modules_take_the_parameters_of_forward():
    assert [n for n, _ in inputs("Block", shape=["q=1x2x8x16", "k=1x2x8x16", "v=1x2x8x16"]).kwargs] == ["q", "k", "v"]


def test_wrong_names():
    spec = f"{MODEL}:attention"
    assert message("attention", shape=["x=2"]) == f"{spec} has no parameter x; its parameters are q, k, v, scale, causal"
    assert message("attention", shape=["q=2", "q=3"]) == "q is given twice"
    assert message("attention", shape=["q=2"]) == (
        f"{spec} also needs k, v: give each as --shape k=2x8x512x64, or all by --inputs FUNCTION"
    )
    assert message("attention", shape=["q=2"], inputs="make_inputs") == "give either --inputs or --shape and --value, not both"


def test_inputs_from_a_function():
    assert len(inputs("attention", inputs="make_inputs").args) == 3
    assert len(inputs("attention", inputs=f"{MODEL}:make_inputs").args) == 3
    assert [n for n, _ in inputs("attention", inputs="make_named").kwargs] == ["q", "k", "v", "causal"]
    assert "did you mean 'make_inputs'?" in message("attention", inputs="make_input")
    assert message("attention", inputs="make_nothing").endswith("return a tuple of arguments or a dict of named ones")
    assert message("attention", inputs="make_trouble").endswith("make_trouble failed: RuntimeError: no data")


def test_a_tensor_that_cannot_be_made_is_told():
    for sizes in ("q=99999999999x99999999999", "q=99999999999999999999", "q=99999999x99999999"):
        said = message("attention", shape=[sizes])
        assert said.startswith(f"--shape {sizes}: no such tensor can be made (") and "\n" not in said
