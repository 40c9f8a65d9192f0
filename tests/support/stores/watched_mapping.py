"""A mapping that refuses each search that could crash CPython before 3.11.5."""

from __future__ import annotations

import mmap
from typing import Any


class WatchedMapping(mmap.mmap):
    """A mapping whose last byte no search may reach."""

    searches = 0

    def find(self, wanted: Any, start: int = 0, stop: int | None = None) -> int:
        type(self).searches += 1
        end = len(self) if stop is None else stop
        assert end < len(self), f"a search up to {end} of {len(self)} bytes"
        return super().find(wanted, start, end)

    def rfind(self, wanted: Any, start: int = 0, stop: int | None = None) -> int:
        raise AssertionError("a search from the end of a mapping")
