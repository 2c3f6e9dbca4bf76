"""The pages of docs/ hold: their code runs in order and prints what stands below it, their tables are those of the code, their
links lead somewhere. `./dev docs` brings a page up to date; read what it changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.blocks import PageFault, blocks, current
from docs.generate import pages
from docs.reference import PARTS, SEMANTIC, with_parts
from tests.tracked import ROOT

STALE = "{} is not up to date: run ./dev docs {}"
PAGES = pages()


def by_name(page: Path) -> str:
    return page.stem


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_code_prints_what_the_page_says(page: Path):
    try:
        now = current(page)
    except PageFault as fault:
        missing = re.search(r"No module named '(torch|triton|llvmlite)", str(fault))
        if missing is None:
            raise
        pytest.skip(f"needs {missing[1]}")
    assert page.read_text() == now, STALE.format(page.name, page.stem)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_tables_are_those_of_the_code(page: Path):
    assert page.read_text() == with_parts(page.read_text(), PARTS), STALE.format(page.name, page.stem)


def test_every_part_of_the_reference_stands_on_a_page():
    used = {name for p in PAGES for name in re.findall(r"<!-- generated: ([\w-]+) -->", p.read_text())}
    assert used == set(PARTS)


def test_every_op_is_described():
    assert "" not in SEMANTIC.values()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"], ids=by_name)
def test_links_lead_somewhere(page: Path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if target.startswith("http"):
            continue
        file = page if not target else page.parent / target
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file.read_text()), f"{page.name}: {target}#{anchor}"


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings have."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=by_name)
def test_files_that_are_named_exist(page: Path):
    """`streaming/derive.py`, `docs/mcir.md`, `backends/llvm/codegen/`: below the root, src/aicf or the page's folder."""
    text = page.read_text()
    for block in reversed(blocks(text)):
        text = text[: block.fence] + text[block.end :]
    text = re.sub(r"<!-- generated.*?<!-- end -->", "", text, flags=re.DOTALL)
    for name in re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]+)?)`", text):
        assert any((base / name).exists() for base in (ROOT, ROOT / "src" / "aicf", page.parent)), f"{page.name}: {name}"


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    assert {p.name for p in PAGES} - {"README.md"} == set(re.findall(r"\]\(([\w-]+\.md)\)", index))
