"""The options of the backend, checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal

import torch

from aicf.driver import Options
from aicf.report import GraphReport

Rest = Literal["auto", "inductor", "eager", "explain"]
OPTIONS = frozenset({"fuse", "require", "target", "schedule", "threads", "strict", "rest"})


@dataclass(frozen=True)
class BackendOptions:
    """The options of the backend: those of the driver, `require` ("streamed": raise NotStreamed when something is not), `rest`
    (what runs everything else; "explain" runs the graph unchanged) and `report` (called with a GraphReport for every graph)."""

    driver: Options = field(default_factory=Options)
    require: Literal["streamed"] | None = None
    rest: Rest = "auto"
    report: Callable[[GraphReport], None] | None = None


def unknown_options(unknown: Collection[Any], known: Collection[str]) -> str:
    """What is said of options that do not exist: the nearest one that does, and all."""
    near = {x: get_close_matches(str(x), known, n=1) for x in unknown}
    said = ", ".join(f"{x} (did you mean {n[0]}?)" if n else str(x) for x, n in near.items())
    return f"unknown option{'s' if len(near) > 1 else ''} {said}: the options are {', '.join(sorted(known))}"


def backend_options(options: Mapping[str, Any] | None) -> BackendOptions:
    """`options` of torch.compile, checked. Raises ValueError naming the option and what it takes."""
    if options is not None and not isinstance(options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f'options={options!r}: give them by name, as options={{"fuse": "always"}}')
    given = dict(options or {})
    require: Any = given.pop("require", None)
    rest: Any = given.pop("rest", "auto")
    report: Any = given.pop("report", None)
    called: object = report
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        raise ValueError(unknown_options(unknown, OPTIONS))
    if not (require is None or (isinstance(require, str) and require == "streamed")):
        raise ValueError(f'require={require!r}: it is None or "streamed" (raise NotStreamed when an attention does not stream)')
    if not (isinstance(rest, str) and rest in ("auto", "inductor", "eager", "explain")):
        raise ValueError(f'rest={rest!r}: it is "auto", "inductor" or "eager"')
    if not (called is None or callable(called)):
        raise ValueError(f"report={report!r}: it is a function that is called with a GraphReport, or None")
    driver = Options(**given)
    if driver.threads is None:
        driver = replace(driver, threads=torch.get_num_threads())
    return BackendOptions(driver, require, rest, report)
