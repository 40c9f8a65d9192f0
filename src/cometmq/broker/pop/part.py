# cython: annotation_typing=False
"""What the handlers of pops, acknowledgements and notifications have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.core import Core
    from cometmq.broker.durability.wait import DurabilityWait
    from cometmq.broker.pop.config import PopSettings
    from cometmq.broker.pop.held_pops import HeldPops
    from cometmq.broker.pop.orders import Orders
    from cometmq.broker.pop.revive_log import ReviveLog


class PopState(NamedTuple):
    """What requests of pop consumption read and change."""

    core: Core
    check_points: ReviveLog
    """What is in flight."""
    orders: Orders
    """The ordered pops."""
    held: HeldPops
    """The held pops; some wait for a queue that is blocked."""
    durability: DurabilityWait
    """What responses wait for."""
    settings: Callable[[], PopSettings]
    """Returns the current settings."""
    access: AccessControl | None
    """Checks pops again that have waited, if accounts have changed meanwhile."""
    changed: Callable[[], object]
    """Called when check points were added."""


class PopPart:
    """A part of pop consumption that handles requests.

    Args:
        state: what it shares with the others.
    """

    def __init__(self, state: PopState) -> None:
        self._core = core = state.core
        self._store = core.store
        self._reader = core.store.reader
        self._topics = core.topics
        self._offsets = core.offsets
        self._clock = core.clock
        self._role = core.role
        self._log = state.check_points
        self._orders = state.orders
        self._held = state.held
        self._durability = state.durability
        self._changed = state.changed
