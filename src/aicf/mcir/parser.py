"""Text back to a module: the inverse of `dump_module(module, verbose=True)`.

    parse_module(dump_module(m, verbose=True))     prints the same, and lowers to the same kernel

A text is a tree of lines by indentation. Comments (`# source: model.py:12`) are the notes of the region that they stand in.
Errors name the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from aicf.mcir.axes import AxisRole, RegionAxis
from aicf.mcir.module import MCModule, Refusal
from aicf.mcir.nodes import MCNode
from aicf.mcir.payloads import (
    Accumulation,
    Payload,
    RunningExtremum,
    RunningSum,
    ScoreProduct,
    Shift,
    StateUpdate,
    TileLoad,
    TileStore,
)
from aicf.mcir.phases import Phases, TileSummary
from aicf.mcir.printer import name_types
from aicf.mcir.regions import ExecutionRegion, Region, StreamingRegion, TileRegion
from aicf.mcir.types import Dim
from aicf.mcir.values import MCValue
from aicf.scalar import Const, DType, Expr, ParseError, index, parse_expr, parse_prefix, var
from aicf.semantic import Location


class MCIRSyntaxError(ValueError):
    """Text that is no module: the line, what is wrong with it, and what was expected."""


@dataclass
class _Line:
    """A line and those that stand below it, further in."""

    number: int
    text: str
    inside: list[_Line] = field(default_factory=list["_Line"])

    def fail(self, what: str) -> NoReturn:
        raise MCIRSyntaxError(f"line {self.number}: {what}\n  {self.text}")

    def entry(self) -> tuple[str, str]:
        """`key: value`."""
        key, colon, value = self.text.partition(":")
        if not colon:
            self.fail("a line `key: value` was expected")
        return key.strip(), value.strip()


def parse_module(text: str) -> MCModule:
    """The module whose verbose dump `text` is. Nothing is verified: `validate_module` does that. Raises MCIRSyntaxError."""
    module = MCModule()
    for line in _tree(text):
        if line.text.startswith("Refused("):
            module.refusals.append(_refusal(line))
        else:
            module.regions.append(_Reader().region(line, top=True))
    return module


def _tree(text: str) -> list[_Line]:
    top: list[_Line] = []
    open_lines: list[tuple[int, list[_Line]]] = [(-1, top)]
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip():
            continue
        indent = len(raw) - len(raw.lstrip(" "))
        content = raw.strip()
        if content.startswith("#"):
            # A note's own lines stand further in behind the sign.
            rest = raw.lstrip(" ")[1:]
            indent += max(0, len(rest) - len(rest.lstrip(" ")) - 1)
            content = "# " + rest.strip()
        while open_lines[-1][0] >= indent:
            open_lines.pop()
        line = _Line(number, content)
        open_lines[-1][1].append(line)
        open_lines.append((indent, line.inside))
    return top


def _refusal(line: _Line) -> Refusal:
    facts = {key: (value, x) for x in line.inside for key, value in [x.entry()]}

    def fact(key: str) -> str:
        if key not in facts:
            line.fail(f"a refusal says its {key}")
        value, x = facts[key]
        return value or "\n".join(y.text for y in x.inside)

    def place(key: str) -> Location | None:
        return None if fact(key) == "unknown place" else _location(fact(key))

    name = line.text.removeprefix("Refused(").removesuffix(")")
    return Refusal(name, fact("reason"), place("guilty"), place("source"), parse_expr(fact("unfused bytes")))


def _location(text: str) -> Location:
    """`file:line in function op`, each part where it is."""
    m = re.fullmatch(r"(?:(?P<file>\S+):(?P<line>\d+))?\s*(?:in (?P<function>\S+))?\s*(?P<op>.*)", text)
    assert m is not None  # every part may be missing
    return Location(m["file"] or "", int(m["line"] or 0), m["function"] or "", m["op"])


_TITLE = re.compile(r"(ExecutionRegion|StreamingRegion|TileRegion)\((.*)\)")
_NODE = re.compile(r"Node\((.*), op=(\w*)\)")
_VALUE = re.compile(r"(?P<name>[^\[\]]+)\[(?P<shape>.*)\]:(?P<dtype>\w*)@(?P<residency>\w*)")
_AXIS = re.compile(r"(?P<role>\w+) (?P<name>\S+), (?P<variable>\S+) < (?P<extent>.+)")
_PHASES = re.compile(r"tiles of (\d+) x (\d+)(?: in blocks of (\d+))?")
_SUMMARY = re.compile(r"(min|max) (\S+?)\[(.*)\]")


class _Reader:
    """Reads one top-level region: its tree and values first, so that the types of all names are known when expressions are
    read."""

    def __init__(self) -> None:
        self.values: dict[str, MCValue] = {}
        self.later: list[Callable[[], None]] = []
        self.types: dict[str, DType] = {}

    # ------------------------------------------------------------------------------------ regions

    def region(self, line: _Line, *, top: bool = False) -> Region:
        m = _TITLE.fullmatch(line.text)
        if m is None:
            line.fail("a region was expected: ExecutionRegion(name), StreamingRegion(name) or TileRegion(name)")
        kind, name = m[1], m[2]
        made: Region
        if kind == "ExecutionRegion":
            made = ExecutionRegion(name)
        elif kind == "StreamingRegion":
            made = StreamingRegion(name)
        else:
            made = TileRegion(name, 0, 0, 0)
        made.attrs.clear()
        for x in line.inside:
            if x.text.startswith("#"):
                self._note(made, x)
            elif x.text.startswith("Node("):
                made.nodes.append(self._node(x))
            elif _TITLE.fullmatch(x.text):
                made.subregions.append(self.region(x))
            else:
                self._fact(made, x)
        if top:
            self.types |= name_types(made)
            for read in self.later:
                read()
        return made

    def _note(self, region: Region, line: _Line) -> None:
        key, _, value = line.text[2:].partition(":")
        below = "\n".join(_below(line.inside, 0))
        region.notes[key] = value.strip() if not line.inside else below

    def _fact(self, region: Region, line: _Line) -> None:
        key, value = line.entry()
        match key:
            case "inputs":
                region.inputs = [self._value(v, line) for v in _split(value)]
            case "outputs":
                region.outputs = [self._value(v, line) for v in _split(value)]
            case "attrs":
                region.attrs |= _attrs(value, line)
            case "operations":
                region.attrs[key] = tuple(_split(value))
            case "sizes":
                region.attrs[key] = {n: self._expression(e, x) for x in line.inside for n, e in [x.entry()]}
            case "axes":
                region.attrs[key] = {n: self._axis(e, x) for x in line.inside for n, e in [x.entry()]}
            case "carried":
                region.attrs[key] = ()
                names = [_named(v) for v in _split(value)]
                self.later.append(lambda: region.attrs.update({key: tuple(self._known(n, line) for n in names)}))
            case "phases" if isinstance(region, TileRegion):
                self._phases(region, value, line)
            case _:
                line.fail(f"{key!r} is nothing that a {region.kind} region says")

    def _axis(self, text: str, line: _Line) -> RegionAxis:
        m = _AXIS.fullmatch(text)
        if m is None or m["role"] not in [r.value for r in AxisRole]:
            line.fail("an axis was expected: `stream sequence, j < M`")
        extent = self._expression(m["extent"], line)
        return RegionAxis(m["name"], AxisRole(m["role"]), index(m["variable"]), extent)

    # ------------------------------------------------------------------------------------ values

    def _value(self, text: str, line: _Line) -> MCValue:
        """A value as it is stated; the same object where it was stated before."""
        m = _VALUE.fullmatch(text)
        if m is None:
            line.fail(f"{text!r} is no value: Q_tile[128,64]:fp16@shared was expected")
        shape: list[Dim] = []
        for dim in _split(m["shape"]):
            e = self._expression(dim, line)
            shape.append(int(e.value) if isinstance(e, Const) else e)
        known = self.values.get(m["name"])
        made = MCValue(m["name"], tuple(shape), m["dtype"], m["residency"])
        if known is not None and (known.shape, known.dtype, known.residency) == (made.shape, made.dtype, made.residency):
            return known
        self.values[made.name] = made
        return made

    def _known(self, name: str, line: _Line) -> MCValue:
        if name not in self.values:
            line.fail(f"{name} is no value of this region")
        return self.values[name]

    # ------------------------------------------------------------------------------------ nodes

    def _node(self, line: _Line) -> MCNode:
        m = _NODE.fullmatch(line.text)
        if m is None:
            line.fail("a node was expected: Node(name, op=load_tile)")
        node = MCNode(m[1], m[2])
        facts: list[_Line] = []
        for x in line.inside:
            key, value = x.entry()
            match key:
                case "inputs":
                    node.inputs = [self._known(n, x) for n in _split(value)]
                case "outputs":
                    node.outputs = [self._value(v, x) for v in _split(value)]
                case "attrs":
                    node.attrs |= _attrs(value, x)
                case "axes":
                    for text in _split(value):
                        name, _, axes = text.removesuffix("]").partition("[")
                        self._known(name, x).axes = tuple(_split(axes))
                case _:
                    facts.append(x)
        for value in node.outputs:
            value.producer = value.producer or node.name
        for value in node.inputs:
            if node.name not in value.consumers:
                value.consumers.append(node.name)
        if facts:
            self.later.append(lambda: setattr(node, "payload", self._payload(node, facts, line)))
        # References have types before expressions are read.
        for x in facts:
            self.types |= {y.entry()[1]: "f32" for y in x.inside if y.entry()[0] in ("reference", "old")}
        return node

    def _payload(self, node: MCNode, facts: Sequence[_Line], line: _Line) -> Payload:
        plain = {key: (value, x) for x in facts if not x.inside for key, value in [x.entry()]}
        blocks = [x for x in facts if x.inside]
        extrema = tuple(self._extremum(x) for x in blocks if not x.text.startswith("sum "))
        sums = tuple(self._sum(x) for x in blocks if x.text.startswith("sum "))

        def expression(key: str) -> Expr:
            value, x = plain[key]
            return self._expression(value, x)

        def indices() -> tuple[Expr, ...]:
            value, x = plain["index"]
            return () if value == "none" else tuple(self._expressions(value, x))

        match node.op, sorted(plain):
            case "load_tile", ["index"]:
                return TileLoad(index=indices())
            case "load_tile", ["element"]:
                return TileLoad(element=expression("element"))
            case (("compute_score" | "contract_tile"), ["over"]):
                return ScoreProduct(plain["over"][0])
            case "store_tile", ["index", "program"]:
                return TileStore(indices(), expression("program"))
            case (("update_softmax" | "update_state"), []):
                return StateUpdate(extrema, sums)
            case (("accumulate_output" | "accumulate_state"), []) if len(sums) == 1 and not extrema:
                return Accumulation(sums[0])
            case _:
                said = ", ".join(sorted([*plain, *(x.text.rstrip(":") for x in blocks)]))
                line.fail(f"what {node.op} computes cannot be read from {said}")

    def _extremum(self, line: _Line) -> RunningExtremum:
        op, state, facts = self._block(line)
        if op not in ("max", "min"):
            line.fail("a state was expected: `max NAME:`, `min NAME:` or `sum NAME:`")
        init = facts.get("init")
        reference, old = (var(_text(facts, key, line), "f32") for key in ("reference", "old"))
        body = self._expression(_text(facts, "body", line), line)
        start = None if init is None else self._expression(init, line)
        return RunningExtremum(state, "max" if op == "max" else "min", body, start, reference, old)

    def _sum(self, line: _Line) -> RunningSum:
        _, state, facts = self._block(line)
        weight = self._expression(_text(facts, "weight", line), line)
        rescale = None if "rescale" not in facts else self._expression(facts["rescale"], line)
        shift = None
        if "partner" in facts:
            shift = Shift(facts["partner"], self._expression(_text(facts, "distance", line), line))
        return RunningSum(state, weight, rescale, shift)

    def _block(self, line: _Line) -> tuple[str, str, dict[str, str]]:
        op, _, state = line.text.rstrip(":").partition(" ")
        return op, state, dict(x.entry() for x in line.inside)

    # ------------------------------------------------------------------------------------ phases

    def _phases(self, region: TileRegion, value: str, line: _Line) -> None:
        m = _PHASES.fullmatch(value)
        if m is None:
            line.fail("phases are of tiles: `phases: tiles of 128 x 64`")
        for x in line.inside:
            s = _SUMMARY.fullmatch(x.entry()[0])
            if s is not None:
                self.types.setdefault(s[2], "f32")  # settled when its value is read
        self.later.append(lambda: setattr(region, "phases", self._read_phases(m, line)))

    def _read_phases(self, m: re.Match[str], line: _Line) -> Phases:
        summaries: list[TileSummary] = []
        facts: dict[str, list[Expr]] = {}
        decided: list[tuple[Expr, bool]] = []
        fill: float | None = None
        # Summaries first: the type of one is that of its value.
        for x in line.inside:
            s = _SUMMARY.fullmatch(x.entry()[0])
            if s is not None:
                made = self._summary(s, x)
                summaries.append(made)
                self.types[made.name] = made.value.dtype
        for x in line.inside:
            key, text = x.entry()
            if _SUMMARY.fullmatch(key):
                continue
            if key == "fill":
                fill = float(text)
            elif key in ("holds", "fails"):
                decided.append((self._expression(text, x), key == "holds"))
            elif key in ("empty", "full", "low", "high", "end"):
                facts.setdefault(key, []).append(self._expression(text, x))
            else:
                x.fail(f"{key!r} is nothing that phases say")
        for key in ("empty", "full"):
            if len(facts.get(key, [])) != 1:
                line.fail(f"phases say once when a tile is {key}")
        return Phases(
            int(m[1]), int(m[2]), int(m[3] or 0), facts["empty"][0], facts["full"][0], tuple(decided),
            tuple(facts.get("low", [])), tuple(facts.get("high", [])), next(iter(facts.get("end", [])), None), fill,
            tuple(summaries),
        )  # fmt: skip

    def _summary(self, m: re.Match[str], line: _Line) -> TileSummary:
        dims = _split(m[3])
        axes = tuple(index(d.removesuffix(" tile")) for d in dims if d.endswith(" tile"))
        outer = tuple(index(d) for d in dims if not d.endswith(" tile"))
        return TileSummary(m[2], "min" if m[1] == "min" else "max", axes, outer, self._expression(line.entry()[1], line))

    # ------------------------------------------------------------------------------------ expressions

    def _expression(self, text: str, line: _Line) -> Expr:
        try:
            return parse_expr(text, self.types)
        except ParseError as e:
            line.fail(str(e))

    def _expressions(self, text: str, line: _Line) -> Iterator[Expr]:
        """Expressions between commas."""
        at = 0
        while True:
            try:
                e, at = parse_prefix(text, at, self.types)
            except ParseError as wrong:
                line.fail(str(wrong))
            yield e
            rest = text[at:].lstrip()
            if not rest:
                return
            if not rest.startswith(","):
                line.fail(f"a comma was expected before {rest!r}")
            at = len(text) - len(rest) + 1


def _text(facts: Mapping[str, str], key: str, line: _Line) -> str:
    if key not in facts:
        line.fail(f"{line.text} does not say its {key}")
    return facts[key]


def _below(lines: Sequence[_Line], depth: int) -> Iterator[str]:
    for x in lines:
        yield "  " * depth + x.text.removeprefix("# ")
        yield from _below(x.inside, depth + 1)


def _named(value: str) -> str:
    return value.partition("[")[0]


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    if text in ("", "none"):
        return []
    parts: list[str] = [""]
    depth = 0
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def _attrs(text: str, line: _Line) -> dict[str, object]:
    """`a=1, b=word`: numbers, truth values, None and words."""
    made: dict[str, object] = {}
    for part in _split(text):
        key, equals, value = part.partition("=")
        if not equals:
            line.fail(f"an attribute `name=value` was expected, not {part!r}")
        made[key] = _constant(value)
    return made


def _constant(text: str) -> object:
    words: dict[str, object] = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
