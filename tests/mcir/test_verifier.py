"""Every rule of the verifier: one broken module per row, and the faults that it must report, no more and no fewer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aicf.mcir import MCIRBuilder, MCModule, MCValue, ValidationError, find_problems, validate_module
from aicf.mcir.types import Shape
from aicf.scalar import const, index, integer_const
from tests.mcir.handmade import attention_module, node, stated_module, stream_of, tile_of

Change = Callable[[MCModule], object]


def broken(change: Change) -> MCModule:
    module = stated_module()
    change(module)
    return module


def problems(module: MCModule) -> list[str]:
    return [f"{p.where}: {p.what}" for p in find_problems(module)]


def tile_node(module: MCModule, name: str):
    return node(tile_of(module), name)


def output(module: MCModule, name: str, n: int = 0) -> MCValue:
    return tile_node(module, name).outputs[n]


def put(thing: object, **values: object) -> None:
    for key, value in values.items():
        setattr(thing, key, value)


def stray(name: str, *, residency: str = "shared", shape: Shape = (128, 64), dtype: str = "fp16") -> MCValue:
    return MCIRBuilder().value(name, shape, dtype, residency)


def replace_input(module: MCModule, name: str, value: MCValue) -> None:
    at = tile_node(module, name)
    at.inputs[0].consumers.remove(name)
    at.inputs[0] = value


def twice(module: MCModule) -> None:
    again = MCIRBuilder().node("store_again", "store_tile", inputs=[output(module, "accumulate")], target="O")
    tile_of(module).nodes.append(again)


REGION = "attention_region"
STREAM = f"{REGION}/attention_stream"
TILE = f"{STREAM}/q_tile_loop"

# name: (what is done to a good module, the beginnings of all faults in order)
ONE: dict[str, tuple[Change, list[str]]] = {
    "region without name": (
        lambda m: put(tile_of(m), name=""),
        [f"{STREAM}: region 1 has no name"],
    ),
    "node without name": (
        lambda m: put(tile_node(m, "load_k"), name=""),
        [f"{TILE}: node 2 has no name", f"{REGION}.K_tile: the value names 'load_k' as its producer"],
    ),
    "two regions of one name": (
        lambda m: m.regions.append(stated_module().regions[0]),
        ["module: 2 regions are named 'attention_region'"],
    ),
    "two nodes of one name": (
        lambda m: tile_of(m).nodes.insert(0, MCIRBuilder().node("load_q", "load_tile", outputs=[stray("X")], source="Q")),
        [f"{TILE}: 2 nodes are named 'load_q'"],
    ),
    "unknown kind": (
        lambda m: put(tile_of(m), kind="wave"),
        [f"{TILE}: unknown region kind 'wave'"],
    ),
    "stream at the top": (
        lambda m: m.regions.append(MCIRBuilder().streaming_region("s")),
        ["s: a streaming region stands at the top"],
    ),
    "tile directly below execution": (
        lambda m: m.regions[0].subregions.append(MCIRBuilder().tile_region("t", 1, 1, 1)),
        [f"{REGION}: the execution region holds the tile region t"],
    ),
    "stream axis missing": (
        lambda m: stream_of(m).attrs.pop("stream_axis"),
        [f"{STREAM}: stream_axis is None"],
    ),
    "tile length zero": (
        lambda m: tile_of(m).attrs.update(tile_k=0),
        [f"{TILE}: tile_k is 0"],
    ),
    "tile length a truth value": (
        lambda m: tile_of(m).attrs.update(tile_k=True),
        [f"{TILE}: tile_k is True"],
    ),
    "score larger than its tile": (
        lambda m: tile_of(m).attrs.update(tile_n=32),
        [f"{TILE}/score: score_frag has shape [128,64]; in this region scores are tiles of tile_m x tile_n, [128,32]"],
    ),
    "carried but not written": (
        lambda m: stream_of(m).attrs.update(carried=(stray("ghost", residency="register"),)),
        [f"{STREAM}: the carried state ghost is written by no node"],
    ),
    "carried in global memory": (
        lambda m: stream_of(m).attrs.update(carried=(output(m, "store_o"),)),
        [f"{STREAM}: the carried state O_tile lives in global memory"],
    ),
    "op empty": (
        lambda m: put(tile_node(m, "score"), op=""),
        [f"{TILE}/score: the node has no op"],
    ),
    "op misspelt": (
        lambda m: put(tile_node(m, "score"), op="compute_scores"),
        [f"{TILE}/score: unknown op 'compute_scores'"],
    ),
    "no source": (
        lambda m: tile_node(m, "load_q").attrs.clear(),
        [f"{TILE}/load_q: load_tile names no source"],
    ),
    "source that is no input": (
        lambda m: tile_node(m, "load_q").attrs.update(source="W"),
        [f"{TILE}/load_q: the tile is loaded from 'W'"],
    ),
    "shape missing": (
        lambda m: put(output(m, "load_v"), shape=None),
        [f"{TILE}/load_v.V_tile: the shape is None", f"{TILE}/accumulate.V_tile: the shape is None"],
    ),
    "dimension zero": (
        lambda m: put(m.regions[0].inputs[0], shape=(2, 0)),
        [f"{REGION}.Q: the shape has the dimension 0"],
    ),
    "dimension not an integer": (
        lambda m: put(m.regions[0].inputs[0], shape=(const(1.0, "f32"),)),
        [f"{REGION}.Q: the shape has the dimension 1.0"],
    ),
    "dtype empty": (
        lambda m: put(output(m, "store_o"), dtype=""),
        [f"{TILE}/store_o.O_tile: the dtype is ''"],
    ),
    "dtype of another language": (
        lambda m: put(output(m, "store_o"), dtype="float16"),
        [f"{TILE}/store_o.O_tile: the dtype is 'float16'; it must be one of bool"],
    ),
    "residency unknown": (
        lambda m: put(output(m, "store_o"), residency="moon"),
        [f"{TILE}/store_o.O_tile: the residency is 'moon'"],
    ),
    "score in global memory": (
        lambda m: put(output(m, "score"), residency="global"),
        [
            f"{TILE}/score: compute_score writes score_frag in global memory",
            f"{TILE}/softmax: update_softmax reads score_frag in global memory",
            f"{TILE}/accumulate: accumulate_output reads score_frag in global memory",
        ],
    ),
    "store that stays on chip": (
        lambda m: put(output(m, "store_o"), residency="register"),
        [f"{TILE}/store_o: store_tile writes O_tile in register memory; it writes global memory"],
    ),
    "K not transposed": (
        lambda m: put(output(m, "load_k"), shape=(80, 64)),
        [f"{TILE}/score: score_frag has shape [128,64]; its operands give [128,80]"],
    ),
    "contraction of unequal lengths": (
        lambda m: put(output(m, "load_k"), shape=(64, 32)),
        [f"{TILE}/score: Q_tile[128,64] and K_tile[64,32] disagree in the contracted dimension: 64 against 32"],
    ),
    "contraction of a vector": (
        lambda m: put(output(m, "load_k"), shape=(64,)),
        [f"{TILE}/score: K_tile has shape [64]; a contraction needs tiles of two dimensions"],
    ),
    "state not per row": (
        lambda m: put(output(m, "softmax", 1), shape=(64,)),
        [f"{TILE}/softmax: softmax_sum has shape [64]; a state of score_frag has one entry per row, [128]"],
    ),
    "accumulator too narrow": (
        lambda m: put(output(m, "accumulate"), dtype="fp16"),
        [f"{TILE}/accumulate: output_acc accumulates in fp16"],
    ),
    "store of another shape": (
        lambda m: put(output(m, "store_o"), shape=(128, 32)),
        [f"{TILE}/store_o: O_tile has shape [128,32] but output_acc"],
    ),
    "used out of scope": (
        lambda m: replace_input(m, "score", stray("elsewhere")),
        [f"{TILE}/score: elsewhere is used but nothing before gives it"],
    ),
    "two values of one name": (
        lambda m: replace_input(m, "score", stray("Q_tile")),
        [f"{TILE}/score: Q_tile is not the value of that name in scope"],
    ),
    "written twice": (
        lambda m: tile_of(m).nodes.insert(
            3, MCIRBuilder().node("reload", "load_tile", outputs=[output(m, "load_k")], source="K")
        ),
        [f"{REGION}.K_tile: the value is written by load_k and reload"],
    ),
    "false producer": (
        lambda m: put(output(m, "load_k"), producer="load_v"),
        [f"{REGION}.K_tile: the value names 'load_v' as its producer, but load_k writes it"],
    ),
    "false consumer": (
        lambda m: output(m, "load_k").consumers.append("softmax"),
        [f"{REGION}.K_tile: the value names 'softmax' as a consumer"],
    ),
    "forgotten consumer": (
        lambda m: output(m, "score").consumers.remove("softmax"),
        [f"{REGION}.score_frag: the node 'softmax' reads the value but is not among its consumers"],
    ),
    "K not named": (
        lambda m: m.regions[0].attrs.pop("k_name"),
        [f"{REGION}: k_name is missing: the attention region does not say which tensor is K"],
    ),
    "K named but not an input": (
        lambda m: m.regions[0].attrs.update(k_name="keys"),
        [f"{REGION}: k_name is 'keys', which is not among the region's inputs (Q, K, V)"],
    ),
    "no stream": (
        lambda m: m.regions[0].subregions.clear(),
        [f"{REGION}: the region has no streaming region"],
    ),
    "output stored twice": (
        twice,
        [f"{REGION}: the output O is stored by 2 store_tile nodes"],
    ),
    "output never stored": (
        lambda m: m.regions[0].outputs.append(stray("LSE", residency="global")),
        [f"{REGION}: the output LSE is never stored"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_every_fault_of_a_broken_module_is_listed(name: str):
    change, expected = ONE[name]
    found = problems(broken(change))
    assert len(found) == len(expected), found
    for got, want in zip(found, expected, strict=True):
        assert got.startswith(want), got


def test_faults_of_all_kinds_are_reported_together():
    parts = ["region without name", "tile length zero", "op misspelt", "dtype empty", "residency unknown", "K not named"]

    def change(module: MCModule) -> None:
        # In this order: a renamed region is still found by its place.
        put(output(module, "load_v"), dtype="")
        put(output(module, "store_o"), residency="moon")
        put(tile_node(module, "softmax"), op="softmaxx")
        tile_of(module).attrs.update(tile_k=-1)
        module.regions[0].attrs.pop("k_name")
        put(tile_of(module), name="")

    with pytest.raises(ValidationError) as caught:
        validate_module(broken(change))
    text = str(caught.value)
    # V_tile's faulty type is reported where it is written and where it is read.
    assert len(caught.value.problems) == len(parts) + 1, text
    assert text.startswith("invalid MCIR: 7 faults\n")
    for words in (
        "has no name",
        "tile_k is -1",
        "unknown op 'softmaxx'",
        "dtype is ''",
        "residency is 'moon'",
        "k_name is missing",
    ):
        assert words in text
    assert isinstance(caught.value, ValueError)


def test_an_error_shows_the_guilty_lines():
    with pytest.raises(ValidationError) as caught:
        validate_module(broken(lambda m: put(output(m, "load_k"), shape=(64, 32))))
    assert str(caught.value) == (
        """\
invalid MCIR: 1 fault
  attention_region/attention_stream/q_tile_loop/score: \
Q_tile[128,64] and K_tile[64,32] disagree in the contracted dimension: 64 against 32
      | Node(score, op=compute_score)
      |   inputs: Q_tile, K_tile
      |   outputs: score_frag[128,64]:fp32@register
      |   Q_tile[128,64]:fp16@shared
      |   K_tile[64,32]:fp16@shared"""
    )


def test_an_error_names_the_line_of_the_source():
    m = attention_module()
    m.regions[0].notes["source"] = "model.py:7 in attention aten.matmul"
    tile_of(m).nodes[0].op = "fetch"
    with pytest.raises(ValidationError, match=r"    from model\.py:7 in attention aten\.matmul"):
        validate_module(m)


@pytest.mark.parametrize("make", [attention_module, stated_module])
def test_good_modules_pass(make: Callable[[], MCModule]):
    validate_module(make())


def test_links_may_be_left_out():
    module = stated_module()
    for n in tile_of(module).nodes:
        for value in (*n.inputs, *n.outputs):
            value.producer = None
            value.consumers = []
    validate_module(module)


def test_dimensions_may_be_expressions_and_equal_constants():
    module = stated_module()
    put(output(module, "load_k"), shape=(integer_const(64), integer_const(64)))
    validate_module(module)
    put(output(module, "load_k"), shape=(64, index("D")))
    assert problems(module)[0].endswith("disagree in the contracted dimension: 64 against D")


def test_detection_alone_is_valid_before_lowering_only():
    module = stated_module()
    module.regions[0].subregions.clear()
    validate_module(module, lowered=False)
    with pytest.raises(ValidationError):
        validate_module(module)
    module.regions[0].attrs["refusal"] = "the axis is not streamed by any reduction"
    validate_module(module)
    module.regions[0].attrs.pop("refusal")
    module.regions[0].outputs.clear()
    with pytest.raises(ValidationError, match="has no output"):
        validate_module(module, lowered=False)


def test_attention_without_v_is_refused_however_it_is_written():
    module = attention_module()
    tile_of(module).nodes[2].attrs["source"] = "K"
    assert problems(module) == [f"{REGION}: an attention region needs Q, K and V; it has K, Q. Set q_name, k_name and v_name"]


def test_captures_may_be_loaded():
    module = broken(lambda m: tile_node(m, "load_q").attrs.update(source="W"))
    module.regions[0].attrs["captures"] = (stray("W", residency="global"),)
    validate_module(module)
    module.regions[0].attrs["captures"] = ("W",)
    validate_module(module)


def test_a_carried_state_may_be_initialised_and_updated():
    module = stated_module()
    b = MCIRBuilder()
    m, l = tile_node(module, "softmax").outputs
    acc = output(module, "accumulate")
    tile_of(module).nodes.insert(0, b.node("init", "init_state", outputs=[m, l, acc]))
    validate_module(module)
    stream_of(module).attrs.pop("carried")
    assert len(problems(module)) == 3 and "written by init and softmax" in problems(module)[0]
