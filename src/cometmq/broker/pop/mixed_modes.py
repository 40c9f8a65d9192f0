"""Groups that read a topic in two modes."""

from __future__ import annotations

from typing import Final

MIXED_MS: Final = 600_000
"""For how long it is shown that a group has mixed pulls and pops."""
MIXED_MAX: Final = 100


class MixedModes:
    """Groups of which some members pull a topic while others pop it."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, str], int] = {}
        """Group and topic, and when that was seen last; the latest at the end."""

    def note(self, group: str, topic: str, now_ms: int) -> None:
        """Note that a group has pulled messages of a queue between two pops."""
        self._noted.pop((group, topic), None)
        self._noted[group, topic] = now_ms
        if len(self._noted) > MIXED_MAX:
            del self._noted[next(iter(self._noted))]

    def found(self, now_ms: int) -> list[tuple[str, str]]:
        """Return those of the last minutes."""
        return [key for key, noted_ms in self._noted.items() if now_ms - noted_ms <= MIXED_MS]
