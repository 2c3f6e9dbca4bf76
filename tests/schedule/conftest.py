"""Golden texts: whole printed programs in files beside the tests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` is what the file golden/<name> beside the test holds.

    To accept new texts, run the tests with AICF_UPDATE_GOLDEN=1 in the environment, then review the diff like code.
    """

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if os.environ.get("AICF_UPDATE_GOLDEN") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} does not exist; run with AICF_UPDATE_GOLDEN=1 to write it"
        assert text == path.read_text()

    return compare
