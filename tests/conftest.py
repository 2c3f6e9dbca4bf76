"""Fixtures that every test may use, and one seed for all random numbers."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

SEED = 0


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random state, whichever tests ran before it."""
    random.seed(SEED)
    np.random.seed(SEED)
    # Only where a test module has already paid for the import.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(SEED)


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded NumPy generator."""
    return np.random.default_rng(SEED)
