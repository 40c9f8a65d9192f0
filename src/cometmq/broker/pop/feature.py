"""Pop consumption: its parts, and the requests and jobs for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.pop.config import REVIVE_QUEUES_MAX, PopSettings
from cometmq.model.errors import CometError
from cometmq.model.numbers import number_of
from cometmq.model.topic import RETRY_PREFIX, poppers_of, revive_topic
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Connection, Request, Response, Supervisor, check
from cometmq.remoting.features import Deferred, Feature, Routes
from cometmq.remoting.jobs import Job, every
from cometmq.remoting.slices import decode
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.forwarding import Forwarding
    from cometmq.broker.pop.parts import PopParts
    from cometmq.broker.pulling.feature import PullingFeature

log = logging.getLogger(__name__)

MAINTAIN_S: Final = 1.0
LOAD_RETRY_S: Final = 1.0
ORDERS_S: Final = 5.0
DROP_S: Final = 60.0
COPY_MODES_S: Final = 10.0
COPY_TIMEOUT_S: Final = 5.0


class PopFigures(NamedTuple):
    """What is in flight, and what has happened since the start, for metrics."""

    check_points: int = 0
    in_flight: int = 0
    """Messages that are popped and not acknowledged."""
    held: int = 0
    """Pops that wait for a message."""
    late_ms: int = 0
    """How late the last check point was revived."""
    acknowledged: int = 0
    revived: int = 0
    """Messages that were stored again."""
    dropped: int = 0
    """Messages that were gone when they were due."""
    check_points_max: int = 0
    """Pops find nothing if there are as many."""
    oldest_ms: int = 0
    """How long ago the oldest of the messages in flight was popped."""
    behind_ms: int = 0
    """How late the first message is that is visible again and not redelivered."""
    mixed: Sequence[tuple[str, str]] = ()
    """Groups and topics whose messages some members pull while others pop them."""


class PopFeature(BrokerFeature):
    """Delivers messages one by one, and redelivers those that are not acknowledged.

    Args:
        core: of the broker.
        durability: what acknowledgements wait for.
        pulling: notifies of messages.
        access: checks pops that have waited; None without access control.
        forwarding: forwards requests to the elected master; None without a controller.
        name_servers: returns the addresses of the name servers.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityFeature,
        pulling: PullingFeature,
        access: AccessControl | None,
        forwarding: Forwarding | None,
        name_servers: Callable[[], Iterable[str]],
    ) -> None:
        super().__init__(core)
        self._forwarding = forwarding
        self._durability = durability.wait
        self._arrivals = pulling.arrivals
        self._access = access
        self._name_servers = name_servers
        self._tasks = Supervisor("pop")
        self._store_host = b""
        self._is_ending = False
        self._topic = revive_topic(core.settings().broker_cluster_name)
        self._orders_file = core.table_file("consumerOrderInfo")
        self._modes_file = core.table_file("messageRequestMode")
        self.parts = Deferred(self._make)
        """What is in flight, and what handles the requests: made for the first one, or if the store
        has records of pops."""
        self._loads = FailureLog(
            log,
            fails="cannot read check points, retrying",
            works="check points are read",
            name="topic",
        )
        self._copies = FailureLog(
            log,
            fails="cannot copy request modes, retrying",
            works="copying request modes works again",
            name="master",
        )

    def _make(self) -> PopParts:
        from cometmq.broker.pop.parts import PopParts

        parts = PopParts(
            self._core,
            self._durability,
            self._arrivals,
            self._access,
            self._name_servers,
            queues=self._revive_queues,
            orders_file=self._orders_file,
            modes_file=self._modes_file,
        )
        parts.check_points.store_host = self._store_host
        if self._is_ending:
            parts.held.close()
            parts.reviver.close()
        return parts

    def figures(self) -> PopFigures:
        """Return the figures of all groups."""
        parts = self.parts.made()
        if parts is None:
            return PopFigures()
        points, reviver = parts.check_points.points, parts.reviver
        now_ms, oldest_ms = self._core.clock.now_ms(), parts.check_points.oldest_pop_ms()
        return PopFigures(
            check_points=len(points),
            in_flight=points.in_flight,
            held=len(parts.held),
            late_ms=reviver.late_ms,
            acknowledged=parts.acks.acked,
            revived=reviver.revived,
            dropped=reviver.dropped,
            check_points_max=parts.settings().pop_check_points_max,
            oldest_ms=0 if oldest_ms is None else max(now_ms - oldest_ms, 0),
            behind_ms=reviver.behind_ms(now_ms),
            mixed=parts.pops.mixed.found(now_ms),
        )

    def in_flight(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many messages of a queue a group has popped and not acknowledged."""
        parts = self.parts.made()
        queue = None if parts is None else parts.check_points.points.queue(group, topic, queue_id)
        return 0 if queue is None else queue.in_flight

    def retry_topics_of(self, topic: str) -> list[str]:
        """Return the retry topics that are deleted with a topic.

        One that another group or topic may use as well stays.
        """
        from cometmq.broker.pop.config import PopSettings
        from cometmq.broker.pop.receipts import retry_topic_of

        core = self._core
        settings = core.configuration.reader_of(PopSettings)()
        if not settings.clear_retry_topic_when_delete_topic or topic.startswith(RETRY_PREFIX):
            return []

        def is_of_others(name: str, owner: tuple[str, str]) -> bool:
            if core.groups.get(name.removeprefix(RETRY_PREFIX)) is not None:
                return True
            return any(
                core.groups.get(group) is not None and of in core.topics
                for group, of in poppers_of(name)
                if (group, of) != owner
            )

        return [
            name
            for group in core.offsets.groups_of(topic)
            for second in (False, True)
            if (name := retry_topic_of(group, topic, is_second_form=second)) in core.topics
            and not is_of_others(name, (group, topic))
        ]

    async def forget_topic(self, topic: str) -> None:
        """Drop what belongs to a topic that was deleted: nothing of it is redelivered."""
        if self.parts.made() or self._has_records():
            await self.parts.get().forget(topic=topic)

    async def forget_group(self, group: str) -> None:
        """Drop what belongs to a group that was deleted."""
        if (parts := self.parts.made()) is not None:
            await parts.forget(group=group)

    def _has_records(self) -> bool:
        """Return whether the log has, or may have, check points or acknowledgements."""
        store = self._core.store
        return bool(
            store.dispatch_backlog_bytes
            or any(store.next_offset(self._topic, queue) for queue in range(self._revive_queues()))
        )

    def _revive_queues(self) -> int:
        """Return the number of queues of the revive topic, by settings, topic and store.

        The setting may have been larger before, here or at the master whose log this broker has.
        """
        core, topic = self._core, self._topic
        config = core.topics.get(topic)
        wanted = core.configuration[PopSettings].revive_queue_num
        count = wanted if config is None else max(wanted, config.write_queue_nums)
        more = (
            queue
            for queue in range(count, REVIVE_QUEUES_MAX)
            if core.store.next_offset(topic, queue)
        )
        return max(more, default=count - 1) + 1

    async def start(self) -> None:
        """Read the files, if there are any."""
        if any(file.load() is not None for file in (self._orders_file, self._modes_file)):
            self.parts.get()

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of pops, acknowledgements and assignments; only the main port pops."""
        self._store_host = endpoint.store_host
        parts = self.parts
        if (made := parts.made()) is not None:
            made.check_points.store_host = endpoint.store_host
        of_master: Routes = {
            RequestCode.POP_MESSAGE: parts.handler(lambda p: p.pops.pop),
            RequestCode.NOTIFICATION: parts.handler(lambda p: p.notifications.notify),
            RequestCode.ACK_MESSAGE: parts.handler(lambda p: p.acks.ack),
            RequestCode.BATCH_ACK_MESSAGE: parts.handler(lambda p: p.acks.ack_batch),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: parts.handler(lambda p: p.acks.change),
        }
        if (forwarding := self._forwarding) is not None:
            of_master = {
                code: forwarding.wrap(handler, unreached=handler, held_s=_poll_s)
                for code, handler in of_master.items()
            }
        return Feature(
            {
                **of_master,
                RequestCode.PEEK_MESSAGE: parts.handler(lambda p: p.pops.peek),
                RequestCode.POLLING_INFO: parts.handler(lambda p: p.notifications.info),
                RequestCode.QUERY_ASSIGNMENT: parts.handler(lambda p: p.assignment.query),
                RequestCode.SET_MESSAGE_REQUEST_MODE: parts.exclusive(
                    lambda p: p.assignment.set_mode
                ),
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: parts.exclusive(
                    lambda p: p.assignment.all_modes
                ),
                # Moves check points into the log, where RocketMQ has kept them in a database.
                RequestCode.POP_ROLLBACK: lambda request: Response(),
            },
            [
                every(MAINTAIN_S, self._maintain, "maintain-check-points"),
                Job("save-ordered-pops", lambda: ORDERS_S, self._save_orders, blocking=True),
                every(DROP_S, self._drop_unused, "drop-unused-pops"),
                every(COPY_MODES_S, self._copy_modes, "copy-request-modes", first_s=1.0),
            ],
        )

    async def begin(self, endpoint: Endpoint) -> None:
        """Read what is in flight, and redeliver it when it is due."""
        if not self._core.role.is_slave and self._has_records():
            self._tasks.spawn(self._load(), "load-check-points")

    def role_changed(self) -> None:
        """Forget what is in flight: a new master reads it from its log."""
        self._unload()

    async def take_over(self) -> None:
        """Read what is in flight."""
        if self._has_records():
            await self._load()

    async def _load(self) -> None:
        while not self._core.role.is_slave:
            try:
                points = self.parts.get().check_points
                if not points.is_loaded:
                    await points.load()
            except CometError as problem:
                self._loads.failed(self._topic, problem)
                await asyncio.sleep(LOAD_RETRY_S)
            else:
                self._loads.succeeded(self._topic)
                break

    def before_truncation(self, log_end: int) -> None:
        """Forget what is in flight: its newest records may be truncated.

        Raises:
            StoreError: committed offsets cannot be written.
        """
        self._unload()
        if self._has_records() and self.parts.get().check_points.take_back(log_end):
            self._core.persist_offsets()

    def _unload(self) -> None:
        if (parts := self.parts.made()) is not None:
            parts.check_points.unload()

    def connection_closed(self, connection: Connection) -> None:
        """Drop the held pops of the connection."""
        if (parts := self.parts.made()) is not None:
            parts.held.connection_closed(connection)

    # --- jobs -----------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        if self._core.role.is_slave or not (self.parts.made() or self._has_records()):
            return
        await self._load()
        if (parts := self.parts.made()) is None or self._core.role.is_slave:
            return
        points = parts.check_points
        await points.follow_clock()
        await points.read_new()
        await points.maintain()

    def _save_orders(self) -> None:
        if (parts := self.parts.made()) is not None:
            parts.orders.save()

    async def _drop_unused(self) -> None:
        parts = self.parts.made()
        if parts is None:
            return
        topics, groups = self._core.topics, self._core.groups

        def queues(topic: str, group: str) -> int:
            config = topics.get(topic)
            return 0 if config is None or groups.get(group) is None else config.read_queue_nums

        await parts.orders.drop_unused(queues)
        await parts.held.forget_unused()

    async def _copy_modes(self) -> None:
        """Copy the request modes of the master of a slave."""
        role = self._core.role
        master = role.master_address
        if not role.is_slave or not master:
            return
        from cometmq.protocol.bodies.pop import MessageRequestModeSerializeWrapper

        try:
            code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
            response = await self._core.client.call(master, code, timeout=COPY_TIMEOUT_S)
            body = await decode(MessageRequestModeSerializeWrapper, check(response).body)
            table = body.message_request_mode_map
            if role.is_slave and role.master_address == master and (table or self.parts.made()):
                await self.parts.get().modes.copy(table)
        except CometError as problem:
            self._copies.failed(master, problem)
        else:
            self._copies.succeeded(master)

    # --- the end --------------------------------------------------------------------------------

    async def end(self) -> None:
        """Respond to the held pops, and revive nothing any more."""
        self._is_ending = True
        if (parts := self.parts.made()) is not None:
            parts.held.close()
        await self._tasks.cancel()
        if (parts := self.parts.made()) is not None:  # a request may have made them meanwhile
            await parts.reviver.stop()
            await parts.pops.stop()

    async def close(self) -> None:
        """End the acknowledgements and the last pops that wait for the disk."""
        if (parts := self.parts.made()) is not None:
            await parts.acks.stop()
            await parts.pops.stop()

    def save(self) -> None:
        """Write the ordered pops, and where the records begin that count."""
        try:
            if (parts := self.parts.made()) is not None:
                if parts.check_points.is_loaded:
                    parts.check_points.commit_base()
                parts.orders.save()
        finally:
            self._orders_file.close()
            self._modes_file.close()


def _poll_s(request: Request) -> float:
    """Return for how long a request may be held."""
    from cometmq.broker.pop.held_pops import POLL_MS_MAX

    poll_ms = number_of(request.command.fields.get("pollTime", "").encode()) or 0
    return min(max(poll_ms, 0), POLL_MS_MAX) / 1000
