"""Objects that are started and closed, best by ``async with``.

Source: ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    """Starts when ``async with`` is entered and closes when it is left."""

    @abstractmethod
    async def start(self) -> None:
        """Make it ready for use."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; further calls do nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
