"""The committed offsets, and the requests and jobs for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.offsets.handler import OffsetHandler
from cometmq.broker.offsets.queue_bounds import QueueBoundsHandler
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.static_topics.offsets import OffsetRequests
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job

if TYPE_CHECKING:
    from cometmq.broker.forwarding import Forwarding
    from cometmq.broker.offsets.reset import ResetHandler
    from cometmq.broker.static_topics.feature import StaticTopicsFeature


FIRST_PERSIST_S = 10.0


class OffsetsFeature(BrokerFeature):
    """Keeps the committed offsets.

    Args:
        core: of the broker.
        forwarding: forwards commits to the elected master; None without a controller.
        static_topics: the brokers of the items of logical queues.
    """

    def __init__(
        self, core: Core, forwarding: Forwarding | None, static_topics: StaticTopicsFeature
    ) -> None:
        super().__init__(core)
        self._forwarding = forwarding
        self._handler = OffsetHandler(core)
        self.logical = OffsetRequests(core, static_topics.brokers, self._handler.commit)
        """The offsets of logical queues."""

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of committed offsets, resets and the bounds of queues."""
        core = self._core
        offsets, bounds, logical = self._handler, QueueBoundsHandler(core), self.logical
        query = logical.query(with_prerequisites(offsets.query))
        commit = logical.commit(offsets.update)
        if self._forwarding is not None:
            from cometmq.broker.offsets.forwarded_commits import ForwardedCommits

            query = self._forwarding.wrap(query, unreached=query)
            commit = ForwardedCommits(commit, self._forwarding).handle

        @Deferred
        def reset() -> ResetHandler:
            from cometmq.broker.offsets.reset import ResetHandler

            return ResetHandler(core)

        return Feature(
            {
                RequestCode.QUERY_CONSUMER_OFFSET: query,
                RequestCode.UPDATE_CONSUMER_OFFSET: commit,
                RequestCode.GET_ALL_CONSUMER_OFFSET: exclusive(offsets.all),
                RequestCode.CLONE_GROUP_OFFSET: exclusive(offsets.clone),
                RequestCode.QUERY_CORRECTION_OFFSET: exclusive(offsets.correction),
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: exclusive(logical.search(bounds.search)),
                RequestCode.GET_MAX_OFFSET: logical.max_offset(bounds.max_offset),
                RequestCode.GET_MIN_OFFSET: logical.min_offset(bounds.min_offset),
                RequestCode.GET_EARLIEST_MSG_STORETIME: exclusive(
                    logical.earliest_time(bounds.earliest_time)
                ),
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset.exclusive(lambda h: h.reset),
            },
            _jobs(core),
        )

    async def before_sends(self) -> None:
        """Correct offsets that the log of a new master does not have."""
        await self._core.offsets.correct(self._core.store.next_offset)

    def before_truncation(self, log_end: int) -> None:
        """Move offsets back that count messages which are about to be truncated."""
        store = self._core.store

        def ends(topic: str, queue_id: int) -> tuple[int, int]:
            end = store.end_at(topic, queue_id, log_end)
            return end, store.next_offset(topic, queue_id)

        self._core.offsets.take_back(ends)
        self._core.persist_offsets()  # also what was moved before a truncation that was refused

    def save(self) -> None:
        """Write the committed offsets."""
        self._core.persist_offsets()


def _jobs(core: Core) -> list[Job]:
    """The write of committed offsets to their file."""
    return [
        Job(
            "persist-consumer-offsets",
            lambda: core.settings().flush_consumer_offset_interval_ms / 1000,
            core.persist_offsets,
            first_s=FIRST_PERSIST_S,
            blocking=True,
        )
    ]
