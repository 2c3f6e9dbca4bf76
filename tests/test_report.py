"""The report as people and programs read it: text, brief, HTML, JSON, pickled."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

import aicf

N = 1024
GPU_WORDS = re.compile(r"\b(warps?|shared|SMs?|HBM|global)\b")


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return (q @ k.mT * 0.125).masked_fill(~keep, -torch.inf).softmax(-1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A mask of which nothing is known before a call."""
    return (q @ k.mT).masked_fill(~MASK, -torch.inf).softmax(-1) @ v


MASK = torch.ones(N, N, dtype=torch.bool).tril()


def layers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    for _ in range(3):
        q = (q @ k.mT).softmax(-1) @ v
    return q


def talking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhij,hg->bgij", q @ k.mT, torch.eye(2) + 0.1).softmax(-1) @ v


def broken(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = causal(q, k, v)
    torch._dynamo.graph_break()
    return talking(q, k, v)


def none(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q + k * v


FUNCTIONS = [causal, masked, layers, talking, broken, none]


def explained(fn: Callable[..., Any], **options: Any) -> aicf.Report:
    q, k, v = (torch.randn(1, 2, N, 16) for _ in range(3))
    with torch.no_grad():
        return aicf.explain(fn, q, k, v, options={"fuse": "always", "threads": 2, **options})


@pytest.fixture(scope="module")
def reports() -> dict[str, aicf.Report]:
    return {fn.__name__: explained(fn) for fn in FUNCTIONS}


NAMES = [fn.__name__ for fn in FUNCTIONS]


@pytest.mark.parametrize("name", NAMES)
def test_repr_is_one_short_line(name: str, reports: dict[str, aicf.Report]):
    report = reports[name]
    assert repr(report) == f"<aicf Report: {report.summary}>" and len(repr(report)) < 160
    assert all("\n" not in repr(x) and len(repr(x)) < 160 for x in (*report.graphs, *report.regions))


@pytest.mark.parametrize("name", NAMES)
def test_plain_values_are_json_and_say_what_the_report_says(name: str, reports: dict[str, aicf.Report]):
    report = reports[name]
    data = json.loads(report.to_json())
    assert data == json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [(r["name"], r["status"], r["reason"]) for r in data["regions"]] == [
        (r.name, r.status, r.reason) for r in report.regions
    ]
    assert len(data["graphs"]) == len(report.graphs) and data["breaks"] == report.breaks
    for said, r in zip(data["regions"], report.regions, strict=True):
        assert said["bytes_unfused"] == r.bytes_unfused and said["mask"] == r.mask
        assert (said["schedule"] is not None) == (r.status == "streamed")
        if r.status == "streamed":
            assert said["moved_unfused"] > said["moved_streamed"] > 0 and said["predicted_seconds"] > 0
            assert said["source"]["file"] == __file__ and said["source"]["line"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_pickled_report_says_the_same(name: str, reports: dict[str, aicf.Report]):
    report = reports[name]
    again = pickle.loads(pickle.dumps(report))
    assert isinstance(again, aicf.Report)
    for said in (str, repr, aicf.Report.brief, aicf.Report.to_json, aicf.Report._repr_html_):
        assert said(again) == said(report)
    if report.regions:
        for stage in ("semantic", "kernel"):
            with pytest.raises(ValueError, match=r"dump (it|them) where the report is made|nothing streams"):
                again.dump(stage)


class Cells(HTMLParser):
    """The rows of a table, and the tags that were left open."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.mark.parametrize("name", NAMES)
def test_html_is_a_table_of_what_is_alike(name: str, reports: dict[str, aicf.Report]):
    report = reports[name]
    cells = Cells()
    cells.feed(report._repr_html_())
    assert cells.open == []
    rows = cells.rows[1:]
    lines = report.brief().splitlines()
    assert [row[2] for row in rows] == [re.split(r"[:;] ", line)[1] for line in lines[len(lines) - len(rows) :]]
    assert bool(rows) == bool(report.regions)


def test_html_escapes_what_users_named():
    report = explained(none)
    report.breaks.append("<script>alert(1)</script> & more")
    assert "<script>" not in report._repr_html_() and "&lt;script&gt;" in report._repr_html_()


def test_brief_is_a_line_for_each_kind(reports: dict[str, aicf.Report]):
    head, line = reports["layers"].brief().splitlines()
    assert head == "3 attentions in 1 graph: 3 streamed"
    assert re.fullmatch(
        r"\w+ … \w+ \(3 alike\) \(test_report.py:\d+\): streamed; no mask; [\d.]+ MiB of scores before, "
        r"[\d.]+ [KM]iB of tiles after \(2 threads\)",
        line,
    )
    head, cut, streamed, refused = reports["broken"].brief().splitlines()
    assert cut.startswith("graph break: ") and ": streamed; causal; " in streamed and ": refused; " in refused


@pytest.mark.parametrize("name", NAMES)
def test_a_report_for_a_cpu_speaks_of_cpus(name: str, reports: dict[str, aicf.Report]):
    for text in (str(reports[name]), reports[name].brief()):
        assert not GPU_WORDS.search(text), GPU_WORDS.search(text)


@pytest.mark.parametrize("target", ["avx2", "h100"])
def test_a_reduction_without_values_has_no_words_of_attention(target: str):
    def reduced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x @ w.mT, -1)

    given = torch.zeros(256, 64), torch.zeros(16384, 64)
    report = aicf.explain(reduced, *given, options={"fuse": "always", "target": target})
    said = f"{report}\n{report.regions[0].schedule}".replace("kv_split", "").replace("kv_major", "").replace("q_major", "")
    words = set(re.findall(r"[A-Za-z_]+", said))
    attention = {"query", "queries", "key", "keys", "value", "values", "Q_tile", "K_tile", "V_tile", "K", "V", "sequence"}
    assert words.isdisjoint(attention)


def test_a_report_for_a_gpu_speaks_of_gpus():
    text = str(explained(causal, target="h100"))
    (run_by,) = re.findall(r"run by +(.*)", text)
    assert "shared memory: " in text and "device memory before" in text and "warps" in run_by and "thread" not in run_by


@pytest.mark.parametrize("name", ["causal", "masked", "layers"])
def test_there_is_one_predicted_time(name: str, reports: dict[str, aicf.Report]):
    """Two of them under different assumptions would contradict each other."""
    text = str(reports[name])
    (region, *_) = reports[name].regions
    times = re.findall(r"[\d.]+ (?:ms|us|s)\b", text)
    assert len(times) == 2 * text.count("predicted to take"), times
    assert f"why        {region.reason}" in text
    assert (" if the mask hides nothing" in text) == (name == "masked")


def test_memory_is_said_before_and_after(reports: dict[str, aicf.Report]):
    text = str(reports["causal"])
    assert re.search(r"memory     16\.0 MiB of scores before, [\d.]+ [KM]iB of tiles after \(2 threads\)", text)
    before = r"between cores and memory or cache before, when each operation reads and writes the scores"
    assert re.search(rf"moved      [\d.]+ MiB {before}; [\d.]+ [KM]iB after", text)
    assert "memory     16.0 MiB of scores, unfused" in str(reports["talking"])
