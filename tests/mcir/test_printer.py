"""The dump is a product: whole texts, compared line for line."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from aicf.mcir import MCIRBuilder, MCModule, MCNodeOp, Region, Residency, TileRegion, dump_module, mc_dtype, scalar_dtype
from aicf.mcir.module import Refusal
from aicf.scalar import DTYPES, call, const, index, var
from tests.mcir.handmade import EXAMPLE, attention_module, node, stated_module, tile_of

HERE = Path(__file__).parent


def golden(name: str) -> str:
    return (HERE / name).read_text().rstrip("\n")


def test_plain_dump_is_section_12():
    assert dump_module(attention_module()) == golden("section_12.txt")


def test_outline_is_section_18():
    assert dump_module(attention_module(), outline=True) == golden("section_18.txt")


def test_plain_dump_hides_what_the_specification_does_not_show():
    module = stated_module()
    node(tile_of(module), "score").attrs["program"] = const(1.0, "f32")
    assert dump_module(module) == golden("section_12.txt")
    assert dump_module(module, outline=True) == golden("section_18.txt")


def test_the_example_script_prints_both():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    assert done.stdout == golden("section_18.txt") + "\n\n" + golden("section_12.txt") + "\n"


class Place(NamedTuple):
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Order(Enum):
    Q_MAJOR = "q_major"


def test_verbose_dump_shows_every_attribute():
    b = MCIRBuilder()
    region = b.execution_region("r")
    region.inputs.append(b.value("Q", (index("B"), call("mul", index("N"), index("G")), 64), "bf16"))
    region.outputs.append(b.value("O", (index("N"),), "fp32"))
    score = call(
        "where", call("le", index("j"), index("i")), call("mul", var("s", "f32"), const(0.125, "f32")), const(-1e9, "f32")
    )
    region.attrs.update(
        pattern="p",
        scale=0.125,
        operations=("score_matmul", "softmax"),
        axes={"sequence_length": index("N"), "head_dim": 64},
        score=score,
        source=Place("model.py", 12),
        places=[Place("a.py", 1), Place("b.py", 2)],
        order=Order.Q_MAJOR,
        text="first\nsecond",
        marks={"b", "a"},
        nothing=(),
    )
    stream = b.streaming_region("s")
    state = b.value("m", (8,), "fp32", Residency.REGISTER)
    stream.attrs["carried"] = (state,)
    stream.attrs["update"] = {"m": {"init": const(float("-inf"), "f32"), "step": call("max", var("m", "f32"), var("t", "f32"))}}
    stream.nodes.append(b.node("init", MCNodeOp.INIT_STATE, outputs=[state], value=const(float("-inf"), "f32"), why="empty max"))
    region.subregions.append(stream)
    assert dump_module(MCModule([region]), verbose=True) == (
        """\
ExecutionRegion(r)
  inputs: Q[B,G * N,64]:bf16@global
  outputs: O[N]:fp32@global
  attrs: pattern=p, scale=0.125
  operations: score_matmul, softmax
  axes:
    sequence_length: N
    head_dim: 64
  score: where(j <= i, s * 0.125, -1e+09)
  source: model.py:12
  places:
    a.py:1
    b.py:2
  order: q_major
  text:
    first
    second
  marks: a, b
  nothing: none

  StreamingRegion(s)
    attrs: stream_axis=sequence
    carried: m
    update:
      m:
        init: -inf
        step: max(m, t)

    Node(init, op=init_state)
      outputs: m[8]:fp32@register
      attrs: why=empty max
      value: -inf"""
    )


def test_several_regions_are_separated_and_order_is_kept():
    b = MCIRBuilder()
    module = MCModule([b.execution_region("second"), b.execution_region("first")])
    assert dump_module(module) == "ExecutionRegion(second)\n\nExecutionRegion(first)"
    assert dump_module(module, outline=True) == "ExecutionRegion(second)\nExecutionRegion(first)"
    assert dump_module(MCModule()) == ""


def test_a_broken_module_still_prints():
    module = attention_module()
    tile = tile_of(module)
    tile.kind = "wave"
    tile.nodes[0].outputs[0].shape = None  # pyright: ignore[reportAttributeAccessIssue]
    text = dump_module(module, verbose=True)
    assert "Region<wave>(q_tile_loop)" in text and "Q_tile[?]:fp16@shared" in text


def test_text_does_not_hold_addresses():
    module = attention_module()
    module.regions[0].attrs["handle"] = object()
    assert "handle: <object>" in dump_module(module, verbose=True).splitlines()[2]


def test_enums_read_as_their_strings():
    assert f"{MCNodeOp.LOAD_TILE} {Residency.SHARED}" == "load_tile shared"
    value = MCIRBuilder().value("x", (1,), "fp32", Residency.SHARED)
    assert value.residency == "shared"


def test_dtype_names_go_both_ways():
    assert [mc_dtype(d) for d in DTYPES] == ["bool", "uint8", "int8", "int16", "int32", "int64", "fp16", "bf16", "fp32", "fp64"]
    assert [scalar_dtype(mc_dtype(d)) for d in DTYPES] == list(DTYPES)


def test_objects_are_those_of_the_specification():
    tile: Region = TileRegion("t", 128, 64, 32)
    assert tile.attrs == {"tile_m": 128, "tile_n": 64, "tile_k": 32} and tile.kind == "tile"
    assert Region("a", "execution").attrs is not Region("b", "execution").attrs


def test_refusals_are_in_the_verbose_dump():
    module = MCModule(refusals=[Refusal("O", "the softmax is over the queries", None, None, index("N"))])
    assert dump_module(module) == ""
    assert dump_module(module, verbose=True) == (
        """\
Refused(O)
  reason: the softmax is over the queries
  guilty: unknown place
  source: unknown place
  unfused bytes: N"""
    )
