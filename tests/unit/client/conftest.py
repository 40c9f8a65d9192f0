"""The scene that tests of consumer services share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest


@pytest.fixture
async def rigs(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Make objects of the class ``Rig`` of the test's module, and close them after the test."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(request.module.Rig(**options))
        return made[-1]

    yield make
    for rig in made:
        await rig.close()
