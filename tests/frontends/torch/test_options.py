"""Every option is checked before anything runs: wrong types and values are told with what is allowed, and turn nothing off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import aicf
from aicf.schedule import TARGETS, Problem, choose


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def qkv() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 3, 64, 16) for _ in range(3))


CHOSEN = choose(Problem(rows=64, keys=64), TARGETS["avx2"])
WRONG: list[tuple[str, Any, str]] = [
    ("fuse", "never", r'fuse=\'never\': it is "auto"'),
    ("fuse", None, "fuse=None: it is"),
    ("fuse", True, "fuse=True: it is"),
    ("fuse", torch.ones(2), "fuse=tensor.*: it is"),
    ("require", True, "require=True: it is None or"),
    ("require", np.ones(2), "require=array.*: it is None or"),
    ("rest", "nothing", "rest='nothing': it is"),
    ("rest", None, "rest=None: it is"),
    ("report", "file.txt", "report='file.txt': it is a function"),
    ("strict", 1, "strict=1: it is True or False"),
    ("strict", "yes", "strict='yes': it is True or False"),
    ("strict", None, "strict=None: it is True or False"),
    ("threads", "2", "threads='2': give a whole number from 1 to 4096, or None"),
    ("threads", 0, "threads=0: give a whole number"),
    ("threads", -1, "threads=-1: give a whole number"),
    ("threads", 10**9, "threads=1000000000: give a whole number"),
    ("threads", 2.0, "threads=2.0: give a whole number"),
    ("threads", True, "threads=True: give a whole number"),
    ("target", "h1000", "target='h1000': no target 'h1000'; known: host, avx2"),
    ("target", 3, "target=3: it is the name of a target"),
    ("schedule", "foo", "schedule='foo': `foo`: write name=value, for example tile_m=128 .what can be given: tile_m, "),
    ("schedule", "tile_m=8,tile_m=9", "tile_m is given twice"),
    ("schedule", "tiles=8", "a schedule has no 'tiles'; what can be given: tile_m"),
    ("schedule", {"tile_m": True}, "tile_m=True: it is a whole number of at least 1"),
    ("schedule", {"tile_m": float("inf")}, "tile_m=inf: it is a whole number of at least 1"),
    ("schedule", {"tile_m": 4, "rows": 8}, "rows 8 is more than tile_m 4"),
    ("schedule", "order=kv_major,kv_split=2", "kv_split 2 under kv_major"),
    ("schedule", {"residency": {"score_frag": "global"}}, "the score matrix would be stored"),
    ("schedule", {"residency": "shared"}, "residency='shared': write a mapping"),
    ("schedule", {"residency": {"K_tile": ["shared"]}}, "it is one of global, shared, register"),
    ("schedule", {"order": ["q_major"]}, r"order=\['q_major'\]: it is one of"),
    ("schedule", {3: 4}, "a schedule has no 3; what can be given"),
    ("schedule", ["tile_m=8"], "schedule is a list: give decisions, as"),
    ("schedule", CHOSEN, "schedule is a Schedule: give decisions, as"),
    ("thread", 2, r"unknown option thread \(did you mean threads\?\): the options are fuse, require, rest, schedule"),
    (3, 4, "unknown option 3: the options are"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_option_is_told_before_anything_runs(name: str, value: Any, message: str, qkv: tuple[Tensor, ...]) -> None:
    ran: list[int] = []

    def counted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ran.append(1)
        return attention(q, k, v)

    if name in ("fuse", "require", "strict", "threads", "target", "schedule"):
        with pytest.raises(ValueError, match=message):
            aicf.compile(counted, **{name: value})
    with pytest.raises(ValueError, match=message):
        aicf.explain(counted, *qkv, options={name: value})
    made = torch.compile(counted, backend="aicf", options={name: value})
    with pytest.raises(ValueError, match=message) as raised:
        made(*qkv)
    assert "TORCHDYNAMO" not in str(raised.value) and ran == []


def test_options_are_given_by_name(qkv: tuple[Tensor, ...]) -> None:
    for options in ("fuse=always", ["fuse"], 3):
        with pytest.raises(ValueError, match=r"options=.*: give them by name"):
            aicf.explain(attention, *qkv, options=options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"threads": np.int64(2)},
        {"threads": None, "target": None, "schedule": None, "require": None},
        {"schedule": ""},
        {"schedule": {"tile_m": np.int32(32), "residency.K_tile": "shared"}},
        {"schedule": "tile_m=32,tile_n=32,order=q_major", "target": "host"},
    ],
)
def test_a_good_option_streams(options: dict[str, Any], qkv: tuple[Tensor, ...]) -> None:
    given: dict[str, Any] = {"fuse": "always", "require": "streamed", **options}
    fast = aicf.compile(attention, **given)
    torch.testing.assert_close(fast(*qkv), attention(*qkv), rtol=1e-5, atol=1e-5)


def test_a_schedule_that_does_not_suit_a_problem_is_blamed_itself(qkv: tuple[Tensor, ...]) -> None:
    (r,) = aicf.explain(attention, *qkv, options={"schedule": "tile_k=8"}).regions
    assert r.status == "refused"
    assert r.reason.startswith("the schedule that was given cannot be used here: tile_k=8: a score needs its whole contraction")


def test_not_streamed_is_itself_under_torch_compile(qkv: tuple[Tensor, ...]) -> None:
    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhij,hg->bgij", q @ k.mT, torch.eye(3) + 0.1).softmax(-1) @ v

    with pytest.raises(aicf.NotStreamed, match="1 attention does not stream") as raised:
        torch.compile(mixed, backend="aicf", options={"require": "streamed"})(*qkv)
    assert len(raised.value.regions) == 1 and "TORCHDYNAMO" not in str(raised.value)
