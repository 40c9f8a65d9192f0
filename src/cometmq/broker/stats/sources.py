"""The sources of statistics and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from cometmq.broker.core import Core
    from cometmq.broker.delay.delivery import ScheduledDelivery
    from cometmq.broker.durability.group_commit import GroupCommit
    from cometmq.broker.failover.elected_role import ElectedRole
    from cometmq.broker.pop.feature import PopFeature
    from cometmq.broker.producer_sessions.sessions import ProducerSessions, SessionUsage
    from cometmq.broker.registration.name_servers import Registration
    from cometmq.broker.replication.master import Master
    from cometmq.broker.replication.slave import LogCopy
    from cometmq.broker.static_topics.brokers import ItemBrokers
    from cometmq.broker.stats.group_lag import GroupLags
    from cometmq.broker.stats.runtime_info import RuntimeInfo
    from cometmq.broker.timers.feature import TimersFeature
    from cometmq.broker.transactions.half_queue import HalfQueue
    from cometmq.remoting.features import Deferred


MASTER_SILENT_S: Final = 20.0
"""A master that a slave has not heard for so long is gone: it sends every 5 seconds."""


class Sources(msgspec.Struct, frozen=True):
    """The parts of a broker that statistics and metrics are read from."""

    core: Core
    commit: GroupCommit
    delay: ScheduledDelivery
    timers: TimersFeature
    half_queue: HalfQueue
    master: Master
    log_copy: Deferred[LogCopy]
    elected: ElectedRole | None
    producer_sessions: Deferred[ProducerSessions]
    item_brokers: ItemBrokers
    pop: PopFeature
    registration: Registration

    def lags(self) -> GroupLags:
        """Make what returns the lags of groups."""
        from cometmq.broker.stats.group_lag import GroupLags

        return GroupLags(self.core)

    def runtime(self, booted_ms: int) -> RuntimeInfo:
        """Make the table of runtime information."""
        from cometmq.broker.stats.runtime_info import DelayLevelOffsets, RuntimeInfo

        made = RuntimeInfo(
            self.core,
            waiting_sends=lambda: (len(self.commit), self.commit.oldest_age_s()),
            delay_levels=lambda: {
                level: DelayLevelOffsets(*ends) for level, ends in self.delay.progress().items()
            },
            timers=self.timers.figures,
            half_messages=self.half_queue.figures,
            sessions=self._session_usage,
            refusal=self._refusal,
            booted_ms=booted_ms,
        )
        made.pop = self.pop.figures
        return made

    def unready(self) -> str:
        """Return why this broker does not do what its role demands; empty if it does.

        A master accepts sends. A slave copies the log, and with a controller it may be elected.
        """
        if refusal := self._refusal():
            return refusal
        if not self.registration.known:
            return "no name server knows this broker"
        if not self.core.role.is_slave:
            return "" if self.core.role.in_force.is_set() else "the role is not in force yet"
        if not self.log_copy.get().hears_master(MASTER_SILENT_S):
            return "the master sends nothing"
        if self.elected is None or self.elected.is_in_sync or self._is_learner:
            return ""
        return "this slave is not in the in-sync set"

    @property
    def _is_learner(self) -> bool:
        return self.core.settings().async_learner

    def _session_usage(self) -> SessionUsage | None:
        sessions = self.producer_sessions.made()
        return None if sessions is None else sessions.usage()

    def _refusal(self) -> str:
        """Return why sends are refused until the broker's state changes; empty if they are not."""
        if (failure := self.core.store.failure) is not None:
            return f"the store refuses messages until a restart: {failure}"
        acknowledgements = self.master.acknowledgements
        refusal = acknowledgements.fenced or acknowledgements.refusal
        if refusal is not None:
            return refusal.remark
        if self.elected is not None and not self.elected.decided.is_set():
            return "the controllers have not decided the role of this broker since its start"
        return ""
