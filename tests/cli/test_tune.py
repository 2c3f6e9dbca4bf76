"""`aicf tune`: what it prints and keeps. Sizes are tiny; which schedule wins is not looked at."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from aicf.bench.cases import CASES, Size, make_inputs
from aicf.bench.search import distinct, sites
from aicf.cli.main import main
from aicf.cli.tune import verdict
from aicf.frontends.torch import api
from aicf.schedule import grid
from tests.contract import assert_contract

MODEL = Path(__file__).parent / "model.py"
TINY = ["--size", "1x2x40x16", "--threads", "1", "--seconds", "0"]


@pytest.fixture(autouse=True)
def small_and_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and a grid that compiles in seconds."""
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(grid, "TILES_M", (1, 4))
    monkeypatch.setattr(grid, "TILES_N", (1, 2))
    monkeypatch.setattr(grid, "BLOCKS", (1,))


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["tune", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_search_prints_ranks_and_is_used_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "trials.json"
    code, out, err = run(capsys, "causal", *TINY, "--top", "2", "--json", str(file))
    assert code == 0, err
    data: dict[str, Any] = json.loads(file.read_text())[0]
    assert data["problem"] == "causal 1x2x40x16 f32, 1 thread"
    seconds = [t["seconds"] for t in data["trials"]]
    assert seconds == sorted(seconds) and data["model"] in [t["schedule"] for t in data["trials"]]
    assert re.search(rf"\n {{4}}1 .* {re.escape(data['trials'][0]['schedule'])}", out) and "<- the cost model's choice" in out
    assert "kept: later compilations of this problem use the first" in out
    (stored,) = (tmp_path / "cache").rglob("*.schedule")
    assert f"\n  in    {stored}\n" in out and "aicf cache clear --schedules" in out

    case = next(c for c in CASES if c.name == "causal")
    tensors = list(make_inputs(case, Size(1, 2, 40, 16), torch.float32).values())
    with torch.no_grad():
        report = api.explained(case.plain, {"fuse": "always", "threads": 1}, *tensors)
        got = api.compile(case.plain, fuse="always", threads=1)(*tensors)
        exact = case.plain(*(t.double() for t in tensors))
    (schedule,) = [r.schedule for r in report.regions]
    assert schedule is not None and schedule.name == "tuned" and schedule.brief == data["trials"][0]["schedule"]
    assert f"tuned: the fastest of {len(seconds)} measured" in str(report)
    assert_contract(got, case.plain(*tensors), exact, "f32")


def test_a_dry_run_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, f"{MODEL}:attention", *TINY, "--dry-run")
    assert code == 0 and "not kept (--dry-run)" in out
    assert not list((tmp_path / "cache").rglob("*.schedule"))


def test_a_kept_schedule_is_undone_as_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case = next(c for c in CASES if c.name == "dense")

    def chosen() -> str:
        tensors = make_inputs(case, Size(1, 2, 40, 16), torch.float32).values()
        with torch.no_grad():
            (region,) = api.explained(case.plain, {"fuse": "always", "threads": 1}, *tensors).regions
        return "" if region.schedule is None else region.schedule.name

    run(capsys, "dense", *TINY)
    assert chosen() == "tuned"
    assert main(["cache", "clear", "--schedules"]) == 0
    assert chosen() == "chosen"


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    unwritable = f"not kept: the cache folder {blocked} cannot be written"
    for value, said in ((str(blocked), unwritable), ("", "not kept: there is no cache folder")):
        monkeypatch.setenv("AICF_CACHE_DIR", value)
        code, out, _ = run(capsys, "dense", *TINY)
        assert code == 0 and said in out


def test_what_does_not_stream_is_said(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, f"{MODEL}:over_queries", *TINY)
    assert code == 1 and "nothing streams in it, so there is no schedule to tune" in err
    assert "in 0 of 0 problems" in out


def test_layers_that_are_alike_are_tuned_once():
    def twice(q: Any, k: Any, v: Any) -> Any:
        once = (q @ k.mT).softmax(-1) @ v
        return (once @ k.mT).softmax(-1) @ v

    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    found = sites(twice, [q, k, v], 1)
    assert [len(s.inputs) for s in found] == [3, 3] and len(distinct(found)) == 1
    # The second attention reads what the first one made.
    assert any(torch.equal(x, (q @ k.mT).softmax(-1) @ v) or torch.equal(x, found[0].outputs[0]) for x in found[1].inputs)


def test_the_verdict_counts_what_is_within_ten_percent():
    assert verdict([1.0, 1.1, 1.11, 2.0]) == "the cost model's choice is within 10% of the best in 2 of 4 problems (50%)"
