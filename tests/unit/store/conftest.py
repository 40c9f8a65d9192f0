"""A store in a temporary folder with a clock of the test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cometmq.store import MessageStore
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import no_open_stores, opened

__all__ = ["no_open_stores"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_store(tmp_path: Path, clock: ManualClock) -> Callable[..., MessageStore]:
    """Opens the store below the test's directory, with changed settings."""
    return partial(opened, tmp_path, clock=clock)


@pytest.fixture
def store(open_store: Callable[..., MessageStore]) -> MessageStore:
    return open_store()
