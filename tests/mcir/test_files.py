"""The tests that are files (`files/*.mcir`): each says what is expected of its module. To add one, add a file; see
`aicf.filetests`. AICF_UPDATE_GOLDEN=1 writes the kernels that files hold, to be reviewed like code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aicf.cli.main import main
from aicf.filetests import Failed, FileTest, FileTestError, check, lowered, read
from aicf.kernel import print_kernel

FILES = sorted((Path(__file__).parent / "files").glob("*.mcir"))
CAUSAL = Path(__file__).parent / "files" / "causal_avx2.mcir"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file(path: Path):
    test = read(path)
    if os.environ.get("AICF_UPDATE_GOLDEN") == "1" and test.kernel is not None:
        before, mark, _ = path.read_text().partition("; kernel\n")
        path.write_text(before + mark + print_kernel(lowered(test)[1]))
        test = read(path)
    assert check(test)


def changed(old: str, new: str) -> FileTest:
    test = read(CAUSAL)
    assert old in test.text
    return FileTest(test.text.replace(old, new), test.kernel, None, test.sizes, test.runs)


def test_a_file_fails_where_its_module_is_another_one():
    with pytest.raises(Failed, match="the kernel is another one"):
        check(changed("0.35", "0.36"))
    with pytest.raises(Failed, match="the module prints otherwise"):
        check(changed("phases: tiles", "phases:  tiles"))
    test = read(CAUSAL)
    test.fault = "nothing is wrong with it"
    with pytest.raises(Failed, match="the module is accepted"):
        check(test)


def test_a_line_that_says_nothing_is_told(tmp_path: Path):
    path = tmp_path / "x.mcir"
    path.write_text("; runs: N=3\n")
    with pytest.raises(FileTestError, match=r"x.mcir:1: '; runs: N=3'; such a line begins with"):
        read(path)
    path.write_text("; run: N=three\n")
    with pytest.raises(FileTestError, match="'N=three' is no size; write N=128"):
        read(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", str(CAUSAL)]) == 0
    assert "causal_avx2.mcir: the text is the module; its kernel is the file's;" in capsys.readouterr().out
    specification = CAUSAL.with_name("specification_causal.mcir")
    assert main(["run", str(specification), "--size", "N=20", "--size", "M=30", "--kernel"]) == 0
    assert "kernel aicf_scaled_dot_product_attention_masked" in capsys.readouterr().out
    assert main(["run", str(specification), "--size", "N=20", "--size", "M=30", "--size", "n=3"]) == 1
    assert "no size in the shapes of the module's tensors is called n: they are " in capsys.readouterr().err
    path = tmp_path / "broken.mcir"
    path.write_text(CAUSAL.read_text().replace("tile_m=16", "tile_m=17"))
    assert main(["run", str(path)]) == 1
    assert "the phases were proved for tiles of 16 x 8, but tiles are 17 x 8" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "none.mcir")]) == 1
    assert "there is no file" in capsys.readouterr().err
