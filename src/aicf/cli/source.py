"""FILE.py:FUNCTION -> the Python object.

model.py:attention          a function
model.py:Block              a class of a module, made without arguments and put into eval mode
model.py:model.layers[0]    no: only dotted names; write a function that returns what you mean
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from aicf.cli.errors import CommandError
from aicf.cli.silence import users_prints_dropped


def load_callable(spec: str) -> Callable[..., Any]:
    """The function or module that `spec` names. Raises CommandError when there is no such file or name, or importing it fails."""
    path, name = split(spec)
    module = import_file(path)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise CommandError(f"{path} has no {name!r}{_near(part, callables(value))}; it has: {_listing(callables(value))}")
        value = getattr(value, part)
    if isinstance(value, type):
        try:
            with users_prints_dropped():
                value = value()
        except Exception as e:
            raise CommandError(
                f"{spec} is a class that cannot be made without arguments ({type(e).__name__}: {e}). "
                "Write a function that makes the object and calls it, and name that"
            ) from e
        if callable(getattr(value, "eval", None)):
            value.eval()
    if not callable(value):
        raise CommandError(f"{spec} is a {type(value).__name__}, which cannot be called; name a function or a module")
    return value


def split(spec: str) -> tuple[Path, str]:
    """FILE.py:FUNCTION in its two parts."""
    file, colon, name = spec.rpartition(":")
    if not colon or not name or "/" in name or "\\" in name:
        path = Path(spec if not colon or "/" in name or "\\" in name else file)
        if path.suffix == ".py":
            must_exist(path)
        if path.is_file():
            raise CommandError(f"say which function of {path}: {path}:FUNCTION. It has: {_listing(callables(import_file(path)))}")
        raise CommandError(f"{spec!r} does not name a function; write FILE.py:FUNCTION")
    return Path(file), name


def must_exist(path: Path) -> None:
    """Raises CommandError, with what was looked for where, when there is no file `path`."""
    if path.is_file():
        return
    folder = path.parent
    others = [p.name for p in folder.glob("*.py")] if folder.is_dir() else []
    looked = f"in {folder.resolve()}" if folder.is_dir() else f"(there is no folder {folder} either)"
    raise CommandError(f"there is no file {path.name} {looked}{_near(path.name, others)}")


def import_file(path: Path) -> ModuleType:
    """The module in the file `path`, imported with its own folder on the path as Python does for scripts."""
    must_exist(path)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Before running it, as imports do: dataclasses and pickling look their module up there.
    sys.modules[name] = module
    try:
        with users_prints_dropped():
            spec.loader.exec_module(module)
    except Exception as e:
        del sys.modules[name]
        raise CommandError(f"{path} cannot be imported: {where(e, path)}{type(e).__name__}: {e}") from e
    return module


def where(error: BaseException, path: Path | None) -> str:
    """`line 12, scores = q @ k: ` for the innermost frame of `error` that lies in `path`; empty when none does."""
    if path is None:
        return ""
    file = str(path.resolve())
    frames = [f for f in traceback.extract_tb(error.__traceback__) if str(Path(f.filename).resolve()) == file]
    if not frames:
        return ""
    return f"line {frames[-1].lineno}, `{frames[-1].line}`: "


def callables(owner: object) -> list[str]:
    """Public functions and classes that `owner` defines itself, in the order of the source."""
    names = [n for n in vars(owner) if not n.startswith("_")]
    home = owner.__name__ if isinstance(owner, ModuleType) else None
    own: list[str] = []
    for n in names:
        value = getattr(owner, n)
        if (inspect.isroutine(value) or isinstance(value, type)) and home in (None, getattr(value, "__module__", None)):
            own.append(n)
    return own


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _listing(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "no functions"
