"""Collects the garbage of simulated processes that were killed, whose clients nothing closes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def collected() -> Iterator[None]:
    """Collect it here at the end, lest pytest does and fails for the warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
