"""Garbage collection in a server process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from cometmq.cli.serve import NEW_OBJECTS_MIN, collect_old, collect_old_rarely


@pytest.fixture
def full_collections() -> Iterator[list[str]]:
    """Those that began, with the thresholds of a new process."""
    before, seen = gc.get_threshold(), list[str]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(phase)

    gc.collect()
    gc.set_threshold(700, 10, 10)
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.set_threshold(*before)


def test_a_server_looks_at_all_its_objects_after_many_new_ones(full_collections: list[str]) -> None:
    collect_old_rarely()
    new: list[list[int]] = [[] for _ in range(NEW_OBJECTS_MIN // 2)]
    collect_old()
    assert full_collections == []
    new += [[] for _ in range(NEW_OBJECTS_MIN)]
    assert full_collections == []  # only when its time has come
    collect_old()
    collect_old()
    is_needed = sys.version_info < (3, 14)  # which collects the old objects in small steps
    assert len(full_collections) == is_needed
