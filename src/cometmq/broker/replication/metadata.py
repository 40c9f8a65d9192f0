"""Copies the tables of the master to a slave: topics, groups, committed and schedule offsets.

    topics (21), groups (201)     replaced if the versions differ; with the topics come the
                                  mappings of static topics, which have a version of their own
    committed offsets (43)        merged: those of the master have precedence, none is removed
    schedule offsets (45)         replaced
    passed slots of timers (60)   replaced if they are later

Offsets are taken over when the log here has all that the log of the master had when they were read:
a committed offset counts a failed message as consumed, whose retry is stored before the commit.
Without that copy of the log, the retry, or a delayed message, would be lost with the master.

The first copy is made as soon as the address of the master is known, the next ones follow every ten
seconds. A table that cannot be copied does not prevent the others. If a controller elects masters,
a copy is also made soon after messages of a topic that is new here: this broker may have to serve
them at any time.

The number of timer messages is not copied: a slave counts them itself.

Source: SlaveSynchronize, RocketMQ 4.9 and 5.3. Request modes of pop consumption are copied by that
feature.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from cometmq.broker.replication.paged_tables import (
    GROUPS,
    OFFSETS,
    TOPICS,
    PagedTable,
    fetch_table,
    topics_page,
)
from cometmq.broker.timers.passed_slots import PassedSlots, fetch_passed
from cometmq.model.errors import CometError, ProtocolError
from cometmq.model.topic import MAPPING_QUEUE, MAPPING_TOPIC
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.bodies.common import KVTable
from cometmq.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
)
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import check
from cometmq.remoting.slices import decode
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.core import Core
    from cometmq.broker.delay.delivery import ScheduledDelivery
    from cometmq.broker.timers.delivery import TimerDelivery

log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
RETRY_S: Final = 3.0
UNKNOWN: Final = "unknown"
UNKNOWN_S: Final = 10.0
"""How long the master may be unknown to the name servers before that is logged, in seconds."""
TIMEOUT_S: Final = 5.0
"""Timeout of one request."""
LOG_END_KEY: Final = "commitLogMaxOffset"
"""The figure of a broker that says where its log ends."""

B = TypeVar("B", bound=Body)


class _Offsets(NamedTuple):
    """Offsets of the master that are taken over when the log here covers them."""

    committed: ConsumerOffsetSerializeWrapper
    schedule: DelayOffsetSerializeWrapper
    passed: PassedSlots
    """The slots of timers that the master has passed."""
    log_end: int
    """An end of the log that the schedule offsets cover."""
    master: str
    master_end: int
    """The end of the master's log after the tables were read."""


class MetadataCopy:
    """Keeps the tables of a slave equal to its master's.

    Args:
        core: of the broker; the copies go into its tables.
        delay: where the copy of the schedule offsets goes.
        timers: where the passed slots go.
        find_master: requests the master from the name servers, in the background.
    """

    def __init__(
        self,
        core: Core,
        delay: ScheduledDelivery,
        timers: TimerDelivery,
        find_master: Callable[[], None],
    ) -> None:
        self._core = core
        self._role = core.role
        self._delay = delay
        self._timers = timers
        self._copied_at = 0
        """The end of the log here at the last copy: RocketMQ had begun no later slot before."""
        self._find_master = find_master
        self._due_s = 0.0
        self._topic_count = 0
        """How many topics the store had when that was last looked at."""
        self._find_from_s = 0.0
        """When the master may be requested from the name servers again."""
        self._unknown_from_s: float | None = None
        """Since when the master is not known."""
        self._early_from_s: float | None = None
        """Since when the topics of the master are older than its election."""
        self._failures = FailureLog(
            log,
            fails="cannot copy tables, retrying",
            works="copying tables works again",
            name="master",
        )
        self._ahead: _Offsets | None = None
        """Offsets that are ahead of the log here."""
        core.role.on_master(self.master_changed)

    def master_changed(self) -> None:
        """Copy soon, perhaps from another master; call it after each change of the role."""
        self._ahead = self._early_from_s = None
        self.hurry()

    def hurry(self) -> None:
        """Copy the tables with the next call of `run`."""
        self._due_s = 0.0

    async def run(self) -> None:
        """Copy the tables if that is due; called every second."""
        now_s = self._core.clock.monotonic()
        master = self._role.master_address
        if not self._role.is_slave:
            return
        if not master:
            self._note_unknown(now_s)
            return
        if self._role.is_elected and self._has_new_topics():
            self.hurry()
        await self._take_offsets()
        if now_s < self._due_s:
            return
        self._failures.succeeded(UNKNOWN)
        self._due_s = now_s + INTERVAL_S
        problem = await self._copy_all(master)
        if problem is None:
            self._failures.succeeded(master)
            return
        self._failures.failed(master, problem)
        self._due_s = min(self._due_s, now_s + RETRY_S)
        if now_s >= self._find_from_s:  # a registration has all topics
            self._find_from_s = now_s + INTERVAL_S
            self._find_master()

    def _has_new_topics(self) -> bool:
        """Return whether the store has got messages of further topics."""
        before, self._topic_count = self._topic_count, self._core.store.topic_count
        return self._topic_count > before

    def _note_unknown(self, now_s: float) -> None:
        """Log once if no name server knows the master for a while."""
        if self._unknown_from_s is None:
            self._unknown_from_s = now_s
        elif now_s - self._unknown_from_s >= UNKNOWN_S:
            problem = "no name server knows a broker of this brokerName with brokerId=0"
            if self._role.is_elected:
                problem = "the controllers name no master"
            self._failures.failed(UNKNOWN, CometError(problem))

    async def _copy_all(self, master: str) -> Exception | None:
        """Copy each table; return the first problem, or None."""
        first: Exception | None = None
        for copy in (self._copy_topics, self._copy_groups, self._copy_offsets):
            try:
                await self._if_slave(copy, master)
            except (CometError, OSError) as problem:
                first = first or problem
        return first

    async def _if_slave(self, copy: Callable[[str], Awaitable[None]], master: str) -> None:
        if self._role.is_slave:  # it may change between two tables
            await copy(master)

    async def _fetch(self, master: str, code: int, kind: type[B]) -> B | None:
        """Request a table; None if this broker is not a slave of that master any more.

        Raises:
            CometError: the master does not respond, refuses, or responds with something else.
        """
        response = check(await self._core.client.call(master, code, timeout=TIMEOUT_S))
        found = await decode(kind, response.body)
        return found if self._follows(master) else None

    async def _fetch_table(self, master: str, table: PagedTable[B]) -> B | None:
        """Request a large table; None if this broker is not a slave of that master any more.

        Raises:
            CometError: the master does not respond, refuses, or responds with something else.
        """
        follows = partial(self._follows, master)
        return await fetch_table(self._core.client, master, table, follows, timeout=TIMEOUT_S)

    def _follows(self, master: str) -> bool:
        return self._role.is_slave and self._role.master_address == master

    async def _copy_topics(self, master: str) -> None:
        # The topics of all messages up to here are in the response, and all changes of mappings.
        log_end = self._core.store.written_to
        changes = self._core.store.next_offset(MAPPING_TOPIC, MAPPING_QUEUE)
        known = self._core.static_topics.version.encode().decode()
        header = partial(topics_page, mappings=known)
        found = await self._fetch_table(master, msgspec.structs.replace(TOPICS, header=header))
        if found is None:
            return
        if await self._core.topics.copy(found, log_end):
            log.info("copied topics master=%s topics=%d", master, len(found.topic_config_table))
        elif self._role.is_elected and self._core.topics.is_early(found.data_version):
            self._note_early(found.data_version.state_version)
            return
        self._early_from_s = None
        mappings = found.topic_queue_mapping_detail_map or {}
        version = found.mapping_data_version
        if await self._core.static_topics.copy(mappings, version, changes):
            log.info("copied static topics master=%s topics=%d", master, len(mappings))

    def _note_early(self, epoch: int) -> None:
        """Copy the topics of a master again soon that has not begun its epoch.

        Raises:
            CometError: it has not for a while.
        """
        self.hurry()
        now_s = self._core.clock.monotonic()
        if self._early_from_s is None:
            self._early_from_s = now_s
        elif now_s - self._early_from_s >= UNKNOWN_S:
            raise CometError(
                f"the topics of the master are those of epoch {epoch}, expected a newer one: that"
                " of its election"
            )

    async def _copy_groups(self, master: str) -> None:
        found = await self._fetch_table(master, GROUPS)
        if found is not None and await self._core.groups.copy(found, lambda: self._follows(master)):
            count = len(found.subscription_group_table)
            log.info("copied groups master=%s groups=%d", master, count)

    async def _copy_offsets(self, master: str) -> None:
        """Copy committed and schedule offsets, as soon as the log here covers them."""
        # Before the request: the schedule offsets cover all up to here.
        log_end = self._core.store.confirmed_to
        committed = await self._fetch_table(master, OFFSETS)
        if committed is None:
            return
        schedule = await self._fetch(
            master, RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetSerializeWrapper
        )
        if schedule is None:
            return
        if any(level < 0 or offset < 0 for level, offset in schedule.offset_table.items()):
            raise ProtocolError(
                f"met the schedule offsets {str(schedule.offset_table)[:80]}, expected 0 or more"
            )
        passed = await self._fetch_passed(master)
        info = await self._fetch(master, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)
        if info is None:
            return
        end = info.table.get(LOG_END_KEY, "")
        if not end.isdecimal():
            raise ProtocolError(f"met {LOG_END_KEY}={end[:20]!r}, expected the end of a log")
        if self._ahead is None:  # else newer ones would replace those that the log covers soon
            self._ahead = _Offsets(committed, schedule, passed, log_end, master, int(end))
            await self._take_offsets()

    async def _fetch_passed(self, master: str) -> PassedSlots:
        """Return which slots of timers the master has passed.

        Raises:
            CometError: the master does not respond, or responds with something else.
        """
        log_end, self._copied_at = self._copied_at, self._core.store.confirmed_to
        found = await fetch_passed(self._core.client, master, timeout=TIMEOUT_S)
        if not found.is_rocketmq:
            return found
        return found._replace(passed=found.passed._replace(log_offset=log_end))

    async def _take_offsets(self) -> None:
        ahead = self._ahead
        if ahead is None or self._core.store.confirmed_to < ahead.master_end:
            return
        self._ahead = None
        if self._follows(ahead.master):
            await self._timers.follow(*ahead.passed)
            self._delay.copy(
                ahead.schedule.offset_table, ahead.schedule.data_version, ahead.log_end
            )
            await self._core.offsets.copy(
                ahead.committed.offset_table,
                ahead.committed.data_version,
                lambda: self._follows(ahead.master),
            )
