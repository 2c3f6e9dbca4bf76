"""`aicf explain`: what becomes of each attention in a function, and why."""

from __future__ import annotations

import time
from argparse import Namespace

from aicf.backends.manifest import named_target
from aicf.cli.errors import NOT_STREAMED, OK, CommandError
from aicf.cli.inputs import gather
from aicf.cli.progress import say
from aicf.cli.silence import users_prints_dropped
from aicf.cli.source import load_callable, split, where
from aicf.frontends.torch import api
from aicf.frontends.torch.diagnostics.call_errors import call_error, inference
from aicf.schedule.target import Target


def run(options: Namespace) -> int:
    """Print the report. NOT_STREAMED when --require-streamed and an attention was not streamed, or none was found."""
    if options.json and options.stage:
        raise CommandError("--json prints the report alone; `aicf dump STAGE` prints a stage")
    report = make_report(options)
    print((report.to_json() if options.json else report.brief() if options.brief else str(report)).rstrip("\n"))
    if not options.json and not options.brief:
        print_resources(report)
    for stage in options.stage:
        print(f"\n{stage}\n\n{stage_text(report, stage)}")
    if not options.require_streamed:
        return OK
    missed = [region for region in report.regions if region.status != "streamed"]
    if not report.regions:
        say("no attention was found, so nothing is streamed (--require-streamed)")
    elif missed:
        say(f"{len(missed)} of {len(report.regions)} {'is' if len(missed) == 1 else 'are'} not streamed (--require-streamed)")
    return OK if report.regions and not missed else NOT_STREAMED


def make_report(options: Namespace) -> api.Report:
    """The report on options.function with the inputs that the options give."""
    backend = {"fuse": options.fuse, "target": chosen(options.target), "strict": options.strict}
    fn = load_callable(options.function)
    inputs = gather(options, fn, options.function)
    say(f"compiling {options.function} for {inputs}")
    began = time.perf_counter()
    try:
        with inference(), users_prints_dropped():
            report = api.explained(fn, backend, *inputs.args, **dict(inputs.kwargs))
    except Exception as e:
        path, _ = split(options.function)
        # Dynamo wraps the user's own mistakes in pages of advice; a dry run tells them plainly.
        with users_prints_dropped():
            error = call_error(fn, inputs.args, dict(inputs.kwargs)) or e
        message = str(error).strip().split("\n\n")[0]
        raise CommandError(
            f"{options.function} failed with {inputs}: {where(error, path)}{type(error).__name__}: {message}"
        ) from e
    say(f"done in {time.perf_counter() - began:.1f} s")
    return report


def chosen(name: str | None) -> Target | None:
    """The target of that name. Raises CommandError with the known ones."""
    if name is None:
        return None
    try:
        return named_target(name)
    except KeyError as e:
        raise CommandError(str(e.args[0])) from e


def stage_text(report: api.Report, stage: str) -> str:
    """One stage of what streams. Raises CommandError where there is none."""
    try:
        return report.dump(stage).rstrip("\n")
    except (KeyError, ValueError) as e:
        raise CommandError(f"cannot dump {stage!r}: {e.args[0] if e.args else e}") from e


def print_resources(report: api.Report) -> None:
    """What each streamed region's GPU kernels take, compiled here without the GPU; regions that are alike once."""
    seen: dict[str, None] = {}
    for region in report.regions:
        if region.executable is not None and "resources" in region.executable.backend.stages:
            say(f"compiling {region.name} for {region.executable.machine.name}")
            try:
                seen.setdefault(region.dump("resources").rstrip("\n"))
            except ModuleNotFoundError as e:  # the report is whole without it
                if e.name != "triton":
                    raise
                say("its registers are not shown: that needs triton, which is not installed: pip install 'aicf[gpu]'")
                return
    for text in seen:
        print("\nresources\n" + "\n".join(f"  {line}" for line in text.splitlines()))
