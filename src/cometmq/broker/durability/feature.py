"""Builds the group commit and the wait for slaves, and follows the role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cometmq.broker.core import Core
from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.life import BrokerFeature, all_of
from cometmq.model.errors import ResponseError
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.broker.durability.acknowledgements import Acknowledgements

SLAVES_S = 2.0
"""How long a stop waits for slaves to have what was sent."""


class DurabilityFeature(BrokerFeature):
    """Syncs the log, and lets responses wait for the disk and for slaves.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        stored = core.configuration[StoreSettings]
        self.commit = GroupCommit(core.store, timeout_s=stored.sync_flush_timeout_ms / 1000)
        self.synced_by = self.commit if stored.sync_flush else None
        """The group commit before an acknowledgement; None with asynchronous flush."""
        self.wait = DurabilityWait(self.synced_by)
        """The wait of responses to stored messages."""
        self._slaves: Acknowledgements | None = None
        self._wait_confirmed: Callable[[], Awaitable[object]] | None = None

    def add_slaves(
        self, slaves: Acknowledgements, wait_confirmed: Callable[[], Awaitable[object]] | None
    ) -> None:
        """Let responses wait for slaves, too.

        Args:
            slaves: their acknowledgements.
            wait_confirmed: returns when they have all that the log of a new master has; None if
                none of it can be truncated.
        """
        self._slaves = slaves
        self._wait_confirmed = wait_confirmed
        self.wait.add_slaves(slaves)

    def refusal(self) -> ResponseError | None:
        """Return why too few replicas would have a message that is stored now, or None."""
        return self.wait.refusal

    def on_refusal(self, listener: Callable[[ResponseError | None], object]) -> None:
        """Call a function with the reason when sends that wait for slaves are refused or not."""
        if (slaves := self._slaves) is not None:
            slaves.on_refusal = lambda: listener(slaves.refusal)

    async def start(self) -> None:
        """Let sends wait for syncs."""
        self.commit.start()

    async def take_over(self) -> None:
        """Wait until what the log has is confirmed: what features do now reads it."""
        if self._wait_confirmed is not None:
            await self._wait_confirmed()

    async def drain(self) -> None:
        """Respond to the sends that wait."""
        endings = [self.commit.stop()]
        if self._slaves is not None:
            endings.append(self._slaves.stop(SLAVES_S))
        await all_of(endings)
