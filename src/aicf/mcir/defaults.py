"""The default meaning of the specification's ops, for regions written by hand with nothing but its own attributes.

    load_tile(source=Q) -> Q_tile[128,64]           Q_tile[i, d] = Q[i, d]
    compute_score(Q_tile, K_tile) -> score_frag     score_frag[i, j] = sum over d of Q_tile[i, d] * K_tile[j, d]
    update_softmax(score_frag) -> max, sum          max = running max of the scores; sum = running sum of exp(score - max)
    accumulate_output(score_frag, V_tile) -> acc    acc[i, e] = running sum of exp(score - max) * V_tile[j, e]
    store_tile(acc, target=O)                       O[i, e] = acc / sum

This is the online softmax of the scores as they are (no scale, no mask). Rows are the axis `query` (variable i), the streamed
axis is called `sequence` (j); contracted is `head` (d), the values' columns are `value` (e). Tensors have these two dimensions,
or the leading batch dimensions of the region's inputs where those are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from aicf.mcir.axes import AxisRole, RegionAxis
from aicf.mcir.nodes import MCNode
from aicf.mcir.payloads import (
    Accumulation,
    Payload,
    RunningExtremum,
    RunningSum,
    ScoreProduct,
    StateUpdate,
    TileLoad,
    TileStore,
)
from aicf.mcir.regions import Region, StreamingRegion, TileRegion, streams_and_tiles
from aicf.mcir.values import MCValue
from aicf.scalar import Expr, Var, call, index, integer_const, var

ROW, STREAM, CONTRACTED, COLUMN = (index(x) for x in "ijde")
BATCH = "bhgu"  # variables of leading batch dimensions, outermost first
ORDER = ("load_tile", "load_tile", "load_tile", "compute_score", "update_softmax", "accumulate_output", "store_tile")


class NoDefaultMeaning(ValueError):
    """A region written by hand that the default meaning of the ops does not cover: what is missing, and what to give."""


def with_default_meaning(region: Region) -> Region:
    """`region` itself where every node has a payload; else a copy whose nodes have their default meaning, with its axes, sizes,
    inputs and outputs stated. Raises NoDefaultMeaning where that does not say enough."""
    stream, tile = _parts(region)
    bare = [n for n in tile.nodes if n.payload is None]
    if not bare:
        return region
    at = f"region {region.name}"
    if len(bare) != len(tile.nodes):
        names = ", ".join(n.name for n in bare)
        raise NoDefaultMeaning(f"{at}: {names} have no payload, while other nodes do: give every node one, or none")
    if region.attrs.get("has_mask"):
        raise NoDefaultMeaning(
            f"{at}: has_mask=True, but no node says what the mask is. Give update_softmax a payload (StateUpdate) whose bodies "
            "select the scores that count, or set has_mask=False"
        )
    if sorted(n.op for n in tile.nodes) != sorted(ORDER):
        raise NoDefaultMeaning(
            f"{at}: the ops have a default meaning together, as three load_tile, one compute_score, one update_softmax, one "
            f"accumulate_output and one store_tile; here are {', '.join(n.op for n in tile.nodes)}. Give each node a payload"
        )
    if stream.attrs.get("stream_axis") != "sequence":
        raise NoDefaultMeaning(
            f"{at}: stream_axis={stream.attrs.get('stream_axis')!r}, but the region states no axes; by default its streamed axis "
            "is called sequence"
        )
    return _Default(region, stream, tile).region()


def _parts(region: Region) -> tuple[StreamingRegion, TileRegion]:
    streams, tiles = streams_and_tiles(region)
    if len(streams) != 1 or len(tiles) != 1:
        raise NoDefaultMeaning(
            f"region {region.name} has {len(streams)} streaming regions and {len(tiles)} tile regions; a kernel needs one of "
            "each: run the streaming lowering pass first"
        )
    return streams[0], tiles[0]


class _Default:
    """Makes the copy. The nodes are found by their ops and by who reads whose output, not by their names."""

    def __init__(self, region: Region, stream: StreamingRegion, tile: TileRegion) -> None:
        self.source, self.stream, self.tile = region, stream, tile
        (self.score,) = self._of("compute_score")
        (self.softmax,) = self._of("update_softmax")
        (self.accumulate,) = self._of("accumulate_output")
        (self.store,) = self._of("store_tile")
        self.at = f"region {region.name}"
        self._check_links()
        self.copies: dict[int, MCValue] = {}
        self.loads = {
            role: self._load(value) for role, value in zip("qkv", (*self.score.inputs, self.accumulate.inputs[1]), strict=True)
        }
        self.batch = self._batch()

    def _of(self, op: str) -> list[MCNode]:
        return [n for n in self.tile.nodes if n.op == op]

    def _check_links(self) -> None:
        frag = self.score.outputs[0]
        links: Sequence[tuple[bool, str]] = (
            (len(self.score.inputs) == 2, f"{self.score.name} multiplies {len(self.score.inputs)} tiles, by default two"),
            (self.softmax.inputs == [frag], f"{self.softmax.name} does not read {frag.name} alone"),
            (
                len(self.softmax.outputs) == 2,
                f"{self.softmax.name} has {len(self.softmax.outputs)} states, by default max and sum",
            ),
            (
                len(self.accumulate.inputs) == 2 and self.accumulate.inputs[0] is frag,
                f"{self.accumulate.name} does not read {frag.name} and a tile of values, in this order",
            ),
            (
                len(self.accumulate.outputs) == 1,
                f"{self.accumulate.name} has {len(self.accumulate.outputs)} accumulators, by default one",
            ),
            (
                self.store.inputs == self.accumulate.outputs and len(self.store.outputs) == 1,
                f"{self.store.name} does not store {self.accumulate.outputs[0].name}",
            ),
        )
        wrong = [text for holds, text in links if not holds]
        if wrong:
            raise NoDefaultMeaning(f"{self.at}: {'; '.join(wrong)}. Give each node a payload that says what it computes")

    def _load(self, value: MCValue) -> MCNode:
        made = [n for n in self._of("load_tile") if n.outputs[0] is value]
        if len(made) != 1:
            raise NoDefaultMeaning(f"{self.at}: {value.name} is loaded by {len(made)} load_tile nodes, by default by one")
        return made[0]

    def _batch(self) -> tuple[RegionAxis, ...]:
        """One axis per leading dimension of the region's inputs; all inputs have the same ones."""
        leading = {v.name: v.shape[:-2] for v in self.source.inputs}
        if len(set(leading.values())) > 1 or any(len(v.shape) < 2 for v in self.source.inputs):
            raise NoDefaultMeaning(f"{self.at}: by default its inputs agree in all but their last two dimensions; give payloads")
        dims = next(iter(leading.values()), ())
        if len(dims) > len(BATCH):
            raise NoDefaultMeaning(f"{self.at}: its inputs have {len(dims)} batch dimensions; by default at most {len(BATCH)}")
        variables = [index(x) for x in BATCH[: len(dims)]]
        return tuple(RegionAxis(f"batch_{v.name}", AxisRole.BATCH, v, index(f"n_{v.name}")) for v in variables)

    # ---------------------------------------------------------------- the copy

    def region(self) -> Region:
        made = copy(self.source)
        made.attrs = dict(self.source.attrs)
        made.attrs["axes"], made.attrs["sizes"] = self._axes(), self._sizes()
        for role, key in (("q", "q_name"), ("k", "k_name"), ("v", "v_name")):
            made.attrs.setdefault(key, str(self.loads[role].attrs["source"]))
        made.attrs.setdefault("has_mask", False)
        made.attrs.setdefault("pattern", "scaled_dot_product_attention")
        made.attrs.setdefault("operations", ("score_matmul", "softmax", "value_matmul"))
        made.inputs = list(self.source.inputs) or [
            self._tensor(str(self.loads[role].attrs["source"]), rows, width, self.loads[role].outputs[0].dtype)
            for role, rows, width in (("q", "N", CONTRACTED), ("k", "M", CONTRACTED), ("v", "M", COLUMN))
        ]
        made.inputs = list({v.name: v for v in made.inputs}.values())
        target = str(self.store.attrs["target"])
        made.outputs = list(self.source.outputs) or [self._tensor(target, "N", COLUMN, self.store.outputs[0].dtype)]
        stream = copy(self.stream)
        tile = copy(self.tile)
        tile.nodes = [self._node(n) for n in self.tile.nodes]
        stream.subregions, made.subregions = [tile], [stream]
        stream.attrs = {k: v for k, v in self.stream.attrs.items() if k != "carried"}
        return made

    def _axes(self) -> dict[str, RegionAxis]:
        axes = {
            "sequence_length": RegionAxis("sequence", AxisRole.STREAM, STREAM, index("M")),
            "query_length": RegionAxis("query", AxisRole.ROW, ROW, index("N")),
            "head_dim": RegionAxis("head", AxisRole.CONTRACTED, CONTRACTED, self._width("q")),
            "value_dim": RegionAxis("value", AxisRole.COLUMN, COLUMN, self._width("v")),
        }
        return axes | {a.name: a for a in self.batch}

    def _width(self, role: str) -> Expr:
        tile = self.loads[role].outputs[0]
        if len(tile.shape) != 2 or not isinstance(tile.shape[1], int):
            raise NoDefaultMeaning(f"{self.at}: by default {tile.name} has two dimensions, both numbers")
        return integer_const(tile.shape[1])

    def _sizes(self) -> dict[str, Expr]:
        given = {v.name: v for v in self.source.inputs}
        sizes: dict[str, Expr] = {}
        for name, role in (("N", "q"), ("M", "k")):
            tensor = given.get(str(self.loads[role].attrs["source"]))
            sizes[name] = index(name) if tensor is None else _dim(tensor.shape[-2])
        for k, axis in enumerate(self.batch):
            sizes[f"n_{axis.variable.name}"] = _dim(self.source.inputs[0].shape[k])
        return sizes

    def _tensor(self, name: str, rows: str, width: Var, dtype: str) -> MCValue:
        columns = self._width("q" if width is CONTRACTED else "v")
        return MCValue(name, (index(rows), int(getattr(columns, "value", 0))), dtype)

    def _node(self, node: MCNode) -> MCNode:
        payload, axes = self._meaning(node)
        inputs = [self._value(v) for v in node.inputs]
        outputs = [self._value(v, a) for v, a in zip(node.outputs, axes, strict=True)]
        return replace(node, inputs=inputs, outputs=outputs, payload=payload, attrs=dict(node.attrs))

    def _value(self, value: MCValue, axes: Sequence[Var] = ()) -> MCValue:
        made = self.copies.setdefault(id(value), replace(value, consumers=list(value.consumers)))
        if axes:
            made.axes = tuple(v.name for v in axes)
        return made

    def _meaning(self, node: MCNode) -> tuple[Payload, Sequence[Sequence[Var]]]:
        """The payload of a node and the axes of its outputs."""
        batch = tuple(a.variable for a in self.batch)
        score = var(self.score.outputs[0].name, "f32")
        top, total = (var(v.name, "f32") for v in self.softmax.outputs)
        reference, old = var(f"{top.name}_ref", "f32"), var(f"{top.name}_old", "f32")
        weight, rescale = call("exp", call("sub", score, reference)), call("exp", call("sub", old, reference))
        match node.op:
            case "load_tile":
                axes = {"q": (ROW, CONTRACTED), "k": (STREAM, CONTRACTED), "v": (STREAM, COLUMN)}
                role = next(r for r, n in self.loads.items() if n is node)
                return TileLoad(index=(*batch, *axes[role])), [axes[role]]
            case "compute_score":
                return ScoreProduct(CONTRACTED.name), [(ROW, STREAM)]
            case "update_softmax":
                extremum = RunningExtremum(top.name, "max", score, None, reference, old)
                return StateUpdate((extremum,), (RunningSum(total.name, weight, rescale),)), [(ROW,), (ROW,)]
            case "accumulate_output":
                return Accumulation(RunningSum(node.outputs[0].name, weight, rescale)), [(ROW, COLUMN)]
            case _:
                acc = var(self.accumulate.outputs[0].name, "f32")
                return TileStore((*batch, ROW, COLUMN), call("div", acc, total)), [(ROW, COLUMN)]


def _dim(dim: int | Expr) -> Expr:
    return integer_const(dim) if isinstance(dim, int) else dim
