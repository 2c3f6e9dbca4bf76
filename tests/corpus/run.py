"""The corpus runner: tiny random models of many architectures, eager against AICF, as a table and as JSON.

    python -m tests.corpus.run [name …] [--attention sdpa] [--batch 3] [--length 21] [--padding left] [--dtype bf16] [--json FILE]

The models are those of tests/corpus/models.py. `--models` (or the environment variable AICF_TINY_MODELS) is another Python file
with `build(name) -> (module, inputs)`, which gets what is given of attention, batch, length, padding and dtype. Names are given
or read from a file, by default tests/corpus/architectures.txt. Each architecture runs in a process of its own, with a limit on
time and memory. The exit code is 1 when a result is wrong, something crashes, or less than 97 % of the blocks stream.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.corpus.measure import measure

HERE = Path(__file__).parent
ASKED = 0.97
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
COLUMNS = ("blocks", "streamed", "declined", "refused", "missed", "graphs")


def main(arguments: list[str] | None = None) -> int:
    """The command line; see the module."""
    p = argparse.ArgumentParser(prog="tests.corpus.run", description=__doc__.splitlines()[0] if __doc__ else None)
    p.add_argument("names", nargs="*", help="architectures (default: those of --names)")
    p.add_argument("--models", default=os.environ.get("AICF_TINY_MODELS", str(HERE / "models.py")), help="file with build(name)")
    p.add_argument("--names", dest="file", default=str(HERE / "architectures.txt"), help="text file of architectures")
    p.add_argument("--attention", choices=("eager", "sdpa"), help="implementation that transformers runs")
    p.add_argument("--batch", type=int)
    p.add_argument("--length", type=int, help="of text")
    p.add_argument("--padding", choices=("right", "left", "none"), help="side of the padding in the last row")
    p.add_argument("--dtype", choices=tuple(TYPES))
    p.add_argument("--json", help="where to write all results")
    p.add_argument("--seconds", type=int, default=180, help="limit per architecture")
    p.add_argument("--gigabytes", type=int, default=14, help="limit of address space per architecture")
    given = p.parse_args(arguments)
    if not Path(given.models).is_file():
        p.error(f"there is no file {given.models}")
    names = given.names or Path(given.file).read_text().split()
    form = {k: getattr(given, k) for k in ("attention", "batch", "length", "padding") if getattr(given, k) is not None}
    if given.dtype:
        form["dtype"] = TYPES[given.dtype]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # before forking: threads don't come along
    builder(given.models)  # its imports, and the compiler's own, are paid for once
    measure(torch.nn.Linear(4, 4), {"input": torch.ones(2, 4)})
    results: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(names):
        start = time.perf_counter()
        results[name] = apart(given.models, name, form, given.seconds, given.gigabytes)
        print(f"{k + 1:3d}/{len(names)} {_line(name, results[name])}  {time.perf_counter() - start:.0f} s", flush=True)
        if given.json:
            Path(given.json).write_text(json.dumps(results, indent=1) + "\n")
    return _summary(results)


def apart(models: str, name: str, form: Mapping[str, Any], seconds: int, gigabytes: int) -> dict[str, Any]:
    """`one` in a process of its own; what goes wrong is the entry `crash`."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    limit = gigabytes << 30

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            sender.send(one(models, name, form))
        except BaseException as e:
            sender.send({"crash": f"{type(e).__name__}: {e}"[:2000], "trace": traceback.format_exc()[-6000:]})

    process = context.Process(target=child)
    process.start()
    sender.close()  # so that the end of the child is seen as the end of the pipe
    try:
        return receiver.recv() if receiver.poll(seconds) else {"crash": f"took more than {seconds} s"}
    except EOFError:
        process.join()
        return {"crash": f"the process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def one(models: str, name: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Builds and measures one architecture; the entry `skipped` says why it cannot be built here."""
    torch.set_num_threads(1)
    try:
        model, inputs = builder(models)(name, **form)
    except Exception as e:
        return {"skipped": f"cannot be built here: {e}"[:400]}
    return measure(model, inputs).as_json()


def builder(path: str) -> Callable[..., tuple[torch.nn.Module, Mapping[str, Any]]]:
    """The function `build` of a Python file, loaded once."""
    module = sys.modules.get("tiny_models")
    if module is None:
        spec = importlib.util.spec_from_file_location("tiny_models", path)
        assert spec is not None and spec.loader is not None
        module = sys.modules["tiny_models"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.build


# ------------------------------------------------------------------------------------------------ tables


def _line(name: str, r: dict[str, Any]) -> str:
    for kind in ("crash", "skipped"):
        if kind in r:
            return f"{name:28s} {kind.upper()} {r[kind][:160]}"
    counts = "  ".join(f"{c} {r[c]}" for c in COLUMNS)
    state = "WRONG" if r["wrong"] else "ok   "
    return f"{name:28s} {state} {counts}  error {r['max_error']:.1e} (eager {r['eager_error']:.1e})"


def _summary(results: dict[str, dict[str, Any]]) -> int:
    ran = {n: r for n, r in results.items() if "blocks" in r}
    total = {c: sum(r[c] for r in ran.values()) for c in COLUMNS}
    print()
    for name, r in results.items():
        notes = [f"wrong: {r['wrong']}"] if r.get("wrong") else []
        notes += [f"{kind}: {r[kind]}" for kind in ("crash", "skipped") if kind in r]
        for kind in ("reasons", "others", "problems"):
            items = r.get(kind, [])
            head = "" if kind == "reasons" else f"{kind}: "
            notes += [f"{head}{x}" + (f" ({items.count(x)} times)" if items.count(x) > 1 else "") for x in dict.fromkeys(items)]
        for note in notes:
            print(f"{name}: {note}")
    share = total["streamed"] / total["blocks"] if total["blocks"] else 1.0
    wrong = [n for n, r in ran.items() if r["wrong"]]
    crashed = [n for n, r in results.items() if "crash" in r]
    print()
    print(f"{len(results)} architectures, {len(ran)} ran: " + ", ".join(f"{total[c]} {c}" for c in COLUMNS))
    print(f"streamed {100 * share:.1f} % of the blocks (asked: {100 * ASKED:.0f} %)")
    print(f"wrong results: {', '.join(wrong) or 'none'}; crashes: {', '.join(crashed) or 'none'}")
    return 1 if wrong or crashed or share < ASKED else 0


if __name__ == "__main__":
    sys.exit(main())
