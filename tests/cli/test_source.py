"""FILE.py:FUNCTION: what is found, and what is said when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from aicf.cli.errors import CommandError
from aicf.cli.source import load_callable, where

MODEL = Path(__file__).parent / "model.py"


def message(spec: str) -> str:
    with pytest.raises(CommandError) as caught:
        load_callable(spec)
    return str(caught.value)


def test_functions_classes_and_dotted_names():
    assert getattr(load_callable(f"{MODEL}:attention"), "__name__", "") == "attention"
    block = load_callable(f"{MODEL}:Block")
    assert not getattr(block, "training", True)
    assert load_callable(f"{MODEL}:Block.forward")


def test_missing_file(tmp_path: Path):
    (tmp_path / "model.py").write_text("")
    assert message(f"{tmp_path}/modle.py:f") == f"there is no file modle.py in {tmp_path} (did you mean 'model.py'?)"
    assert message("nowhere/at_all.py:f") == "there is no file at_all.py (there is no folder nowhere either)"


def test_missing_function_lists_what_there_is():
    text = message(f"{MODEL}:atention")
    assert text.startswith(
        f"{MODEL} has no 'atention' (did you mean 'attention'?); it has: attention, over_queries, no_attention"
    )
    assert "nn" not in text.split("it has: ")[1]


def test_no_function_named():
    assert message(str(MODEL)).startswith(f"say which function of {MODEL}: {MODEL}:FUNCTION. It has: attention, ")
    assert message("model") == "'model' does not name a function; write FILE.py:FUNCTION"


def test_what_cannot_be_called_or_made():
    assert message(f"{MODEL}:TEMPERATURE").endswith("is a float, which cannot be called; name a function or a module")
    assert "is a class that cannot be made without arguments (TypeError: " in message(f"{MODEL}:Sized")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\ny = undefined\n", "line 2, `y = undefined`: NameError: name 'undefined' is not defined"),
        ("def f(:\n", "SyntaxError: "),
        ("import no_such_package_here\n", "line 1, `import no_such_package_here`: ModuleNotFoundError: "),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, text: str, expected: str):
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert message(f"{path}:f").startswith(f"{path} cannot be imported: {expected}")


def test_not_a_python_file(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("f")
    assert message(f"{path}:f") == f"{path} is not a Python file; its name must end in .py"


def test_imports_beside_the_file_work(tmp_path: Path):
    (tmp_path / "helper_of_the_test.py").write_text("def g():\n    return 7\n")
    (tmp_path / "user.py").write_text("from helper_of_the_test import g\n\ndef f():\n    return g()\n")
    assert load_callable(f"{tmp_path}/user.py:f")() == 7


def test_where_names_the_innermost_line_of_the_file(tmp_path: Path):
    path = tmp_path / "deep.py"
    path.write_text("def inner():\n    return 1 / 0\n\ndef outer():\n    return inner()\n")
    with pytest.raises(ZeroDivisionError) as caught:
        load_callable(f"{path}:outer")()
    assert where(caught.value, path) == "line 2, `return 1 / 0`: "
    assert where(caught.value, tmp_path / "other.py") == ""
