"""`aicf run FILE.mcir`: a module in MCIR's text, verified, lowered, and executed on random inputs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from aicf.cli.errors import OK, CommandError
from aicf.filetests import Failed, FileTestError, check, lowered, read, size
from aicf.kernel import print_kernel


def run(options: Namespace) -> int:
    """Runs the test that a file is, and prints what was found; the kernel too with --kernel."""
    path = Path(options.file)
    if not path.is_file():
        raise CommandError(f"there is no file {path}")
    try:
        test = read(path)
        if options.size:
            test.sizes, test.runs = {**test.sizes, **dict(map(size, options.size))}, True
        if options.kernel:
            print(print_kernel(lowered(test)[1]), end="")
        print(f"{path.name}: {check(test)}")
    except (FileTestError, Failed, ValueError) as wrong:
        raise CommandError(f"{path.name}: {wrong}") from None
    return OK
