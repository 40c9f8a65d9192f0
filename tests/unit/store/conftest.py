from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.store import MessageStore
from cometmq.system.clock import ManualClock
from support.stores import opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_store(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[..., MessageStore]]:
    """Opens the store below the test's directory, with changed settings; closes it at the end."""
    stores: list[MessageStore] = []

    def open_it(**changes: Any) -> MessageStore:
        store = opened(tmp_path, clock=clock, **changes)
        stores.append(store)
        return store

    yield open_it
    for store in stores:
        store.abandon()


@pytest.fixture
def store(open_store: Callable[..., MessageStore]) -> MessageStore:
    return open_store()
