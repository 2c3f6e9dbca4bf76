"""`aicf bench`: which rows it measures, what it prints, and what it keeps in a file. Sizes are tiny, times are not looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from aicf.bench.cases import Size
from aicf.cli.bench import parse_size, selected
from aicf.cli.main import main, parser

MODEL = Path(__file__).parent / "model.py"
# Two contenders that need no compiler; one round; the smallest sizes that make tiles.
QUICK = ["--contenders", "eager,aicf", "--seconds", "0", "--threads", "1", "--fuse", "always"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["bench", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def jobs(*argv: str) -> list[str]:
    return [str(job) for job in selected(parser().parse_args(["bench", *argv]))]


def test_a_selection_is_every_combination_small_sizes_first():
    assert jobs("dense", "gqa", "--n", "128", "--n", "8192", "--dtype", "bf16", "--threads", "1", "--threads", "2") == [
        "dense 4x8x128x64 bf16, 1 thread", "dense 4x8x128x64 bf16, 2 threads",
        "gqa 4x8x128x64 bf16, 1 thread", "gqa 4x8x128x64 bf16, 2 threads",
        "dense 1x2x8192x64 bf16, 1 thread", "dense 1x2x8192x64 bf16, 2 threads",
        "gqa 1x4x8192x64 bf16, 1 thread", "gqa 1x4x8192x64 bf16, 2 threads",
    ]  # fmt: skip


def test_decode_has_one_query_and_its_own_sizes_once():
    assert jobs("decode", "--n", "128", "--n", "512", "--threads", "1") == [
        "decode 1x8x8192x64 f32, 1 thread", "decode 16x8x8192x64 f32, 1 thread",
    ]  # fmt: skip


def test_the_whole_grid_has_every_case_size_type_and_thread_count():
    # 12 cases and the extra one without decode at 4 lengths, decode at 2 batches; 2 head sizes, 3 types, 2 thread counts.
    assert len(jobs("--all")) == (13 * 4 + 2) * 2 * 3 * 2


def test_a_size_replaces_lengths_and_widths():
    assert jobs("dense", "--size", "2x3x40x16", "--n", "64", "--threads", "1") == ["dense 2x3x40x16 f32, 1 thread"]
    assert parse_size("2,3,40,16") == Size(2, 3, 40, 16)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["casual"], "there is no case 'casual'; there are dense, causal, "),
        (["causal", "--size", "8x64"], "--size 8x64: write batch x heads x sequence x head size"),
        (["causal", "--dtype", "f12"], "--dtype f12: use one of f16, "),
        (["causal", "--contenders", "flash"], "--contenders flash: name some of eager, compile, sdpa, flex, aicf"),
        (["causal", "--threads", "0"], "--threads 0: it is at least 1"),
        (["causal", "--seconds", "-1"], "--seconds -1: it is at least 0"),
        (["causal", "--resume"], "--resume needs the file to resume: --json FILE"),
        (["gqa", "--size", "1x3x32x16"], "gqa shares each key head among 4 query heads; 3 cannot be grouped so"),
    ],
)
def test_refusals_in_words(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, *argv)
    assert code == 1 and words in err
    assert len(out.splitlines()) <= 1  # at most the heading


def test_a_row_per_case_and_size_then_legend_and_demands(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "causal", f"{MODEL}:attention", "--size", "1x2x64x16", "--size", "1x2x96x16", *QUICK)
    assert code == 0, err
    first = [line.split()[:4] for line in out.splitlines()[:5]]
    assert first == [
        ["case", "BxHxNxD", "type", "thr"],
        ["causal", "1x2x64x16", "f32", "1"], ["attention", "1x2x64x16", "f32", "1"],
        ["causal", "1x2x96x16", "f32", "1"], ["attention", "1x2x96x16", "f32", "1"],
    ]  # fmt: skip
    assert "eager:    the code as written" in out and "goal: geometric mean over the rows of" in out
    assert "aicf: 4 of 4: attention 1x2x96x16 f32, 1 thread" in err


def test_a_file_is_resumed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "rows.json"
    argv = ["--size", "1x2x64x16", *QUICK, "--json", str(file)]
    assert run(capsys, "dense", *argv)[0] == 0
    before: dict[str, Any] = json.loads(file.read_text())
    code, _, err = run(capsys, "dense", *argv)
    assert code == 1 and "exists already; --resume adds to it" in err

    code, out, err = run(capsys, "dense", "window", *argv, "--resume")
    assert code == 0 and "dense" not in err and "2 of 2: window" in err
    after: dict[str, Any] = json.loads(file.read_text())
    assert after["rows"][0] == before["rows"][0] and [r["case"] for r in after["rows"]] == ["dense", "window"]

    code, out, err = run(capsys, "--json", str(file), "--report")
    assert code == 0 and err == "" and [line.split()[0] for line in out.splitlines()[:3]] == ["case", "dense", "window"]
    # A contender that the file lacks is measured, with all others beside it.
    code, _, err = run(capsys, "dense", *argv, "--resume", "--contenders", "eager,sdpa,aicf")
    assert code == 0 and "1 of 1: dense" in err
    assert set(json.loads(file.read_text())["rows"][0]["entries"]) == {"eager", "sdpa", "aicf"}


@pytest.mark.parametrize(("text", "words"), [("{", "holds no benchmark rows"), ('{"format": 0}', "has rows of format 0")])
def test_a_file_of_another_kind_is_said_so(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "rows.json"
    file.write_text(text)
    code, out, err = run(capsys, "--json", str(file), "--report")
    assert code == 1 and out == "" and words in err


def test_a_chart_has_a_label_per_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("matplotlib")
    file = tmp_path / "rows.svg"
    assert run(capsys, "dense", "causal", "--size", "1x2x64x16", *QUICK, "--chart", str(file))[0] == 0
    text = file.read_text()
    assert text.startswith("<?xml") and "dense 1x2x64x16 f32, 1 thr" in text and "causal 1x2x64x16 f32, 1 thr" in text


def test_the_list_names_the_cases(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "--list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [
        "dense", "causal", "window", "documents", "alibi", "softcap", "prefix", "padding", "bias", "sink", "gqa", "differential",
        "decode", "sigmoid",
    ]  # fmt: skip


def test_a_function_that_takes_more_than_queries_keys_and_values(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "more.py").write_text("def f(q, k, v, bias):\n    return q\n")
    code, _, err = run(capsys, f"{tmp_path / 'more.py'}:f", *QUICK)
    assert code != 0 and "called with q, k and v" in err and "bias" in err
