"""`aicf dump STAGE`: the text of one stage, or how it differs from another."""

from __future__ import annotations

import difflib
from argparse import Namespace

from aicf.cli.errors import OK
from aicf.cli.explain import make_report, stage_text


def run(options: Namespace) -> int:
    """Print a stage of options.function, or a unified diff from the stage of --diff to it."""
    report = make_report(options)
    texts: list[str] = []
    for stage in ([options.diff] if options.diff else []) + [options.stage]:
        texts.append(stage_text(report, stage))
    if not options.diff:
        print(texts[0])
        return OK
    before, after = texts
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), options.diff, options.stage, lineterm="")
    print("\n".join(lines) or f"{options.diff} and {options.stage} are the same text")
    return OK
