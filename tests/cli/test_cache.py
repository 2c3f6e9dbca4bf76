"""`aicf cache`: where, how much, and gone; `aicf --version`."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import aicf
from aicf.cli.main import main
from aicf.runtime import cache
from aicf.version import VERSION

SRC = Path(aicf.__file__).parent


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_path_is_the_folder_alone(root: Path, capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "cache", "path") == (0, f"{root}\n", "")


def test_size_counts_kernels_and_schedules(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("AICF_CACHE_LIMIT", "500M")
    assert run(capsys, "cache", "size")[1].splitlines()[1] == "holds    0 kernels and 0 tuned schedules, 0 B"
    for name in ("a", "b"):
        cache.write(cache.key_of(name), bytes(1000))
    cache.write(cache.key_of("c"), b"{}", "schedule")
    code, out, _ = run(capsys, "cache", "size")
    assert code == 0
    assert out.splitlines() == [
        f"folder   {root}", "holds    2 kernels and 1 tuned schedule, 2.1 KiB", "limit    500 MiB (AICF_CACHE_LIMIT)",
    ]  # fmt: skip


def test_clear_deletes_what_is_asked_for(root: Path, capsys: pytest.CaptureFixture[str]):
    cache.write(cache.key_of("a"), bytes(1000))
    cache.write(cache.key_of("c"), b"{}", "schedule")
    assert run(capsys, "cache", "clear", "--schedules")[1].startswith("deleted 0 kernels and 1 tuned schedule, ")
    assert run(capsys, "cache", "size")[1].splitlines()[1].startswith("holds    1 kernel and 0 tuned schedules, ")
    assert run(capsys, "cache", "clear")[1].startswith("deleted 1 kernel and 0 tuned schedules, ")
    assert not list(root.rglob("*.o"))


def test_without_a_cache_that_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("AICF_CACHE_DIR", "")
    for action in ("path", "size", "clear"):
        code, out, err = run(capsys, "cache", action)
        assert (code, out) == (0, "") and "there is no disk cache: AICF_CACHE_DIR is set to nothing" in err


def test_what_is_only_for_clear_is_said(capsys: pytest.CaptureFixture[str]):
    code, _, err = run(capsys, "cache", "size", "--kernels")
    assert code == 1 and "choose what `aicf cache clear` deletes" in err


def test_it_does_not_wait_for_torch():
    probe = "import sys; from aicf.cli.main import main; main(['cache', 'size']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_the_version_is_said_everywhere_alike(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"aicf {VERSION}\n"
    assert aicf.__version__ == VERSION and "__version__" in dir(aicf)
    try:
        assert importlib.metadata.version("aicf") == VERSION
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is on the path, not installed")


def test_the_package_says_that_it_is_typed():
    assert (SRC / "py.typed").is_file()
