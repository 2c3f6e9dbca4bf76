"""Brings the documentation up to date: the language references from their tables, and what the pages' code prints.

    ./dev docs              all pages
    ./dev docs journey      those whose name has the word

Read the difference (`git diff docs`) as you would read code: it is what the change does to what people see.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.blocks import current
from docs.reference import PARTS, with_parts

FOLDER = Path(__file__).parent


def pages() -> list[Path]:
    """All pages, in order of their names."""
    return sorted(FOLDER.glob("*.md"))


def main(words: list[str]) -> None:
    """Writes the pages whose names have one of `words`; all without words."""
    for page in pages():
        if words and not any(w in page.name for w in words):
            continue
        old = page.read_text()
        page.write_text(with_parts(old, PARTS))
        page.write_text(current(page))
        print(f"{page.name}: {'changed' if page.read_text() != old else 'as it was'}")


if __name__ == "__main__":
    main(sys.argv[1:])
