"""A grammar of attention programs: from a seed to the source text of a PyTorch function and the inputs to call it with.

    def attention(q, k, v, length):
        b, h, n, d = q.shape
        m = k.shape[2]
        i, j = torch.arange(n)[:, None], torch.arange(m)[None, :]
        s = q @ k.transpose(-2, -1) / math.sqrt(d)
        keep = ((j <= i) & (j < length[:, None, None, None]))
        s = s.masked_fill(~keep, -INF)
        return torch.softmax(s, -1) @ v

The text is the program's structure; sizes and data are drawn apart from it. `choices.SHARED` seeds have the same text, each with
its own sizes where a trace holds for all; `choices.SIZED` of them share their sizes where these are numbers in the traced graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .choices import SIZED, Choices

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LOWEST = {name: float(torch.finfo(t).min) for name, t in DTYPES.items()}
LENGTHS = (6, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 23, 31, 32, 33, 40, 48, 63, 64, 65, 90, 97, 128, 129, 200)
WIDTHS = (4, 8, 16, 1, 2, 3, 5, 7, 12, 15, 17, 24, 31, 32, 33, 40, 48, 64, 65, 72, 80, 96)
WORK = 120_000  # scores in all, at most: NumPy runs every level

Maker = Callable[[torch.Generator], torch.Tensor]


def kept(shape: Sequence[int], layout: str, g: torch.Generator) -> torch.Tensor:
    """Which pairs a dense mask of `shape` [..., rows, keys] keeps: some of them wherever they lie, blocks (some of them, or all
    of their pairs), or a triangle, so that whole tiles are empty or full."""
    scattered = torch.rand(shape, generator=g) < 0.6
    if len(shape) < 2 or layout == "scattered":
        return scattered
    rows, keys = torch.arange(shape[-2])[:, None], torch.arange(shape[-1])
    if layout == "triangle":
        return (keys <= rows + int(torch.randint(-5, 20, (), generator=g))).expand(shape).clone()
    tall, wide = (int(torch.randint(3, 40, (), generator=g)) for _ in range(2))
    blocks = (rows // tall == keys // wide).expand(shape)
    return blocks & scattered if layout == "scattered blocks" else blocks.clone()


def special(x: torch.Tensor, g: torch.Generator | None, name: str) -> torch.Tensor:
    """`x` with some of its rows NaN or infinite (None: as it is): a mask that hides them must hide them as it does in eager.
    Values are not infinite: sums that are carried apart become NaN of them where the source has an infinity (README)."""
    if g is not None and x.numel():
        rows = x.flatten(0, -2)
        for value in (math.nan, *((math.inf, -math.inf) if name != "v" else ())):
            rows[int(torch.randint(len(rows), (), generator=g)), 0] = value
    return x


@dataclass(frozen=True)
class Input:
    """An argument: its dimensions by name (for symbolic sizes), and how to make it. `wrong`: numbers that are no index into what
    it is an index of."""

    name: str
    dims: tuple[str, ...]
    make: Maker
    wrong: tuple[int, ...] = ()


@dataclass
class Program:
    """A program: its text, dtype, sizes by name, inputs, the schedule to compile it with, and the choices that made it."""

    seed: int
    text: str
    dtype: str
    sizes: Mapping[str, int]
    inputs: Sequence[Input]
    schedule: Mapping[str, Any]
    threads: int
    symbolic: bool
    made: Mapping[str, int]
    overrides: Mapping[str, int]
    strict: bool = False

    def function(self, double: bool = False, wide: bool = False) -> Callable[..., Any]:
        """The program as a function; `double` reads its type names as float64, `wide` each as the next wider one."""
        kind = torch.float64 if double else torch.float32 if wide else DTYPES[self.dtype]
        full = torch.float64 if double or wide else torch.float32
        scope: dict[str, Any] = {"torch": torch, "math": math, "F": torch.nn.functional, "INF": math.inf, "DT": kind, "F32": full}
        exec(compile(self.text, f"<program {self.seed}>", "exec"), scope)
        return scope["attention"]

    def arguments(self, data: int = 0) -> list[torch.Tensor]:
        """Arguments with random elements, different for every `data`; lengths and masks are drawn with them."""
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + data)
        return [x.make(g) for x in self.inputs]

    def __str__(self) -> str:
        shown = [
            f"seed {self.seed}, sizes {dict(self.sizes)}, {self.dtype}, schedule {dict(self.schedule)}, threads {self.threads}"
        ]
        for x, t in zip(self.inputs, self.arguments(), strict=True):
            shown.append(f"  {x.name}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)}, strides {list(t.stride())}")
        return "\n".join([*shown, self.text])


def program(seed: int, overrides: Mapping[str, int] | None = None) -> Program:
    """The program of a seed."""
    return _Writer(Choices(seed, overrides)).program()


@dataclass
class _Writer:
    c: Choices
    lines: list[str] = field(default_factory=list[str])
    inputs: list[Input] = field(default_factory=list[Input])

    # ------------------------------------------------------------------------------------ the whole

    def program(self) -> Program:
        c = self.c
        self.dtype = c.pick("dtype", "f32", "f16", "bf16", often=4)
        self.family = c.pick("family", "plain", "sdpa", often=9)
        self.symbolic = self.family == "plain" and c.flag("symbolic", 0.5)
        self.strict = c.flag("strict", 0.06)
        c.sized = 1 if self.symbolic else SIZED
        self._sizes()
        self._operands()
        self.line("i, j = torch.arange(n)[:, None], torch.arange(m)[None, :]" if c.flag("positions first", 0.5)
                  else "i, j = torch.arange(n).view(1, 1, n, 1), torch.arange(m).view(1, 1, 1, m)")  # fmt: skip
        if self.family == "sdpa":
            self._sdpa()
        else:
            self._scores()
            self._maps()
            self._normalised()
        names = [x.name for x in self.inputs]
        text = f"def attention({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in self.lines)
        return Program(
            c.seed, text, self.dtype, self.size, self.inputs, self._schedule(), c.number("threads", 1, 2), self.symbolic,
            dict(c.made), dict(c.overrides), self.strict,
        )  # fmt: skip

    def line(self, text: str) -> None:
        self.lines.append(text)

    def _sizes(self) -> None:
        c = self.c
        wide = c.flag("wide", 0.02)
        d = c.pick("d", *((128, 200, 256, 512) if wide else WIDTHS))
        dv = d if c.flag("same width", 0.6) else c.pick("dv", *((192, 256, 512) if wide else WIDTHS))
        group = c.pick("group", 1, 2, 3, often=5)
        kv_heads = c.number("kv heads", 1, 3)
        b = c.number("size b", 1, 3)
        n, m = c.pick("size n", *LENGTHS), c.pick("size m", *LENGTHS)
        if c.flag("same length", 0.35):
            m = n
        h = kv_heads * group
        if self.symbolic:
            # What is traced holds for all sizes of the same kind: none is 1, and lengths differ or are the same for all.
            n, m, b = max(n, 2), max(m, 2), max(b, 2)
            same = c.flag("same length", 0.35)
            m = n if same else m + 1 if m == n else m
        if b * h * n * m > WORK:
            b = 2 if self.symbolic else 1
        while b * h * n * m > WORK:
            n, m = (n // 2, m // 2) if n == m else (n // 2, m) if n > m else (n, m // 2)
        self.size = {"b": b, "h": h, "hk": kv_heads, "g": group, "n": n, "m": m, "d": d, "dv": dv}

    def _schedule(self) -> dict[str, Any]:
        c = self.c
        if not c.flag("own schedule", 0.85):
            return {}
        rows = c.pick("rows", 2, 1, 3, 6, often=4)
        order = c.pick("order", "q_major", "kv_major", often=5)
        split = 1 if order == "kv_major" else c.pick("split", 1, 2, 3, often=6)
        tile_m = rows * c.number("row blocks", 1, 4) + c.pick("odd rows", 0, 1, often=4)
        return {
            "tile_m": tile_m,
            "tile_n": c.pick("tile n", 16, 8, 11, 32, often=4),
            "rows": rows,
            "order": order,
            "kv_split": split,
        }

    # ------------------------------------------------------------------------------------ inputs

    def give(self, name: str, dims: str, make: Maker, wrong: tuple[int, ...] = ()) -> str:
        self.inputs.append(Input(name, tuple(dims.split()), make, wrong))
        return name

    def normal(self, name: str, dims: str, scale: float = 1.0, offset: float = 0.0) -> str:
        shape, kind = self.shape(dims), DTYPES[self.dtype]
        return self.give(name, dims, lambda g: (torch.randn(shape, generator=g) * scale + offset).to(kind))

    def shape(self, dims: str) -> list[int]:
        return [int(eval(x, {}, dict(self.size))) for x in dims.split()]

    def _operands(self) -> None:
        c, z = self.c, self.size
        packed = c.flag("same length", 0.35) and z["d"] == z["dv"] and z["g"] == 1 and c.flag("packed", 0.25)
        loud = c.pick("data loud", 1.0, 3.0, 0.1, 10.0, often=6)
        far = c.pick("data far values", 0.0, 20.0, often=8)
        if packed:
            how = c.pick("packing", "stacked", "chunks", "interleaved")
            if how == "stacked":
                self.normal("qkv", "b n 3 h d", loud)
                self.line("q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)")
            elif how == "chunks":
                self.normal("qkv", "b n 3*h*d", loud)
                self.line(f"q, k, v = [x.unflatten(-1, ({z['h']}, {z['d']})).transpose(1, 2) for x in qkv.chunk(3, -1)]")
            else:
                self.normal("qkv", "b n h 3*d", loud)
                self.line("q, k, v = qkv.transpose(1, 2).chunk(3, -1)")
        else:
            self._operand("q", "h", "n", "d", loud, 0.0)
            self._operand("k", "hk", "m", "d", 1.0, 0.0)
            self._operand("v", "hk", "m", "dv", 1.0, far)
        self.line("b, h, n, d = q.shape")
        self.line("hk, m, dv = v.shape[-3:]")

    def _operand(self, name: str, h: str, n: str, d: str, scale: float, offset: float) -> None:
        """q, k or v as a caller may hold it."""
        c, kind = self.c, DTYPES[self.dtype]
        H, N, D = self.size[h], self.size[n], self.size[d]
        B = self.size["b"]

        def fill(*shape: int) -> Maker:
            return lambda g: special(torch.randn(shape, generator=g) * scale + offset, g if self.strict else None, name).to(kind)

        layouts = ["plain", "transposed", "merged", "sliced", "width first", "cache", "stepped"]
        if name != "q":
            layouts += ["flipped", "same for all heads", "batch of one"]
        match c.pick(f"layout of {name}", *layouts, often=6):
            case "transposed":
                make = fill(B, N, H, D)
                self.give(name, f"b {h} {n} {d}", lambda g: make(g).transpose(1, 2))
            case "merged":
                make = fill(B, N, H * D)
                self.give(name, f"b {n} {h}*{d}", make)
                self.line(f"{name} = {name}.view({name}.shape[0], -1, {H}, {D}).transpose(1, 2)")
            case "sliced":
                make = fill(B, H, 2 * N, D + 3)
                self.give(name, f"b {h} {n} {d}", lambda g: make(g)[:, :, ::2, 1 : D + 1])
            case "width first":
                make = fill(B, H, D, N)
                self.give(name, f"b {h} {n} {d}", lambda g: make(g).transpose(2, 3))
            case "cache" if N > 1 and not self.symbolic:
                old = N // 2
                self.give(f"{name}_old", f"b {h} old {d}", fill(B, H, old, D))
                self.give(name, f"b {h} new {d}", fill(B, H, N - old, D))
                self.line(f"{name} = torch.cat([{name}_old, {name}], dim=2)")
            case "stepped":
                self.give(name, f"b {h} 2*{n} {d}", fill(B, H, 2 * N, D))
                self.line(f"{name} = {name}[:, :, ::2]")
            case "flipped":
                self.give(name, f"b {h} {n} {d}", fill(B, H, N, D))
                self.line(f"{name} = {name}.flip(2)")
            case "same for all heads":
                make = fill(B, 1, N, D)
                self.give(name, f"b {h} {n} {d}", lambda g: make(g).expand(B, H, N, D))
            case "batch of one" if not self.symbolic:
                make = fill(1, H, N, D)
                self.give(name, f"b {h} {n} {d}", lambda g: make(g).expand(B, H, N, D))
            case _:
                self.give(name, f"b {h} {n} {d}", fill(B, H, N, D))

    # ------------------------------------------------------------------------------------ scores

    def _scores(self) -> None:
        c, z = self.c, self.size
        self.grouping = "none"
        if z["g"] > 1:
            self.grouping = c.pick("grouping", "repeat", "expand", "views")
            if self.grouping == "repeat":
                self.line(f"k, v = k.repeat_interleave({z['g']}, 1), v.repeat_interleave({z['g']}, 1)")
            elif self.grouping == "expand":
                for x, w in (("k", "d"), ("v", "dv")):
                    self.line(f"{x} = {x}[:, :, None].expand(b, hk, {z['g']}, m, {w}).reshape(b, h, m, {w})")
        scale = c.pick("scale", "divided", "times", "query", "both", "left", "inverse", "none", "per head")
        root = math.sqrt(z["d"])
        q, k = "q", "k"
        if scale == "query":
            q = f"(q * {1 / root})"
        elif scale == "both":
            q, k = f"(q * {root**-0.5})", f"(k * {root**-0.5})"
        scores = self._product(q, k)
        match scale:
            case "divided":
                scores = f"{scores} / math.sqrt(d)"
            case "times":
                scores = f"{scores} * d ** -0.5"
            case "left":
                scores = f"{1 / root} * ({scores})"
            case "inverse":
                scores = f"({scores}) * (1 / {root})"
            case "per head":
                self.normal("tau", "h 1 1", 0.2, 1.0 / root)
                scores = f"({scores}) * tau"
            case _:
                pass
        self.line(f"s = {scores}")

    def _product(self, q: str, k: str) -> str:
        c = self.c
        if self.grouping == "views":
            self.line(f"grouped = {q}.reshape(b, hk, {self.size['g']}, n, d)")
            return f"(grouped @ {k}[:, :, None].transpose(-2, -1)).reshape(b, h, n, m)"
        match c.pick("score product", "matmul", "mT", "einsum", "bmm", "baddbmm", "keys first", "permute"):
            case "mT":
                return f"torch.matmul({q}, {k}.mT)"
            case "einsum":
                return f'torch.einsum("bhid,bhjd->bhij", {q}, {k})'
            case "bmm":
                return f"torch.bmm({q}.reshape(b * h, n, d), {k}.reshape(b * h, m, d).transpose(1, 2)).view(b, h, n, m)"
            case "baddbmm":
                return (
                    f"torch.baddbmm(q.new_zeros(1), {q}.reshape(b * h, n, d), {k}.reshape(b * h, m, d).transpose(1, 2), "
                    "beta=0, alpha=0.5).view(b, h, n, m)"
                )
            case "keys first":
                return f"({k} @ {q}.transpose(-2, -1)).transpose(-2, -1)"
            case "permute":
                return f"{q}.matmul({k}.permute(0, 1, 3, 2))"
            case _:
                return f"{q} @ {k}.transpose(-2, -1)"

    # ------------------------------------------------------------------------------------ score maps, biases, masks

    def _maps(self) -> None:
        """Score maps, biases and masks, in some order."""
        c = self.c
        self.after: list[tuple[str, str]] = []
        for k in range(c.pick("steps", 1, 0, 2, 3, 4)):
            match c.pick(f"step {k}", "mask", "map", "bias", "map of powers", "product", often=2):
                case "map":
                    self._map(k)
                case "map of powers":
                    self._powers(k)
                case "product":
                    self._second_product(k)
                case "bias":
                    self._bias(k)
                case _:
                    self._mask(k)

    def _map(self, k: int) -> None:
        c = self.c
        match c.pick(f"map {k}", "softcap", "tanh", "alibi", "constant", "decay", "clamp", "leaky", "square", "gelu", "silu",
                "abs",
                     "wide", "temperature", "where", "distance", "softplus"):  # fmt: skip
            case "softcap":
                cap = c.pick(f"cap {k}", 20.0, 5.0, 50.0)
                self.line(f"s = {cap} * torch.tanh(s / {cap})")
            case "tanh":
                self.line("s = torch.tanh(s)")
            case "alibi":
                self.normal(f"slope{k}", "h", 0.2)
                how = c.pick(f"slopes {k}", "(j - i)", "-(i - j).abs()", "j")
                self.line(f"s = s + slope{k}[:, None, None] * {how}")
            case "constant":
                self.line(f"s = s + {c.pick(f'constant {k}', 1.5, -40.0, 300.0)}")
            case "decay":
                self.line("s = s * (0.97 ** (i - j).abs().to(F32)).to(DT)")
            case "clamp":
                self.line(f"s = s.clamp({c.pick(f'clamp {k}', '-2, 2', 'min=0', 'max=1')})")
            case "leaky":
                self.line("s = F.leaky_relu(s, 0.2)")
            case "square":
                self.line("s = s * s * 0.1")
            case "gelu":
                self.line("s = F.gelu(s)")
            case "silu":
                self.line("s = F.silu(s)")
            case "abs":
                self.line("s = -s.abs()")
            case "wide":
                self.line("s = s.to(F32)")
            case "temperature":
                self.give(f"temperature{k}", "", lambda g: torch.rand((), generator=g).to(DTYPES[self.dtype]) + 0.5)
                self.line(f"s = s * temperature{k}")
            case "where":
                self.line("s = torch.where(s > 0, s, 0.1 * s)")
            case "distance":
                self.line("s = s - ((i - j) ** 2).to(DT) / 50")
            case _:
                self.line("s = F.softplus(s)")

    def _powers(self, k: int) -> None:
        """Maps whose meaning hangs on brackets and on the last digits of constants: kernels of other programs differ in nothing
        else."""
        c = self.c
        steps = "((i - j).abs() % 5).to(F32)"
        near = (1.0, 1.0000001192092896, 1.0000002384185791, 0.9999999403953552)
        far = (1000.0001220703125, 1000.00006103515625, 1000.0)
        match c.pick(f"power {k}", "negative base", "negated power", "power of power", "power of a power", "difference",
                     "differences", "near factors", "near terms", "negative zero", "reciprocal"):  # fmt: skip
            case "negative base":
                self.line(f"s = s + ((-{c.pick(f'base {k}', '2.0', '0.5', '1.0')}) ** {steps}).to(DT)")
            case "negated power":
                self.line(f"s = s + (-({c.pick(f'base {k}', '2.0', '0.5', '1.0')} ** {steps})).to(DT)")
            case "power of power":
                self.line("s = ((s * s * 0.01 + 0.5) ** 0.5) ** 3.0")
            case "power of a power":
                self.line("s = s + (2.0 ** (0.5 ** " + steps + ")).to(DT)")
            case "difference":
                self.line("s = s - (2.0 - (s * 0.5 - 1.0))")
            case "differences":
                self.line("s = ((s - 2.0) - s * 0.5) - 1.0")
            case "near factors":
                self.line(f"s = s * {c.pick(f'factor {k}', *near)!r}")
            case "near terms":
                self.line(f"s = torch.relu((s + {c.pick(f'plus {k}', *far)!r}) - {c.pick(f'minus {k}', *far)!r})")
            case "negative zero":
                self.line(f"s = torch.where(s > 1.0, s, {c.pick(f'zero {k}', '0.0', '-0.0')})")
            case _:
                self.line("s = 1.0 / (1.0 - (0.5 - s.abs())) - s / 2.0 / 4.0")

    def _second_product(self, k: int) -> None:
        """Another product of the size of the scores."""
        c = self.c
        width = c.pick(f"second width {k}", 8, 1, 3, 16, 20)
        self.normal(f"q{k}x", f"b h n {width}", 0.5)
        self.normal(f"k{k}x", f"b h m {width}", 0.5)
        product = c.pick(f"second product {k}", f"q{k}x @ k{k}x.mT", f'torch.einsum("bhid,bhjd->bhij", q{k}x, k{k}x)',
                         f"torch.matmul(k{k}x, q{k}x.mT).mT")  # fmt: skip
        self.line(f"z{k} = {product}")
        match c.pick(f"second use {k}", "added", "gate", "mask", "scaled", "after"):
            case "added":
                self.line(f"s = s + z{k}")
            case "gate":
                self.line(f"s = s * torch.sigmoid(z{k})")
            case "mask":
                self.line(f"s = s.masked_fill(z{k} > 0.5, -INF)")
            case "scaled":
                self.line(f"s = s + 0.5 * torch.tanh(z{k})")
            case _:
                self.after.append(("after product", f"z{k}"))

    def _bias(self, k: int) -> None:
        c, name = self.c, f"bias{k}"
        how = c.pick(f"bias {k}", "h n m", "1 n m", "n m", "b 1 1 m", "b h 1 m", "b 1 n m", "1 h n m", "b h n 1", "b h n m",
                "relative",
                     "buckets", "turned", "table", "table from the end", "embedded", "gathered")  # fmt: skip
        left = c.flag(f"bias on the left {k}", 0.3)
        match how:
            case "relative":
                self.normal(name, "h n+m-1")
                value = (
                    f"{name}[:, i - j + m - 1]"
                    if "torch.arange(n)[:" in "".join(self.lines)
                    else f"{name}[:, (i - j + m - 1)[0, 0]]"
                )
            case "buckets":
                self.normal(name, "16 h")
                at = "(i - j).abs().clamp(max=15)"
                value = (
                    f"{name}[{at}].permute(2, 0, 1)"
                    if "torch.arange(n)[:" in "".join(self.lines)
                    else f"{name}[{at}[0, 0]].permute(2, 0, 1)"
                )
            case "table" | "table from the end" | "embedded":  # read at places that a tensor holds
                entries = c.pick(f"entries {k}", 16, 1, 2, 33)
                first = -entries if how == "table from the end" else 0
                self.normal(name, f"{entries} h")
                n, m = self.size["n"], self.size["m"]
                kind = c.pick(f"index type {k}", torch.int64, torch.int32)
                wrong = (entries, -1 if how == "embedded" else -entries - 1, 10**9)
                self.give(f"at{k}", "n m", lambda g: torch.randint(first, entries, (n, m), generator=g).to(kind), wrong)
                read = f"F.embedding(at{k}, {name})" if how == "embedded" else f"{name}[at{k}]"
                value = f"{read}.permute(2, 0, 1)"
            case "gathered":
                b, h, n, m = (self.size[x] for x in ("b", "h", "n", "m"))
                entries = c.pick(f"entries {k}", 16, 1, 2, 33)
                self.normal(name, f"b h n {entries}")
                wrong = (entries, -1, 10**9)
                self.give(f"at{k}", "b h n m", lambda g: torch.randint(0, entries, (b, h, n, m), generator=g), wrong)
                value = f"{name}.gather(-1, at{k})"
            case "turned":
                self.normal(name, "b m n h")
                value = f"{name}.permute(0, 3, 2, 1)"
            case _:
                self.normal(name, how)
                value = name
        self.line(f"s = {value} + s" if left else f"s = s + {value}")

    def condition(self, where: str, depth: int = 0) -> str:
        """The text of a boolean that broadcasts to the scores."""
        c = self.c
        if depth < 2:
            joint = c.pick(f"joint {where}", "none", "and", "or", "not", often=3)
            if joint == "not":
                return f"(~{self.condition(where + 'l', depth + 1)})"
            if joint != "none":
                left, right = self.condition(where + "l", depth + 1), self.condition(where + "r", depth + 1)
                return f"({left} {'&' if joint == 'and' else '|'} {right})"
        kinds = ("causal", "corner", "offset", "tril", "window", "band", "dilated", "prefix", "blocks", "same block",
                "global", "parity",
                 "documents", "lengths", "rows", "row ends", "row starts", "places", "padding", "padding of ones",
                "dense", "dense per batch", "dense per head", "threshold", "never", "always", "shuffled documents",
                "starts")  # fmt: skip
        name = f"x{where}"
        match c.pick(f"condition {where}", *kinds):
            case "causal":
                return c.pick(f"causal {where}", "(j <= i)", "(i >= j)", "~(j > i)", "(i - j >= 0)")
            case "corner":
                return "(j <= i + (m - n))"
            case "offset":
                return f"(j <= i + {c.number(f'offset {where}', -7, 7)})"
            case "tril":
                return f"torch.ones(n, m, dtype=torch.bool).tril({c.pick(f'diagonal {where}', '0', '2', '-3', 'm - n')})"
            case "window":
                return f"((i - j).abs() <= {c.number(f'width {where}', 0, 20)})"
            case "band":
                return f"((j <= i) & (i - j < {c.number(f'width {where}', 1, 20)}))"
            case "dilated":
                return f"((i - j) % {c.number(f'period {where}', 2, 5)} == 0)"
            case "prefix":
                return f"(j < {c.number(f'prefix {where}', 0, 20)})"
            case "blocks":
                size = c.number(f"block {where}", 1, 9)
                return f"(i // {size} >= j // {size})"
            case "same block":
                size = c.number(f"block {where}", 1, 9)
                return f"(i // {size} == j // {size})"
            case "global":
                return f"((i < {c.number(f'first {where}', 0, 5)}) | (j < {c.number(f'first {where}', 0, 5)}))"
            case "parity":
                return f"(j % {c.number(f'period {where}', 2, 4)} != 0)"
            case "documents" | "shuffled documents" as kind:
                size, ordered = self.size["b"], kind == "documents"
                long = max(self.size["n"], self.size["m"])

                def ids(g: torch.Generator) -> torch.Tensor:
                    drawn = torch.randint(0, 4, (size, long), generator=g)
                    return drawn.sort(1).values if ordered else drawn

                self.give(name, "b long", ids)
                return f"({name}[:, None, :n, None] == {name}[:, None, None, :m])"
            case "lengths":
                b, m = self.size["b"], self.size["m"]
                self.give(name, "b", lambda g: torch.randint(0, m + 1, (b,), generator=g))
                return f"(j < {name}[:, None, None, None])"
            case "rows":
                b, n = self.size["b"], self.size["n"]
                self.give(name, "b", lambda g: torch.randint(0, n + 1, (b,), generator=g))
                return f"(i < {name}[:, None, None, None])"
            case "row ends" | "row starts" as kind:
                n, m = self.size["n"], self.size["m"]
                rising = c.flag(f"rising {where}", 0.5)
                dims = c.pick(f"row dims {where}", "n", "b n", "h n")
                shape = self.shape(dims)

                def ends(g: torch.Generator) -> torch.Tensor:
                    drawn = torch.randint(0, m + 1, shape, generator=g)
                    return drawn.sort(-1).values if rising else drawn

                self.give(name, dims, ends)
                at = {"n": "[:, None]", "b n": "[:, None, :, None]", "h n": "[:, :, None]"}[dims]
                return f"(j {'<' if kind == 'row ends' else '>='} {name}{at})"
            case "places":  # positions of queries and keys, as tensors
                n, m = self.size["n"], self.size["m"]
                moved = c.number(f"first place {where}", -3, 9)
                self.give(name, "n", lambda g: torch.arange(n) + moved)
                self.give(f"k{name}", "m", lambda g: torch.arange(m))
                return c.pick(f"places {where}", f"(k{name} <= {name}[:, None])", f"(j <= {name}[:, None])",
                              f"(({name}[:, None] - k{name} < 9) & (k{name} <= {name}[:, None]))")  # fmt: skip
            case "starts":
                b, m = self.size["b"], self.size["m"]
                self.give(name, "b", lambda g: torch.randint(0, m + 1, (b,), generator=g))
                return f"(j >= {name}[:, None, None, None])"
            case "padding":
                self.bits(name, "b m")
                return f"{name}[:, None, None, :]"
            case "padding of ones":
                b, m = self.size["b"], self.size["m"]
                self.give(name, "b m", lambda g: (torch.rand(b, m, generator=g) < 0.7).long())
                return c.pick(f"ones {where}", f"({name}[:, None, None, :] != 0)", f"{name}[:, None, None, :].bool()",
                              f"{name}[:, None, None, :].to(torch.bool)")  # fmt: skip
            case "dense":
                self.bits(name, "n m")
            case "dense per batch":
                self.bits(name, "b 1 n m")
            case "dense per head":
                self.bits(name, "b h n m")
            case "threshold":
                self.normal(name, "b 1 n m")
                return f"({name} > 0.3)"
            case "never":
                return "(j < 0)"
            case _:
                return "(j >= 0)"
        return name

    def bits(self, name: str, dims: str) -> None:
        """Booleans, with rows of False now and then."""
        shape, kind = self.shape(dims), self.layout(name)

        def make(g: torch.Generator) -> torch.Tensor:
            drawn = kept(shape, kind, g)
            if len(shape) > 1:
                drawn[..., ::5, :] &= torch.rand(shape[-1], generator=g) < 0.5
                if shape[-2] > 1:
                    drawn[..., 2::7, :] = False
            return drawn

        self.give(name, dims, make)

    def added(self, name: str, dims: str, low: float) -> None:
        """0 where a pair is kept, `low` elsewhere."""
        shape, kind, dtype = self.shape(dims), self.layout(name), DTYPES[self.dtype]
        self.give(name, dims, lambda g: torch.where(kept(shape, kind, g), 0.0, low).to(dtype))

    def layout(self, name: str) -> str:
        return self.c.pick(f"layout of {name}", "scattered", "scattered blocks", "blocks", "triangle")

    def _mask(self, k: int) -> None:
        c = self.c
        lowest = repr(LOWEST[self.dtype])
        finite = [lowest, "-1e4", "-30.0"] + (["-1e9"] if self.dtype != "f16" else [])
        forms = ["filled", "where", "where on the left", "added", "added lowest", "one minus", "one minus times score",
                "times", "after",
                 "after filled", "after renormalised", "log", "where added", "filled in place", "min"]  # fmt: skip
        form = c.pick(f"form {k}", *forms)
        if form == "added" and c.flag(f"read mask {k}", 0.5):
            dims = c.pick(f"mask dims {k}", "n m", "b 1 n m", "b 1 1 m", "b h n m", "1 1 n m")
            low = float(c.pick(f"mask value {k}", "-inf", *finite))
            self.added(f"mask{k}", dims, low)
            self.line(f"s = s + mask{k}" if c.flag(f"mask right {k}", 0.5) else f"s = mask{k} + s")
            return
        keep = f"keep{k}"
        self.line(f"{keep} = {self.condition(str(k))}")
        fill = c.pick(f"fill {k}", "-INF", *finite, often=3)
        match form:
            case "filled":
                self.line(f"s = s.masked_fill(~{keep}, {fill})")
            case "filled in place":
                self.line(f"s = s + 0.0\n    s.masked_fill_(~{keep}.expand(b, h, n, m), {fill})")
            case "where":
                self.line(f"s = torch.where({keep}, s, {fill})")
            case "where on the left":
                self.line(f"s = torch.where(~{keep}, {fill}, s)")
            case "added":
                self.line(f"s = s + torch.zeros({keep}.shape, dtype=DT).masked_fill(~{keep}, {fill})")
            case "added lowest":
                self.line(f"s = torch.where({keep}, 0.0, {lowest}) + s")
            case "where added":
                self.line(f"s = s + torch.where({keep}, 0.0, {fill}).to(DT)")
            case "one minus":
                self.line(f"s = s + (1.0 - {keep}.to(DT)) * {c.pick(f'finite fill {k}', *finite)}")
            case "one minus times score":
                self.line(f"s = s * {keep}.to(DT) - 1e4 * (1 - {keep}.to(DT))")
            case "times":
                self.line(f"s = s * {keep}")
            case "log":
                self.line(f"s = s + {keep}.to(DT).log()")
            case "min":
                self.line(f"s = torch.minimum(s, torch.where({keep}, INF, {fill}).to(s.dtype))")
            case _:
                self.after.append((form, keep))

    # ------------------------------------------------------------------------------------ normalisers

    def _normalised(self) -> None:
        c = self.c
        kinds = ("softmax", "softmax wide", "softmax by hand", "last", "log softmax", "log sum exp", "relu", "squared relu",
                "sigmoid",
                 "off by one", "sink", "zero sink", "epsilon", "negated", "safe", "twice shifted", "difference",
                         "clamped")  # fmt: skip
        kind = c.pick("normaliser", *kinds, often=4)
        p = "p"
        divide = ""
        match kind:
            case "softmax":
                self.line(c.pick("softmax", "p = torch.softmax(s, -1)", "p = s.softmax(dim=3)", "p = F.softmax(s, dim=-1)"))
            case "softmax wide":
                self.line(
                    c.pick("wide softmax", "p = F.softmax(s, dim=-1, dtype=F32).to(DT)", "p = s.to(F32).softmax(-1).to(DT)")
                )
            case "softmax by hand":
                self.line("e = torch.exp(s - s.amax(-1, keepdim=True))")
                self.line("p = e / e.sum(-1, keepdim=True)")
            case "last":
                self.line("p = (s - s.max(dim=-1, keepdim=True).values).exp()")
                divide = " / p.sum(-1, keepdim=True)"
            case "log softmax":
                self.line("p = s.log_softmax(-1).exp()")
            case "log sum exp":
                self.line("p = torch.exp(s - torch.logsumexp(s, -1, keepdim=True))")
            case "relu":
                self.line("p = torch.relu(s) / m")
            case "squared relu":
                self.line("p = torch.relu(s).square() / m")
            case "sigmoid":
                self.line("p = torch.sigmoid(s - math.log(m))" if not self.symbolic else "p = torch.sigmoid(s - 3.0)")
            case "off by one":
                self.line("top = s.amax(-1, keepdim=True).clamp(min=0)")
                self.line("e = (s - top).exp()")
                self.line("p = e / (e.sum(-1, keepdim=True) + (-top).exp())")
            case "sink":
                self.normal("sink", "h")
                self.line("p = torch.cat([s, sink[None, :, None, None].expand(b, -1, n, 1).to(s.dtype)], dim=-1)")
                self.line(c.pick("sink softmax", "p = p.softmax(-1)[..., :-1]",
                                 "p = (p - p.max(dim=-1, keepdim=True).values).softmax(-1)[..., :-1]"))  # fmt: skip
            case "zero sink":
                self.line("p = F.pad(s, (1, 0)).softmax(-1)[..., 1:]")
            case "epsilon":
                self.line("e = torch.exp(s - s.amax(-1, keepdim=True))")
                self.line("p = e / (e.sum(-1, keepdim=True) + 1e-6)")
            case "negated":
                self.line("p = torch.softmax(-s, -1)")
            case "safe":
                self.line("p = torch.nan_to_num(torch.softmax(s, -1), nan=0.0)")
            case "twice shifted":
                self.line("p = torch.softmax(s - s.amax(-1, keepdim=True), -1)")
            case "difference":
                self.normal("q2", "b h n d")
                self.normal("k2", "b h m d")
                self.line("p = torch.softmax(s, -1) - 0.3 * torch.softmax(q2 @ k2.transpose(-2, -1) / math.sqrt(d), -1)")
            case _:
                self.line("e = torch.exp((s - s.amax(-1, keepdim=True)).clamp(min=-20))")
                self.line("p = e / e.sum(-1, keepdim=True)")
        for form, keep in self.after:
            # The sum of a difference may be next to nothing: divided by it, rounding alone decides.
            match "after" if kind == "difference" else form:
                case "after":
                    self.line(f"p = p * {keep}")
                case "after product":
                    self.line(f"p = p * {keep}")
                case "after filled":
                    self.line(f"p = p.masked_fill(~{keep}, 0.0)")
                case _:
                    self.line(f"p = p * {keep}")
                    self.line("p = p / p.sum(-1, keepdim=True)")
        if c.flag("dropout", 0.2):
            self.line("p = F.dropout(p, 0.1, training=False)")
        if c.flag("weights as values", 0.3):
            self.line("p = p.to(v.dtype)")
        else:
            self.line("p, v = p.to(DT), v.to(DT)")
        self.line(f"o = {self._values(p)}{divide}")
        extra = c.pick("extra", "none", "lse", "max", "entropy", "total", "second values", often=5)
        more = ""
        match extra:
            case "lse":
                more = ", torch.logsumexp(s, -1)"
            case "max":
                more = ", s.amax(-1)"
            case "entropy":
                self.line("logp = s.log_softmax(-1)")
                more = ", -(logp.exp() * logp).sum(-1)"
            case "total":
                more = ", p.sum(-1)"
            case "second values":
                self.normal("w", "b h m 5")
                more = ", p @ w"
            case _:
                pass
        self._tail(more)

    def _values(self, p: str) -> str:
        if self.grouping == "views":
            return f"({p}.reshape(b, hk, {self.size['g']}, n, m) @ v[:, :, None]).reshape(b, h, n, dv)"
        match self.c.pick("value product", "matmul", "einsum", "bmm", "turned"):
            case "einsum":
                return f'torch.einsum("bhij,bhje->bhie", {p}, v)'
            case "bmm":
                return f"torch.bmm({p}.reshape(b * h, n, m), v.reshape(b * h, m, dv)).view(b, h, n, dv)"
            case "turned":
                return f"(v.transpose(-2, -1) @ {p}.transpose(-2, -1)).transpose(-2, -1)"
            case _:
                return f"({p} @ v)"

    def _tail(self, more: str) -> None:
        match self.c.pick("tail", "none", "merged", "gate", "residual", "scaled", often=3):
            case "merged":
                self.line("o = o.transpose(1, 2).reshape(b, n, -1)")
            case "gate":
                self.normal("gate", "b h n dv")
                self.line("o = torch.sigmoid(gate) * o")
            case "residual":
                self.normal("x", "b h n dv")
                self.line("o = o + x")
            case "scaled":
                self.line("o = o * 0.5")
            case _:
                pass
        self.line(f"return o{more}")

    # ------------------------------------------------------------------------------------ the ready-made call

    def _sdpa(self) -> None:
        c, z = self.c, self.size
        options: list[str] = []
        kind = c.pick("sdpa mask", "none", "causal", "bool", "float", "condition", "padding")
        match kind:
            case "causal":
                options.append("is_causal=True")
            case "bool":
                self.bits("mask", c.pick("mask shape", "n m", "b 1 n m", "b h n m", "1 h n m", "b 1 1 m"))
                options.append("attn_mask=mask")
            case "float":
                low = float(c.pick("sdpa fill", "-inf", repr(LOWEST[self.dtype]), "-1e4", "-1.0"))
                dims = c.pick("mask shape", "n m", "b 1 n m", "b h n m", "1 h n m")
                self.added("mask", dims, low)
                options.append("attn_mask=mask")
            case "condition":
                self.line(f"mask = {self.condition('s')}.expand(b, h, n, m)")
                options.append("attn_mask=mask")
            case "padding":
                self.bits("pad", "b m")
                self.line("mask = (1.0 - pad[:, None, None, :].to(DT)) * " + repr(LOWEST[self.dtype]))
                options.append("attn_mask=mask")
            case _:
                pass
        if z["g"] > 1:
            options.append("enable_gqa=True")
        if c.flag("sdpa scale", 0.4):
            options.append("scale=0.3")
        self.line(f"o = F.scaled_dot_product_attention({', '.join(['q, k, v', *options])})")
        self._tail("")
