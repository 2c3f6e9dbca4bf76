"""docs/theory.md: its table of masks is what PyTorch computes, and the sections that comments cite are there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.tracked import ROOT, python_files

pytest.importorskip("torch")
import torch

PAGE = (ROOT / "docs" / "theory.md").read_text()
INF = float("inf")
LOWEST = torch.finfo(torch.float32).min
KEEP = torch.tensor([[True, False, True, False], [False, False, False, False]])  # some keys; none
SCORES = torch.tensor([[0.5, 2.0, -1.0, 0.25], [1.1, -2.3, 0.7, 2.9]])


def filled(value: float) -> torch.Tensor:
    return SCORES.masked_fill(~KEEP, value).softmax(-1)


def added(value: float, times: int = 1) -> torch.Tensor:
    bias = torch.zeros(KEEP.shape).masked_fill(~KEEP, value)
    return (SCORES + times * bias).softmax(-1)


def test_the_masked_keys_of_every_form_have_no_weight():
    forms = [filled(-INF), added(-INF), filled(LOWEST), filled(-1e9), added(-1e4), added(LOWEST, 2), SCORES.softmax(-1) * KEEP]
    for weights in forms:
        assert (weights[0][~KEEP[0]] == 0).all()
    # Multiplied afterwards, a key that is not kept still counts in the sum.
    assert (SCORES.softmax(-1) * KEEP)[0].sum() < 0.9 < filled(-INF)[0].sum()


@pytest.mark.parametrize(
    ("weights", "meaning"),
    [
        (filled(-INF), "NaN"),
        (added(-INF), "NaN"),
        (filled(LOWEST), "equal"),
        (filled(-1e9), "equal"),
        (added(-1e4), "raw"),
        (added(LOWEST, 2), "NaN"),
        (SCORES.softmax(-1) * KEEP, "zeros"),
    ],
)
def test_a_row_without_keys(weights: torch.Tensor, meaning: str):
    row = weights[1]
    raw = SCORES.softmax(-1)[1]
    means: dict[str, Callable[[], bool]] = {
        "NaN": lambda: bool(row.isnan().all()),
        "equal": lambda: bool((row == 0.25).all()),
        # Beside -1e4 a score is a multiple of 2^-10.
        "raw": lambda: bool((row / raw - 1).abs().max() < 2**-9) and not bool((row == raw).all()),
        "zeros": lambda: bool((row == 0).all()),
    }
    assert [name for name, holds in means.items() if holds()] == [meaning]


def test_scores_that_are_not_finite_are_replaced_or_stay():
    scores = SCORES.clone()
    scores[0, 1] = float("nan")  # at a masked key
    assert not scores.masked_fill(~KEEP, -INF).softmax(-1)[0].isnan().any()
    bias = torch.zeros(KEEP.shape).masked_fill(~KEEP, -INF)
    assert (scores + bias).softmax(-1)[0].isnan().all()


@pytest.mark.parametrize("kind", ["truth values", "-inf"])
def test_scaled_dot_product_attention(kind: str):
    q, k, v = torch.ones(1, 1, 2, 4), torch.arange(16.0).reshape(1, 1, 4, 4) / 16, torch.ones(1, 1, 4, 4)
    mask = KEEP[None, None] if kind == "truth values" else torch.zeros(1, 1, 2, 4).masked_fill(~KEEP, -INF)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert (attend(q, k, v, attn_mask=mask)[0, 0, 1] == 0).all()
    k[0, 0, 1] = float("nan")  # masked in both rows
    assert attend(q, k, v, attn_mask=mask)[0, 0, 0].isnan().all()


def test_a_weight_of_zero_still_multiplies_its_value():
    values = torch.ones(4, 2)
    values[1] = INF
    assert (filled(-INF)[0] @ values).isnan().all()


# ------------------------------------------------------------------------------------------------ citations

CITED = re.compile(r"docs/theory\.md,? (T\d|\d(?:\.\d)?)")
HEADINGS = set(re.findall(r"^#+ (\d(?:\.\d)?) ", PAGE, re.MULTILINE))
THEOREMS = set(re.findall(r"^\*\*(T\d), ", PAGE, re.MULTILINE)) | set(re.findall(r"^\*\*(T\d)\.\*\*", PAGE, re.MULTILINE))


def test_what_comments_cite_is_on_the_page():
    cited = {(p.name, m) for p in python_files(["src", "tests"]) for m in CITED.findall(p.read_text())}
    assert len({m for _, m in cited}) > 3
    assert {(file, m) for file, m in cited if m not in HEADINGS | THEOREMS} == set()


def test_theorems_are_cited_with_the_page():
    """A theorem or a section that is named without its page cannot be looked up."""
    loose = re.compile(r"theorem T\d|streaming\.md")
    where = [p.name for p in python_files(["src", "tests"]) if p.name != "test_theory.py" and loose.search(p.read_text())]
    assert where == []
