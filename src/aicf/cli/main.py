"""The entry point: parse, load the command's module, run it, say errors in words.

Exit codes: 0 done, 1 it could not be done (the last line of standard error says why), 2 the command was not understood,
3 --require-streamed and something was not streamed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from aicf.backends.manifest import stages
from aicf.cli.errors import FAILED, OK, CommandError
from aicf.cli.progress import say
from aicf.cli.source import must_exist, split
from aicf.version import VERSION

_EXAMPLES = """\
examples:
  aicf explain model.py:attention --shape q=2x8x512x64 --shape k=2x8x512x64 --shape v=2x8x512x64
  aicf explain model.py:Block --inputs make_inputs --brief
  aicf dump mcir model.py:attention --inputs make_inputs
  aicf dump kernel model.py:attention --inputs make_inputs --diff mcir
  aicf explain model.py:attention --inputs make_inputs --target h100 --stage triton --stage ptx --stage sass
  aicf dump triton model.py:attention --inputs make_inputs --target h100
  aicf run module.mcir --size N=128 --size M=128
  aicf targets
  aicf bench causal window --n 2048 --json rows.json --chart rows.svg
  aicf tune causal --n 2048
  aicf cache size
"""

_CACHE_HELP = """\
environment variables:
  AICF_CACHE_DIR      the folder; set to nothing, there is no disk cache (XDG_CACHE_HOME/aicf, else ~/.cache/aicf)
  AICF_CACHE_LIMIT    the most that it keeps: 500M, 2G, a number of bytes, or none (1G)
When a compilation makes it larger than that, the kernels used longest ago are deleted, then the schedules.
"""

_BENCH_HELP = """\
Without names, all built-in cases run, at 512 tokens of float32 with heads of 64. Each of --n, --d, --dtype and --threads
may be repeated. A long run is kept in a file and can be stopped and resumed:
  aicf bench --all --json rows.json --resume
  aicf bench --json rows.json --report --chart rows.svg
"""

_TUNE_HELP = """\
Every legal schedule of a problem (tiles, register blocks, order, cut keys) is compiled and timed. The fastest is kept in the
disk cache, for the same computation at sizes of about that (to the nearest power of two) on this machine with as many threads.
It says in which file. Undo: delete that file, or all of them by `aicf cache clear --schedules`.
  aicf tune causal --n 2048 --threads 2
  aicf tune model.py:attention --size 1x8x1024x64
"""

_RUN_HELP = """\
The file may begin with lines that say what is expected of it:
  ; run: N=37 M=45        execute it with these sizes, on random inputs, tile by tile; its kernel must give the same
  ; fault: tile_k is 32   it is refused, with these words
and end with a line `; kernel` and the kernel that it must lower to. Names of sizes are those in the shapes of its tensors.
"""

_FUNCTION_HELP = """\
inputs:
  --shape q=2x8x512x64        a random float32 tensor for parameter q; once per tensor
  --shape q=2x8x512x64:bf16   of another type (f16 bf16 f32 f64 i8 i16 i32 i64 u8 bool)
  --value causal=True         a Python literal for a parameter that is no tensor
  --inputs make_inputs        a function of the same file that returns a tuple of arguments or a dict of named ones:
                                def make_inputs():
                                    return tuple(torch.randn(2, 8, 512, 64) for _ in range(3))
What the file itself prints is not shown.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = parser().parse_args(argv)
    try:
        if hasattr(options, "function"):
            must_exist(split(options.function)[0])  # before PyTorch is imported, which takes seconds
        code = importlib.import_module(f"aicf.cli.{options.command}").run(options)
        sys.stdout.flush()
        return code
    except CommandError as e:
        _trace(options)
        say(f"error: {e}")
    except ModuleNotFoundError as e:
        package = (e.name or "").split(".")[0]
        if package not in _EXTRAS:
            raise
        _trace(options)
        say(f"error: this command needs {package}, which is not installed: pip install 'aicf[{_EXTRAS[package]}]'")
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough; what Python still flushes at exit must go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return FAILED


_EXTRAS = {"torch": "torch", "llvmlite": "cpu", "triton": "gpu", "onnx": "onnx", "matplotlib": "bench"}


def _trace(options: argparse.Namespace) -> None:
    if options.traceback:
        traceback.print_exc()


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    root = argparse.ArgumentParser(
        prog="aicf",
        description="Derives FlashAttention-like kernels from plain PyTorch code, and shows how.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"aicf {VERSION}")
    add = root.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser

    explain = _command(add, "explain", "what becomes of each attention in a function, and why", _FUNCTION_HELP)
    _function(explain)
    explain.add_argument(
        "--require-streamed", action="store_true", help="exit with 3 unless attention was found and all of it streams"
    )
    form = explain.add_mutually_exclusive_group()
    form.add_argument("--brief", action="store_true", help="one line for each kind of region")
    form.add_argument("--json", action="store_true", help="the report as JSON, for scripts")
    explain.add_argument(
        "--stage", action="append", default=[], choices=stages(), metavar="STAGE",
        help="also print a stage of the compilation; once per stage: " + ", ".join(stages()),
    )  # fmt: skip

    dump = _command(add, "dump", "the text of one stage of the compilation", _FUNCTION_HELP)
    dump.add_argument("stage", choices=stages(), help="which stage: " + ", ".join(stages()), metavar="STAGE")
    _function(dump)
    dump.add_argument("--diff", metavar="PREV", help="show a unified diff from this stage or pass to STAGE")

    run = _command(add, "run", "verify, lower and execute a module written in MCIR's own text", _RUN_HELP)
    run.add_argument("file", metavar="FILE.mcir", help="the verbose dump of a module (aicf dump mcir), or a text written by hand")
    run.add_argument("--size", action="append", default=[], metavar="NAME=N", help="execute it with this value of a size symbol")
    run.add_argument("--kernel", action="store_true", help="print the kernel that the module lowers to")

    _command(add, "targets", "what kernels are made for on this machine", "")

    cache = _command(add, "cache", "compiled kernels and tuned schedules on disk: where, how much, delete", _CACHE_HELP)
    cache.add_argument(
        "action", choices=("path", "size", "clear"), metavar="{path,size,clear}",
        help="print the folder; what is in it; delete what is in it",
    )  # fmt: skip
    only = cache.add_mutually_exclusive_group()
    only.add_argument("--kernels", action="store_true", help="clear: only compiled kernels")
    only.add_argument("--schedules", action="store_true", help="clear: only what `aicf tune` found")

    bench = _command(
        add,
        "bench",
        "time compiled kernels beside eager, torch.compile, SDPA and Flex Attention, interleaved, best of many",
        _BENCH_HELP,
    )
    _rows(bench)
    bench.add_argument("--contenders", metavar="A,B,…", help="some of eager, compile, sdpa, flex, aicf (all)")
    bench.add_argument("--seconds", type=float, default=3.0, help="seconds of timing per row, shared by all contenders (3)")
    bench.add_argument("--fuse", choices=("auto", "always"), default="auto", help="whether the cost model may decline (auto)")
    bench.add_argument("--json", metavar="FILE", help="write the rows here, after each row")
    bench.add_argument("--resume", action="store_true", help="keep the rows that are in the file, and measure the missing ones")
    bench.add_argument("--report", action="store_true", help="measure nothing: show the rows of the file")
    bench.add_argument("--chart", metavar="FILE.svg", help="draw the ratios (needs Matplotlib: pip install 'aicf[bench]')")
    bench.add_argument("--list", action="store_true", help="list the built-in cases")

    tune = _command(add, "tune", "find the fastest schedule by trying all, and keep it for later compilations", _TUNE_HELP)
    _rows(tune)
    tune.add_argument(
        "--seconds", type=float, default=3.0,
        help="seconds of timing all schedules; as long again those within 50%% of the fastest, then those within 15%% (3)",
    )  # fmt: skip
    tune.add_argument("--top", type=int, default=10, metavar="N", help="how many schedules to show (10)")
    tune.add_argument("--dry-run", action="store_true", help="keep nothing: only tell how good the cost model's choice is")
    tune.add_argument("--json", metavar="FILE", help="write all schedules and times here")
    return root


def _command(add: Callable[..., argparse.ArgumentParser], name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    command = add(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("--traceback", action="store_true", help="show where in Python an error came from")
    return command


def _rows(command: argparse.ArgumentParser) -> None:
    """Which cases, sizes, types and numbers of threads."""
    command.add_argument("case", nargs="*", help="built-in cases by name (aicf bench --list) or FILE.py:FUNCTION of q, k and v")
    command.add_argument("--n", type=int, action="append", default=[], help="tokens; may be repeated (512)")
    command.add_argument("--d", type=int, action="append", default=[], help="head size; may be repeated (64)")
    command.add_argument("--dtype", action="append", default=[], help="element type; may be repeated (f32)")
    command.add_argument("--threads", type=int, action="append", default=[], help="may be repeated (PyTorch's own number)")
    command.add_argument(
        "--size", action="append", default=[], metavar="BxHxNxD", help="batch, heads, tokens and head size; replaces --n and --d"
    )
    command.add_argument(
        "--all", action="store_true", help="all cases, sizes, types and thread counts that no other option narrows; takes hours"
    )


def _function(command: argparse.ArgumentParser) -> None:
    command.add_argument("function", metavar="FILE.py:FUNCTION", help="a function, or a module class made without arguments")
    command.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help="a random tensor for a parameter")
    command.add_argument("--value", action="append", default=[], metavar="NAME=LITERAL", help="a value for a parameter")
    command.add_argument("--inputs", metavar="FUNCTION", help="a function that returns the inputs")
    command.add_argument("--target", metavar="NAME", help="compile for another machine: a GPU (h100, mi300x) need not be here")
    command.add_argument(
        "--fuse",
        choices=("auto", "always"),
        default="auto",
        help="auto: stream where it is predicted to pay; always: wherever possible",
    )
    command.add_argument(
        "--strict", action="store_true", help="assume nothing about what a mask hides, as aicf.compile(..., strict=True)"
    )


if __name__ == "__main__":
    sys.exit(main())
